"""The results of a sweep as a table, a curve and plain data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.report.sweep import MARKS, SEVERAL, UNPRUNED, Findings, Row, as_text, curve, read_run
from secateur.tables import plain


def figures(top1: float | None, loss: float = 0.1) -> dict[str, Any]:
    return {"samples": 100, "loss": loss, "top1": top1, "top5": None}


def write(folder: Path, name: str, data: dict[str, Any]) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def step(network: int, method: str, number: int, removed: float, validation: float, test: float) -> dict[str, Any]:
    return {
        "network": network,
        "method": method,
        "step": number,
        "target": removed,
        "params_removed": removed,
        "macs_removed": removed / 2,
        "pruned": {"validation": figures(0.5), "test": figures(0.4)},
        "retrained": {"validation": figures(validation), "test": figures(test)},
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "recipe.json", {"name": "small"})
    for network, top1 in ((0, 0.99), (1, 0.98)):
        original = {"params": 100, "macs": 100, "validation": figures(0.98), "test": figures(top1)}
        write(tmp_path, f"network-{network}/original.json", {"network": network, **original})
        steps = ((1, 0.5, 0.982, 0.985), (2, 0.8, 0.976, 0.975), (3, 0.9, 0.9, 0.9))
        for number, removed, validation, test in steps:
            record = step(network, "pfp", number, removed, validation - network * 0.001, test - network * 0.01)
            write(tmp_path, f"network-{network}/pfp/step-{number:02}.json", record)
        record = step(network, "ft", 1, 0.5, 0.8, 0.8)
        write(tmp_path, f"network-{network}/ft/step-01.json", record)
    stopped = {"network": 0, "method": "ft", "step": 2, "target": 0.99, "stopped": "the budget cannot be met"}
    write(tmp_path, "network-0/ft/step-02.json", stopped)
    return tmp_path


def test_means_and_spreads(folder: Path) -> None:
    found = read_run(folder)
    assert found.original == pytest.approx(1.5) and found.networks == 2
    row = next(row for row in found.rows if row.method == "pfp" and row.target == 0.8)
    assert row.error == pytest.approx(3.0) and row.spread == pytest.approx(0.5**0.5) and row.networks == 2
    assert row.pruned_error == pytest.approx(60.0) and row.macs_removed == pytest.approx(0.4)


def test_the_commensurate_network_is_chosen_on_validation_data(folder: Path) -> None:
    found = read_run(folder)
    best = found.commensurate("pfp")
    assert best is not None and best.target == 0.8  # validation error 2.45 against 2 + 0.5
    nearest = found.commensurate("ft")
    assert nearest is not None and nearest.target == 0.5
    assert found.commensurate("none") is None


def test_the_text_fits_a_terminal(folder: Path) -> None:
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(as_text(read_run(folder)))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    assert "unpruned test error 1.50%" in text and "2.50% ±" not in text.splitlines()[0]
    words = " ".join(text.split())
    assert "pfp, smallest network within 0.5 points of the unpruned validation error: PR 80.0%, FR 40.0%" in words
    assert "FR 40.0%, test error 1.50 points higher than unpruned" in words
    assert "ft, no network within 0.5 points of the unpruned validation error, nearest: PR 50.0%" in words
    assert "stopped: network 0, ft, step 2" in text


@pytest.mark.parametrize(
    ("error", "words"),
    [(1.03, "0.47 points lower than unpruned"), (1.504, "as unpruned"), (2.0, "0.50 points higher than unpruned")],
)
def test_a_change_of_the_error_is_reported_as_a_change(folder: Path, error: float, words: str) -> None:
    found = read_run(folder)
    best = found.commensurate("pfp")
    rows = tuple(replace(row, error=error) if row == best else row for row in found.rows)
    assert f"FR 40.0%, test error {words}" in " ".join(plain(as_text(replace(found, rows=rows))).split())


def row(method: str, removed: float, error: float) -> Row:
    return Row(method, removed, 1, removed, removed, error, 0.0, error, error)


def test_methods_in_one_cell_get_a_mark_of_their_own() -> None:
    rows = (row("ft", 0.5, 4.0), row("ft", 0.9, 9.0), row("pfp", 0.5, 4.0), row("pfp", 0.7, 5.0), row("pfp", 0.7, 5.0))
    found = Findings("small", "%", 2.0, 2.0, 1, rows, ())
    *drawn, _, _, legend = curve(found).plain.splitlines()
    marks = "".join(line.partition("|")[2] for line in drawn)
    assert [marks.count(mark) for mark in "&ox"] == [1, 1, 1]  # two rows of one method in one cell are one mark
    assert legend.split() == "o ft x pfp · unpruned & several methods".split()
    apart = replace(found, rows=(rows[0], rows[3]))
    assert "&" not in curve(apart).plain
    alone = curve(replace(found, rows=(row("ft", 0.5, 2.0),))).plain  # on the line of the original
    assert alone.count("o ") == 1 and "&" not in alone and "·o·" in alone


def test_every_method_has_a_mark_of_its_own() -> None:
    assert len(METHODS) <= len(MARKS) == len(set(MARKS + SEVERAL + UNPRUNED)) - 2


def test_the_curve_has_a_mark_for_each_row(folder: Path) -> None:
    lines = curve(read_run(folder)).plain.splitlines()
    marks = "".join(line.partition("|")[2] for line in lines[:12])
    assert marks.count("x") == 3 and marks.count("o") == 1 and "·" in marks
    assert lines[-1].strip() == "o ft   x pfp   · unpruned"


def test_plain_data(folder: Path) -> None:
    found = json.loads(json.dumps(read_run(folder).as_dict()))
    assert len(found["rows"]) == 4 and found["commensurate"]["pfp"]["target"] == 0.8


def test_a_regression_is_reported_by_its_loss(tmp_path: Path) -> None:
    write(tmp_path, "recipe.json", {"name": "driving"})
    parts = {"validation": figures(None, 0.02), "test": figures(None, 0.03)}
    write(tmp_path, "network-0/original.json", {"network": 0, **parts})
    record = step(0, "pfp", 1, 0.5, 0, 0) | {"pruned": parts, "retrained": parts}
    write(tmp_path, "network-0/pfp/step-01.json", record)
    found = read_run(tmp_path)
    assert found.original == 0.03 and found.unit == "" and found.commensurate("pfp") is not None
    console = Console(width=80)
    with console.capture() as capture:
        console.print(as_text(found))
    assert "unpruned test error 0.03" in capture.get()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run"):
        read_run(tmp_path)
    write(tmp_path, "recipe.json", {"name": "x"})
    with pytest.raises(UsageError, match="trained yet"):
        read_run(tmp_path)
