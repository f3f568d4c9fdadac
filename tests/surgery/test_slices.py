"""One tensor under a plan."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import secateur as sc
from secateur.surgery.slices import cut_tensor, mask_tensors
from support.cases import build
from support.oracles import naive_cut

NETWORK, EXAMPLE = build("residual")
GRAPH = sc.trace(NETWORK, EXAMPLE)
UNITS = st.sets(st.integers(0, 7), min_size=1, max_size=7)


@given(UNITS)
def test_a_cut_tensor_has_the_kept_rows_and_columns(units: set[int]) -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": sorted(units)})
    for name, tensor in NETWORK.state_dict().items():
        assert torch.equal(cut_tensor(tensor, name, plan), naive_cut(tensor, name, plan))


def test_a_parameter_stays_a_parameter_with_its_attributes() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": [1, 2]})
    weight = nn.Parameter(torch.randn(8, 3, 1, 1), requires_grad=False)
    weight.no_weight_decay = True
    cut = cut_tensor(weight, "a.weight", plan)
    assert isinstance(cut, nn.Parameter) and not cut.requires_grad and cut.no_weight_decay


@given(UNITS)
def test_a_mask_zeroes_the_slices_that_consume_removed_channels(units: set[int]) -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": sorted(units)})
    tensors = {name: tensor.clone() for name, tensor in NETWORK.state_dict().items()}
    mask_tensors(tensors, plan)
    for i in range(8):
        for name in ("b.weight", "d.weight"):
            untouched = torch.equal(tensors[name][:, i], NETWORK.state_dict()[name][:, i])
            assert untouched if i in units else not tensors[name][:, i].any()
    assert torch.equal(tensors["a.weight"], NETWORK.state_dict()["a.weight"])


def test_a_mask_scales_a_group_that_keeps_all_units() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": range(8)}, {"a": [2.0] * 8})
    tensors = {name: tensor.clone() for name, tensor in NETWORK.state_dict().items()}
    mask_tensors(tensors, plan)
    assert torch.equal(tensors["b.weight"], 2 * NETWORK.state_dict()["b.weight"])
