"""What the page shows of pruned networks, comparisons, certificates and timings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, UsageError
from secateur.report.blocks import Column, Facts, Network, Result, Section, Table, Words
from secateur.report.page import page, together
from secateur.report.pruned import part_removed, pruned
from secateur.report.sources import of_record, read_source
from secateur.report.timing import record_of, timing

FIXTURES = Path(__file__).parents[1] / "fixtures"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Split(nn.Module):
    """Its second layer is kept: forward has its width hard-coded."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu()
        return self.last(x.mean((2, 3)).view(-1, 8))


@pytest.fixture(scope="module")
def res() -> sc.Pruned:
    return sc.prune(Split(), digits("calibration")[0][:64], {"params": "80%"}, seed=3)


@pytest.fixture(scope="module")
def info(res: sc.Pruned) -> dict[str, Any]:
    return json.loads(json.dumps(res.info, allow_nan=False)) | {"scores": res.scores}


def section(result: Result, name: str) -> Section:
    return next(one for one in result.sections if one.name == name)


def block(result: Result, where: str, kind: type) -> Any:
    return next(one for one in section(result, where).blocks if isinstance(one, kind))


def test_what_was_spent_and_saved(res: sc.Pruned) -> None:
    """The figures of each group against a network in which it alone is cut."""
    model, images = Split(), digits("calibration")[0][:64]
    before = sc.cost(model, images[:1])
    graph = sc.trace(model, images[:1])
    for row in res.rows:
        alone = sc.cost(sc.cut(model, sc.Plan.keeping(graph, {row.name: range(row.after)})), images[:1])
        assert row.params_saved == before.params - alone.params and row.macs_saved == before.macs - alone.macs
        assert row.params_saved <= row.params <= before.params


def test_every_group_is_in_the_table_and_kept_ones_have_a_reason_and_a_line(info: dict[str, Any]) -> None:
    table = block(pruned("x", info), "groups", Table)
    rows = {row["name"]: row for row in table.rows}
    assert rows["first"]["status"] == "cut" and rows["first"]["divergence"] is not None
    assert (
        rows["second"]["status"] == "kept"
        and rows["second"]["reason"]
        and "test_report.py:" in rows["second"]["source"]
    )
    assert rows["first"]["kept"] == rows["first"]["after"] / rows["first"]["before"]


def test_the_network_has_its_widths(info: dict[str, Any], res: sc.Pruned) -> None:
    layers = {one["name"]: one for one in block(pruned("x", info), "network", Network).layers}
    assert layers["first"]["before"] == 8 and layers["first"]["after"] == res.model.first.out_channels
    assert layers["second"]["after"] == 8 and layers["last"]["inputs"]


def test_settings_seeds_and_the_call_to_make_it_again(info: dict[str, Any]) -> None:
    facts = [
        fact for one in section(pruned("x", info), "settings").blocks if isinstance(one, Facts) for fact in one.facts
    ]
    found = dict(facts)
    assert found["settings: seed"] == "3" and found["budget"] == '{"params": "80%"}'
    assert found["in Python"].startswith("res = sc.prune(model, data, budget={'params': '80%'}, method='residual'")
    command = dict(block(pruned("s", info | {"model": "a b.py:make", "data": "d"}), "settings", Facts).facts)
    assert command["model"] == "a b.py:make"


@pytest.mark.parametrize("name", ["format1.safetensors", "format2.safetensors", "plain.safetensors"])
def test_files_of_earlier_versions_are_shown_with_what_they_hold(name: str) -> None:
    result = read_source(FIXTURES / name)
    assert block(result, "groups", Table).rows
    warnings = [one for one in section(result, "summary").blocks if isinstance(one, Words) and one.warning]
    assert "does not hold" in warnings[0].texts[0]
    page([result])


@pytest.mark.parametrize(
    "change",
    [
        {"groups": "none"},
        {"groups": [1, {"name": 7}]},
        {"layers": [{"inputs": [5], "before": 1, "after": 1}]},
        {"layers": [{"inputs": "x", "before": None}]},
        {"before": {"params": "many"}},
        {"agreement": {"share": "all"}},
        {"repair": {"layers": [{"name": "a"}]}},
        {"scores": {"first": ["x", None]}},
        {"certificate": {"schema": 9}},
        {"settings": [], "budget": 3, "notes": "x"},
    ],
)
def test_odd_information_does_not_break_the_page(info: dict[str, Any], change: dict[str, Any]) -> None:
    page([pruned("x", info | change)])


def test_part_removed() -> None:
    assert part_removed({"before": {"params": 10}, "after": {"params": 4}}, "params") == pytest.approx(0.6)
    assert part_removed({"before": {"params": 0}, "after": {"params": 0}}, "params") is None


def test_a_comparison_that_is_not_finished(tmp_path: Path) -> None:
    found = sc.compare(lenet5(), digits("calibration")[0][:300], {"macs": ["50%"]}, ["ft", "random"], samples=16)
    record = found.info | {"finished": False}
    record["rows"] = record["rows"][:1]
    (tmp_path / "c.json").write_text(json.dumps(record))
    result = read_source(tmp_path / "c.json")
    assert "Unfinished: 1 of 2" in section(result, "comparison").blocks[0].texts[0]  # type: ignore[union-attr]
    assert [one.name for one in result.charts["macs"].series] == ["ft"]


def test_a_timing_has_its_interval() -> None:
    slow, fast = sc.Latency(10.0, 9.0, 12.0, 50, 1), sc.Latency(5.0, 4.0, 6.0, 50, 1)
    result = timing("bench.json", record_of(sc.Bench(slow, fast, 2.0, 1.9, 2.1), "a", "b"))
    (series,) = result.charts["times"].series
    assert list(series.y) == [10.0, 5.0] and list(series.low or ()) == [9.0, 4.0] and "1.900 to 2.100" in str(result)


def test_several_results_share_a_chart(info: dict[str, Any]) -> None:
    results = [pruned("one", info), pruned("two", info)]
    (chart,) = together(results)
    assert [one.name for one in chart.series] == ["one", "two"] and [one.style for one in chart.series] == [0, 1]
    assert together(results[:1]) == []
    assert "2 pruned networks side by side" in page(results)


def test_a_table_leaves_empty_columns_out_and_has_no_nan() -> None:
    columns = Column("a", "a"), Column("b", "b")
    made = Table("t", "t", columns, ({"a": float("nan"), "b": 1.0}, {"a": float("inf")})).data()
    assert [one["key"] for one in made["columns"]] == ["b"] and made["rows"] == [[1.0], [None]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", "{", "cannot be read"),
        ("x.json", "[1]", "no comparison"),
        ("x.json", '{"networks": [], "speedup": 1, "low": 1, "high": 1, "verdict": ""}', "is damaged"),
        ("x.safetensors", "no", "safetensors"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SecateurError, match=message):
        read_source(tmp_path / name)


def test_a_source_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"there is no nowhere.json"):
        read_source("nowhere.json")
    with pytest.raises(UsageError):
        of_record("x", 3)


def test_a_reproduction_stands_beside_the_paper() -> None:
    rows = [
        {
            "network": "LeNet-5",
            "method": "PFP",
            "row": "within 0.5",
            "PR": 91.2,
            "paper: PR": 92.37,
            "protocol": "full",
        },
        {"network": "LeNet-5", "method": "FT", "row": "within 0.5", "PR": None, "paper: PR": 85.04, "protocol": "x"},
    ]
    record = {"name": "lenets", "title": "LeNets", "paper": "Table 1", "note": "", "rows": rows, "missing": ["<FT>"]}
    result = of_record("lenets.json", record)
    here = result.charts["curves"].series
    assert result.kind == "reproduction" and [list(one.y) for one in here] == [[92.37], [91.2]]
    assert "&lt;FT&gt;" in page([result])


def test_curves_of_a_reproduction() -> None:
    rows = [
        {"network": "LeNet-5", "method": method, "PR": pr, "before retraining": 50.0, "after retraining": 99.0}
        for method in ("PFP", "FT")
        for pr in (50.0, 80.0)
    ]
    record = {"name": "a", "title": "Curves", "paper": "Figure 2", "rows": rows, "missing": []}
    charts = of_record("a.json", record).charts
    assert list(charts) == ["curves:LeNet-5, before retraining", "curves:LeNet-5, after retraining"]
    assert [list(one.x) for one in charts["curves:LeNet-5, after retraining"].series] == [[pytest.approx(0.2), 0.5]] * 2
