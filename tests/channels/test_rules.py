"""Every kind of wiring: its groups, and a cut that equals the mask."""

from __future__ import annotations

import copy

import pytest
import torch

import secateur as sc
from secateur._torch import pytree
from secateur.network.examples import call_arguments
from support.cases import CASES, build

OUTPUTS = ["module", "graph"]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", CASES)
def test_the_groups_of_each_wiring(name: str, output: str) -> None:
    network, example = build(name)
    graph = sc.trace(network, example, output=output)
    assert {group.name: group.size for group in graph.prunable} == getattr(CASES[name], output)
    for group in graph.groups:
        assert group.prunable or all(reason.text for reason in group.reasons)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", CASES)
def test_the_cut_network_equals_the_masked_one(name: str, output: str) -> None:
    network, example = build(name)
    before = copy.deepcopy(network.state_dict())
    graph = sc.trace(network, example, output=output)
    if not graph.prunable:
        with pytest.raises(sc.SecateurError, match="no group of this network can be cut"):
            sc.random_plan(graph)
        return
    plan = sc.random_plan(graph, kept=0.5)
    small, masked = sc.cut(network, plan), sc.mask(network, plan)
    args, kwargs = call_arguments(example)
    with torch.no_grad():
        found, expected = small(*args, **kwargs), masked(*args, **kwargs)
        original = network(*args, **kwargs)
    leaves = [pytree.tree_leaves(tree) for tree in (found, expected, original)]
    for a, b, _ in zip(*leaves, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9 * b.abs().max().item())
    changed = (b.shape != c.shape or not torch.allclose(b, c) for _, b, c in zip(*leaves, strict=True))
    assert any(changed), "the mask changes nothing"
    assert sc.verify(network, plan, example) <= 1e-9
    assert all(torch.equal(a, b) for a, b in zip(before.values(), network.state_dict().values(), strict=True))
    small.train()
    outputs = pytree.tree_leaves(small(*args, **kwargs))
    sum(out.sum() for out in outputs).backward()
    assert any(p.grad is not None for p in small.parameters())
