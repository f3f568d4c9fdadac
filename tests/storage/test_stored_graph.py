"""Channel graphs in files: the same graph comes back, nothing is traced again, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.pruning import job
from secateur.storage.checkpoint import read_graph
from secateur.storage.stored_graph import as_plain, from_plain
from secateur.zoo.names import build


@pytest.mark.parametrize("name", ["zoo:lenet5", "zoo:resnet20", "zoo:densenet22"])
def test_a_graph_comes_back_as_it_was(name: str) -> None:
    network = build(name).eval()
    graph = sc.trace(network, torch.zeros(1, *network.input_shape))
    assert from_plain(json.loads(json.dumps(as_plain(graph)))) == graph
    small = sc.random_plan(graph, kept=0.5).graph_after(graph)
    assert from_plain(json.loads(json.dumps(as_plain(small)))) == small


def test_a_saved_network_is_pruned_again_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, path = digits("calibration")[0][:64], tmp_path / "small.safetensors"
    res = sc.prune(lenet5(), images, {"params": "50%"}, effort="quick", samples=None)
    sc.save(path, res)
    graph, small = read_graph(path), sc.load(path, lenet5())
    wanted = sc.trace(small, images[:1])
    assert [(g.name, g.size, g.prunable) for g in graph.groups] == [(g.name, g.size, g.prunable) for g in wanted.groups]

    def traced(*args: Any, **options: Any) -> None:
        raise AssertionError("it was traced")

    plain = sc.prune(small, images, {"params": "60%"}, effort="quick", samples=None)
    monkeypatch.setattr(job, "trace", traced)
    again = sc.prune(small, images, {"params": "60%"}, effort="quick", samples=None, graph=graph)
    assert again.plan.kept == plain.plan.kept and again.verification < 1e-5


def test_a_file_without_a_graph_and_a_damaged_one_are_named(tmp_path: Path) -> None:
    images, path = digits("calibration")[0][:64], tmp_path / "small.safetensors"
    res = sc.prune(lenet5(), images, {"params": "50%"}, method="ft")
    sc.save(path, res.model, res.plan)
    with pytest.raises(sc.SecateurError, match="has no channel graph"):
        read_graph(path)
    for spoil in (
        lambda graph: graph.pop("groups"),
        lambda graph: graph["groups"][0].update(size=10**6),
        lambda graph: graph["groups"][0]["indices"].__setitem__(0, {"first": -3, "each": 1}),
        lambda graph: graph.update(output="other"),
        lambda graph: graph["groups"][0]["produces"].append(99),
    ):
        graph = as_plain(res.plan.graph_after(res.graph))
        spoil(graph)
        sc.save(path, res.model, res.plan, info={"graph": graph})
        with pytest.raises(sc.SecateurError, match=r"the channel graph in .* is damaged"):
            read_graph(path)
