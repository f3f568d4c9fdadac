"""Evidence on small networks, and by hand which weights make each unit of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal

import torch
from cases import build
from torch import Tensor, nn

import secateur as sc
from secateur.batches import calls
from secateur.methods.base import Evidence
from secateur.sensitivity import runnable
from secateur.surgery import mask

IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
Makers = Callable[[Any, int], list[Tensor]]

# network -> group -> for a unit the weights that make it, layer by layer
MAKERS: dict[str, dict[str, Makers]] = {
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
    """What a method gets to see, all units left but where `kept` says otherwise."""
    batches = list(calls(data, example=example))
    graph = graph or sc.trace(network, batches[0][0])
    left = {group.name: list(range(group.size)) for group in graph.prunable} | dict(kept or {})
    shown = mask(network, sc.Plan.keeping(graph, kept)) if kept else runnable(network, graph)
    return Evidence(shown, graph, batches, labels, left, seed)


def case_evidence(name: str, *, output: Literal["module", "graph"] = "module", **more: Any) -> tuple[Any, Evidence]:
    """A network of `cases` and its evidence."""
    network, example = build(name)
    return network, evidence_of(network, example, graph=_graph(name, output), example=example, **more)


@cache
def _graph(name: str, output: Literal["module", "graph"]) -> sc.ChannelGraph:
    return sc.trace(*build(name), output=output)


def filter_rows(network: Any, makers: Makers, units: Sequence[int]) -> Tensor:
    """The weights of each unit, one row for each."""
    with torch.no_grad():
        return torch.stack([torch.cat([w.flatten() for w in makers(network, u)]) for u in units])
