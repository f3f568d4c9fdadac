"""The output divergence beside sums over classes and values, written out."""

from __future__ import annotations

import math

import pytest
import torch

from secateur.network.divergence import are_class_scores, output_divergence


def test_class_scores_are_compared_by_the_kl_divergence() -> None:
    torch.manual_seed(0)
    old, new = torch.randn(5, 4), torch.randn(5, 4)
    total = 0.0
    for i in range(5):
        p = [math.exp(v) / sum(map(math.exp, old[i].tolist())) for v in old[i].tolist()]
        q = [math.exp(v) / sum(map(math.exp, new[i].tolist())) for v in new[i].tolist()]
        total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / 5
    assert output_divergence([new], [old]) == pytest.approx(total, rel=1e-5)


def test_other_outputs_are_compared_by_the_relative_squared_error() -> None:
    old, new = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.5], [1.0]])
    assert not are_class_scores(old)
    assert output_divergence([new], [old]) == pytest.approx((0.25 + 1) / 5)


def test_several_outputs_are_averaged_and_equal_ones_do_not_differ() -> None:
    scores, values = torch.randn(3, 4), torch.randn(3, 2, 5)
    assert output_divergence([scores, values], [scores, values]) == 0
    assert output_divergence([scores, 2 * values], [scores, values]) == pytest.approx(0.5)


def test_halves_are_summed_in_single_precision() -> None:
    old = torch.full((2, 1, 1000), 10.0, dtype=torch.float16)  # the sum of squares leaves the range of halves
    assert output_divergence([old * 2], [old]) == pytest.approx(1)


def test_numbers_that_are_not_finite_diverge_infinitely() -> None:
    assert output_divergence([torch.full((1, 2), math.nan)], [torch.zeros(1, 2)]) == math.inf
