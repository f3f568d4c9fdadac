"""Files are replaced completely or not at all."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import secateur as sc
from secateur.errors import SecateurError
from secateur.storage.files import LEFTOVER_SECONDS, read_json, write_atomic, write_json


def test_content_replaces_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two" and [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SecateurError, match="cannot be written"):
        write_atomic(path, "new")
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("path", [nn.Linear(2, 2), nn.Linear(2, 2).state_dict(), None, 3])
def test_what_is_no_path_is_named_by_its_type(path: Any) -> None:
    for use in (lambda: sc.save(path, nn.Linear(2, 2)), lambda: sc.load(path), lambda: sc.load_onnx(path)):
        with pytest.raises(sc.SecateurError, match="expected ") as caught:
            use()
        assert len(str(caught.value).splitlines()) <= 2


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match="there is no folder"):
        write_atomic(tmp_path / "none" / "a", "x")


def test_a_folder_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match="is a folder"):
        write_atomic(tmp_path, "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_a_socket_or_a_device_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    os.mkfifo("pipe")
    ends = os.openpty()  # a character device that even root cannot replace if this test fails
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        names = ["pipe", "socket", os.ttyname(ends[1])]
        Path("link").symlink_to(names[-1])
        kinds = [stat.S_IFMT(os.stat(name).st_mode) for name in names]
        for name in (*names, "link"):
            with pytest.raises(SecateurError, match="device, pipe or socket"):
                write_atomic(Path(name), "x")
        assert [stat.S_IFMT(os.stat(name).st_mode) for name in names] == kinds
    for end in ends:
        os.close(end)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "socket"]


def test_a_link_stays_a_link_and_the_file_behind_it_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("old")
    for name in ("a", "new"):
        link = tmp_path / f"link to {name}"
        link.symlink_to(folder / name)
        write_atomic(link, "x")
        assert link.is_symlink() and (folder / name).read_text() == "x"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "new"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).symlink_to(tmp_path / other)
    with pytest.raises(SecateurError, match=r"cannot be written|replaced"):
        write_atomic(tmp_path / "a", "x")
    assert (tmp_path / "a").is_symlink() and (tmp_path / "b").is_symlink()


def test_permissions_are_those_of_a_new_file(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"]
    assert modes[0] == modes[1]


def test_equal_data_gives_equal_bytes(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": 1, "a": [0.1, None]})
    write_json(tmp_path / "b", {"a": [0.1, None], "b": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"a": [0.1, None], "b": 1}


def test_invalid_or_missing_json_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{")
    for name in ("a", "none"):
        with pytest.raises(SecateurError, match="cannot be read"):
            read_json(tmp_path / name)


def test_temporary_files_of_a_killed_writer_are_removed_later(tmp_path: Path) -> None:
    path = tmp_path / "a[1]"
    old, young, other = (tmp_path / f".{name}.{'0' * 31}{i}.tmp" for i, name in enumerate(["a[1]", "a[1]", "a1"]))
    for leftover in (old, young, other):
        leftover.write_text("half")
    hours_ago = time.time() - 2 * LEFTOVER_SECONDS
    os.utime(old, (hours_ago, hours_ago))
    os.utime(other, (hours_ago, hours_ago))
    write_atomic(path, "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"a[1]", young.name, other.name}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_writer_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """20 processes, each killed at a random moment while it writes one of two contents over and over."""
    path = tmp_path / "a"
    contents = [bytes([letter]) * 1_000_000 for letter in b"01"]
    write_atomic(path, contents[0])
    generator, found, halves = random.Random(0), set[bytes](), 0
    for _ in range(20):
        before, child = path.stat().st_ino, os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                while True:
                    for content in contents:
                        write_atomic(path, content)
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
    write_atomic(tmp_path / "a", "x")
    assert order == ["file", "rename", "folder"]
