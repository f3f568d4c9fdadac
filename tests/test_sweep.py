"""Sweeps: all networks and methods, on processes or on Ray, workers lost or not."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from small_runs import write_digits, write_recipe
from test_loop import fingerprints

from secateur import recipe as recipes
from secateur.errors import SecateurError, UsageError
from secateur.recipe import Recipe
from secateur.sweep import Task, prepare, sweep

module = sys.modules["secateur.sweep"]  # secateur.sweep itself is the function


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


def small(folder: Path, changes: str = "") -> Recipe:
    folder.mkdir(exist_ok=True, parents=True)
    return recipes.read(write_recipe(folder, "train: {epochs: 1}\nretrain: {epochs: 1}\nnetworks: 2\n" + changes))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return sweep(small(folder / "recipe"), folder / "run", data_root=data)
    finally:
        torch.set_num_threads(before)


def test_every_network_is_trained_and_pruned(finished: Path) -> None:
    files = {str(path.relative_to(finished)) for path in finished.rglob("*.json")}
    assert files == {
        "recipe.json",
        *(f"network-{n}/original.json" for n in (0, 1)),
        *(f"network-{n}/pfp/step-{step:02}.json" for n in (0, 1) for step in (1, 2)),
    }


def test_networks_differ_by_their_seed(finished: Path) -> None:
    one, other = ((finished / f"network-{n}/original.safetensors").read_bytes() for n in (0, 1))
    assert one != other


def test_finished_tasks_are_named(data: Path, finished: Path) -> None:
    names: list[str] = []
    recipe = small(finished.parent / "recipe")
    sweep(recipe, finished, resume=True, data_root=data, done=names.append)
    assert names == ["network 0, training", "network 1, training", "network 0, pfp", "network 1, pfp"]


def test_a_folder_in_use_is_refused_or_resumed(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = small(tmp_path)
    with pytest.raises(UsageError, match="--resume"):
        sweep(recipe, finished, data_root=data)
    with pytest.raises(UsageError, match="other settings"):
        sweep(small(tmp_path, "seed: 5\n"), finished, resume=True, data_root=data)
    prepare(recipe, finished, resume=True)


def test_missing_data_is_said_before_any_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_on_processes", lambda *_: pytest.fail("a worker started"))
    recipe = small(tmp_path, "data: driving\n")
    with pytest.raises(SecateurError, match="driving"):
        sweep(recipe, tmp_path / "run", jobs=2, data_root=tmp_path)


def test_two_processes_give_the_same(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    folder = sweep(small(tmp_path), tmp_path / "run", jobs=2, data_root=data)
    assert fingerprints(folder) == fingerprints(finished)


class Fragile(Task):
    """A task whose worker dies when it is first tried."""

    def run(self, threads: int, progress: bool = False) -> str:
        mark = self.folder / f"died-{self.network}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(threads, progress)


def test_the_task_of_a_lost_worker_is_run_again(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = small(tmp_path)
    prepare(recipe, tmp_path / "run", resume=False)
    names: list[str] = []
    module._on_processes([Fragile(recipe, 0, None, tmp_path / "run", data)], 1, names.append)
    assert names == ["network 0, training"] and (tmp_path / "run/network-0/original.json").exists()


class Doomed(Task):
    """A task that no worker survives."""

    def run(self, threads: int, progress: bool = False) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def test_a_task_that_no_worker_survives_is_given_up(tmp_path: Path) -> None:
    task = Doomed(small(tmp_path), 0, None, tmp_path, None)
    with pytest.raises(SecateurError, match=r"died 3 times, last in network 0, training"):
        module._on_processes([task], 1, lambda name: None)


def test_an_error_in_a_worker_reaches_the_user(tmp_path: Path, data: Path) -> None:
    recipe = small(tmp_path, "network: zoo:resnet20\n")  # three channels, where the digits have one
    with pytest.raises(Exception, match="channels"):
        sweep(recipe, tmp_path / "run", jobs=2, data_root=data)


def test_a_missing_ray_is_said(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray does is in benchmarks/ray_sweep.py: it takes a minute to start and to stop."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SecateurError, match="Ray is not installed"):
        sweep(small(tmp_path), tmp_path / "run", engine="ray", data_root=data)
