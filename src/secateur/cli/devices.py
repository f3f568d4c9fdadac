"""Commands for the machine that a network runs on: `secateur export`, `secateur bench`, `secateur doctor`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.bench import RUNS, Bench
from secateur.bench import bench as timed_in_turn
from secateur.calibration import read_batches
from secateur.checkpoint import load, read_plan
from secateur.cli.networks import Input
from secateur.cli.shared import (
    AsJson,
    Force,
    Mean,
    Quiet,
    Std,
    check_out,
    default_shape,
    interruptible,
    numbers,
    plain_errors,
)
from secateur.cost import cost, magnitude, use_threads
from secateur.doctor import Finding, examine
from secateur.errors import UsageError
from secateur.export import RUNTIMES, To, alike, at_random, sized
from secateur.export import export as exported
from secateur.models import build, parse_shape
from secateur.program import Example, call_arguments, revive

Network = Annotated[
    str,
    typer.Argument(
        metavar="NETWORK",
        help="A .safetensors file that prune wrote, zoo:NAME, torchvision:NAME, timm:NAME or path/to/file.py:FACTORY.",
        show_default=False,
    ),
]
Original = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="What a .safetensors file was cut from, if it does not say so itself."),
]
Threads = Annotated[int | None, typer.Option(metavar="N", help="CPU threads; torch's own setting if not given.")]
Runs = Annotated[int, typer.Option(metavar="N", help="How often each is timed.")]


def export(
    network: Network,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it.", show_default=False)],
    to: Annotated[To, typer.Option(help="ONNX, or the .pt2 file of torch.export.")] = "onnx",
    model: Original = None,
    force: Force = False,
    data: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Inputs to check on, named as for prune; random ones if not given."),
    ] = None,
    points: Annotated[int, typer.Option(metavar="N", help="How many points of the data to check on.")] = 64,
    mean: Mean = None,
    std: Std = None,
    input: Input = None,
    fixed_batch: Annotated[
        bool, typer.Option("--fixed-batch", help="Only the batch size of the input, instead of any.")
    ] = False,
    threads: Threads = None,
    runs: Runs = RUNS,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write NETWORK for another runtime, after a check that it computes the same there."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("") as status:
        check_out(out, force)
        _check_threads(threads)
        means, stds = numbers("mean", mean), numbers("std", std)
        status.update(Text(f"making {network}"))
        made, example = _made(network, model, input)
        inputs = None
        if data is not None:
            status.update(Text(f"reading {data}"))
            inputs = read_batches(data, shape=_shape(example), points=points, mean=means, std=stds)
        status.update(f"exporting, and running both in torch and in {RUNTIMES[to]}")
        with use_threads(threads):
            found = exported(made, out, example, to, data=inputs, dynamic=not fixed_batch, runs=runs)
        status.stop()
        before = Path(network).stat().st_size if _is_file(network) else found.bytes_before
        if as_json:
            head = {"network": network, "model": model, "input": _shapes(example), "data": inputs and inputs.origin}
            plain = asdict(found) | {"path": str(found.path), "bytes_before": before, "runtime": RUNTIMES[to]}
            typer.echo(json.dumps(head | plain, indent=2))
            return
        console = Console(quiet=quiet)
        table = _table(("", "size", "median", "quartiles"))
        kind = "file" if _is_file(network) else "tensors"
        for name, size, timed in (
            (f"torch ({kind})", before, found.times.first),
            (RUNTIMES[to], found.bytes_after, found.times.second),
        ):
            table.add_row(name, f"{size / 1e3:,.0f} kB", *_times(timed.median_ms, timed.q25_ms, timed.q75_ms))
        console.print(Text(network, "bold"), Text(_about(example, found.times), "dim"), sep="\n", end="\n\n")
        console.print(table)
        of = f"of {inputs.origin}" if inputs else "made at random"
        console.print(
            "",
            Text(f"{RUNTIMES[to]} beside torch: {found.times.verdict}."),
            Text(
                f"Checked: its outputs equal torch's {found.exactness} on {found.points} inputs {of}, in batches of "
                f"{', '.join(map(str, found.batches))}."
            ),
            sep="\n",
        )
        console.print(Text(f"Written: {out}"), soft_wrap=True)


def bench(
    first: Annotated[str, typer.Argument(metavar="A", help="A network, named as for export.", show_default=False)],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    model: Original = None,
    input: Input = None,
    batch: Annotated[int | None, typer.Option(metavar="N", help="Points in one pass; 1 if nothing says else.")] = None,
    threads: Threads = None,
    runs: Runs = RUNS,
    seed: Annotated[int, typer.Option(metavar="N", help="For the order of the runs and the interval.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Time A and B in turn, and tell how many times as fast B is, with an interval."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("") as status:
        _check_threads(threads)
        if batch is not None and batch < 1:
            raise UsageError(f"a batch of {batch} points", remedy="give at least 1")
        status.update(Text(f"making {first} and {second}"))
        networks, examples = zip(*(_made(name, model, input) for name in (first, second)))
        # A file knows its input, a name only what is usual.
        chosen = next((i for i, name in enumerate((first, second)) if _is_file(name)), 0)
        example = _filled(networks[chosen], examples[chosen], batch, seed)
        costs = [cost(network, example) for network in networks]
        status.update("timing both in turn")
        found = timed_in_turn(networks[0], networks[1], example, runs=runs, threads=threads, seed=seed)
        status.stop()
        rows = list(zip((first, second), costs, (found.first, found.second)))
        if as_json:
            head = {"input": _shapes(example), "threads": found.first.threads, "seed": seed}
            both = [
                {"network": name, "params": counted.params, "macs": counted.macs} | asdict(timed)
                for name, counted, timed in rows
            ]
            result = {name: getattr(found, name) for name in ("speedup", "low", "high", "confidence", "measurable")}
            typer.echo(json.dumps(head | {"networks": both} | result | {"verdict": found.verdict}, indent=2))
            return
        console = Console(quiet=quiet)
        console.print(Text(_about(example, found), "dim"), end="\n\n")
        table = _table(("", "parameters", "MACs", "median", "quartiles"))
        for name, counted, timed in rows:
            times = _times(timed.median_ms, timed.q25_ms, timed.q75_ms)
            table.add_row(Text(name), magnitude(counted.params), magnitude(counted.macs), *times)
        console.print(table)
        console.print("", Text(f"B beside A: {found.verdict}."), sep="\n")


def doctor(
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the data sets lie; SECATEUR_DATA if not given.")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try out what is installed here, and say what to do about what does not work."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("trying every part"):
        findings = list(examine(data))
    failed = [finding.part for finding in findings if finding.required and finding.state != "works"]
    if as_json:
        typer.echo(json.dumps({"sound": not failed, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print_findings(Console(quiet=quiet), findings, failed)
    if failed:
        typer.echo(f"error: does not work, and is required: {', '.join(failed)}", err=True)
        raise typer.Exit(1)


def _print_findings(console: Console, findings: list[Finding], failed: list[str]) -> None:
    table = _table(("part", "", "seen"), right=())
    colours = {"works": "green", "absent": "yellow", "broken": "red"}
    for finding in findings:
        seen = Text(finding.detail)
        if finding.state != "works":
            seen.append(f"\nremedy: {finding.remedy}", "dim")
        table.add_row(finding.part, Text(finding.state, colours[finding.state]), seen)
    console.print(table)
    if not failed:
        without = sum(finding.state != "works" for finding in findings)
        optional = f"; {without} optional parts do not" if without else ", and everything else too"
        console.print("", Text(f"Everything that is required works{optional}."), sep="\n")


def _made(name: str, model: str | None, shapes: list[str] | None) -> tuple[nn.Module, Example]:
    """The network of that name, and an input for it."""
    given = tuple(torch.zeros(parse_shape(text)) for text in shapes or [])
    if _is_file(name):
        plan = read_plan(name)
        return _loaded(name, model), given or revive(plan.example)
    network = build(name)
    return network, given or (torch.zeros(default_shape(network)),)


def _loaded(name: str, model: str | None) -> nn.Module:
    if model is not None:
        return load(name, build(model))
    try:
        return load(name)
    except UsageError as error:
        raise UsageError(error.cause, remedy="name that network: --model net.py:make") from error


def _filled(network: nn.Module, example: Example, batch: int | None, seed: int) -> Example:
    """An example of so many points, with random numbers in it."""
    call = alike(network, call_arguments(example))
    generator = torch.Generator().manual_seed(seed)
    args, kwargs = pytree.tree_map(lambda leaf: at_random(leaf, generator), sized(call, batch) if batch else call)
    return args or kwargs


def _shape(example: Example) -> tuple[int, ...]:
    """Of one point of the first input."""
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]
    if not tensors:
        raise UsageError("the network's own example has no tensor", remedy="give its shape: --input 1x3x224x224")
    return tuple(tensors[0].shape[1:])


def _shapes(example: Example) -> Any:
    def plain(leaf: Any) -> Any:
        return list(leaf.shape) if isinstance(leaf, Tensor) else leaf

    if isinstance(example, Mapping):
        return {name: plain(leaf) for name, leaf in example.items()}
    return [plain(leaf) for leaf in call_arguments(example)[0]]


def _about(example: Example, times: Bench) -> str:
    tensors = [leaf for leaf in pytree.tree_leaves(example) if isinstance(leaf, Tensor)]
    shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
    threads = "1 thread" if times.first.threads == 1 else f"{times.first.threads} threads"
    return f"input {shapes}, {times.first.runs} runs of each in turn, {threads}"


def _times(*milliseconds: float) -> tuple[str, str]:
    median, q25, q75 = (f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in milliseconds)
    return f"{median} ms", f"{q25} to {q75}"


def _table(headings: tuple[str, ...], right: tuple[int, ...] | None = None) -> Table:
    """Numbers to the right, unless told otherwise; the first column folds."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, heading in enumerate(headings):
        number = place > 0 if right is None else place in right
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def _is_file(name: str) -> bool:
    return name.endswith(".safetensors")


def _check_threads(threads: int | None) -> None:
    if threads is not None and threads < 1:
        raise UsageError(f"cannot run on {threads} threads", remedy="give --threads 1 or more")
