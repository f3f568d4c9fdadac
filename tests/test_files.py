"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import stat
import time
from pathlib import Path

import pytest

from secateur.errors import SecateurError
from secateur.files import LEFTOVER_SECONDS, read_json, write_json, write_whole


def test_content_replaces_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_whole(path, "one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_whole(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SecateurError, match="cannot be written"):
        write_whole(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match="cannot be written"):
        write_whole(tmp_path / "none" / "a", "x")


def test_permissions_are_those_of_a_new_file(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1]


def test_the_same_data_is_the_same_text(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": [0.1, None]})
    write_json(tmp_path / "b", {"a": [0.1, None], "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"a": [0.1, None], "b": 1}


def test_json_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{")
    for name in ("a", "none"):
        with pytest.raises(SecateurError, match="cannot be read"):
            read_json(tmp_path / name)


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    path = tmp_path / "a[1]"
    old, young, other = (tmp_path / f".{name}.{'0' * 31}{i}.tmp" for i, name in enumerate(["a[1]", "a[1]", "a1"]))
    for leftover in (old, young, other):
        leftover.write_text("half")
    hours_ago = time.time() - 2 * LEFTOVER_SECONDS
    os.utime(old, (hours_ago, hours_ago))
    os.utime(other, (hours_ago, hours_ago))
    write_whole(path, "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"a[1]", young.name, other.name}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """20 processes, each killed at a random moment while it writes one of two contents over and over."""
    path = tmp_path / "a"
    contents = [bytes([letter]) * 1_000_000 for letter in b"01"]
    write_whole(path, contents[0])
    generator, found, halves = random.Random(0), set[bytes](), 0
    for _ in range(20):
        before, child = path.stat().st_ino, os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                while True:
                    for content in contents:
                        write_whole(path, content)
            os._exit(1)
        while path.stat().st_ino == before:  # until it is at work
            time.sleep(0.001)
        time.sleep(generator.uniform(0.0, 0.02))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        assert path.read_bytes() in contents
        found.add(path.read_bytes()[:1])
        halves += any(p.name != "a" for p in tmp_path.iterdir())
        for leftover in tmp_path.glob(".a.*"):
            leftover.unlink()
    assert found == {b"0", b"1"} and halves  # the kills did hit writers at work


def test_the_folder_is_flushed_after_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []

    def watched(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")

    renamed = os.replace
    monkeypatch.setattr(os, "fsync", watched)
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("rename"), renamed(*names)))
    write_whole(tmp_path / "a", "x")
    assert order == ["file", "rename", "folder"]
