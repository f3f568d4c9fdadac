"""Commands for one network: `secateur inspect`, `secateur prune`, `secateur demo`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text
from torch import nn

from secateur import budget as budgets
from secateur import demo as demonstration
from secateur.calibration import Calibration, read_batches
from secateur.checkpoint import save
from secateur.cli.shared import (
    AsJson,
    AtLeast,
    BatchSize,
    Force,
    Mean,
    Quiet,
    RoundTo,
    Std,
    Weights,
    check_out,
    default_shape,
    interruptible,
    numbers,
    plain_errors,
)
from secateur.cli.trust import held_out
from secateur.cost import Latency, cost, latency
from secateur.errors import UsageError
from secateur.graph import Output
from secateur.methods import METHODS
from secateur.methods.pfp import Select
from secateur.models import build, parse_shape
from secateur.prune import Pruned
from secateur.prune import prune as pruned_by
from secateur.report import groups, pruned
from secateur.report.groups import ROWS
from secateur.trace import trace

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="zoo:NAME, torchvision:NAME, timm:NAME, or path/to/file.py:FACTORY.",
        show_default=False,
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(metavar="SHAPE", help="Shape of an input, like 1x3x224x224; repeat it for several inputs."),
]
OutputOption = Annotated[
    Output,
    typer.Option(help="What a cut gives back: your own class, or the exported graph with its sizes rewritten."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Layer name or pattern to keep whole; may be repeated."),
]

ALL = 10**9  # points: more than anybody has
RANDOM_WEIGHTS = "the weights are random, so the choice means nothing; --weights FILE gives trained ones"


def inspect(
    model: Model,
    input: Input = None,
    output: OutputOption = "module",
    keep: Keep = None,
    all: Annotated[bool, typer.Option("--all", help=f"Show more than {ROWS} groups; indices in JSON.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Show which channels of MODEL can be cut, what they cost, and why the others stay."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("") as status:
        shapes = [parse_shape(text) for text in input or []]
        status.update(Text(f"making {model}"))
        network = build(model)
        origin = "given" if shapes else "the default; set it with --input"
        shapes = shapes or [default_shape(network)]
        example = tuple(torch.zeros(shape) for shape in shapes)
        status.update("counting parameters and MACs")
        counted = cost(network, example)
        status.update("tracing channels")
        graph = trace(network, example, keep=keep or (), output=output)
        status.stop()
        if as_json:
            head = {"model": model, "input": shapes}
            typer.echo(json.dumps(head | groups.as_dict(graph, counted, indices=all), indent=None if all else 2))
            return
        console = Console(quiet=quiet)
        _print_head(console, model, f"input {_written(shapes)} ({origin})")
        console.print(groups.as_table(graph, counted, rows=None if all else ROWS))


def prune(
    model: Model,
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Calibration data, never test data: a folder of images, a .npy, .npz, .safetensors or .pt file, "
            "path/to/file.py:FACTORY, or embedded:digits.",
            show_default=False,
        ),
    ],
    params: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Parameters that may remain: 40%, 300k, 2.1M.")
    ] = None,
    macs: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Multiply-accumulates that may remain: 50%, 2.1G.")
    ] = None,
    latency: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="Time that one pass may take on this machine: 50%, 8ms.")
    ] = None,
    drop: Annotated[
        str | None,
        typer.Option(metavar="POINTS", help="Accuracy that may be lost, as certified by --heldout: 1%."),
    ] = None,
    heldout: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Labelled data that nothing has seen yet, for --drop.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to save the cut network; without it, a preview.")
    ] = None,
    force: Force = False,
    weights: Weights = None,
    input: Input = None,
    points: Annotated[int, typer.Option(metavar="N", help="How many points of the data to use.")] = 256,
    batch: BatchSize = 32,
    mean: Mean = None,
    std: Std = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"How channels are judged: {', '.join(METHODS)}.", show_default="residual"),
    ] = None,
    select: Annotated[
        Select | None,
        typer.Option(help="How pfp chooses: the most sensitive, or by one of three draws.", show_default="derand"),
    ] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="How groups share the budget: uniform, pfp, residual.", show_default="the method's own"
        ),
    ] = None,
    repair: Annotated[
        bool | None,
        typer.Option(help="Fit the layers anew after the cut, in closed form.", show_default="for residual"),
    ] = None,
    sensitivity: Annotated[str, typer.Option(metavar="KIND", help="Of pfp: max, mean, rms or q0.99.")] = "max",
    delta: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Probability that the promised error is exceeded.",
            show_default="1e-12; 1e-3 with --drop",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="For the choice of points and the draws.")] = 0,
    steps: Annotated[int, typer.Option(metavar="N", help="Cut in so many steps, measuring again after each.")] = 1,
    keep: Keep = None,
    round_to: RoundTo = 1,
    at_least: AtLeast = 1,
    output: OutputOption = "module",
    all: Annotated[bool, typer.Option("--all", help=f"Show more than {ROWS} groups.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Make MODEL smaller until it fits a budget, and save it."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("") as status:
        budget = _budget(params=params, macs=macs, latency=latency, drop=drop)
        if (drop is None) != (heldout is None):
            raise UsageError("--drop and --heldout go together", remedy="give both: --drop 1% --heldout val.npz")
        if out is not None:
            check_out(out, force)
        shapes = [parse_shape(text) for text in input or []]
        means, stds = numbers("mean", mean), numbers("std", std)
        status.update(Text(f"making {model}"))
        network = build(model, weights)
        shapes = shapes or [default_shape(network)]
        status.update(Text(f"reading {data}"))
        _check_several(shapes, data)
        calibration = read_batches(
            data, shape=shapes[0][1:], points=points, batch=batch, mean=means, std=stds, seed=seed
        )
        example = _example(shapes, calibration)
        fresh = None
        if heldout is not None:
            fresh = held_out(heldout, shape=shapes[0][1:], points=ALL, batch=batch, mean=means, std=stds, seed=seed)
        status.update("tracing, measuring and cutting")
        terminal = status.console.is_terminal and not quiet
        if terminal:  # the bar of the measuring pass comes instead: there is one live display at a time
            status.stop()
            status.console.print("tracing, measuring and cutting", style="dim")
        res = pruned_by(
            network,
            calibration,
            budget,
            method=method,
            select=select,
            allocation=allocation,
            repair=repair,
            sensitivity=sensitivity,
            heldout=None if fresh is None else fresh.batches,
            delta=delta if delta is not None else 1e-12 if drop is None else 1e-3,
            seed=seed,
            points=None,
            steps=steps,
            keep=keep or (),
            at_least=at_least,
            round_to=round_to,
            output=output,
            example=example,
            progress=terminal,
        )
        status.start()
        status.update("timing both networks" if latency else "finishing")
        times = _times(network, res.model, example) if latency else None
        head = {
            "model": model,
            "weights": weights and str(weights),
            "input": shapes,
            "data": calibration.origin,
            "budget": budget,
        }
        if out is not None:
            save(out, res, architecture=model, info=head)
        status.stop()
        notes = [RANDOM_WEIGHTS] if weights is None and not _own_file(model) else []
        if as_json:
            _print_json(head, res, times, notes, out)
            return
        console = Console(quiet=quiet)
        _print_head(console, model, f"{calibration.points} points of {calibration.origin}, input {_written(shapes)}")
        console.print(pruned.as_table(res, rows=None if all else ROWS, times=times))
        for note in notes:
            console.print("", Text(f"Note: {note}"), sep="\n")
        _print_place(console, out, model)


def demo(as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Prune a trained LeNet-5 on handwritten digits, and show what it costs, how well it reads and what is proved."""
    with plain_errors(), interruptible():
        shown = demonstration.run(Console(quiet=quiet or as_json))
        if as_json:
            accuracy = {"before": shown.before, "after": shown.after, "at_random": shown.at_random}
            found = shown.result.info | {"accuracy": accuracy, "same_after_loading": shown.same_after_loading}
            typer.echo(json.dumps(found, indent=2))


def _budget(**limits: str | None) -> dict[str, object]:
    """The limits that were given, checked before anything takes time."""
    budget: dict[str, object] = {name: limit for name, limit in limits.items() if limit is not None}
    if not budget:
        remedy = "say what may remain: --params 40%, --macs 2.1G or --latency 8ms; or what may be lost: --drop 1%"
        raise UsageError("there is no budget", remedy=remedy)
    if "drop" in budget:
        budgets.parse_drop(budget)
    else:
        budgets.parse(budget)
    return budget


def _check_several(shapes: list[tuple[int, ...]], source: str) -> None:
    if len(shapes) > 1 and not _own_file(source):
        raise UsageError(
            f"{source} holds one input, the network takes {len(shapes)}",
            remedy="give path/to/file.py:FACTORY that makes batches (x1, x2, ...)",
        )


def _own_file(name: str) -> bool:
    return name.endswith(".py") or name.rpartition(":")[0].endswith(".py")


def _example(shapes: list[tuple[int, ...]], data: Calibration) -> Any:
    """What the network is traced and timed with; batches by keyword say themselves what it takes."""
    if isinstance(data.batches[0], Mapping):
        return {
            name: value[:1] if isinstance(value, torch.Tensor) and value.dim() else value
            for name, value in data.batches[0].items()
        }
    return tuple(torch.zeros(shape) for shape in shapes)


def _times(model: nn.Module, small: nn.Module, example: Any) -> tuple[Latency, Latency]:
    return latency(model, example), latency(small, example)


def _written(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def _print_head(console: Console, model: str, about: str) -> None:
    console.print(Text(model, "bold"), Text(about, "dim"), sep="\n", end="\n\n")


def _print_json(
    head: dict[str, Any], res: Pruned, times: tuple[Latency, Latency] | None, notes: list[str], out: Path | None
) -> None:
    found = head | res.info
    found["notes"] = [*res.notes, *notes]
    if times:
        found["latency_ms"] = {"before": times[0].median_ms, "after": times[1].median_ms}
    found["out"] = None if out is None else str(out)
    typer.echo(json.dumps(found, indent=2))


def _print_place(console: Console, out: Path | None, model: str) -> None:
    console.print()
    if out is None:
        console.print("Nothing was written; --out FILE saves it.")
        return
    # Paths and commands are not wrapped, so that they can be copied.
    size = f"{out.stat().st_size / 1e3:,.0f} kB"
    if _own_file(model):
        console.print(Text(f"Written: {out} ({size}). To load it, build the model and call"))
        console.print(Text(f"  small = sc.load({str(out)!r}, model)"), soft_wrap=True)
    else:
        console.print(Text(f"Written: {out} ({size}). To load it, call"))
        console.print(Text(f"  small = sc.load({str(out)!r})"), soft_wrap=True)
