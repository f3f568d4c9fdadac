"""ThiNet: the greedy order of a slow search on the raw values, on every wiring; what adds nothing goes first."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd

import secateur as sc
from secateur.errors import SecateurError, UsageError
from secateur.methods.base import Evidence
from secateur.methods.pfp.sampling import generator
from secateur.methods.thinet import ThiNet, contributions, removal_ranks, sample_values
from secateur.network.layer_calls import GroupCall
from secateur.network.observer import observe_slots
from support.cases import Net
from support.evidences import IMAGES, case_evidence, evidence_of

ALL = 10**9
WIRINGS = [
    "plain", "residual", "dense_concat", "depthwise_with_multiplier", "few_wide_groups", "transposed_few_groups",
    "flatten_to_linear", "linear_to_transposed", "called_twice", "squeeze_excite", "one_and_three_dimensions",
    "repeated_channels", "transformer_block",
]  # fmt: skip


def added(evidence: Evidence, network: Any) -> dict[str, dict[sc.Slot, list[tuple[Tensor, Tensor]]]]:
    """For every group, layer that consumes it and call: the term of each unit [units, samples, ...], and the values.

    Each layer runs with the weights of one unit at a time.
    """
    inputs: list[tuple[nn.Module, Tensor]] = []
    layers = [module for module in network.modules() if isinstance(module, _ConvNd | nn.Linear)]
    handles = [m.register_forward_pre_hook(lambda m, args: inputs.append((m, args[0]))) for m in layers]
    with torch.no_grad():
        for args, kwargs in evidence.batches:
            network(*args, **kwargs)
    for handle in handles:
        handle.remove()
    found: dict[str, dict[sc.Slot, list[tuple[Tensor, Tensor]]]] = defaultdict(lambda: defaultdict(list))
    for group in evidence.graph.prunable:
        readers = [(s, at) for s, at in zip(group.slots, group.indices, strict=True) if s in group.consumes]
        for slot, where in readers:
            for layer, x in inputs:
                if network.get_parameter(slot.parameter) is not layer.weight:
                    continue
                units = [_alone(layer, x, slot.axis, list(where[unit])) for unit in evidence.kept[group.name]]
                whole = _alone(layer, x, slot.axis, list(range(layer.weight.shape[slot.axis])))
                found[group.name][slot].append((torch.stack(units), whole))
    return found


def _alone(layer: nn.Module, x: Tensor, axis: int, indices: list[int]) -> Tensor:
    only, at = torch.zeros_like(layer.weight), torch.tensor(indices)
    only.index_copy_(axis, at, layer.weight.detach().index_select(axis, at))
    parts = {"weight": only} | ({"bias": torch.zeros_like(layer.bias)} if layer.bias is not None else {})
    with torch.no_grad():
        return functional_call(layer, parts, x)


def slow_ranks(values: Tensor) -> list[int]:
    """The greedy search, on the raw values [units, values]: try each unit, take the best, begin again."""
    removed: list[int] = []
    while len(removed) < len(values):
        rest = [unit for unit in range(len(values)) if unit not in removed]
        removed.append(min(rest, key=lambda unit: float(values[[*removed, unit]].sum(0).square().sum())))
    return [removed.index(unit) for unit in range(len(values))]


def all_values(layers: dict[sc.Slot, list[tuple[Tensor, Tensor]]]) -> Tensor:
    """The terms of the units in every value of every layer, each layer's over the root of the sum of its squares."""
    parts = []
    for several in layers.values():
        size = sum(float(whole.square().sum()) for _, whole in several) ** 0.5
        parts += [units.flatten(1) / size for units, _ in several]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("name", WIRINGS)
def test_with_every_value_taken_the_order_is_that_of_the_slow_search(name: str) -> None:
    network, evidence = case_evidence(name)
    layers = added(evidence, network)
    found = ThiNet(samples=ALL).scores(evidence)
    assert found.keys() == layers.keys() == {group.name for group in evidence.graph.prunable}
    for group, scores in found.items():
        assert scores.tolist() == slow_ranks(all_values(layers[group]))


def test_only_units_left_are_ordered() -> None:
    kept = {"a": [0, 2, 3, 7], "b": [1, 4]}
    _, evidence = case_evidence("residual", kept=kept)
    layers = added(evidence, evidence.network)
    for group, scores in ThiNet(samples=ALL).scores(evidence).items():
        assert scores.tolist() == slow_ranks(all_values(layers[group]))
        assert sorted(scores.tolist()) == list(range(len(kept[group])))


@pytest.mark.parametrize("name", ["plain", "residual", "linear_to_transposed"])
def test_samples_are_values_of_the_layer_and_each_channels_part_in_them(name: str) -> None:
    network, evidence = case_evidence(name)
    slots = {slot for group in evidence.graph.prunable for slot in group.consumes}
    calls: list[GroupCall] = []
    with torch.no_grad(), observe_slots(network, slots, calls.append):
        network(*evidence.batches[0][0])
    layers = added(evidence, network)
    parts: dict[str, list[Tensor]] = defaultdict(list)
    for call in calls:
        samples, outputs, positions = sample_values(call, 10, generator(0, f"{call.slot.parameter} {call.slot.axis} 0"))
        each = contributions(call, samples, outputs, positions)
        for group in layers:
            if call.slot in layers[group]:
                ((units, whole),) = layers[group][call.slot]
                if not name.startswith("linear"):  # there a channel is not a unit
                    torch.testing.assert_close(units.flatten(3)[:, samples, outputs, positions].T, each)
                squares = each.sum(1).square().sum()
                torch.testing.assert_close(whole.flatten(2)[samples, outputs, positions].square().sum(), squares)
                parts[group].append(units.flatten(3)[:, samples, outputs, positions] / squares.sqrt())
    for group, scores in ThiNet(samples=10).scores(evidence).items():
        assert scores.tolist() == slow_ranks(torch.cat(parts[group], 1))


def test_every_value_is_sampled_equally_often_and_none_twice_for_a_sample() -> None:
    x, weight = torch.randn(4000, 2, 3, 3), torch.randn(5, 2, 2, 2)
    call = GroupCall(sc.Slot("w", 1), torch.arange(2), x, weight, (1, 1), (1, 1))
    samples, outputs, positions = sample_values(call, 6, generator(0, "w"))
    sites = (outputs * 4 + positions).view(4000, 6)
    assert samples.view(4000, 6).eq(torch.arange(4000)[:, None]).all()
    assert all(len(row.unique()) == 6 for row in sites[:200])
    counts = torch.bincount(sites.flatten(), minlength=20).double()
    # Each of 20 counts is binomial(4000, 0.3), deviation 29: all within 5 deviations but once in 80,000 runs.
    assert len(counts) == 20 and (counts - 1200).abs().max() < 5 * 29
    assert len(sample_values(call, 100, generator(0, "w"))[0]) == 4000 * 20  # no more than there are


@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_the_order_from_inner_products_is_that_from_raw_values(size: int) -> None:
    values = torch.from_numpy(np.random.default_rng(size).normal(size=(size, 11)) ** 3)
    assert removal_ranks(values @ values.T).tolist() == slow_ranks(values)


def test_a_unit_that_adds_nothing_goes_first_and_the_one_that_adds_most_stays() -> None:
    network, _ = case_evidence("plain")
    with torch.no_grad():
        network.b.weight[:, 3] = 0
        network.b.weight[:, 5] *= 100
    scores = ThiNet().scores(evidence_of(network))["a"]
    assert scores[3] == 0 and scores[5] == 7
    assert ThiNet().choose("a", scores, 1).kept == (5,)


def test_two_that_cancel_each_other_go_together() -> None:
    one, other = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0])
    values = torch.stack([one, other, -one, other * 2]).double()
    assert removal_ranks(values @ values.T).tolist() == [0, 2, 1, 3]  # by size alone, unit 1 is before unit 3 too


def test_the_seed_decides() -> None:
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 4, 3)).double()
    evidence = evidence_of(network, seed=1)
    one, again = (ThiNet(samples=3).scores(evidence)["0"] for _ in range(2))
    other = ThiNet(samples=3).scores(replace(evidence, seed=2))["0"]
    assert torch.equal(one, again) and not torch.equal(one, other)


@pytest.mark.parametrize("name", ["called_twice", "few_wide_groups"])
def test_neither_batches_nor_memory_make_a_difference(name: str) -> None:
    network, _ = case_evidence(name)
    whole = evidence_of(network, IMAGES)
    parts = replace(whole, batches=[((part,), {}) for part in IMAGES.split(4)])
    wanted = ThiNet().scores(whole)
    for other in (parts, replace(whole, memory=1)):
        found = ThiNet().scores(other)
        assert all(torch.equal(wanted[group], found[group]) for group in wanted)


def test_layers_of_different_scales_have_the_same_weight() -> None:
    network, _ = case_evidence("residual")
    before = ThiNet(samples=ALL).scores(evidence_of(network))["a"]
    with torch.no_grad():
        network.d.weight *= 1000
    assert torch.equal(ThiNet(samples=ALL).scores(evidence_of(network))["a"], before)


def test_a_group_that_evaluation_does_not_use_is_left_out() -> None:
    def run(m: Net, x: Tensor) -> Any:
        return (m.b(m.a(x)), m.d(m.c(x))) if m.training else m.b(m.a(x))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1), c=nn.Conv2d(3, 6, 1), d=nn.Conv2d(6, 5, 1)).double()
    evidence = evidence_of(network)
    assert {group.name for group in evidence.graph.prunable} == {"a", "c"}
    assert ThiNet().scores(evidence).keys() == {"a"}
    assert network.training


def test_half_precision_and_gradients_are_no_matter() -> None:
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).to(torch.bfloat16)
    scores = ThiNet().scores(evidence_of(network, torch.randn(20, 3).bfloat16()))["0"]
    assert sorted(scores.tolist()) == list(range(8)) and not scores.requires_grad


def test_refusals() -> None:
    _, evidence = case_evidence("plain")
    with pytest.raises(SecateurError, match=r"a: .* values of its scores are NaN"):
        ThiNet().scores(replace(evidence, batches=[((torch.full_like(IMAGES, torch.nan),), {})]))
    with pytest.raises(SecateurError, match="there is no data"):
        ThiNet().scores(replace(evidence, batches=[]))
    with pytest.raises(UsageError, match="samples is 0"):
        ThiNet(samples=0)


def test_it_reports_its_settings() -> None:
    assert ThiNet(samples=30).settings() == {"samples": 30}
