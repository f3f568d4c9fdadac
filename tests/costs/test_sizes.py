"""Sizes against real cuts of many small networks, and against a count of single elements."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import secateur as sc
from secateur.channels.graph import ChannelGraph
from secateur.channels.ties import Reason
from secateur.costs.sizes import Sizes
from secateur.errors import UsageError
from secateur.surgery import rewrite
from support import synthetic
from support.cases import CASES, build

IN_MODULE = [name for name, case in CASES.items() if case.module]
IN_GRAPH = [name for name, case in CASES.items() if case.graph != case.module]


def some_plans(graph: ChannelGraph) -> list[sc.Plan]:
    """Return plans that keep half of every group, most of every group, and any number of some groups."""
    pick = random.Random(0)
    some = pick.sample(graph.prunable, pick.randint(1, len(graph.prunable)))
    anything = {group.name: pick.sample(range(group.size), pick.randint(1, group.size - 1)) for group in some}
    return [sc.random_plan(graph), sc.random_plan(graph, kept=0.8, seed=1), sc.Plan.keeping(graph, anything)]


def cost_after_cut(network: nn.Module, example: object, plan: sc.Plan) -> tuple[int, int]:
    cost = sc.cost(sc.cut(network, plan), example)
    return cost.params, cost.macs


@pytest.mark.parametrize("name", IN_MODULE)
def test_exact_is_the_cost_of_the_cut_network(name: str) -> None:
    network, example = build(name)
    graph, before = sc.trace(network, example), sc.cost(network, example)
    sizes = Sizes(graph, before)
    assert (sizes.params({}), sizes.macs({})) == (before.params, before.macs)
    for plan in some_plans(graph):
        if plan.groups:
            expected = cost_after_cut(network, example, plan)
            assert sizes.exact({group.name: group.kept for group in plan.groups}) == expected
            counts = {group.name: len(group.kept) for group in plan.groups}
            assert (sizes.params(counts), sizes.macs(counts)) == expected  # here all units of a group have equal size


@pytest.mark.parametrize("name", IN_GRAPH)
def test_exact_is_the_cost_of_a_graph_cut(name: str) -> None:
    network, example = build(name)
    graph = sc.trace(network, example, output="graph")
    program = rewrite.build(rewrite.programs_of(network, example))
    sizes, plan = Sizes(graph, sc.cost(program, example)), sc.random_plan(graph)
    expected = cost_after_cut(network, example, plan)
    assert sizes.exact({group.name: group.kept for group in plan.groups}) == expected


@settings(max_examples=150)
@given(synthetic.networks(), st.randoms(use_true_random=False))
def test_exact_equals_a_count_of_single_elements(network: tuple[ChannelGraph, sc.Cost], pick: random.Random) -> None:
    graph, cost = network
    sizes = Sizes(graph, cost)
    kept = {group.name: pick.sample(range(group.size), pick.randint(1, group.size)) for group in graph.groups}
    expected = synthetic.counted(graph, cost, kept)
    assert sizes.exact(kept) == expected
    counts = {name: len(units) for name, units in kept.items()}
    assert sizes.params(counts) >= expected[0] and sizes.macs(counts) >= expected[1]
    assert (sizes.params({}), sizes.macs({})) == (cost.params, cost.macs)


def test_counts_assume_the_units_with_the_most_indices() -> None:
    indices = {sc.Slot("w", 0): ((0,), (1,), (2,)), sc.Slot("v", 1): ((0,), (1, 2), (3, 4, 5))}
    graph = ChannelGraph((synthetic.group("g", indices),), {"w": (3, 2), "v": (7, 6)}, None)
    sizes = Sizes(graph, synthetic.cost_of(graph.shapes, {"w": 10, "v": 1}))
    assert [sizes.params({"g": count}) for count in (1, 2, 3)] == [2 + 7 * 3, 4 + 7 * 5, 6 + 7 * 6]
    assert sizes.macs({"g": 1}) == 20 + 7 * 3
    assert sizes.exact({"g": [0]}) == (2 + 7 * 1, 20 + 7 * 1)


def test_macs_that_are_not_a_multiple_of_the_weights_count_in_full() -> None:
    graph, cost = synthetic.chain([3, 4, 5], kernel=1, positions=2)
    parts = cost.parameters | {"0.weight": replace(cost.parameters["0.weight"], macs=13)}
    sizes = Sizes(graph, replace(cost, macs=13 + 40, parameters=parts))
    assert sizes.macs({}) == 53
    assert sizes.macs({"0": 2}) == 13 + 20


def test_a_network_without_prunable_groups() -> None:
    graph, cost = synthetic.chain([3, 4])
    assert Sizes(graph, cost).exact({}) == (cost.params, cost.macs)


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"0": 0}, "0: the group cannot keep 0 units"),
        ({"0": 5}, "0: the group cannot keep 5 units"),
        ({"z": 1}, "there is no group 'z'"),
        ({"1": 1}, "1: the group is kept: it is an output"),
    ],
)
def test_invalid_counts_are_refused(counts: dict[str, int], message: str) -> None:
    graph, cost = synthetic.chain([3, 4, 5, 6])
    first, second = graph.groups
    sizes = Sizes(replace(graph, groups=(first, replace(second, reasons=(Reason("it is an output"),)))), cost)
    for measure in (sizes.params, sizes.macs):
        with pytest.raises(sc.SecateurError, match=message) as caught:
            measure(counts)
        assert caught.value.remedy
    with pytest.raises(UsageError, match="remedy: pass a number from 1 to 4"):
        sizes.params({"0": 9})


@pytest.mark.parametrize(("units", "message"), [([], "0 units"), ([-1, 2], "are .-1, 2."), ([4], "from 0 to 3")])
def test_invalid_units_are_refused(units: list[int], message: str) -> None:
    sizes = Sizes(*synthetic.chain([3, 4, 5]))
    with pytest.raises(UsageError, match=message):
        sizes.exact({"0": units})
    assert sizes.exact({"0": [2, 2, 1]}) == sizes.exact({"0": [1, 2]})  # repetitions are ignored


def test_graph_and_cost_of_different_networks_are_refused() -> None:
    graph, cost = synthetic.chain([3, 4, 5])[0], synthetic.chain([3, 6, 5])[1]
    with pytest.raises(sc.SecateurError, match=r"0\.bias: the graph has shape \(4,\), the cost 6 elements"):
        Sizes(graph, cost)


def test_one_evaluation_takes_well_under_a_millisecond() -> None:
    graph, cost = synthetic.chain([64] * 82)
    sizes, counts = Sizes(graph, cost), {group.name: 32 for group in graph.groups}
    times = []
    for _ in range(50):
        start = time.perf_counter()
        sizes.macs(counts)
        times.append(time.perf_counter() - start)
    assert min(times) < 5e-4
