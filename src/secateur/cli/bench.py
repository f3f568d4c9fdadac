"""`secateur bench`: which of two networks is faster."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.text import Text
from torch import nn

import secateur as sc
from secateur._torch import pytree
from secateur.cli import options
from secateur.cli.inputs import (
    check_weights,
    input_shapes,
    input_text,
    is_file,
    is_onnx,
    note_operators,
    open_with_example,
    zeros,
)
from secateur.cli.onnx import onnx_example, onnx_pass, open_onnx
from secateur.cli.options import ADVANCED, argument, count, option
from secateur.cli.screen import TableScreen
from secateur.costs.timing import RUNS, forward_pass, interleaved, use_threads
from secateur.network.examples import Example, call_arguments
from secateur.storage.export import alike, at_random, sized
from secateur.tables import magnitude, table


def bench(
    *,
    first: Annotated[str, argument("A", f"A .safetensors file that prune saved, an .onnx file, {options.MODELS}.")],
    second: Annotated[str, argument("B", "Another network.")],
    model: options.Original = None,
    weights: options.NetworkWeights = None,
    input: options.Input = None,
    batch: Annotated[
        int | None, count(options.DATA, "Samples in one pass.", show_default="as in --input, else 1")
    ] = None,
    threads: options.Threads = None,
    runs: options.Runs = RUNS,
    seed: Annotated[int, option(ADVANCED, "N", "Seed for the order of the runs and the interval.")] = 0,
    screen: TableScreen,
) -> None:
    """Time A and B in interleaved runs, and report the speedup of B with a confidence interval."""
    names = (first, second)
    check_weights(weights, *names)
    with use_threads(threads) as used, ExitStack() as stack:
        with screen.status(f"building {first} and {second}"):
            networks = [_open(name, model, weights, input) for name in names]
        note_operators(screen, *names, model)
        # A saved network knows its input, a name only the usual one; an ONNX file may leave sizes free.
        chosen = max(networks, key=lambda one: 2 if is_file(one.name) else 0 if is_onnx(one.name) else 1)
        example = _filled(chosen.module, chosen.example, batch, seed)
        costs = [sc.cost(one.module, example) if one.module else None for one in networks]
        with screen.status("timing both"):
            passes = [
                stack.enter_context(forward_pass(one.module, example))
                if one.module
                else onnx_pass(one.name, one.session, call_arguments(example))
                for one in networks
            ]
            found = interleaved(*passes, runs=runs, threads=used, seed=seed)
    head = {"input": input_shapes(example), "threads": used, "seed": seed, "weights": weights and str(weights)}
    records = []
    made = table("", "parameters", "MACs", "median", "quartiles")
    for label, name, cost, timed in zip("AB", names, costs, (found.first, found.second)):
        params, macs = (cost.params, cost.macs) if cost else (None, None)
        records.append({"network": name, "params": params, "macs": macs} | asdict(timed))
        sizes = ("-" if size is None else magnitude(size) for size in (params, macs))
        made.add_row(Text(f"{label}  {name}"), *sizes, *times_in_words(timed))
    result = {name: getattr(found, name) for name in ("speedup", "low", "high", "confidence", "measurable", "verdict")}
    screen.show_table(
        head | {"networks": records} | result,
        records,
        Text(f"{input_text(example)}, {timing_in_words(found)}", "dim"),
        "",
        made,
        "",
        Text(f"B compared with A: {found.verdict}."),
    )


@dataclass(frozen=True)
class Opened:
    """A network in torch, or a session of onnxruntime, with an input for it."""

    name: str
    example: Example
    module: nn.Module | None = None
    session: Any = None


def _open(name: str, original: str | None, weights: Path | None, shapes: list[str] | None) -> Opened:
    if is_onnx(name):
        session = open_onnx(name)
        return Opened(name, zeros(shapes) or onnx_example(name, session), session=session)
    network, example = open_with_example(name, original, shapes, weights)
    return Opened(name, example, module=network)


def timing_in_words(times: sc.Bench) -> str:
    """Return how two networks were timed."""
    threads = "1 thread" if times.first.threads == 1 else f"{times.first.threads} threads"
    return f"{times.first.runs} interleaved runs of each, {threads}"


def times_in_words(time: sc.Latency) -> tuple[str, str]:
    """Return the median and the quartiles."""
    median, q25, q75 = (f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in (time.median_ms, time.q25_ms, time.q75_ms))
    return f"{median} ms", f"{q25} to {q75}"


def _filled(network: nn.Module | None, example: Example, batch: int | None, seed: int) -> Example:
    """Return a batch like the example, with random numbers in it."""
    call = alike(network, call_arguments(example)) if network else call_arguments(example)
    generator = torch.Generator().manual_seed(seed)
    args, kwargs = pytree.tree_map(lambda leaf: at_random(leaf, generator), sized(call, batch) if batch else call)
    return args or kwargs
