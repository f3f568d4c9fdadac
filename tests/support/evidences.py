"""Evidence on small networks, and the weights that produce each of their units, listed by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

import secateur as sc
from secateur.methods.base import Evidence
from secateur.network.batches import calls
from secateur.surgery.cut import mask
from secateur.surgery.rewrite import runnable
from support.cases import build

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Producers = Callable[[Any, int], list[Tensor]]

# network -> group -> the weights that produce a unit, layer by layer
PRODUCERS: dict[str, dict[str, Producers]] = {
    "plain": {"a": lambda m, u: [m.a.weight[u]]},
    "residual": {"a": lambda m, u: [m.a.weight[u], m.c.weight[u]], "b": lambda m, u: [m.b.weight[u]]},
    "dense_concat": {
        "a": lambda m, u: [m.a.weight[u]],
        "b": lambda m, u: [m.b.weight[u]],
        "c": lambda m, u: [m.c.weight[u]],
    },
    "depthwise_with_multiplier": {"0": lambda m, u: [m[0].weight[u], m[1].weight[3 * u : 3 * u + 3]]},
    "chunk": {"a": lambda m, u: [m.a.weight[u::6]], "b": lambda m, u: [m.b.weight[u]]},
    "linear_to_transposed": {
        "a": lambda m, u: [m.a.weight[64 * u : 64 * u + 64]],
        "b": lambda m, u: [m.b.weight[:, u]],
    },
    "norms_by_channel": {str(n): lambda m, u, n=n: [m[n].weight[u]] for n in range(0, 12, 2)},  # type: ignore[misc]
    "squeeze_excite": {"a": lambda m, u: [m.a.weight[u], m.d.weight[u]], "c": lambda m, u: [m.c.weight[u]]},
    "weight_normed": {"b": lambda m, u: [m.b.weight[u]]},
    "transformer_block": {"f1": lambda m, u: [m.f1.weight[u]]},
    "bare_matrices": {"a": lambda m, u: [m.a.weight[u]], "w": lambda m, u: [m.w[:, u]]},
}


def evidence_of(
    network: nn.Module, data: Any = IMAGES, *, graph: sc.ChannelGraph | None = None, example: Any = None,
    kept: Mapping[str, Sequence[int]] | None = None, labels: Sequence[Tensor] | None = None, seed: int = 0,
) -> Evidence:  # fmt: skip
    """Return the evidence for a method, with all units left except where `kept` lists some."""
    batches = list(calls(data, example=example))
    graph = graph or sc.trace(network, batches[0][0])
    left = {group.name: list(range(group.size)) for group in graph.prunable} | dict(kept or {})
    shown = mask(network, sc.Plan.keeping(graph, kept)) if kept else runnable(network, graph)
    return Evidence(shown, graph, batches, labels, left, seed)


def case_evidence(name: str, *, output: Literal["module", "graph"] = "module", **more: Any) -> tuple[Any, Evidence]:
    """Return a network of `cases` and its evidence."""
    network, example = build(name)
    return network, evidence_of(network, example, graph=_graph(name, output), example=example, **more)


@cache
def _graph(name: str, output: Literal["module", "graph"]) -> sc.ChannelGraph:
    return sc.trace(*build(name), output=output)


def filter_rows(network: Any, producers: Producers, units: Sequence[int]) -> Tensor:
    """Return the weights of each unit as one row."""
    with torch.no_grad():
        return torch.stack([torch.cat([w.flatten() for w in producers(network, u)]) for u in units])
