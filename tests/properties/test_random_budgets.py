"""Random networks under random budgets: the cut network has the predicted cost and meets the budget."""

from __future__ import annotations

import random

from hypothesis import given, note, seed
from hypothesis import strategies as st

import secateur as sc
from secateur.costs.sizes import Sizes
from secateur.pruning.growth import Growth, allocate, ladder
from secateur.surgery import rewrite
from support.networks.architectures import Spec, build, examples, specs


@seed(0)
@examples(15)
@given(spec=specs(), resource=st.sampled_from(("params", "macs")), share=st.floats(0, 1))
def test_the_cut_network_meets_the_budget(spec: Spec, resource: str, share: float) -> None:
    note(f"spec = {spec!r}")
    network, example = build(spec)
    graph = sc.trace(network, example, output=spec["output"])
    original = network if spec["output"] == "module" else rewrite.build(rewrite.programs_of(network, example))
    sizes, pick = Sizes(graph, sc.cost(original, example)), random.Random(spec["seed"])
    growth = Growth(
        {group.name: ladder(sorted(map(pick.gauss, [0.0] * group.size), reverse=True)) for group in graph.prunable}
    )
    measure = {"params": sizes.params, "macs": sizes.macs}[resource]
    low, high = measure(growth.counts(0)), measure({})
    ceiling = low + share * (high - low)
    position = allocate(growth, sizes, {resource: ceiling})
    if position == growth.steps:
        return  # nothing is removed: low equals high, or share is 1
    counts = growth.counts(position)
    kept = {group.name: pick.sample(range(group.size), counts[group.name]) for group in graph.prunable}
    small = sc.cost(sc.cut(network, sc.Plan.keeping(graph, kept)), example)
    params, macs = sizes.exact(kept)
    assert params == small.params
    assert macs == small.macs
    assert {"params": small.params, "macs": small.macs}[resource] <= ceiling < measure(growth.counts(position + 1))
