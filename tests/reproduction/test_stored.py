"""Runs without their networks, in one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secateur.errors import SecateurError, UsageError
from secateur.experiments import recipe as recipes
from secateur.report.records import read_records
from secateur.reproduction.points import results
from secateur.reproduction.stored import compact, read_run, restore
from secateur.storage.files import read_json
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


def test_stored_records_are_put_back_where_there_are_none(tmp_path: Path) -> None:
    steps = {"pfp:rand": [[(0.5, 5.2, 5.4)]], "ft": [[(0.5, 5.2, 5.4)]]}
    folder = write_run(tmp_path / "runs", "resnet20", [(5.0, 5.0)], steps)
    (tmp_path / "resnet20.json").write_text(json.dumps(compact(read_records(folder))))
    there = write_run(tmp_path / "new", "resnet20", [(4.0, 4.0)], {"ft": [[(0.5, 4.6, 4.8)]]})
    recipe = recipes.read("resnet20")
    assert restore(tmp_path, recipe, there) == 1  # neither the original nor the step of ft
    assert restore(tmp_path, recipe, there) == 0
    points = {point.method: point for point in results("x", read_records(there)).points}
    assert points["pfp:rand"].change == pytest.approx(0.4)  # from the original that it was cut from
    assert points["ft"].change == pytest.approx(0.8)
    assert restore(tmp_path, recipes.read("resnet56"), tmp_path / "other") == 0
    with pytest.raises(UsageError, match="made with other settings: batch"):
        restore(tmp_path, recipes.read("resnet20", ["batch=7"]), there)


def test_a_restored_step_keeps_its_first_original(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "runs", "resnet20", [(5.0, 5.0)], {"ft": [[(0.5, 5.2, 5.4)]]})
    for store, run in (("a", "runs"), ("b", "again")):
        (tmp_path / store).mkdir()
        stored = compact(read_records(tmp_path / run / "resnet20"))
        (tmp_path / store / "resnet20.json").write_text(json.dumps(stored))
        assert restore(tmp_path / store, recipes.read("resnet20"), tmp_path / "again" / "resnet20") in (0, 2)
        (tmp_path / "again" / "resnet20" / "recipe.json").write_text((folder / "recipe.json").read_text())
    record = read_json(tmp_path / "again/resnet20/network-0/ft/step-01.json")
    assert record["original"]["test"]["top1"] == 0.95 and "path" not in record
