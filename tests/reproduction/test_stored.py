"""Runs without their networks, in one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secateur.errors import SecateurError
from secateur.report.records import read_records
from secateur.reproduction.points import results
from secateur.reproduction.stored import compact, read_run
from support.reproduced_runs import write_run


def test_a_file_gives_the_same_results_as_the_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "resnet20", [(5.0, 5.0)], {"pfp:rand": [[(0.5, 5.2, 5.4)]]})
    (tmp_path / "resnet20.json").write_text(json.dumps(compact(read_records(folder))))
    stored = read_run(tmp_path, "resnet20")
    assert stored is not None and results("x", stored) == results("x", read_records(folder))
    assert read_run(tmp_path / "runs", "resnet20") == read_records(folder)
    assert read_run(tmp_path, "resnet56") is None


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "resnet20.json").write_text("[1]")
    with pytest.raises(SecateurError, match="holds no run"):
        read_run(tmp_path, "resnet20")
