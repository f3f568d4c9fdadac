"""Random networks, cut at random and repaired: never farther from the original, and nothing else is changed."""

from __future__ import annotations

import threading

import torch
from hypothesis import given, note, seed

import secateur as sc
from secateur.network.batches import calls
from secateur.refit.curves import curves
from secateur.refit.repair import refit
from secateur.surgery.rewrite import runnable
from support.networks.architectures import Spec, build, examples, specs
from support.networks.checks import run

SAMPLES = 16


@seed(0)
@examples(4)
@given(spec=specs())
def test_a_repaired_network_is_no_farther_from_its_original(spec: Spec) -> None:
    note(f"spec = {spec!r}")
    network, example = build(spec)
    graph = sc.trace(network, example, output=spec["output"])
    if not graph.prunable:
        return
    source = torch.Generator().manual_seed(spec["seed"])
    data = tuple(torch.randn(SAMPLES, *x.shape[1:], generator=source).double() for x in example)
    batches, original = list(calls(data, example=example)), runnable(network, graph)
    plan = sc.random_plan(graph, kept=spec["kept"], seed=spec["seed"])
    small = sc.cut(network, plan)
    before = [{key: value.clone() for key, value in one.state_dict().items()} for one in (network, small)]
    threads = set(threading.enumerate())
    better, report = refit(small, original, batches, plan)
    assert report.after <= report.before and report.samples == SAMPLES
    assert all(layer.after <= layer.before for layer in report.layers)
    assert all(torch.isfinite(leaf).all() for leaf in run(better, data))
    assert {k: v.shape for k, v in better.state_dict().items()} == {k: v.shape for k, v in before[1].items()}
    for one, old in zip((network, small), before, strict=True):
        assert all(torch.equal(value, old[key]) for key, value in one.state_dict().items())
    assert set(threading.enumerate()) == threads
    for name, curve in curves(original, graph, batches, {g.name: range(g.size) for g in graph.prunable}).items():
        assert sorted(curve.removed) == list(range(graph[name].size))
        assert (
            curve.divergence[0] == 0 and (curve.divergence.diff() >= 0).all() and torch.isfinite(curve.divergence).all()
        )
