"""One tensor under a plan."""

from __future__ import annotations

import torch
from cases import build
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import secateur as sc
from secateur.slices import silence, smaller

NETWORK, EXAMPLE = build("residual")
GRAPH = sc.trace(NETWORK, EXAMPLE)
UNITS = st.sets(st.integers(0, 7), min_size=1, max_size=7)


def naive_cut(tensor: torch.Tensor, name: str, plan: sc.Plan) -> torch.Tensor:
    """The obvious way: one index after the other."""
    for axis in range(tensor.dim()):
        rows = plan.kept.get(sc.Slot(name, axis))
        if rows is not None:
            tensor = torch.stack([tensor.select(axis, row) for row in rows], axis)
    return tensor


@given(UNITS)
def test_smaller_takes_the_rows_and_columns_that_stay(units: set[int]) -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": sorted(units)})
    for name, tensor in NETWORK.state_dict().items():
        assert torch.equal(smaller(tensor, name, plan), naive_cut(tensor, name, plan))


def test_a_parameter_stays_a_parameter_with_its_marks() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": [1, 2]})
    weight = nn.Parameter(torch.randn(8, 3, 1, 1), requires_grad=False)
    weight.no_weight_decay = True
    cut = smaller(weight, "a.weight", plan)
    assert isinstance(cut, nn.Parameter) and not cut.requires_grad and cut.no_weight_decay


@given(UNITS)
def test_silence_zeroes_what_readers_would_read(units: set[int]) -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": sorted(units)})
    tensors = {name: tensor.clone() for name, tensor in NETWORK.state_dict().items()}
    silence(tensors, plan)
    for i in range(8):
        for name in ("b.weight", "d.weight"):
            untouched = torch.equal(tensors[name][:, i], NETWORK.state_dict()[name][:, i])
            assert untouched if i in units else not tensors[name][:, i].any()
    assert torch.equal(tensors["a.weight"], NETWORK.state_dict()["a.weight"])


def test_silence_scales_a_group_that_stays_whole() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": range(8)}, {"a": [2.0] * 8})
    tensors = {name: tensor.clone() for name, tensor in NETWORK.state_dict().items()}
    silence(tensors, plan)
    assert torch.equal(tensors["b.weight"], 2 * NETWORK.state_dict()["b.weight"])
