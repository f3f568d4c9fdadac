"""Calibration sets: different samples each time, none of the held-out ones, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from secateur.errors import SecateurError, UsageError
from secateur.network.batches import with_labels
from secateur.pruning.pool import Pool


def pool(sizes: list[int], labels: bool = True) -> Pool:
    """Samples 0, 1, 2, ... with ten times the number as label."""
    numbers = torch.arange(sum(sizes)).split(sizes)
    return Pool(list(with_labels([(n.float()[:, None], 10 * n) if labels else n.float()[:, None] for n in numbers])))


def numbers_of(pairs: list[Any]) -> list[int]:
    return [int(x) for (args, _), _ in pairs for x in args[0][:, 0]]


def test_calibration_sets_are_disjoint_if_there_are_enough_samples() -> None:
    held, parts = pool([5, 5, 5, 5]).parts(samples=5, repeats=3, held=4, seed=0)
    assert (len(held), [len(part) for part in parts]) == (4, [5, 5, 5])
    every = [*held, *(one for part in parts for one in part)]
    assert len(set(every)) == len(every) and set(every) <= set(range(20))


def test_calibration_sets_share_samples_if_there_are_few_but_no_held_out_one() -> None:
    held, parts = pool([20]).parts(samples=10, repeats=4, held=100, seed=0)
    assert len(held) == 5  # a quarter
    assert all(len(set(part)) == 10 and not set(part) & set(held) for part in parts)
    assert len({frozenset(part) for part in parts}) == 4


def test_the_seed_decides() -> None:
    first, again, other = (pool([20]).parts(samples=10, repeats=4, held=4, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


def test_every_sample_is_as_likely() -> None:
    """Each of 12 samples is among 6 samples of 1,000 seeds 500 times; 5 standard deviations are 79, so that one of
    twelve counts is further off with a probability below 1e-5."""
    counts = torch.zeros(12)
    for seed in range(1000):
        counts[pool([12]).parts(samples=6, repeats=1, held=0, seed=seed)[1][0]] += 1
    assert (counts - 500).abs().max() < 79


def test_calibration_sets_that_would_all_be_the_same_are_refused() -> None:
    with pytest.raises(UsageError, match="every repeat with 30 would use all of them"):
        pool([20]).parts(samples=30, repeats=2, held=0, seed=0)
    assert len(pool([20]).parts(samples=30, repeats=1, held=0, seed=0)[1][0]) == 20


def test_samples_keep_their_labels_and_come_in_batches_as_large_as_the_first() -> None:
    which = [7, 0, 3, 9, 5]
    found = pool([4, 6]).some(which)
    assert numbers_of(found) == which
    assert [len(labels) for _, labels in found] == [4, 1]
    assert [int(y) for _, labels in found for y in labels] == [10 * one for one in which]


def test_all_samples_stay_as_they_are() -> None:
    whole = pool([4, 6])
    assert whole.some(torch.randperm(10).tolist()) is whole.pairs


def test_without_labels_or_with_some() -> None:
    assert pool([4, 6], labels=False).labels is None
    assert all(labels is None for _, labels in pool([4, 6], labels=False).some([1, 2]))
    x = torch.zeros(4, 1)
    mixed = Pool(list(with_labels([(x, torch.zeros(4)), x])))
    assert mixed.labels is None and mixed.some([0])[0][1] is None


def test_what_belongs_to_no_sample_stays() -> None:
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


class Numbers(Dataset[Any]):
    """Samples 0, 1, 2, ... with ten times the number as label."""

    def __init__(self, size: int, broken: int = -1) -> None:
        self.size, self.broken, self.asked = size, broken, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return torch.tensor([torch.nan if index == self.broken else float(index)]), 10 * index


def test_samples_of_a_data_set_are_chosen_at_random_and_only_these_are_read() -> None:
    data = Numbers(1000)
    found = Pool.of(data, 100, seed=3)
    numbers = numbers_of(found.pairs)
    assert sorted(numbers) == sorted(data.asked) and len(set(numbers)) == 100 and max(numbers) > 500
    assert found.labels is not None and torch.cat(found.labels).tolist() == [10 * n for n in numbers]
    loader = Pool.of(DataLoader(Numbers(1000), batch_size=64), 100, seed=3)
    assert numbers == numbers_of(loader.pairs) and not found.notes
    assert numbers_of(Pool.of(Numbers(20), 100, seed=3).pairs) == list(range(20))
    assert numbers_of(Pool.of(Numbers(20), None, seed=3).pairs) == list(range(20))


def test_samples_of_an_array_are_chosen_at_random() -> None:
    x = torch.arange(1000.0)[:, None]
    numbers = numbers_of(Pool.of(x.numpy(), 100, seed=3).pairs)
    assert numbers == numbers_of(Pool.of(x, 100, seed=3).pairs) and max(numbers) > 500


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: DataLoader(data, batch_size=7)])
def test_a_broken_sample_of_a_data_set_is_named_by_its_number(wrap: Callable[[Any], Any]) -> None:
    broken = numbers_of(Pool.of(Numbers(1000), 100, seed=3).pairs)[40]
    with pytest.raises(SecateurError, match=f"in sample {broken} of the data set, counted from 0"):
        Pool.of(wrap(Numbers(1000, broken)), 100, seed=3)
