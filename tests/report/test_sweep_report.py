"""What a sweep found, as a table, a curve and plain data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from secateur.errors import UsageError
from secateur.report.sweep import as_text, curve, read_run


def figures(top1: float | None, loss: float = 0.1) -> dict[str, Any]:
    return {"points": 100, "loss": loss, "top1": top1, "top5": None}


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
    assert "pfp, within +0.5 of the unpruned validation error: PR 80.0%, FR 40.0%" in text.replace("\n", " ")
    assert "nearest to +0.5" in text.replace("\n", " ") and "stopped: network 0, ft, step 2" in text


def test_the_curve_has_a_mark_for_each_row(folder: Path) -> None:
    lines = curve(read_run(folder)).plain.splitlines()
    marks = "".join(line.partition("|")[2] for line in lines[:12])
    assert marks.count("x") == 3 and marks.count("o") == 1 and "·" in marks
    assert "o ft   x pfp" in lines[-1]


def test_plain_data(folder: Path) -> None:
    found = json.loads(json.dumps(read_run(folder).as_dict()))
    assert len(found["rows"]) == 4 and found["commensurate"]["pfp"]["target"] == 0.8


def test_a_regression_is_told_by_its_loss(tmp_path: Path) -> None:
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
