"""Latency tables that are measured once for a machine, a network and an input, and then kept."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.channels.graph import ChannelGraph
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.examples import Example, describe
from secateur.network.modules import unwrap
from secateur.profiling.machine import machine
from secateur.profiling.measure import measure_torch, shapes_of
from secateur.profiling.runtime import measure_onnxruntime
from secateur.profiling.table import SCHEMA, Engine, LatencyTable
from secateur.tracing.trace import trace


@known_keywords
def latency_table(
    model: nn.Module,
    example: Example,
    *,
    engine: Engine = "torch",
    threads: int | None = None,
    graph: ChannelGraph | None = None,
    progress: bool = False,
) -> LatencyTable:
    """Return how long a network takes for any sizes of its layers, measured on this machine.

    >>> sc.latency_table(model, images[:1], threads=1).save("latency.json")
    >>> sc.prune(model, images, {"latency": "70%"}, latency_table="latency.json")  # also on another machine

    Args:
        model: the network; it is not changed.
        example: inputs as `forward` takes them: a tensor, a tuple of arguments or a dict of keyword arguments.
        engine: what runs the network: "torch" or "onnxruntime".
        threads: number of CPU threads, by default torch's setting.
        graph: the channel graph of this network from `trace`, which is then not traced again.
        progress: show a progress bar on the standard error stream.
    """
    if engine not in ("torch", "onnxruntime"):
        raise UsageError(f"engine is {engine!r}", remedy="use 'torch' or 'onnxruntime'")
    graph = trace(model, example) if graph is None else graph
    measure: Any = measure_torch if engine == "torch" else measure_onnxruntime
    table: LatencyTable = measure(model, graph, example, threads=threads, progress=progress)
    if not table.segments:
        raise SecateurError("no layer of the network can be timed", remedy="use a budget in macs")
    return table


def kept_table(
    model: nn.Module, graph: ChannelGraph, example: Example, engine: Engine, *, progress: bool = False
) -> tuple[LatencyTable, tuple[str, ...]]:
    """Return the table of a network on this machine, from the cache folder if it is there, and remarks on the cache."""
    inner, notes = unwrap(model), list[str]()
    path = _folder() / f"{_key(inner, graph, example, engine)}.json"
    if path.is_file():
        try:
            found = LatencyTable.load(path)
            found.check(type(inner).__name__, shapes_of(inner))
            return found, ()
        except SecateurError as error:
            notes.append(f"the stored latency table was measured again: {error.cause}")
    table = latency_table(model, example, engine=engine, graph=graph, progress=progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        table.save(path)
    except (OSError, SecateurError) as error:
        notes.append(f"the latency table could not be kept for the next time: {error}")
    return table, tuple(notes)


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "secateur" / "latency"


def _key(model: nn.Module, graph: ChannelGraph, example: Example, engine: Engine) -> str:
    """Return a name for the table of this network and input, on this machine with this number of threads."""
    layers = [[one.name, one.kind, one.inputs] for one in graph.layers]
    shapes = {name: list(shape) for name, shape in shapes_of(model).items()}
    kinds = sorted({str(one.dtype) for one in model.parameters()})
    where = [SCHEMA, engine, torch.get_num_threads(), machine(engine)]
    text = json.dumps(
        [where, type(model).__name__, shapes, kinds, layers, describe(example)], sort_keys=True, default=str
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]
