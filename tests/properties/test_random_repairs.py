"""Random whole networks, cut at random and repaired: never farther from the original, and nothing else is touched."""

from __future__ import annotations

import threading

import torch
from architectures import Spec, build, specs
from checks import run
from hypothesis import HealthCheck, Phase, given, note, seed, settings

import secateur as sc
from secateur.batches import calls
from secateur.curves import curves
from secateur.repair import refit
from secateur.sensitivity import runnable

POINTS = 16


@seed(0)
@settings(
    max_examples=4,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
@given(spec=specs())
def test_a_repaired_network_is_no_farther_from_its_original(spec: Spec) -> None:
    note(f"spec = {spec!r}")
    network, example = build(spec)
    graph = sc.trace(network, example, output=spec["output"])
    if not graph.prunable:
        return
    source = torch.Generator().manual_seed(spec["seed"])
    data = tuple(torch.randn(POINTS, *x.shape[1:], generator=source).double() for x in example)
    batches, original = list(calls(data, example=example)), runnable(network, graph)
    plan = sc.random_plan(graph, kept=spec["kept"], seed=spec["seed"])
    small = sc.cut(network, plan)
    before = [{key: value.clone() for key, value in one.state_dict().items()} for one in (network, small)]
    threads = set(threading.enumerate())
    better, told = refit(small, original, batches, plan)
    assert told.after <= told.before and told.points == POINTS
    assert all(layer.after <= layer.before for layer in told.layers)
    assert all(torch.isfinite(leaf).all() for leaf in run(better, data))
    assert {k: v.shape for k, v in better.state_dict().items()} == {k: v.shape for k, v in before[1].items()}
    for one, old in zip((network, small), before, strict=True):
        assert all(torch.equal(value, old[key]) for key, value in one.state_dict().items())
    assert set(threading.enumerate()) == threads
    for name, curve in curves(original, graph, batches, {g.name: range(g.size) for g in graph.prunable}).items():
        assert sorted(curve.removed) == list(range(graph[name].size))
        assert curve.harm[0] == 0 and (curve.harm.diff() >= 0).all() and torch.isfinite(curve.harm).all()
