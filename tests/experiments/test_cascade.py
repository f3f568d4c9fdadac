"""Prune, retrain, evaluate: every state is on the disk, and an interrupted run ends with the same files."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import secateur as sc
from secateur.experiments import recipe as recipes
from secateur.experiments.cascade import (
    Parts,
    calibration,
    evaluation_batch,
    lacks_original,
    load_original,
    prune_and_retrain,
    steps_left,
    train_original,
)
from secateur.storage.checkpoint import read_plan
from secateur.storage.files import read_json
from support.small_runs import fingerprints, write_digits, write_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


def run(folder: Path, data: Path, changes: str = "") -> recipes.Recipe:
    folder.mkdir(exist_ok=True)
    recipe = recipes.read(write_recipe(folder, changes))
    parts = Parts.of(recipe, data)
    train_original(recipe, 0, folder, parts)
    prune_and_retrain(recipe, 0, "pfp", folder, parts)
    return recipe


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(folder, data)
    return folder


def record(folder: Path, step: int) -> dict[str, float]:
    return json.loads((folder / f"network-0/pfp/step-{step:02}.json").read_text())


def test_records_and_files_agree(finished: Path, data: Path) -> None:
    recipe = recipes.read(finished / "small.yaml")
    original = load_original(recipe, 0, finished)
    before = sc.cost(original, torch.zeros(1, 1, 28, 28))
    for step, target in ((1, 0.4), (2, 0.7)):
        found = record(finished, step)
        small = sc.load(finished / f"network-0/pfp/step-{step:02}.safetensors", original)
        assert found["params"] == sc.cost(small, torch.zeros(1, 1, 28, 28)).params <= (1 - target) * before.params
        assert found["params_removed"] == pytest.approx(1 - found["params"] / before.params)
        assert set(found["pruned"]) == set(found["retrained"]) == {"validation", "test"}
        images, labels = Parts.of(recipe, data).test.images, Parts.of(recipe, data).test.targets
        with torch.no_grad():
            right = (small.eval()((images.float() / 255 - 0.1307) / 0.3081).argmax(1) == labels).float().mean()
        assert float(right) == pytest.approx(found["retrained"]["test"]["top1"])
    left = {path.name for path in finished.rglob("*.state")} | {path.name for path in finished.rglob("*.tmp")}
    assert not left


def test_each_step_of_a_cascade_starts_from_the_last_one(finished: Path) -> None:
    first, second = (read_plan(finished / f"network-0/pfp/step-{step:02}.safetensors") for step in (1, 2))
    kept = {group.name: set(group.kept) for group in first.groups}
    for group in second.groups:
        assert set(group.kept) <= kept.get(group.name, set(range(group.size)))


def test_one_shot_starts_from_the_original_each_time(data: Path, tmp_path: Path, finished: Path) -> None:
    run(tmp_path, data, "cascade: false\n")
    assert record(tmp_path, 1)["retrained"] == record(finished, 1)["retrained"]
    assert record(tmp_path, 2)["retrained"] != record(finished, 2)["retrained"]


def test_finished_steps_are_not_repeated(finished: Path, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}
    recipe = recipes.read(finished / "small.yaml")
    parts = Parts.of(recipe, data)
    train_original(recipe, 0, finished, parts)
    prune_and_retrain(recipe, 0, "pfp", finished, parts)
    assert before == {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}


def test_a_target_out_of_reach_ends_the_cascade(data: Path, tmp_path: Path) -> None:
    run(tmp_path, data, "targets: [0.5, 0.9999, 0.99999]\nretrain: {epochs: 0}\n")
    assert "the budget cannot be met" in str(record(tmp_path, 2)["stopped"])
    assert not (tmp_path / "network-0/pfp/step-03.json").exists()
    assert record(tmp_path, 1)["pruned"] == record(tmp_path, 1)["retrained"]


def test_weights_replace_training(data: Path, finished: Path, tmp_path: Path) -> None:
    source = finished / "network-0/original.safetensors"
    root = tmp_path / "data"
    shutil.copytree(data, root)
    shutil.copy(source, root / "trained.safetensors")
    run(tmp_path / "run", root, "weights: trained.safetensors\n")
    assert not list(tmp_path.rglob("original.jsonl"))  # which training writes
    ours, trained = (read_json(path / "network-0/original.json") for path in (tmp_path / "run", finished))
    assert ours["test"] == trained["test"] and ours["validation"] == trained["validation"]
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert ours["weights"] == {"file": "trained.safetensors", "sha256": digest}
    assert ours["protocol"]["original"] == "weights trained.safetensors" != trained["protocol"]["original"]
    assert record(tmp_path / "run", 1)["retrained"] == record(finished, 1)["retrained"]


def test_weights_need_the_normalisation_that_they_were_trained_with(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = recipes.read(write_recipe(tmp_path, "normalise: {mean: [0.5], std: [0.25]}\n"))
    plain, scaled = (Parts.of(one, data) for one in (recipes.read(finished / "small.yaml"), recipe))
    for part in ("train", "validation", "test"):
        one, other = (getattr(parts, part).inputs(torch.arange(8)) for parts in (plain, scaled))
        assert torch.allclose(other * 0.25 + 0.5, one * 0.3081 + 0.1307, atol=1e-6) and not torch.allclose(one, other)


def test_validation_on_half_of_the_test_data(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = recipes.read(write_recipe(tmp_path, "validation: test\n"))
    plain, halves = (Parts.of(one, data) for one in (recipes.read(finished / "small.yaml"), recipe))
    assert len(halves.validation) == len(halves.test) == len(plain.test) // 2
    together = torch.cat([halves.validation.images, halves.test.images]).flatten(1)
    assert torch.equal(together.unique(dim=0), plain.test.images.flatten(1).unique(dim=0))
    assert torch.equal(halves.train.images, plain.train.images)


def test_missing_weights_are_an_error(data: Path, tmp_path: Path) -> None:
    recipe = recipes.read(write_recipe(tmp_path, "weights: none.pt\n"))
    with pytest.raises(sc.SecateurError, match=r"no weights none\.pt"):
        Parts.of(recipe, data)


def test_calibration_samples_depend_on_the_seed(data: Path, finished: Path) -> None:
    train = Parts.of(recipes.read(finished / "small.yaml"), data).train
    one, same, other = (torch.cat([x for x, _ in calibration(train, 20, seed, batch=8)]) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other) and one.shape == (20, 1, 28, 28)


def test_a_damaged_original_is_an_error(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "network-0").mkdir()
    (tmp_path / "network-0/original.safetensors").write_bytes(b"short")
    with pytest.raises(sc.SecateurError, match="cannot be loaded"):
        load_original(recipes.read(finished / "small.yaml"), 0, tmp_path)


def test_a_killed_run_ends_with_the_same_files(finished: Path, data: Path, tmp_path: Path) -> None:
    """Here 2 kills; benchmarks/killed_sweep.py does 20 and more."""
    code = (
        "import sys, torch; from pathlib import Path; from test_cascade import run\n"
        "torch.set_num_threads(1); run(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", code, str(tmp_path), str(data)]
    pick, kills = random.Random(0), 0
    while kills < 2:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})
        marks = len(list(tmp_path.rglob("*")))
        while process.poll() is None and len(list(tmp_path.rglob("*"))) == marks:
            time.sleep(0.01)  # until it does something
        time.sleep(pick.random() * 1.0)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True, timeout=300)
    assert fingerprints(tmp_path) == fingerprints(finished)


@pytest.mark.parametrize("cascade", ["true", "false"])
def test_retraining_with_the_original_as_teacher_and_recovery(
    data: Path, finished: Path, tmp_path: Path, cascade: str
) -> None:
    shutil.copytree(finished / "network-0", tmp_path / "run/network-0", ignore=shutil.ignore_patterns("step-*"))
    run(
        tmp_path / "run",
        data,
        f"cascade: {cascade}\nretrain: {{teacher: original, epochs: 1}}\nrecover: {{steps: 4}}\n",
    )
    for step in (1, 2):
        found = record(tmp_path / "run", step)
        assert found["recovered"]["test"]["samples"] == found["retrained"]["test"]["samples"] == 128
        assert found["retrained"] != record(finished, step)["retrained"]
    original = load_original(recipes.read(finished / "small.yaml"), 0, finished)
    sc.load(tmp_path / "run/network-0/pfp/step-02.safetensors", original)


def test_a_miniature_uses_a_part_of_the_data(data: Path, tmp_path: Path) -> None:
    recipe = recipes.read(write_recipe(tmp_path, "images: 20"))
    parts = Parts.of(recipe, data)
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [20, 20, 20]
    again = Parts.of(recipe, data)
    assert torch.equal(parts.test.targets, again.test.targets)
    whole = Parts.of(recipes.read(write_recipe(tmp_path, "images: 10_000_000")), data)
    assert len(whole.train) > 20


def test_large_images_are_evaluated_in_small_batches(data: Path, tmp_path: Path) -> None:
    parts = Parts.of(recipes.read(write_recipe(tmp_path)), data)
    assert evaluation_batch(parts.test) == 512
    for size, batch in ((32, 512), (224, 39), (4000, 16)):
        images = torch.zeros(1, 3, 1, 1, dtype=torch.uint8).expand(1, 3, size, size)
        assert evaluation_batch(replace(parts.test, images=images)) == batch


def test_a_network_that_is_not_retrained_is_evaluated_once(data: Path, tmp_path: Path) -> None:
    run(tmp_path, data, "retrain: {epochs: 0}")
    for step in (1, 2):
        found = record(tmp_path, step)
        assert found["retrained"] == found["pruned"]


def without_networks(finished: Path, folder: Path) -> Path:
    """Copy the records of a run, as if they had been stored elsewhere."""
    return shutil.copytree(finished, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.jsonl"))


def test_finished_records_need_no_networks(finished: Path, data: Path, tmp_path: Path) -> None:
    folder = without_networks(finished, tmp_path / "run")
    before = fingerprints(folder)
    recipe = run(folder, data)
    assert fingerprints(folder) == before and not list(folder.rglob("*.safetensors"))
    assert not lacks_original(recipe, 0, folder) and steps_left(recipe, 0, "pfp", folder) == 0


@pytest.mark.parametrize("cascade", [False, True])
def test_records_without_networks_are_completed(cascade: bool, finished: Path, data: Path, tmp_path: Path) -> None:
    """In one shot only the missing step is run; a cascade needs the network of the step before, and starts again."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    changes = f"cascade: {str(cascade).lower()}\n"
    recipe = run(whole, data, changes) if not cascade else run(whole, data)
    without_networks(whole, folder)
    (folder / "network-0/pfp/step-02.json").unlink()
    first = folder / "network-0/pfp/step-01.json"
    stamp = first.stat().st_mtime_ns
    assert lacks_original(recipe, 0, folder) and steps_left(recipe, 0, "pfp", folder) == 1 + cascade
    run(folder, data, changes if not cascade else "")
    assert (first.stat().st_mtime_ns == stamp) == (not cascade)
    assert record(folder, 2) == record(whole, 2) and steps_left(recipe, 0, "pfp", folder) == 0
