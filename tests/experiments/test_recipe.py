"""Recipes of the paper, shortened ones, and mistakes reported with their line."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from fuzz_recipes import try_recipe
from secateur.errors import UsageError
from secateur.experiments.protocol import protocol
from secateur.experiments.recipe import Schedule, names, read
from secateur.pruning.settings import PruneSettings
from secateur.training.settings import Training
from secateur.zoo.names import build

PAPER = {  # epochs, learning rate, batch, delta, alpha
    "lenet300100": (40, 0.01, 64, 1e-12, None),
    "lenet5": (40, 0.01, 64, 1e-12, 1.18),
    "vgg16": (300, 0.05, 256, 1e-16, 1.5),
    "resnet20": (182, 0.1, 128, 1e-16, 0.5),
    "resnet56": (182, 0.1, 128, 1e-16, 0.79),
    "resnet110": (182, 0.1, 128, 1e-16, 0.79),
    "densenet22": (300, 0.1, 64, 1e-16, 0.4),
    "wrn16-8": (200, 0.1, 128, 1e-16, 0.36),
    "resnet18-imagenet": (90, 0.1, 256, 1e-16, 0.43),
    "resnet50-imagenet": (90, 0.1, 256, 1e-16, 0.5),
    "resnet101-imagenet": (90, 0.1, 256, 1e-16, 0.5),
    "deepknight": (100, 1e-4, 32, 1e-32, None),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_settings_of_the_paper(name: str) -> None:
    recipe = read(name)
    epochs, rate, batch, delta, alpha = PAPER[name]
    assert (recipe.train.epochs, recipe.train.lr, recipe.batch, recipe.prune.delta) == (epochs, rate, batch, delta)
    if alpha is None:
        assert not recipe.cascade
    else:
        assert isinstance(recipe.targets, Schedule) and recipe.targets.alpha == alpha
    assert recipe.name == name and recipe.about and len(recipe.ratios) >= 5


def test_every_packaged_recipe_can_be_read() -> None:
    assert set(PAPER) < set(names())
    for name in names():
        recipe = read(name)
        assert bool(recipe.differs) == (name not in PAPER and name != "mobilenetv2-imagenet-prune-only")
        if recipe.network.startswith("zoo:"):
            build(recipe.network)


def test_retraining_starts_from_training() -> None:
    recipe = read("vgg16")
    assert recipe.retrain.epochs == 150 and recipe.retrain.step_every == 30 and recipe.retrain.weight_decay == 5e-4
    resnet = read("resnet20")
    assert vars(resnet.retrain) == vars(resnet.train) | {"teacher": None}


def test_a_shortened_recipe_keeps_the_other_settings() -> None:
    full, quick = read("lenet5"), read("lenet5-quick")
    assert quick.train.epochs < full.train.epochs and quick.train.lr == full.train.lr
    assert quick.prune == full.prune and quick.network == full.network and quick.networks == 1


def test_assignments_override_the_recipe() -> None:
    recipe = read("lenet5-quick", ["train.epochs=7", "retrain.epochs=2", "prune.select=pivotal", "targets=[0.3, 0.6]"])
    assert (recipe.train.epochs, recipe.retrain.epochs, recipe.ratios) == (7, 2, (0.3, 0.6))
    assert recipe.prune == PruneSettings(method="pfp", select="pivotal", delta=1e-12)


def test_a_file_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: lenet5\ndiffers: another batch\nname: mine\nbatch: 32\n")
    assert read(path).batch == 32 and read(str(path)).train == read("lenet5").train
    (tmp_path / "other.yaml").write_text("extends: mine\ndiffers: a seed\nseed: 5\n")
    assert read(tmp_path / "other.yaml").seed == 5


BASE = "name: x\nnetwork: zoo:lenet5\ndata: mnist\ntrain: {epochs: 1}\n"


@pytest.mark.parametrize(
    ("text", "where", "cause"),
    [
        (BASE + "targets: [0.5]\nbach: 3\n", "a.yaml:6", "no setting 'bach'"),
        (BASE + "targets: [0.5]\nbatch: 0\n", "a.yaml:6", "batch is 0"),
        (BASE + "targets: [0.5, 0.4]\n", "a.yaml:5", "targets is"),
        (BASE + "targets: {kind: linear, steps: 3}\n", "a.yaml:5", "kind is 'linear'"),
        (BASE + "targets: [0.5]\nmethods: [magic]\n", "a.yaml:6", "methods has 'magic'"),
        (BASE + "targets: [0.5]\nmethods: [ft:rand]\n", "a.yaml:6", "methods has 'ft:rand'"),
        (BASE + "targets: [0.5]\nmethods: [residual, residual+repair, ft]\n", "a.yaml:6", "which are the same"),
        (BASE + "targets: [0.5]\nmethods: [pfp, 'pfp:derand']\n", "a.yaml:6", "which are the same"),
        (BASE + "targets: [0.5]\nretrain: {epochs: -1}\n", "a.yaml:6", "epochs is -1"),
        (BASE + "targets: [0.5]\nresource: flops\n", "a.yaml:6", "resource is 'flops'"),
        (BASE + "targets: [0.5]\nprune: {samples: 0}\n", "a.yaml:6", "samples is 0"),
        (BASE + "targets: [0.5]\nprune: {method: ft}\n", "a.yaml:6", "prune has its own method"),
        (BASE + "targets: [0.5]\nprune: {seed: 3}\n", "a.yaml:6", "prune has its own seed"),
        (BASE, "a.yaml:1", "targets is missing"),
        (BASE + "targets: [0.5]\nextends: lenet5\n", "a.yaml:6", "extends another recipe"),
        ("extends: nothing\ndiffers: x\n", "a.yaml:1", "no recipe 'nothing'"),
        ("extends: a\ndiffers: x\n", "a.yaml:1", "in a circle"),
        ("- 1\n", "a.yaml:1", "expected a mapping"),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, text: str, where: str, cause: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "a.yaml")
    assert caught.value.layer == where and cause in caught.value.cause


def test_deprecated_keys_of_prune_work_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(BASE + "targets: [0.5]\nprune: {points: 64, resource: macs, select: rand}\n")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recipe = read(path)
    assert (recipe.prune.samples, recipe.resource, recipe.prune.select) == (64, "macs", "rand")
    assert all(one.category is DeprecationWarning and one.filename == __file__ for one in caught)
    texts = [str(one.message) for one in caught]
    assert texts[0].startswith("a.yaml:6: prune.points is deprecated") and texts[0].endswith("use prune.samples")
    assert texts[1].startswith("a.yaml:6: prune.resource is deprecated") and texts[1].endswith("use resource")
    path.write_text(BASE + "targets: [0.5]\nresource: macs\nprune: {samples: 64, select: rand}\n")
    assert read(path).to_json() == recipe.to_json()  # without a warning
    with pytest.deprecated_call(match="--set prune.points"):
        assert read("lenet5", ["prune.points=32"]).prune.samples == 32


def test_methods_have_options_of_their_own() -> None:
    recipe = read("lenet5", ["methods=[pfp, 'pfp:rand', 'pfp~mean@uniform', ft+repair, residual-repair]"])
    assert recipe.settings("pfp") == PruneSettings(method="pfp", select="derand", delta=1e-12)
    assert recipe.settings("pfp:rand") == PruneSettings(method="pfp", select="rand", delta=1e-12)
    mean = recipe.settings("pfp~mean@uniform")
    assert (mean.sensitivity, mean.allocation, mean.select) == ("mean", "uniform", "derand")
    assert recipe.settings("ft+repair").repaired and not recipe.settings("residual-repair").repaired
    assert read("lenet5", ["prune.repair=true"]).settings("ft").repaired  # for all methods that do not say


def test_an_unknown_recipe() -> None:
    with pytest.raises(UsageError, match="did you mean lenet5"):
        read("lenet-5")


def test_different_recipes_have_different_json() -> None:
    assert read("lenet5").to_json() == read("lenet5").to_json() != read("lenet5", ["seed=1"]).to_json()
    assert isinstance(read("lenet5").train, Training)


def test_mutated_recipes_are_valid_or_refused(tmp_path: Path) -> None:
    """150 mutations; benchmarks/fuzz_recipes.py makes 10,000."""
    outcomes = [try_recipe(seed, tmp_path) for seed in range(150)]
    assert not [one for one in outcomes if one.failed]
    assert {one.outcome for one in outcomes} == {"valid", "refused"}


def test_retraining_with_a_teacher_and_a_schedule_of_its_own(tmp_path: Path) -> None:
    """Steps are inherited only by a schedule of steps, and steps of its own make a schedule of steps."""

    def retrain(train: str, text: str) -> Any:
        path = tmp_path / "own.yaml"
        path.write_text(f"name: own\nnetwork: zoo:lenet5\ndata: mnist\ntargets: [0.5]\ntrain: {train}\n{text}")
        return read(path).retrain

    steps = "{epochs: 9, lr: 0.1, milestones: [3, 6]}"
    found = retrain(steps, "retrain: {teacher: original, schedule: onecycle, epochs: 4}\n")
    assert (found.teacher, found.schedule, found.milestones, found.lr) == ("original", "onecycle", (), 0.1)
    assert retrain(steps, "").milestones == (3, 6) and retrain(steps, "").teacher is None
    assert retrain(steps, "retrain: {teacher: original}\n").schedule == "steps"
    assert retrain("{epochs: 9}", "retrain: {milestones: [2]}\n").schedule == "steps"
    with pytest.raises(UsageError, match="teacher is 'nobody'"):
        retrain(steps, "retrain: {teacher: nobody}\n")


def test_recovery_in_a_recipe(tmp_path: Path) -> None:
    recipe = read("lenet5-quick", ["recover={steps: 20, minutes: 2}"])
    assert recipe.recover and (recipe.recover.steps, recipe.recover.minutes) == (20, 2.0)
    assert read("lenet5-quick").recover is None
    with pytest.raises(UsageError, match="steps is 0"):
        read("lenet5-quick", ["recover={steps: 0}"])
    words = protocol(read("lenet5-quick", ["recover={steps: 20}", "retrain.teacher=original"]), "pfp")
    assert "recovered with 20 gradient steps" in words["pruned"] and words["retrained"].endswith("original as teacher")


def test_a_stored_recipe_of_an_older_version_is_the_same() -> None:
    recipe = read("lenet5")
    stored = json.loads(recipe.to_json())
    for part in ("train", "retrain"):
        for name in ("schedule", "total_epochs", "ema", "norm_batches", "temperature", "teacher_weight"):
            del stored[part][name]
    del stored["recover"], stored["retrain"]["teacher"]
    assert recipe.differences(stored) == []


def test_changed_settings_are_part_of_how_a_recipe_differs() -> None:
    plain = read("lenet5-quick")
    assert read("lenet5-quick", ["name=mine"]).differs == plain.differs
    changed = read("lenet5-quick", ["train.epochs=1", "batch=32"]).differs
    assert changed == f"changed by train.epochs=1, batch=32; apart from that: {plain.differs}"
    assert read("lenet5", ["seed=1"]).differs == "changed by seed=1"
    assert read("lenet5", ["networks=1", "methods=[ft]"]).differs == ""  # the runs are the same, only fewer
    assert not read("lenet5").differs
