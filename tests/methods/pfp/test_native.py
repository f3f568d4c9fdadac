"""C++ compiled on first use: kept and shared; without a compiler the reason is returned."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from secateur.methods.pfp import native

needs_compiler = pytest.mark.skipif(isinstance(native.library("shares"), str), reason="no compiler")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache folder of its own for each test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield
    monkeypatch.undo()
    native.library.cache_clear()


@needs_compiler
def test_it_is_compiled_once_and_found_again(tmp_path: Path) -> None:
    assert isinstance(native.library("shares"), ctypes.CDLL)
    (compiled,) = (tmp_path / "secateur").iterdir()
    before = compiled.stat().st_mtime_ns
    native.library.cache_clear()
    assert isinstance(native.library("shares"), ctypes.CDLL)
    assert compiled.stat().st_mtime_ns == before


@needs_compiler
def test_processes_that_start_together_do_not_disturb_each_other(tmp_path: Path) -> None:
    code = "from secateur.methods.pfp import native; assert not isinstance(native.library('shares'), str)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    several = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(120) for process in several] == [0, 0, 0]
    assert len(list((tmp_path / "secateur").iterdir())) == 1


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.OFF, "1")
    assert native.library("shares") == "SECATEUR_NO_COMPILER is set"


def test_a_missing_compiler_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert native.library("shares") == "there is no C++ compiler"


def test_a_compiler_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "c++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert "failed" in str(native.library("shares"))
    assert list((tmp_path / "secateur").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert isinstance(native.library("shares"), str)
