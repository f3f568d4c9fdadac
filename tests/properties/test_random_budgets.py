"""Random whole networks under random budgets: what is cut costs what was foretold, and the budget is met."""

from __future__ import annotations

import random

from architectures import Spec, build, specs
from hypothesis import HealthCheck, Phase, given, note, seed, settings
from hypothesis import strategies as st

import secateur as sc
from secateur import rewrite
from secateur.allocate import Growth, allocate, ladder
from secateur.sizes import Sizes


@seed(0)
@settings(
    max_examples=15,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
@given(spec=specs(), resource=st.sampled_from(("params", "macs")), share=st.floats(0, 1))
def test_the_cut_network_meets_the_budget(spec: Spec, resource: str, share: float) -> None:
    note(f"spec = {spec!r}")
    network, example = build(spec)
    graph = sc.trace(network, example, output=spec["output"])
    whole = network if spec["output"] == "module" else rewrite.build(rewrite.programs_of(network, example))
    sizes, pick = Sizes(graph, sc.cost(whole, example)), random.Random(spec["seed"])
    growth = Growth(
        {group.name: ladder(sorted(map(pick.gauss, [0.0] * group.size), reverse=True)) for group in graph.prunable}
    )
    measure = {"params": sizes.params, "macs": sizes.macs}[resource]
    low, high = measure(growth.counts(0)), measure({})
    ceiling = low + share * (high - low)
    position = allocate(growth, sizes, {resource: ceiling})
    if position == growth.steps:
        return  # nothing goes: low and high are the same, or share is 1
    counts = growth.counts(position)
    kept = {group.name: pick.sample(range(group.size), counts[group.name]) for group in graph.prunable}
    small = sc.cost(sc.cut(network, sc.Plan.keeping(graph, kept)), example)
    params, macs = sizes.exact(kept)
    assert params == small.params
    assert macs == small.macs
    assert {"params": small.params, "macs": small.macs}[resource] <= ceiling < measure(growth.counts(position + 1))
