"""Least residual: what goes is what a refit can do without, and the divergence of it is told."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

import secateur as sc
from secateur.methods.base import GroupRow
from secateur.methods.residual import Residual
from secateur.refit.curves import Curve
from support.cases import Net
from support.evidences import case_evidence, evidence_of

CURVE = Curve((3, 0, 2, 1), torch.tensor([0.0, 0.5, 2.0, 7.0]).double())


def test_those_stay_that_go_last() -> None:
    assert Residual().choose("a", CURVE, 1).kept == (1,)
    assert Residual().choose("a", CURVE, 3).kept == (0, 1, 2)
    assert Residual().choose("a", CURVE, 4).kept == (0, 1, 2, 3)
    assert Residual().choose("a", CURVE, 3).scales == (1.0, 1.0, 1.0)


def test_the_divergence_is_told_and_adds_up_over_steps() -> None:
    row = Residual().row(GroupRow("a", 4, 4), CURVE, 2, Residual().choose("a", CURVE, 2))
    assert row.after == 2 and row.divergence == 2.0 and math.isnan(row.mass)
    again = Residual().row(row, Curve((1, 0), torch.tensor([0.0, 3.0]).double()), 1, Residual().choose("a", CURVE, 1))
    assert again.after == 1 and again.divergence == 5.0


def test_as_a_number_a_unit_has_the_divergence_done_once_it_has_gone() -> None:
    assert Residual().numbers(CURVE).tolist() == [2.0, 7.0, 7.0, 0.5]


def test_its_scores_are_the_curves() -> None:
    _, evidence = case_evidence("residual")
    found = Residual().scores(evidence)
    assert found.keys() == {"a", "b"} and found["a"] is evidence.curves()["a"]


def test_copies_go_before_anything_that_is_unlike_the_others() -> None:
    torch.manual_seed(2)
    network = Net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Linear(5, 8), b=nn.Linear(8, 4)).double()
    with torch.no_grad():
        network.a.weight[5:], network.a.bias[5:] = network.a.weight[:3].clone(), network.a.bias[:3].clone()
    images = torch.randn(200, 5).double()
    scores = Residual().scores(evidence_of(network, images))["a"]
    gone = scores.removed[:3]
    assert {unit % 5 for unit in gone} == {0, 1, 2} and float(scores.divergence[3]) < 1e-2 * float(
        scores.divergence[-1]
    )


def test_it_is_the_default_and_is_repaired() -> None:
    network, evidence = case_evidence("residual")
    res = sc.prune(network, torch.randn(40, 3, 8, 8).double(), {"params": "60%"}, example=evidence.batches[0][0])
    assert res.method == Residual() and res.allocation == "residual" and res.repair is not None
    assert any("no guarantee before the cut" in note for note in res.notes)
    assert all(math.isfinite(row.divergence) for row in res.rows) and "divergence" in res.summary()
