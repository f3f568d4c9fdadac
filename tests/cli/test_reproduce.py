"""`secateur reproduce`: the list, a plan, and results that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from secateur.reproduction.items import names
from support.command_line import run, width
from support.reproduced_runs import write_run
from support.small_runs import write_digits


def test_the_list() -> None:
    result = run("reproduce")
    assert result.exit_code == 0 and "table-lenet" in result.stdout and width(result) <= 80
    assert [row["name"] for row in json.loads(run("reproduce", "--json").stdout)["items"]] == names()


def test_a_plan_with_times(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    result = run("reproduce", "table-lenet", "--quick", "--plan", "--runs", tmp_path, "--data", data)
    assert result.exit_code == 0 and "lenet300100-quick" in result.stdout
    assert "with one process on this machine" in result.stdout and width(result) <= 80
    assert not (tmp_path / "lenet5-quick").exists()


def test_a_plan_of_weeks_names_the_smaller_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secateur.cli.reproduce.LONG", 0.0)
    data = write_digits(tmp_path / "data")
    for size, named in (((), True), (("--quick",), False)):
        result = run("reproduce", "fig-derandomization", *size, "--plan", "--runs", tmp_path, "--data", data)
        assert result.exit_code == 0 and ("end in minutes: --quick" in " ".join(result.stdout.split())) == named


def test_rendering_what_is_there(tmp_path: Path) -> None:
    write_run(tmp_path, "lenet5", [(1.0, 1.0)], {"pfp": [[(0.9, 1.2, 1.3)]]})
    result = run("reproduce", "table-lenet", "--render", "--runs", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "92.37" in result.stdout and "Missing: LeNet-300-100" in result.stdout and width(result, tmp_path) <= 80
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".md", ".csv", ".tex", ".json"}
    rows = run("reproduce", "table-lenet", "--render", "--runs", tmp_path, "--out", tmp_path / "out", "--csv").stdout
    assert rows.splitlines()[0].startswith("item,network,method,row,original,change")


def test_every_item_fits_a_terminal(tmp_path: Path) -> None:
    several = {name: [[(0.5, 5, 2)], [(0.9, 50, 3)]] for name in ("pfp", "ft", "residual", "residual+inputs")}
    for recipe in ("lenet300100-quick", "lenet5-quick", "resnet20-smoke", "wrn16-8-smoke"):
        write_run(tmp_path, recipe, [(1.0, 1.0)], several)
    result = run("reproduce", "all", "--quick", "--render", "--runs", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 0 and width(result, tmp_path) <= 80
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert "LeNet-300-100" in lines and "retraining epochs" in result.stdout
    assert all(len(line) > 2 for line in lines if line)  # no column is one character wide


def test_mistakes() -> None:
    result = run("reproduce", "table-lenets")
    assert result.exit_code == 2 and "did you mean table-lenet" in result.stderr
    result = run("reproduce", "table-lenet", "--quick", "--short")
    assert result.exit_code == 2 and "choose one of them" in result.stderr
