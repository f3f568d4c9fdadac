"""Layers that select their inputs: the cut network takes the original's inputs and computes what the mask computes."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.errors import SecateurError
from secateur.network.modules import Slot
from secateur.storage.checkpoint import read_info
from secateur.surgery.selected import SelectingConv1d, SelectingConv2d, SelectingConv3d, SelectingLinear


def network(first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)).eval()


def case(first: nn.Module, shape: tuple[int, ...]) -> tuple[nn.Module, Tensor]:
    model, x = network(first), torch.randn(5, *shape)
    model(x)
    return model, x


CASES = [
    (nn.Linear(9, 6), (9,), SelectingLinear, -1),
    (nn.Linear(9, 6), (4, 9), SelectingLinear, -1),
    (nn.Conv1d(7, 6, 3), (7, 8), SelectingConv1d, 1),
    (nn.Conv2d(7, 6, 3, padding=1), (7, 5, 5), SelectingConv2d, 1),
    (nn.Conv3d(7, 6, 2), (7, 3, 3, 3), SelectingConv3d, 1),
]


@pytest.mark.parametrize(("first", "shape", "kind", "axis"), CASES)
def test_the_cut_network_selects_its_inputs(first: nn.Module, shape: tuple[int, ...], kind: type, axis: int) -> None:
    model, x = case(copy.deepcopy(first), shape)
    graph = sc.trace(model, x[:1], prune_inputs=True)
    plan = sc.Plan.keeping(graph, {"0": [0, 2, 3], "0:input": [1, 4, 5]})
    small = sc.cut(model, plan)
    assert type(small[0]) is kind and isinstance(small[0], type(first))
    assert small[0].weight.shape[:2] == (3, 3) and small[0].kept_inputs.tolist() == [1, 4, 5]
    rest = [i for i in range(graph["0:input"].size) if i not in (1, 4, 5)]
    without = x.index_fill(axis, torch.tensor(rest), 0)  # the oracle: the other inputs are zero
    assert torch.allclose(small(x), sc.cut(model, sc.Plan.keeping(graph, {"0": [0, 2, 3]}))(without), atol=1e-6)
    assert torch.equal(small(x), small(without))
    assert sc.verify(model, plan, [x]) < 1e-5
    for again in (copy.deepcopy(small), pickle.loads(pickle.dumps(small)), torch.export.export(small, (x,)).module()):
        assert torch.equal(again(x), small(x))


def test_a_second_cut_selects_among_the_selected() -> None:
    model, x = case(nn.Linear(9, 6), (9,))
    graph = sc.trace(model, x[:1], prune_inputs=True)
    first = sc.Plan.keeping(graph, {"0:input": [1, 3, 4, 7]})
    small = sc.cut(model, first)
    after = first.graph_after(graph)
    assert after.shapes["0.kept_inputs"] == (4,)
    traced = sc.trace(small, x[:1], prune_inputs=True)
    second = sc.Plan.keeping(traced, {"0:input": [0, 3], "0": [1, 2]})
    smaller = sc.cut(small, second)
    assert smaller[0].kept_inputs.tolist() == [1, 7]
    combined = first.then(second)
    assert combined.selects == (Slot("0.weight", 1),)
    assert torch.equal(sc.cut(model, combined)(x), smaller(x))
    assert [(g.name, g.size, g.from_input) for g in after.prunable] == [
        (g.name, g.size, g.from_input) for g in traced.prunable
    ]


def test_a_saved_network_selects_again(tmp_path: Path) -> None:
    model, x = case(nn.Linear(40, 12), (40,))
    res = sc.prune(model, torch.randn(256, 40), {"params": "40%"}, method="pfp", prune_inputs=True)
    assert {row.name: row.before > row.after for row in res.rows}["0:input"]
    assert sc.Plan.from_json(res.plan.to_json()) == res.plan
    sc.save(tmp_path / "small.safetensors", res)
    loaded = sc.load(tmp_path / "small.safetensors", case(nn.Linear(40, 12), (40,))[0])
    assert torch.equal(loaded(x), res.model(x))
    assert read_info(tmp_path / "small.safetensors")["settings"]["prune_inputs"] is True


def test_a_plan_that_selects_elsewhere_is_refused() -> None:
    model, x = case(nn.Linear(9, 6), (9,))
    plan = sc.Plan.keeping(sc.trace(model, x[:1], prune_inputs=True), {"0:input": [1, 3]})
    for slots in ((Slot("3.weight", 1),), (Slot("0.bias", 0),)):
        with pytest.raises(SecateurError, match="selects inputs"):
            sc.cut(model, replace(plan, selects=slots))
