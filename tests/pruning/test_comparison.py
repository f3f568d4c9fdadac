"""The report of a comparison: what it says, its order, and that it fits 80 columns."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from secateur.costs.cost import Cost
from secateur.pruning.comparison import Cell, Comparison

LONG = "pfp:pivotal~q0.99@residual+repair"
FOUND = Comparison(
    resource="params",
    budgets=("50%", "1%"),
    methods=("ft", LONG, "thinet"),
    measure="accuracy",
    original=0.991,
    evaluated=2000,
    samples=256,
    repeats=1,
    seed=0,
    before=Cost(params=1000, macs=20_000, layers={}, parameters={}),
    cells=(
        Cell("ft", "50%", 0, params=500, macs=8000, value=0.9, seconds=0.04),
        Cell(LONG, "50%", 0, params=480, macs=9000, value=0.95, seconds=123.4),
        Cell("thinet", "50%", 0, error="the network broke"),
        Cell("ft", "1%", 0, params=10, macs=100, value=0.1, seconds=1.26),
        Cell(LONG, "1%", 0, params=9, macs=90, value=0.2, seconds=1.0),
        Cell("thinet", "1%", 0, params=9, macs=90, value=0.15, seconds=1.0),
    ),
    finished=True,
    notes=("something to know",),
)


def shown(found: Comparison) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(found.table())
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, text.splitlines())) <= 80
    return text


def test_the_best_first_under_each_budget() -> None:
    text = shown(FOUND)
    lines = [line.split() for line in text.splitlines() if line.strip()]
    first = next(i for i, line in enumerate(lines) if line[0] == "50%")
    assert lines[first] == ["50%", LONG, "48.0%", "45.0%", "95.00%", "123"]
    assert lines[first + 1] == ["ft", "50.0%", "40.0%", "90.00%", "0.04"]
    assert lines[first + 2] == ["thinet", "-", "-", "-", "-"]
    assert [line[:2] for line in lines[first + 3 : first + 6]] == [["1%", LONG], ["thinet", "0.9%"], ["ft", "1.0%"]]
    flat = " ".join(text.split())
    for words in (
        "accuracy 99.10%",
        "share of 2,000 samples",
        "measuring on 256 samples",
        "Failed thinet at 50%: the network broke",
        "Note: something to know",
        "budget: parameters that may remain",
    ):
        assert words in flat
    assert "repeats" not in flat and "Unfinished" not in flat


def test_several_repeats_show_the_lowest_and_the_highest() -> None:
    more = Cell("ft", "50%", 1, params=500, macs=8000, value=0.8, seconds=0.06)
    failed = Cell(LONG, "50%", 1, error="bad luck")
    flat = " ".join(shown(replace(FOUND, repeats=2, cells=(*FOUND.cells[:2], more, failed))).split())
    assert "85.00% 80.00 to 90.00% 0.05" in flat
    assert "Means over 2 calibration sets; the lowest and the highest." in flat
    assert f"{LONG} at 50% (in 1 of 2 repeats): bad luck" in flat


def test_less_divergence_is_better() -> None:
    found = replace(FOUND, measure="divergence", original=None)
    flat = " ".join(shown(found).split())
    assert flat.index(" 0.9 0.04") < flat.index(" 0.95 123")
    assert "2,000 samples that no method used, lower is better" in flat
    assert found.headline() == "The original has 1 k parameters and 20 k MACs."


def test_what_is_unfinished_says_so() -> None:
    flat = " ".join(shown(replace(FOUND, finished=False, cells=FOUND.cells[:1])).split())
    assert "Unfinished: 1 of 6 networks were evaluated." in flat


@pytest.mark.parametrize("resource", ["params", "macs"])
def test_a_network_without_macs_and_budgets_in_numbers(resource: str) -> None:
    cells = (Cell("ft", "2,100,000,000", 0, params=500, macs=0, value=0.9, seconds=0.04),)
    shown(replace(FOUND, resource=resource, budgets=("2,100,000,000",), cells=cells, before=Cost(1000, 0, {}, {})))
