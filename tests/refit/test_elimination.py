"""The order in which units are removed: errors of brute-force refits, the smallest first."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur.refit import elimination as module
from secateur.refit.elimination import Consumer, Order, SeparateErrors, eliminate

Rows = tuple[tuple[int, ...], ...]


def consumer(n: int, rows: Rows, *, outputs: int = 4, samples: int = 200, seed: int = 0) -> Consumer:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, n, generator=source).double() @ torch.randn(n, n, generator=source).double()
    return Consumer(x.T @ x / samples, torch.randn(outputs, n, generator=source).double(), rows)


def brute(consumers: list[Consumer], gone: list[int], ridge: float) -> float:
    """Refit what is left from scratch, in every consumer; the ridge draws the weights towards the old ones."""
    total = 0.0
    for one in consumers:
        gram = one.gram.double() + ridge * one.gram.diagonal().mean() * torch.eye(len(one.gram)).double()
        away = {row for unit in gone for row in one.inputs[unit]}
        stays = [row for row in range(len(gram)) if row not in away]
        weight = torch.zeros_like(one.weight)
        if stays:
            weight[:, stays] = torch.linalg.solve(gram[stays][:, stays], gram[stays] @ one.weight.T).T
        change = one.weight - weight
        total += float(((change @ gram) * change).sum())
    return total


def check(consumers: list[Consumer], order: Order, ridge: float) -> None:
    """Every error is that of a refit, and every unit that goes is the one that it costs least to lose."""
    units = len(consumers[0].inputs)
    assert sorted(order.removed) == list(range(units)) and len(order.errors) == units and order.errors[0] == 0
    whole = brute(consumers, list(range(units)), ridge)
    for count in range(units - 1):
        gone = list(order.removed[:count])
        costs = {unit: brute(consumers, [*gone, unit], ridge) for unit in range(units) if unit not in gone}
        least = min(costs.values())
        assert costs[order.removed[count]] <= least + 1e-7 * whole
        assert float(order.errors[count + 1]) == pytest.approx(costs[order.removed[count]], rel=1e-6, abs=1e-9 * whole)
    assert (order.errors.diff() >= 0).all()


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    units=st.integers(1, 7),
    consumers=st.integers(1, 3),
    ridge=st.sampled_from([1e-6, 1e-3, 0.1]),
)
def test_every_step_is_that_of_a_slow_search(seed: int, units: int, consumers: int, ridge: float) -> None:
    pick = torch.Generator().manual_seed(seed)
    made = []
    for number in range(consumers):
        widths = torch.randint(0, 4, (units,), generator=pick).tolist()
        extra = int(torch.randint(1, 3, (1,), generator=pick))  # rows of nobody: the constant, other groups
        places = torch.randperm(sum(widths) + extra, generator=pick).tolist()
        rows = tuple(tuple(places.pop() for _ in range(width)) for width in widths)
        made.append(consumer(sum(widths) + extra, rows, seed=seed + number))
    check(made, eliminate(made, ridge), ridge)


def test_fewer_samples_than_inputs() -> None:
    made = [consumer(12, tuple((2 * u, 2 * u + 1) for u in range(6)), samples=5)]
    check(made, eliminate(made, 1e-3), 1e-3)


def test_what_others_can_replace_goes_before_what_is_small() -> None:
    x = torch.randn(500, 4).double()
    x[:, 3] = x[:, 0] + x[:, 1]  # large, but of no use
    x[:, 2] *= 0.1
    one = Consumer(x.T @ x / 500, torch.ones(2, 4).double(), ((0,), (1,), (2,), (3,)))
    order = eliminate([one], 1e-9)
    assert sorted(order.removed[:2]) == [0, 1] and order.removed[2:] == (2, 3)  # the sum alone does it
    assert float(order.errors[2]) < 1e-6 < 1e-3 < float(order.errors[3])


def test_a_unit_that_no_layer_consumes_costs_nothing_and_goes_first() -> None:
    rows = ((0, 1), (), (2,), (3, 4), (5,))
    one, other = consumer(7, rows), consumer(7, ((6,), (), (2, 3), (4,), (0,)), seed=1)
    silent = Consumer(one.gram, one.weight.clone(), rows)
    silent.weight[:, 5] = 0
    order = eliminate([one, other])
    assert order.removed[0] == 1 and order.errors[1] == 0
    order = eliminate([silent, Consumer(other.gram, other.weight.index_fill(1, torch.tensor(0), 0), other.inputs)])
    assert order.removed[:2] == (1, 4) and float(order.errors[2]) < 1e-6 * float(order.errors[-1])


def test_one_unit_stays() -> None:
    order = eliminate([consumer(3, ((0, 1),))])
    assert order.removed == (0,) and order.errors.tolist() == [0.0]


def test_many_units_go_several_at_a_time_with_true_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4)
    made = [consumer(17, tuple((u,) for u in range(16)))]
    order = eliminate(made, 1e-3)
    for count in range(16):
        wanted = brute(made, list(order.removed[:count]), 1e-3)
        assert float(order.errors[count]) == pytest.approx(wanted, rel=1e-6, abs=1e-9)
    first = [brute(made, [unit], 1e-3) for unit in range(16)]
    assert set(order.removed[:4]) == set(torch.tensor(first).argsort()[:4].tolist())


def test_single_precision_is_enough_for_the_order() -> None:
    source = torch.Generator().manual_seed(0)
    x = (torch.randn(2000, 8, generator=source) @ torch.randn(8, 90, generator=source)).relu()
    x += 0.3 * torch.randn(x.shape, generator=source)
    weight, inputs = torch.randn(5, 90, generator=source), tuple((3 * u, 3 * u + 1, 3 * u + 2) for u in range(29))
    single = eliminate([Consumer(x.T @ x, weight, inputs, len(x))], 1e-3)
    double = eliminate([Consumer((x.T @ x).double(), weight.double(), inputs, len(x))], 1e-3)
    assert single.removed == double.removed
    assert single.errors.tolist() == pytest.approx(double.errors.tolist(), rel=1e-4)


def test_consumers_are_left_unchanged() -> None:
    one = consumer(5, ((0,), (1,), (2, 3)))
    gram, weight = one.gram.clone(), one.weight.clone()
    single = Consumer(one.gram.float(), one.weight.float(), one.inputs)
    assert eliminate([one]).removed == eliminate([single]).removed
    assert torch.equal(one.gram, gram) and torch.equal(one.weight, weight)


def test_a_layer_whose_input_is_zero() -> None:
    order = eliminate([Consumer(torch.zeros(3, 3), torch.randn(2, 3), ((0,), (1,), (2,)))])
    assert torch.isfinite(order.errors).all() and sorted(order.removed) == [0, 1, 2]


def test_separate_errors_add_up() -> None:
    errors = torch.tensor([3.0, 1.0, 2.0])
    order = eliminate([SeparateErrors(errors)])
    assert order.removed == (1, 2, 0) and order.errors.tolist() == [0, 1, 3]
    both = eliminate([SeparateErrors(errors), one := consumer(3, ((0,), (1,), (2,)))])
    for count in range(3):
        gone = list(both.removed[:count])
        wanted = float(errors[gone].sum()) + brute([one], gone, 1e-3)
        assert float(both.errors[count]) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def slow_errors(gram: Tensor, weight: Tensor) -> list[float]:
    one = Consumer(gram, weight, tuple((u,) for u in range(len(gram))))
    return [brute([one], [unit], 0.0) for unit in range(len(gram))]


def test_without_correlations_it_is_the_energy_of_each() -> None:
    gram, weight = torch.diag(torch.tensor([4.0, 1.0, 9.0])).double(), torch.tensor([[1.0, 3.0, 1.0]]).double()
    assert slow_errors(gram, weight) == [4.0, 9.0, 9.0]
    order = eliminate([Consumer(gram, weight, ((0,), (1,), (2,)))], 1e-12)
    assert order.removed[0] == 0 and order.errors.tolist() == pytest.approx([0, 4, 13])
