"""Draws of points: other ones each time, none of those held apart, the same for the same seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from secateur.batches import with_labels
from secateur.errors import SecateurError, UsageError
from secateur.pool import Pool


def pool(sizes: list[int], labels: bool = True) -> Pool:
    """Points 0, 1, 2, ... with ten times the number as label."""
    numbers = torch.arange(sum(sizes)).split(sizes)
    return Pool(list(with_labels([(n.float()[:, None], 10 * n) if labels else n.float()[:, None] for n in numbers])))


def numbers_of(pairs: list[Any]) -> list[int]:
    return [int(x) for (args, _), _ in pairs for x in args[0][:, 0]]


def test_draws_are_disjoint_while_there_are_enough_points() -> None:
    held, parts = pool([5, 5, 5, 5]).parts(points=5, draws=3, held=4, seed=0)
    assert (len(held), [len(part) for part in parts]) == (4, [5, 5, 5])
    every = [*held, *(one for part in parts for one in part)]
    assert len(set(every)) == len(every) and set(every) <= set(range(20))


def test_draws_share_points_when_there_are_few_but_none_that_is_held_apart() -> None:
    held, parts = pool([20]).parts(points=10, draws=4, held=100, seed=0)
    assert len(held) == 5  # a quarter
    assert all(len(set(part)) == 10 and not set(part) & set(held) for part in parts)
    assert len({frozenset(part) for part in parts}) == 4


def test_the_seed_decides() -> None:
    first, again, other = (pool([20]).parts(points=10, draws=4, held=4, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


def test_every_point_is_as_likely() -> None:
    """Each of 12 points is in a draw of 6 of 1,000 seeds 500 times; 5 standard deviations are 79, so that one of
    twelve counts is further off with a probability below 1e-5."""
    counts = torch.zeros(12)
    for seed in range(1000):
        counts[pool([12]).parts(points=6, draws=1, held=0, seed=seed)[1][0]] += 1
    assert (counts - 500).abs().max() < 79


def test_draws_that_would_all_be_the_same_are_refused() -> None:
    with pytest.raises(UsageError, match="every draw of 30 has all of them"):
        pool([20]).parts(points=30, draws=2, held=0, seed=0)
    assert len(pool([20]).parts(points=30, draws=1, held=0, seed=0)[1][0]) == 20


def test_points_keep_their_labels_and_come_in_batches_as_large_as_the_first() -> None:
    which = [7, 0, 3, 9, 5]
    found = pool([4, 6]).some(which)
    assert numbers_of(found) == which
    assert [len(labels) for _, labels in found] == [4, 1]
    assert [int(y) for _, labels in found for y in labels] == [10 * one for one in which]


def test_all_points_stay_as_they_are() -> None:
    whole = pool([4, 6])
    assert whole.some(torch.randperm(10).tolist()) is whole.pairs


def test_without_labels_or_with_some() -> None:
    assert not pool([4, 6], labels=False).labelled
    assert all(labels is None for _, labels in pool([4, 6], labels=False).some([1, 2]))
    x = torch.zeros(4, 1)
    mixed = Pool(list(with_labels([(x, torch.zeros(4)), x])))
    assert not mixed.labelled and mixed.some([0])[0][1] is None


def test_what_belongs_to_no_point_stays() -> None:
    fixed, scalar = torch.zeros(3), torch.tensor(2.0)
    batches = [{"x": torch.arange(4.0), "fixed": fixed, "scalar": scalar, "flag": True}] * 2
    ((_, kwargs), _), *_ = Pool(list(with_labels(batches))).some([0, 5])
    assert kwargs["x"].tolist() == [0.0, 1.0]
    assert kwargs["fixed"] is fixed and kwargs["scalar"] is scalar and kwargs["flag"] is True


def test_batches_that_cannot_be_mixed() -> None:
    uneven = Pool(list(with_labels([torch.zeros(4, 1), torch.zeros(4, 2)])))
    with pytest.raises(SecateurError, match="cannot be mixed"):
        uneven.some([0, 5])
    assert len(uneven.some(range(8))) == 2


def test_no_data() -> None:
    with pytest.raises(SecateurError, match="no data"):
        Pool([])
