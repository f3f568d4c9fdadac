"""SoftNet: euclidean norms, over every layer that makes the unit."""

from __future__ import annotations

import math

import pytest
import torch

from secateur.methods.ft import FT
from secateur.methods.softnet import SoftNet
from support.evidences import PRODUCERS, case_evidence, evidence_of


@pytest.mark.parametrize("name", PRODUCERS)
def test_scores_are_the_roots_of_the_sums_of_squares(name: str) -> None:
    network, evidence = case_evidence(name)
    found = SoftNet().scores(evidence)
    assert found.keys() == PRODUCERS[name].keys()
    for group, makers in PRODUCERS[name].items():
        for unit, score in enumerate(found[group].tolist()):
            parts = makers(network, unit)
            assert score == pytest.approx(math.sqrt(sum(w * w for p in parts for w in p.flatten().tolist())), rel=1e-12)


def test_only_units_left_are_scored_in_their_order() -> None:
    kept = {"a": [1, 2, 3], "b": [0, 5]}
    network, evidence = case_evidence("residual", kept=kept)
    found = SoftNet().scores(evidence)
    weight = network.b.weight.detach()[[0, 5]][:, [1, 2, 3]]  # what is gone from the stream is no longer read
    torch.testing.assert_close(found["b"], weight.flatten(1).norm(dim=1))
    assert len(found["a"]) == 3


def test_the_two_norms_rank_differently() -> None:
    network, _ = case_evidence("plain")
    with torch.no_grad():
        network.a.weight.zero_()
        network.a.weight[0, 0], network.a.weight[1] = 1.5, 0.6  # one large weight, or three small ones
    evidence = evidence_of(network)
    ft, softnet = FT().scores(evidence)["a"], SoftNet().scores(evidence)["a"]
    assert ft[0] < ft[1] and softnet[0] > softnet[1]
