"""Budgets in latency: sized by a table, corrected by measurements, or for another machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.costs.cost import cost
from secateur.costs.sizes import Sizes
from secateur.errors import SecateurError, UsageError
from secateur.profiling.table import LatencyTable, Segment
from secateur.pruning.pace import Pace
from secateur.pruning.settings import PruneSettings


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 48, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 16, 5)
    ).eval()


def table(model: nn.Module, per_product: dict[str, float], multiple: int = 4) -> LatencyTable:
    """A machine on which only the named layers take time."""
    shapes = {name: tuple(one.shape) for name, one in model.named_parameters()}
    segments = tuple(
        Segment(name, (shape[0], shape[1]), 0.01, 0.0, 0.0, per_product.get(name, 0.0))
        for name, shape in shapes.items()
        if len(shape) > 1
    )
    return LatencyTable(segments, 10.0, multiple, "Sequential", shapes, None, error=0.0)


X = torch.rand(160, 3, 8, 8)


def test_predictions_follow_the_sizes_of_both_sides() -> None:
    model = network()
    graph = sc.trace(model, X[:1])
    one = table(model, {"2.weight": 1.0})
    pace = Pace.of(model, graph, X[:1], PruneSettings(latency_table=one))
    found = pace.predicted(Sizes(graph, cost(model, X[:1])), {"0": 16, "2": 12})
    assert found == pytest.approx((0.03 + 16 * 12) / (0.03 + 32 * 48)) and pace.original_ms == 10.0


@pytest.mark.parametrize("method", ["residual", "pfp", "ft"])
def test_a_budget_is_met_by_the_table(method: str) -> None:
    model = network()
    graph = sc.trace(model, X[:1])
    one = table(model, {"2.weight": 1.0})
    res = sc.prune(model, X, {"latency": "55%"}, method=method, latency_table=one, graph=graph)
    counts = {row.name: row.after for row in res.rows}
    assert all(after % 4 == 0 for after in counts.values())  # the table's multiple
    pace = Pace.of(model, graph, X[:1], PruneSettings(latency_table=one))
    assert 0.45 < pace.predicted(Sizes(graph, cost(model, X[:1])), counts) <= 0.55
    assert any("not timed here" in note for note in res.notes)


def test_units_go_where_they_cost_time() -> None:
    model = network()
    kept = {}
    for slow in ("0.weight", "5.weight"):
        res = sc.prune(model, X, {"latency": "60%"}, latency_table=table(model, {slow: 1.0}), repair=False)
        kept[slow] = {row.name: row.after / row.before for row in res.rows}
    assert kept["0.weight"]["0"] < 0.7 and kept["0.weight"]["2"] == 1.0  # the other group saves no time
    assert kept["5.weight"]["2"] < 0.7 and kept["5.weight"]["0"] == 1.0


def test_milliseconds_are_those_of_the_table() -> None:
    model = network()
    one = table(model, {"2.weight": 1.0})
    res = sc.prune(model, X, {"latency_ms": 5.0}, method="ft", latency_table=one)
    assert res.plan.kept
    with pytest.raises(SecateurError, match=r"0.01 ms may remain .* the smallest network takes"):
        sc.prune(model, X, {"latency_ms": 0.01}, method="ft", latency_table=one)


def test_a_table_of_another_network_is_refused(tmp_path: Path) -> None:
    table(nn.Sequential(nn.Linear(3, 2)), {}).save(tmp_path / "t.json")
    with pytest.raises(UsageError, match="latency table is for another network"):
        sc.prune(network(), X, {"latency": "50%"}, latency_table=str(tmp_path / "t.json"))


def test_a_table_that_misleads_is_corrected_by_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real time is that of the last layer, while the table says it is that of the first."""
    model = network()
    graph = sc.trace(model, X[:1])
    wrong = table(model, {"2.weight": 1.0, "5.weight": 0.5})
    monkeypatch.setattr("secateur.pruning.pace.kept_table", lambda *args, **rest: (wrong, ()))
    measured = []

    def real(self: Pace, small: nn.Module, runs: int) -> float:
        measured.append(0.2 + 0.8 * small[2].weight.numel() / model[2].weight.numel())  # type: ignore[index, operator]
        return measured[-1]

    monkeypatch.setattr(Pace, "measured", real)
    res = sc.prune(model, X, {"latency": "70%"}, method="ft", graph=graph)
    final = real(None, res.model, 1)  # type: ignore[arg-type]
    assert 0.6 < final <= 0.7 and 2 <= len(measured) <= 7
