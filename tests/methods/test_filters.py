"""The filters of a group: the weights that make each unit, as the layers use them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secateur.channels.graph import ChannelGraph, Group
from secateur.errors import SecateurError
from secateur.methods.base import Evidence
from secateur.methods.filters import checked, filters, producer_weights, units_along
from secateur.network.modules import Slot
from support.evidences import PRODUCERS, case_evidence, evidence_of, filter_rows


@pytest.mark.parametrize("name", PRODUCERS)
def test_every_weight_that_makes_a_unit_is_in_its_row(name: str) -> None:
    network, evidence = case_evidence(name)
    assert {group.name for group in evidence.graph.prunable} == PRODUCERS[name].keys()
    for group in evidence.graph.prunable:
        rows = filters(evidence, group)
        assert rows is not None and rows.dtype == torch.float64 and not rows.requires_grad
        wanted = filter_rows(network, PRODUCERS[name][group.name], range(group.size))
        torch.testing.assert_close(rows.sort(1).values, wanted.sort(1).values, rtol=0, atol=0)


def test_only_units_left_have_rows_and_what_was_cut_before_them_is_zero() -> None:
    network, evidence = case_evidence("residual", kept={"a": [1, 2, 6], "b": [0, 3, 4, 5]})
    rows = filters(evidence, evidence.graph["b"])
    weight = network.b.weight.detach()[[0, 3, 4, 5]].clone()
    weight[:, [0, 3, 4, 5, 7]] = 0
    torch.testing.assert_close(rows, weight.flatten(1))


def test_a_weight_that_the_network_computes_unseen_is_left_out() -> None:
    _, evidence = case_evidence("weight_normed", output="graph")
    assert [group.name for group in evidence.graph.prunable] == ["a", "b"]
    assert filters(evidence, evidence.graph["a"]) is not None
    assert filters(evidence, evidence.graph["b"]) is None


def test_units_of_different_numbers_of_channels_are_filled_up() -> None:
    network = nn.Linear(2, 3)
    slot = Slot("weight", 0)
    group = Group("all", (slot,), (((0, 2), (1,)),), produces=(slot,))
    evidence = Evidence(network, ChannelGraph((group,), {"weight": (3, 2)}, None), [], None, {"all": [0, 1]})
    rows = filters(evidence, group)
    w = network.weight.detach().double()
    assert rows is not None and rows.tolist() == [[*w[0].tolist(), *w[2].tolist()], [*w[1].tolist(), 0, 0]]
    assert list(producer_weights(network, group)) == [slot]
    assert units_along(group, slot, 3, [0, 1]).tolist() == [0, 1, 0]
    assert units_along(group, slot, 3, [1]).tolist() == [1, 0, 1]


def test_scores_that_are_no_numbers_are_refused_by_name() -> None:
    fine = torch.ones(2)
    assert checked({"a": fine}) == {"a": fine}
    for bad in (float("nan"), float("inf")):
        with pytest.raises(SecateurError, match=r"layer4: 1 of 2 values of its scores"):
            checked({"a": fine, "layer4": torch.tensor([1.0, bad])})


def test_half_precision_counts_in_double() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 2)).to(torch.bfloat16)
    evidence = evidence_of(network, torch.randn(4, 3).bfloat16())
    rows = filters(evidence, evidence.graph["0"])
    assert rows is not None and torch.equal(rows, network[0].weight.detach().double())
