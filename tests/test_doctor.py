"""The doctor tries things out: what works is seen to work, what is broken is said with a remedy."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from small_runs import write_digits

from secateur import doctor, native
from secateur.cost import use_threads
from secateur.data import NAMES
from secateur.doctor import Finding, examine
from secateur.errors import SecateurError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    root = tmp_path_factory.mktemp("data")
    write_digits(root)
    (root / "cifar-10-batches-py").mkdir()
    (root / "cifar-10-batches-py" / "test_batch").write_bytes(b"no pickle")
    return {finding.part: finding for finding in examine(root)}


def test_what_is_required_works_here(findings: dict[str, Finding]) -> None:
    required = {name for name, finding in findings.items() if finding.required}
    assert required == {"python", "packages", "pruning"}
    assert {findings[name].state for name in required} == {"works"}
    assert f"torch {torch.__version__}" in findings["packages"].detail
    assert "LeNet-5 cut to 30 %" in findings["pruning"].detail


def test_what_does_not_work_has_a_remedy(findings: dict[str, Finding]) -> None:
    assert all(finding.remedy for finding in findings.values() if finding.state != "works")


def test_data_sets_are_read(findings: dict[str, Finding]) -> None:
    sets = {name: findings[f"data: {name}"] for name in NAMES}
    assert (sets["mnist"].state, sets["mnist"].detail) == ("works", "128 test images")
    assert sets["cifar10"].state == "broken" and "cannot be read as CIFAR-10" in sets["cifar10"].detail
    assert sets["fashion-mnist"].state == sets["driving"].state == "absent"
    assert findings["data"].state == "works"


def test_there_is_a_place_for_every_data_set() -> None:
    assert set(doctor.PLACES) == set(NAMES)


def test_no_folder_for_data(tmp_path: Path) -> None:
    found = doctor._tried("data", lambda: doctor._data_folder(tmp_path / "nowhere"), "make it")
    assert (found.state, found.remedy) == ("absent", "make it") and "nowhere" in found.detail


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The compiled loop is looked for again."""
    native.library.cache_clear()
    yield
    monkeypatch.undo()
    native.library.cache_clear()


@pytest.mark.skipif(isinstance(native.library("shares"), str), reason="no compiler")
def test_the_compiled_loop_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._compiled().startswith("compiled, right to")
    monkeypatch.setattr(doctor, "sensitivity", lambda *_: {"0": torch.full((6,), 0.5).double()})
    with pytest.raises(SecateurError, match=r"off by .*\n.*SECATEUR_NO_COMPILER=1"):
        doctor._compiled()


@pytest.mark.usefixtures("fresh")
def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor._tried("loop", doctor._compiled, "g++").state == "absent"
    (tmp_path / "c++").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "c++").chmod(0o755)
    native.library.cache_clear()
    found = doctor._tried("loop", doctor._compiled, "g++")
    assert found.state == "broken" and "failed" in found.detail


def test_packages_that_are_missing_or_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    found = doctor._tried("timm", lambda: doctor._imported("timm"), "install", broken="mend")
    assert (found.state, found.detail, found.remedy) == ("absent", "timm is not installed", "install")
    (tmp_path / "crooked.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    found = doctor._tried("crooked", lambda: doctor._imported("crooked"), "install", broken="mend")
    assert (found.state, found.detail) == ("broken", "RuntimeError: built for another torch")
    assert found.remedy == "mend"


def test_onnx_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = doctor._tried("onnx", doctor._onnx, "install")
    assert found.state == "absent" and found.remedy == "pip install 'secateur[onnx]'"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with use_threads(2):
        found = doctor._tried("threads", doctor._threads, "OMP_NUM_THREADS")
    assert found.state == "broken" and "2 of 1 cores" in found.detail


def test_a_cut_that_fails_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise SecateurError("the cut network differs from the masked one")

    monkeypatch.setattr(doctor, "prune", fail)
    found = doctor._tried("pruning", doctor._pruning, "reinstall", required=True)
    assert (found.state, found.required, found.remedy) == ("broken", True, "reinstall")
