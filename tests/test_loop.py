"""Prune, retrain, evaluate: every state on the disk, and the same end after any interruption."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_runs import write_digits, write_recipe

import secateur as sc
from secateur import recipe as recipes
from secateur.checkpoint import read_plan
from secateur.loop import Parts, calibration, load_original, prune_and_retrain, train_original


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


def test_what_is_written_down(finished: Path, data: Path) -> None:
    recipe = recipes.read(finished / "small.yaml")
    original = load_original(recipe, 0, finished)
    whole = sc.cost(original, torch.zeros(1, 1, 28, 28))
    for step, target in ((1, 0.4), (2, 0.7)):
        found = record(finished, step)
        small = sc.load(finished / f"network-0/pfp/step-{step:02}.safetensors", original)
        assert found["params"] == sc.cost(small, torch.zeros(1, 1, 28, 28)).params <= (1 - target) * whole.params
        assert found["params_removed"] == pytest.approx(1 - found["params"] / whole.params)
        assert set(found["pruned"]) == set(found["retrained"]) == {"validation", "test"}
        images, labels = Parts.of(recipe, data).test.images, Parts.of(recipe, data).test.targets
        with torch.no_grad():
            right = (small.eval()((images.float() / 255 - 0.1307) / 0.3081).argmax(1) == labels).float().mean()
        assert float(right) == pytest.approx(found["retrained"]["test"]["top1"])
    left = {path.name for path in finished.rglob("*.state")} | {path.name for path in finished.rglob("*.tmp")}
    assert not left


def test_a_cascade_goes_on_from_the_network_before(finished: Path) -> None:
    first, second = (read_plan(finished / f"network-0/pfp/step-{step:02}.safetensors") for step in (1, 2))
    kept = {group.name: set(group.kept) for group in first.groups}
    for group in second.groups:
        assert set(group.kept) <= kept.get(group.name, set(range(group.size)))


def test_one_shot_starts_from_the_original_each_time(data: Path, tmp_path: Path, finished: Path) -> None:
    run(tmp_path, data, "cascade: false\n")
    assert record(tmp_path, 1) == record(finished, 1)
    assert record(tmp_path, 2) != record(finished, 2)


def test_nothing_is_done_twice(finished: Path, data: Path) -> None:
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


def test_calibration_points_are_drawn_by_the_seed(data: Path, finished: Path) -> None:
    train = Parts.of(recipes.read(finished / "small.yaml"), data).train
    one, same, other = (torch.cat([x for x, _ in calibration(train, 20, seed, batch=8)]) for seed in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other) and one.shape == (20, 1, 28, 28)


def test_a_damaged_original_is_said(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "network-0").mkdir()
    (tmp_path / "network-0/original.safetensors").write_bytes(b"short")
    with pytest.raises(sc.SecateurError, match="cannot be loaded"):
        load_original(recipes.read(finished / "small.yaml"), 0, tmp_path)


def fingerprints(folder: Path) -> dict[str, str]:
    """Of every file that a result is made of; logs tell the time and differ."""
    files = [path for path in (folder / "network-0").rglob("*") if path.suffix in (".json", ".safetensors")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_killed_at_any_moment_it_ends_the_same(finished: Path, data: Path, tmp_path: Path) -> None:
    """Here 2 kills; benchmarks/killed_sweep.py does 20 and more."""
    code = (
        "import sys, torch; from pathlib import Path; from test_loop import run\n"
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
