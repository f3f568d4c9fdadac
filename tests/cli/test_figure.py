"""`secateur figure`: charts and tables for papers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import run
from support.written_sweeps import write_sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "runs")


def test_charts_are_listed_and_drawn(folder: Path, small: Path, tmp_path: Path) -> None:
    assert "  params\n  macs\n" in run("figure", folder).stdout
    assert "network" in json.loads(run("figure", small, "--json").stdout)["charts"]
    out = tmp_path / "a.pdf"
    result = run("figure", small, "--chart", "network", "--out", out)
    assert result.exit_code == 0 and out.read_bytes().startswith(b"%PDF") and "Saved" in result.stdout
    assert run("figure", folder, "--out", out).exit_code == 2
    assert run("figure", folder, "--out", out, "--force", "--width", "5").exit_code == 0


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("markdown", "| method | target | PR | FR |"),
        ("latex", r"\begin{tabular}{lrrrrrrrrr}"),
        ("csv", "method,target,params_removed,macs_removed"),
    ],
)
def test_tables(folder: Path, form: str, line: str) -> None:
    assert line in run("figure", folder, "--table", form).stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "a.gif"], "no format of a figure"),
        (["--chart", "params"], "there is no file for the figure"),
        (["--chart", "energy", "--out", "a.pdf"], "there is no chart 'energy'"),
        (["--width", "wide", "--out", "a.pdf"], "the width is 'wide'"),
        (["--table", "csv", "--json"], "two forms of one result"),
    ],
)
def test_wrong_calls(folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(folder)
    result = run("figure", folder, *words)
    assert result.exit_code in (1, 2) and message in " ".join(result.stderr.split())
