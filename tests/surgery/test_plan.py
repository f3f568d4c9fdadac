"""Plans: made from kept units, saved and loaded, and refused if they are invalid."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import secateur as sc
from support.cases import build

NETWORK, EXAMPLE = build("squeeze_excite")
GRAPH = sc.trace(NETWORK, EXAMPLE)


def test_a_plan_has_the_kept_indices_of_each_parameter() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": [0, 3, 5]})
    assert plan.kept[sc.Slot("a.weight", 0)] == (0, 3, 5)
    assert plan.kept[sc.Slot("c.weight", 1)] == (0, 3, 5)
    assert set(plan.consumes) == {sc.Slot("b.weight", 1), sc.Slot("c.weight", 1)}
    assert plan.shapes["a.weight"] == (8, 3, 1, 1)
    assert "d.weight" in plan.shapes and "c.bias" not in plan.shapes


@given(st.sets(st.integers(0, 7), min_size=1), st.sets(st.integers(0, 3), min_size=1))
def test_a_plan_survives_json(a: set[int], c: set[int]) -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": sorted(a), "c": sorted(c)})
    text = plan.to_json()
    assert sc.Plan.from_json(text) == plan
    assert json.loads(text)["schema"] == 3


def test_a_plan_of_schema_2_is_read() -> None:
    plan = sc.random_plan(GRAPH)
    data = json.loads(plan.to_json())
    data |= {"schema": 2, "reads": data.pop("consumes")}
    assert sc.Plan.from_json(json.dumps(data)) == plan


@pytest.mark.parametrize(
    "case", ["squeeze_excite", "dense_concat", "few_wide_groups", "linear_to_transposed", "option_a_shortcut"]
)
@pytest.mark.parametrize("seed", range(3))
def test_the_graph_of_the_cut_network_follows_without_tracing(case: str, seed: int) -> None:
    network, example = build(case)
    graph = sc.trace(network, example)
    plan = sc.random_plan(graph, kept=0.6, seed=seed)
    found, traced = plan.graph_after(graph), sc.trace(sc.cut(network, plan), example)
    assert found.shapes == traced.shapes
    assert [(g.name, g.slots, g.indices) for g in found.prunable] == [
        (g.name, g.slots, g.indices) for g in traced.prunable
    ]


def test_a_group_of_one_unit_is_kept_in_the_graph_after_a_cut() -> None:
    after = sc.Plan.keeping(GRAPH, {"a": [3]}).graph_after(GRAPH)
    assert after["a"].size == 1 and "nothing would be left" in str(after["a"].reasons[0])


def test_the_old_name_of_the_consuming_slots_warns() -> None:
    plan = sc.random_plan(GRAPH)
    with pytest.warns(DeprecationWarning, match=r"Plan.reads .* use consumes"):
        assert plan.reads == plan.consumes


def test_scales_apply_to_the_consumers_of_a_unit() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": [5, 0]}, {"a": [3.0, 2.0]})
    assert plan.groups[0].kept == (0, 5) and plan.groups[0].scales == (2.0, 3.0)
    assert plan.scales == {sc.Slot("b.weight", 1): (2.0, 3.0), sc.Slot("c.weight", 1): (2.0, 3.0)}
    assert sc.Plan.from_json(plan.to_json()) == plan


def test_scales_of_one_are_no_scales() -> None:
    assert sc.Plan.keeping(GRAPH, {"a": [0, 5]}, {"a": [1.0, 1.0]}) == sc.Plan.keeping(GRAPH, {"a": [0, 5]})


@pytest.mark.parametrize("scales", [[2.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_scales_must_be_finite_and_one_for_each_unit(scales: list[float]) -> None:
    with pytest.raises(sc.SecateurError, match=r"a: expected finite scales for 2 kept units, got \["):
        sc.Plan.keeping(GRAPH, {"a": [0, 5]}, {"a": scales})


def test_a_plan_prints_as_a_table() -> None:
    lines = str(sc.Plan.keeping(GRAPH, {"a": [0, 3, 5], "c": [1]})).splitlines()
    assert lines[0].split() == ["group", "before", "after", "kept"]
    assert lines[1].split() == ["a", "8", "3", "38%"]


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ({"a": [0, 8]}, "a: unit 8 is out of range"),
        ({"a": [-1]}, "a: unit -1 is out of range"),
        ({"a": []}, "a: the plan keeps no channel"),
        ({"b": [0]}, "b: the group is kept"),
        ({"z": [0]}, "there is no group 'z'"),
    ],
)
def test_invalid_units_are_refused(kept: dict[str, list[int]], message: str) -> None:
    with pytest.raises(sc.SecateurError, match=message) as caught:
        sc.Plan.keeping(GRAPH, kept)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "this is not a plan"),
        ("[]", "this is not a plan"),
        ("{}", "this is not a plan"),
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 3}', "damaged"),
        ('{"schema": 3, "groups": [{"name": "a", "size": 8, "kept": ["x"]}]}', "damaged"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(sc.SecateurError, match=message):
        sc.Plan.from_json(text)


def test_every_truncated_plan_is_refused() -> None:
    text = sc.random_plan(GRAPH).to_json()
    for length in range(0, len(text) - 1, 7):
        with pytest.raises(sc.SecateurError):
            sc.Plan.from_json(text[:length])


@given(st.floats(0.01, 1), st.integers(0, 1000))
def test_a_random_plan_keeps_the_fraction_of_every_group(kept: float, seed: int) -> None:
    plan = sc.random_plan(GRAPH, kept=kept, seed=seed)
    for group in plan.groups:
        assert len(group.kept) == max(1, round(group.size * kept))
    assert plan == sc.random_plan(GRAPH, kept=kept, seed=seed)


@pytest.mark.parametrize("kept", [0, -0.5, 1.5])
def test_a_fraction_outside_0_to_1_is_refused(kept: float) -> None:
    with pytest.raises(sc.SecateurError, match="kept is"):
        sc.random_plan(GRAPH, kept=kept)


@pytest.mark.parametrize("name", ["plain", "residual", "dense_concat", "squeeze_excite"])
@pytest.mark.parametrize("scaled", [False, True])
def test_one_plan_after_another_equals_their_combination(name: str, scaled: bool) -> None:
    model, example = build(name)
    first = some_plan(model, example, 0.7, scaled)
    middle = sc.cut(model, first)
    second = some_plan(middle, example, 0.6, scaled)
    both = first.then(second)
    expected, found = sc.cut(middle, second).state_dict(), sc.cut(model, both).state_dict()
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, rtol=1e-12, atol=0)
    assert sc.verify(model, both, example) < 1e-9
    assert sc.Plan.from_json(both.to_json()) == both


def some_plan(model: Any, example: Any, share: float, scaled: bool) -> sc.Plan:
    graph = sc.trace(model, example)
    kept = {group.name: group.kept for group in sc.random_plan(graph, kept=share, seed=3).groups}
    scales = {name: [1.0 + 0.5 * i for i in range(len(units))] for name, units in kept.items()}
    return sc.Plan.keeping(graph, kept, scales if scaled else None)


def test_plans_that_cannot_be_combined_are_refused() -> None:
    plan = sc.Plan.keeping(GRAPH, {"a": [0, 3, 5]})
    with pytest.raises(sc.SecateurError, match="the second plan expects shape"):
        plan.then(plan)
