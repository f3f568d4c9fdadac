"""Random: by the seed and the group alone, every unit as likely as any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

from secateur.errors import SecateurError
from secateur.methods.random import Random
from support.evidences import case_evidence


def test_scores_depend_on_seed_and_group_only() -> None:
    one, again, other = (Random().scores(case_evidence("residual", seed=seed)[1]) for seed in (4, 4, 5))
    assert one.keys() == {"a", "b"} and one["a"].dtype == torch.float64
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["a"], other["a"])
    assert not torch.equal(one["a"][:6], one["b"])


def test_what_was_cut_before_does_not_change_the_order_of_the_rest() -> None:
    kept = {"a": [0, 2, 5]}
    whole, some = (Random().scores(case_evidence("residual", **more)[1]) for more in ({}, {"kept": kept}))
    assert torch.equal(some["a"], whole["a"][kept["a"]]) and torch.equal(some["b"], whole["b"])


def test_a_group_that_no_layer_is_seen_to_make_has_scores_too() -> None:
    assert Random().scores(case_evidence("weight_normed", output="graph")[1]).keys() == {"a", "b"}


def test_every_unit_stays_equally_often() -> None:
    _, evidence = case_evidence("plain")
    counts = torch.zeros(8)
    for seed in range(800):
        scores = Random().scores(replace(evidence, seed=seed))["a"]
        counts[list(Random().choose("a", scores, 4).kept)] += 1
    # Drawn without replacement the counts vary less than a multinomial's: the test errs once in 1,000 at most.
    assert float(stats.chisquare(counts.numpy()).pvalue) > 1e-3


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(SecateurError, match="the seed is -1"):
        Random().scores(case_evidence("plain", seed=-1)[1])
