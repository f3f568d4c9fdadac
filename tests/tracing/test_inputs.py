"""Input pruning: which inputs of a network can be cut, and what is said about the others."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.errors import UsageError
from secateur.zoo.names import build


class Functional(nn.Module):
    """Uses the weight of a layer without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(F.linear(x, self.fc.weight)))  # type: ignore[no-any-return]


class Shared(nn.Module):
    """Two layers with one weight: only the first of them takes the input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.second(F.relu(self.first(x)))))  # type: ignore[no-any-return]


class TwoReaders(nn.Module):
    """Two layers read the input, which is also part of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(5, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(F.relu(self.a(x)) + self.b(x))  # type: ignore[no-any-return]


def inputs_of(model: nn.Module, x: Tensor) -> dict[str, bool]:
    graph = sc.trace(model, x, prune_inputs=True)
    return {group.name: group.prunable for group in graph.groups if group.name.endswith(":input")}


def test_pixels_of_a_fully_connected_network_can_be_cut() -> None:
    model = build("zoo:lenet300100")
    x = torch.zeros(1, *model.input_shape)  # type: ignore[misc]
    assert inputs_of(model, x) == {"fc1:input": True}
    assert not sc.trace(model, x)["fc1:input"].prunable  # by default they stay


def test_several_readers_select_for_themselves() -> None:
    model, x = TwoReaders().eval(), torch.randn(4, 6)
    assert inputs_of(model, x) == {"a:input": True, "b:input": True}
    graph = sc.trace(model, x, prune_inputs=True)
    plan = sc.Plan.keeping(graph, {"a:input": [0, 1], "b:input": [3, 5]})
    assert sc.verify(model, plan, [x]) < 1e-6


@pytest.mark.parametrize("model", [Functional(), Shared()])
def test_inputs_that_no_layer_can_select_stay(model: nn.Module) -> None:
    graph = sc.trace(model, torch.zeros(1, 6), prune_inputs=True)
    assert not any(group.from_input for group in graph.groups)
    assert any("prune_inputs has no effect" in note for note in graph.notes)


def test_a_grouped_convolution_stays() -> None:
    model = nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    graph = sc.trace(model, torch.zeros(1, 6, 3, 3), prune_inputs=True)
    assert any("no plain linear layer or convolution" in note for note in graph.notes)


def test_one_channel_cannot_be_pruned_and_a_note_says_so() -> None:
    res = sc.prune(lenet5(), digits("calibration")[0], {"params": "50%"}, method="ft", prune_inputs=True)
    assert any("prune_inputs has no effect" in note for note in res.notes)


def test_filters_cannot_rank_inputs_and_a_note_says_so() -> None:
    model = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2))
    res = sc.prune(model, torch.randn(64, 20), {"params": "50%"}, method="ft", prune_inputs=True)
    assert any("0:input: ft ranks filters" in note for note in res.notes)


def test_a_graph_cut_is_refused() -> None:
    with pytest.raises(UsageError, match="output='module' only"):
        sc.trace(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)), torch.zeros(1, 6), output="graph", prune_inputs=True)


def test_a_graph_without_inputs_is_refused_where_they_are_asked_for() -> None:
    model, x = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 2)), torch.randn(64, 20)
    with pytest.raises(UsageError, match="prune_inputs= were settled"):
        sc.prune(model, x, {"params": "50%"}, graph=sc.trace(model, x[:1]), prune_inputs=True)
    res = sc.prune(model, x, {"params": "50%"}, graph=sc.trace(model, x[:1], prune_inputs=True), prune_inputs=True)
    assert res.plan.selects


@pytest.mark.parametrize("method", ["pfp", "residual", "thinet", "random"])
def test_methods_prune_inputs_exactly_and_repair_works(method: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(30, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(400, 30) @ torch.diag(torch.cat([torch.ones(10), torch.full((20,), 0.01)]))
    res = sc.prune(model, x, {"params": "50%"}, method=method, prune_inputs=True, samples=256, repair=True)
    assert res.verification < 1e-5 and res.repair is not None
    rows = {row.name: row for row in res.rows}
    assert rows["0:input"].after < 30
    if method in ("pfp", "residual"):  # the ten inputs that matter stay longest
        kept = next(group for group in res.plan.groups if group.name == "0:input").kept
        assert set(kept) >= set(range(10))
    cert = sc.certify(model, res.model, torch.randn(200, 30), delta=0.1, labels=False, plan=res.plan, layers=True)
    assert any(one.layer == "0" for one in cert.statements)
