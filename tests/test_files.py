"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import safetensors
import torch

from secateur.errors import SecateurError
from secateur.files import read_json, tensor_file, write_json, write_whole


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


def test_tensor_files_are_the_same_for_the_same_content(tmp_path: Path) -> None:
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.float16)}
    notes = {"x": "1", "y": 'a "ü"', "z": "3" * 100, "secateur": "1"}
    made = {tensor_file(tensors, notes) for _ in range(20)}
    assert len(made) == 1
    (tmp_path / "a.safetensors").write_bytes(made.pop())
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert file.metadata() == notes
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in tensors.items())
