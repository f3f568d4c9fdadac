"""Sweeps over all networks and methods, in processes or on Ray, also when workers die."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from secateur.errors import SecateurError, UsageError
from secateur.experiments import sweep as module
from secateur.experiments.sweep import Engine, Task, prepare, sweep
from secateur.storage.files import read_json, write_json
from support.small_runs import Fragile, fingerprints, holder, small, write_digits


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


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


def test_finished_tasks_are_reported(data: Path, finished: Path) -> None:
    names: list[str] = []
    recipe = small(finished.parent / "recipe")
    sweep(recipe, finished, resume=True, data_root=data, done=names.append)
    assert names == ["network 0, training", "network 1, training", "network 0, pfp", "network 1, pfp"]


def test_a_folder_in_use_is_refused_or_resumed(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = small(tmp_path)
    with pytest.raises(UsageError, match="already a run"):
        sweep(recipe, finished, data_root=data)
    with pytest.raises(UsageError, match="other settings"):
        sweep(small(tmp_path, "seed: 5\n"), finished, resume=True, data_root=data)
    prepare(recipe, finished, resume=True)


def test_methods_and_networks_can_be_added_to_a_run(data: Path, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("step-*.json")}
    wider = small(tmp_path, "methods: ['pfp:rand', ft+repair]\n")
    sweep(replace(wider, networks=1), folder, resume=True, data_root=data)
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert {path.name for path in (folder / "network-0").iterdir() if path.is_dir()} == {"pfp", "pfp-rand", "ft+repair"}
    stored = read_json(folder / "recipe.json")
    assert (stored["methods"], stored["networks"]) == (["pfp", "pfp:rand", "ft+repair"], 2)
    sampled = read_json(folder / "network-0/pfp-rand/step-01.json")
    assert sampled["method"] == "pfp:rand" and "; rand, delta" in sampled["protocol"]["pruned"]
    repaired = read_json(folder / "network-0/ft+repair/step-01.json")
    assert "; repaired;" in repaired["protocol"]["pruned"] and repaired["method"] == "ft+repair"


def test_a_run_of_an_older_version_can_be_continued(finished: Path, tmp_path: Path) -> None:
    """Settings that did not exist yet have their defaults."""
    recipe, folder = small(tmp_path), tmp_path / "run"
    folder.mkdir()
    stored = read_json(finished / "recipe.json")
    del stored["weights"], stored["retrain"]["patience"]
    write_json(folder / "recipe.json", stored)
    prepare(recipe, folder, resume=True)
    assert read_json(folder / "recipe.json") == read_json(finished / "recipe.json")
    write_json(folder / "recipe.json", stored | {"batch": 7})
    with pytest.raises(UsageError, match="other settings: batch"):
        prepare(recipe, folder, resume=True)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_a_folder_in_which_another_process_is_at_work_is_refused(
    data: Path, finished: Path, tmp_path: Path, engine: Engine
) -> None:
    with holder(finished), pytest.raises(SecateurError, match=r"in use by process \d+ on"):
        sweep(small(tmp_path), finished, resume=True, engine=engine, data_root=data)
    assert not (sweep(small(tmp_path), finished, resume=True, data_root=data) / "run.lock").exists()


def test_missing_data_is_reported_before_any_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_on_processes", lambda *_: pytest.fail("a worker started"))
    recipe = small(tmp_path, "data: driving\n")
    with pytest.raises(SecateurError, match="driving"):
        sweep(recipe, tmp_path / "run", jobs=2, data_root=tmp_path)


def test_two_processes_give_the_same_files(
    data: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    folder = sweep(small(tmp_path), tmp_path / "run", jobs=2, data_root=data)
    assert fingerprints(folder) == fingerprints(finished)


def test_the_task_of_a_dead_worker_is_run_again(data: Path, finished: Path, tmp_path: Path) -> None:
    recipe = small(tmp_path)
    prepare(recipe, tmp_path / "run", resume=False)
    names: list[str] = []
    module._on_processes([Fragile(recipe, 0, None, tmp_path / "run", data)], 1, names.append)
    assert names == ["network 0, training"] and (tmp_path / "run/network-0/original.json").exists()


class Doomed(Task):
    """A task that kills its worker."""

    def run(self, threads: int, progress: bool = False) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""


def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    task = Doomed(small(tmp_path), 0, None, tmp_path, None)
    with pytest.raises(SecateurError, match=r"died 3 times, last in network 0, training"):
        module._on_processes([task], 1, lambda name: None)


def test_an_error_in_a_worker_reaches_the_user(tmp_path: Path, data: Path) -> None:
    recipe = small(tmp_path, "network: zoo:resnet20\n")  # three channels, where the digits have one
    with pytest.raises(Exception, match="channels"):
        sweep(recipe, tmp_path / "run", jobs=2, data_root=data)


def test_a_missing_ray_is_an_error(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/ray_sweep.py tests Ray itself, which takes a minute to start and to stop."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SecateurError, match="ray is not installed"):
        sweep(small(tmp_path), tmp_path / "run", engine="ray", data_root=data)
