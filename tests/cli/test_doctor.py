"""`secateur doctor`: parts that work, and a remedy for those that do not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import secateur as sc
from secateur.cli import doctor
from secateur.cli.doctor import Finding, examine
from secateur.costs.timing import use_threads
from secateur.data import DATASETS
from secateur.errors import SecateurError
from secateur.methods.pfp import native
from secateur.zoo.libraries import matching_pair
from support.command_line import run, width
from support.small_runs import write_digits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    root = tmp_path_factory.mktemp("data")
    write_digits(root)
    (root / "cifar-10-batches-py").mkdir()
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(b"no pickle")
    return {finding.part: finding for finding in examine(root)}


def test_the_required_parts_work_here(findings: dict[str, Finding]) -> None:
    required = {name for name, finding in findings.items() if finding.required}
    assert required == {"python", "packages", "pruning"}
    assert {findings[name].state for name in required} == {"works"}
    assert f"torch {torch.__version__}" in findings["packages"].detail
    assert "LeNet-5 cut to 30%" in findings["pruning"].detail


def test_a_part_that_does_not_work_has_a_remedy(findings: dict[str, Finding]) -> None:
    assert all(finding.remedy for finding in findings.values() if finding.state != "works")


def test_data_sets_are_read(findings: dict[str, Finding]) -> None:
    sets = {name: findings[f"data: {name}"] for name in DATASETS}
    assert (sets["mnist"].state, sets["mnist"].detail) == ("works", "128 test images")
    assert sets["cifar10"].state == "broken" and "cannot be read as CIFAR-10" in sets["cifar10"].detail
    assert sets["fashion-mnist"].state == sets["driving"].state == "missing"
    assert findings["data"].state == "works"


def test_there_is_a_place_for_every_data_set() -> None:
    assert set(doctor.PLACES) == set(DATASETS)


def test_no_folder_for_data(tmp_path: Path) -> None:
    found = doctor._check("data", lambda: doctor._data_folder(tmp_path / "nowhere"), "make it")
    assert (found.state, found.remedy) == ("missing", "make it") and "nowhere" in found.detail


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiled loop is looked for again."""
    native.library.cache_clear()
    yield
    monkeypatch.undo()
    native.library.cache_clear()


@pytest.mark.skipif(isinstance(native.library("shares"), str), reason="no compiler")
def test_the_compiled_loop_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._compiled().startswith("compiled, correct to")
    monkeypatch.setattr(sc, "sensitivity", lambda *_: {"0": torch.full((6,), 0.5).double()})
    with pytest.raises(SecateurError, match=r"off by .*\n.*SECATEUR_NO_COMPILER=1"):
        doctor._compiled()


@pytest.mark.usefixtures("fresh")
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor._check("loop", doctor._compiled, "g++").state == "missing"
    (tmp_path / "c++").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "c++").chmod(0o755)
    native.library.cache_clear()
    found = doctor._check("loop", doctor._compiled, "g++")
    assert found.state == "broken" and "failed" in found.detail


def test_packages_that_are_missing_or_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found = doctor._check("timm", lambda: doctor._imported("timm"), "install", broken="fix")
    assert (found.state, found.detail, found.remedy) == ("missing", "timm is not installed", "install")
    (tmp_path / "crooked.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    found = doctor._check("crooked", lambda: doctor._imported("crooked"), "install", broken="fix")
    assert (found.state, found.detail) == ("broken", "RuntimeError: built for another torch")
    assert found.remedy == "fix"


def test_missing_operators_of_torchvision_have_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "missing_operators", lambda: "no compiled operators")
    found = doctor._check("torchvision ops", doctor._operators, matching_pair())
    assert (found.state, found.detail, found.remedy) == ("missing", "no compiled operators", matching_pair())
    monkeypatch.setattr(doctor, "missing_operators", lambda: "")
    assert doctor._operators().startswith(f"compiled for torch {torch.__version__}")


def test_onnx_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = doctor._check("onnx", doctor._onnx, "install")
    assert found.state == "missing" and found.remedy == "pip install 'secateur[onnx]'"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with use_threads(2):
        found = doctor._check("threads", doctor._threads, "OMP_NUM_THREADS")
    assert found.state == "broken" and "2 threads on 1 cores" in found.detail


def test_a_cut_that_fails_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise SecateurError("the cut network differs from the masked one")

    monkeypatch.setattr(sc, "prune", fail)
    found = doctor._check("pruning", doctor._pruning, "reinstall", required=True)
    assert (found.state, found.required, found.remedy) == ("broken", True, "reinstall")


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = [Finding("python", "works", "3.11", required=True), Finding("ray", "missing", "not installed", "pip it")]
    monkeypatch.setattr(doctor, "examine", lambda root: sound)
    result = run("doctor")
    words = " ".join(result.stdout.split())
    assert result.exit_code == 0 and width(result) <= 80
    assert "ray missing not installed remedy: pip it" in words
    assert "all required parts work; 1 optional parts are not available." in words
    assert run("doctor", "--csv").stdout.splitlines()[2] == "ray,missing,not installed,pip it,False"
    monkeypatch.setattr(doctor, "examine", lambda root: [*sound, Finding("pruning", "broken", "x", "y", True)])
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["sound"], len(found["findings"])) == (1, False, 3)
    assert "required, but not working: pruning" in result.stderr
