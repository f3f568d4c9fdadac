"""Allocation: ladders, their one order, and the budget met to one step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import secateur as sc
from secateur.channels.graph import ChannelGraph
from secateur.costs.sizes import Sizes
from secateur.errors import UsageError
from secateur.pruning.growth import Growth, Ladder, allocate, fill, ladder, largest, within
from support import synthetic

# Few different values, so that ties are common; and any at all.
LEVELS = st.one_of(st.integers(0, 3).map(float), st.floats(-1e6, 1e6), st.just(math.inf), st.just(-math.inf))
FALLING = st.lists(LEVELS, min_size=1, max_size=40).map(lambda levels: sorted(levels, reverse=True))


@st.composite
def growths(draw: st.DrawFn, sizes: dict[str, int]) -> tuple[Growth, dict[str, Ladder]]:
    """Random levels for groups of these sizes."""
    ladders = {}
    for name, size in sizes.items():
        levels = sorted(draw(st.lists(LEVELS, min_size=size, max_size=size)), reverse=True)
        ladders[name] = ladder(levels, at_least=draw(st.integers(1, 3)), round_to=draw(st.sampled_from((1, 1, 2, 3))))
    return Growth(ladders), ladders


@st.composite
def budgets(draw: st.DrawFn) -> tuple[Growth, dict[str, Ladder], Sizes, dict[str, float]]:
    """A network without a network, random levels, and a budget that can be met."""
    graph, cost = draw(st.one_of(synthetic.networks(), synthetic_chains()))
    growth, ladders = draw(growths({group.name: group.size for group in graph.groups}))
    sizes = Sizes(graph, cost)
    ceilings = {}
    for name in draw(st.sampled_from((("params",), ("macs",), ("params", "macs")))):
        low, high = measured(sizes, growth, 0)[name], measured(sizes, growth, growth.steps)[name]
        ceilings[name] = draw(st.one_of(st.integers(low, high + 2).map(float), st.floats(low, high + 2)))
    return growth, ladders, sizes, ceilings


def synthetic_chains() -> st.SearchStrategy[tuple[ChannelGraph, sc.Cost]]:
    return st.lists(st.integers(1, 12), min_size=3, max_size=6).map(synthetic.chain)


def measured(sizes: Sizes, growth: Growth, position: int) -> dict[str, int]:
    counts = growth.counts(position)
    return {"params": sizes.params(counts), "macs": sizes.macs(counts)}


def obeys(found: dict[str, int], ceilings: dict[str, float]) -> bool:
    return all(found[name] <= ceiling for name, ceiling in ceilings.items())


def slow_ladder(levels: list[float], at_least: int, round_to: int) -> list[tuple[int, float]]:
    """The oracle: let the count grow by one unit at a time and round it to the nearest allowed one, upwards if even."""
    n = len(levels)
    allowed = [
        count for count in range(1, n + 1) if (count % round_to == 0 or count == n) and count >= min(at_least, n)
    ]
    rungs = [(allowed[0], math.inf)]
    for count in range(1, n + 1):
        nearest = min(allowed, key=lambda one: (abs(one - count), -one))
        if nearest > rungs[-1][0]:
            rungs.append((nearest, levels[count - 1]))
    return rungs


def slow_counts(ladders: dict[str, Ladder], position: int) -> dict[str, int]:
    """The oracle: take one step after the other, always the highest, the first group on a tie."""
    rung = dict.fromkeys(ladders, 0)
    for _ in range(position):
        open_ = [name for name in ladders if rung[name] + 1 < len(ladders[name].counts)]
        rung[max(open_, key=lambda name: ladders[name].levels[rung[name] + 1])] += 1
    return {name: int(ladders[name].counts[at]) for name, at in rung.items()}


@given(FALLING, st.integers(1, 50), st.integers(1, 12))
def test_a_ladder_rounds_to_the_nearest_count(levels: list[float], at_least: int, round_to: int) -> None:
    made = ladder(levels, at_least=at_least, round_to=round_to)
    assert list(zip(made.counts.tolist(), made.levels.tolist())) == slow_ladder(levels, at_least, round_to)
    assert made.counts[-1] == len(levels) and made.counts[0] >= min(at_least, len(levels))


def test_a_ladder_by_hand() -> None:
    levels = [float(100 - count) for count in range(1, 21)]  # 20 units; the k-th comes at level 100 - k
    made = ladder(levels, round_to=8)
    assert made.counts.tolist() == [8, 16, 20]
    assert made.levels.tolist() == [math.inf, 100 - 12, 100 - 18]
    assert ladder(levels, at_least=9, round_to=8).counts.tolist() == [16, 20]
    assert ladder(levels, at_least=99).counts.tolist() == [20]
    assert ladder(levels[:5], round_to=8).counts.tolist() == [5]
    assert ladder([math.nan, 5.0]).levels.tolist() == [math.inf, 5.0]  # the first level does not matter
    assert ladder([1.0, 5.0]).levels.tolist() == [math.inf, 5.0]


@pytest.mark.parametrize("levels", [[], [[1.0, 2.0]], [9.0, 1.0, 2.0], [9.0, math.nan], [9.0, math.nan, 1.0]])
def test_levels_must_fall(levels: list[float]) -> None:
    with pytest.raises(UsageError, match="the levels are"):
        ladder(levels)


@pytest.mark.parametrize("wrong", [{"at_least": 0}, {"round_to": 0}, {"round_to": -8}])
def test_settings_must_be_whole(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at_least is"):
        ladder([2.0, 1.0], **wrong)


@pytest.mark.parametrize(
    ("counts", "levels"),
    [
        ([], []),
        ([1], [math.inf, 1.0]),
        ([0, 1], [math.inf, 1.0]),
        ([2, 2], [math.inf, 1.0]),
        ([1, 2], [5.0, 1.0]),
        ([1, 2, 3], [math.inf, 1.0, 2.0]),
        ([1, 2], [math.inf, math.nan]),
    ],
)
def test_a_ladder_climbs_as_the_level_falls(counts: list[int], levels: list[float]) -> None:
    with pytest.raises(UsageError, match="do not make a ladder"):
        Ladder(np.array(counts, np.int64), np.array(levels))


@settings(max_examples=100)
@given(st.data())
def test_steps_are_in_one_order(data: st.DataObject) -> None:
    sizes = data.draw(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), max_size=4))
    growth, ladders = data.draw(growths(sizes))
    assert growth.steps == sum(len(one.counts) - 1 for one in ladders.values())
    for position in range(growth.steps + 1):
        assert growth.counts(position) == slow_counts(ladders, position)
    levels = [growth.level(position) for position in range(growth.steps + 1)]
    assert levels[0] == math.inf and levels == sorted(levels, reverse=True)
    assert sorted(levels[1:]) == sorted(level for one in ladders.values() for level in one.levels[1:])


def test_equal_levels_go_by_the_order_of_the_groups() -> None:
    growth = Growth({"b": ladder([9, 5, 5]), "a": ladder([9, 5, 1])})
    assert [tuple(growth.counts(position).values()) for position in range(5)] == [
        (1, 1), (2, 1), (3, 1), (3, 2), (3, 3),
    ]  # fmt: skip


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_must_exist(position: int) -> None:
    growth = Growth({"a": ladder([3, 2, 1])})
    for ask in (growth.counts, growth.level):
        with pytest.raises(UsageError, match="no position"):
            ask(position)


@given(st.integers(1, 200), st.integers(-1, 250))
def test_largest_is_the_last_that_fits(size: int, limit: int) -> None:
    growth, asked = Growth({"a": ladder(np.arange(size, 0, -1.0))}), []
    found = largest(growth, lambda position: bool(asked.append(position)) or position <= limit)
    assert found == min(limit, growth.steps)
    assert len(asked) <= 2 + math.log2(growth.steps + 1)


@given(st.integers(2, 200), st.integers(0, 300), st.integers(1, 50))
def test_nearly_the_largest_takes_fewer_questions(size: int, limit: int, within: int) -> None:
    growth, asked = Growth({"a": ladder(np.arange(size, 0, -1.0))}), []
    found = largest(growth, lambda position: bool(asked.append(position)) or position <= limit, within)
    assert 0 <= min(limit, growth.steps) - found < within
    assert len(asked) <= 2 + max(0.0, math.log2((growth.steps + 1) / within))


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_largest_was_seen_to_fit_whatever_fits(fitting: list[bool]) -> None:
    seen = set()

    def fits(position: int) -> bool:
        seen.add(position)
        return fitting[position]

    found = largest(Growth({"a": ladder(np.zeros(len(fitting)))}), fits)
    assert found in seen and fitting[found] if fitting[0] else found == -1


@settings(max_examples=200)
@given(budgets())
def test_a_filled_budget_has_no_room_for_another_step(
    drawn: tuple[Growth, dict[str, Ladder], Sizes, dict[str, float]],
) -> None:
    growth, ladders, sizes, ceilings = drawn
    counts, blocked = growth.counts(0), set()
    for at in range(
        growth.steps
    ):  # the oracle: each step in turn, unless it or an earlier one of its group is too much
        now, then = growth.counts(at), growth.counts(at + 1)
        (name,) = [name for name in ladders if now[name] != then[name]]
        more = {**counts, name: then[name]}
        if name in blocked or not obeys({"params": sizes.params(more), "macs": sizes.macs(more)}, ceilings):
            blocked.add(name)
        else:
            counts = more
    filled, position = fill(growth, allocate(growth, sizes, ceilings), within(sizes, ceilings))
    assert filled.counts(position) == counts


@settings(max_examples=300)
@given(budgets(), st.floats(0, 2))
def test_a_budget_is_met_to_one_step(
    drawn: tuple[Growth, dict[str, Ladder], Sizes, dict[str, float]], more: float
) -> None:
    growth, ladders, sizes, ceilings = drawn
    position = allocate(growth, sizes, ceilings)
    fitting = [at for at in range(growth.steps + 1) if obeys(measured(sizes, growth, at), ceilings)]
    assert position == max(fitting)  # the oracle: try them all
    assert obeys(measured(sizes, growth, position), ceilings)
    if position < growth.steps:
        now, then = growth.counts(position), growth.counts(position + 1)
        (grown,) = [name for name in ladders if now[name] != then[name]]
        assert then[grown] == following(ladders[grown], now[grown])
        assert not obeys(measured(sizes, growth, position + 1), ceilings)
        one_more = [now | {name: following(one, now[name])} for name, one in ladders.items()]
        dearest = {"params": max(map(sizes.params, one_more)), "macs": max(map(sizes.macs, one_more))}
        assert any(ceiling < dearest[name] for name, ceiling in ceilings.items())
    wider = allocate(growth, sizes, {name: ceiling * (1 + more) for name, ceiling in ceilings.items()})
    assert wider >= position
    assert all(growth.counts(wider)[name] >= count for name, count in growth.counts(position).items())


def following(one: Ladder, count: int) -> int:
    """The next count of a ladder, or the last."""
    return int(one.counts[min(list(one.counts).index(count) + 1, len(one.counts) - 1)])


def test_a_budget_that_cannot_be_met_says_what_can() -> None:
    graph, cost = synthetic.chain([3, 8, 8, 5], kernel=1, positions=10)
    growth = Growth({name: ladder(np.arange(8, 0, -1.0), at_least=2) for name in ("0", "1")})
    with pytest.raises(sc.SecateurError) as caught:
        allocate(growth, Sizes(graph, cost), {"params": 20.0, "macs": 2560.0})
    text = str(caught.value)
    assert "20 params (13.42% of the original) may remain, the smallest possible network has 29 (19.47%)" in text
    assert "2,560 macs (200% of the original) may remain, the smallest possible network has 200 (15.63%)" in text
    assert "at_least" in text and "round_to" in text and "keep fewer" not in text
    assert growth.counts(allocate(growth, Sizes(graph, cost), {"params": 29})) == {"0": 2, "1": 2}


def test_the_remedy_names_only_settings_that_help() -> None:
    def remedy(network: nn.Module, **settings: Any) -> str | None:
        with pytest.raises(sc.SecateurError, match="the budget cannot be met") as caught:
            sc.plan(network, torch.randn(8, 4, 6, 6), {"params": 1.5}, method="ft", **settings)
        return caught.value.remedy

    plain = nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    assert remedy(plain) == "raise the budget"
    assert remedy(plain, output="graph") == "raise the budget"
    assert remedy(plain, at_least=2) == "raise the budget; or lower at_least or round_to"
    both = "raise the budget; or lower at_least or round_to, or keep fewer layers"
    assert remedy(plain, round_to=4, keep=["0"]) == both

    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(4, 8, 1), nn.Conv2d(4, 8, 1), nn.Conv2d(8, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            left, right = self.a(x).split([4, 4], dim=1)
            return self.c(torch.relu(self.b(left + right)))

    assert remedy(Split()) == "raise the budget; or use output='graph'"
    assert remedy(Split(), output="graph") == "raise the budget"


def test_time_is_not_allocated() -> None:
    graph, cost = synthetic.chain([3, 8, 5])
    with pytest.raises(UsageError, match="'latency_ms' cannot be allocated"):
        allocate(Growth({"0": ladder(np.ones(8))}), Sizes(graph, cost), {"latency_ms": 8.0})
