"""The command that tells which method suits a network: `secateur compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.text import Text

from secateur import budget
from secateur.calibration import Calibration, read_batches
from secateur.cli.networks import RANDOM_WEIGHTS, Input, Keep, Model, OutputOption
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
from secateur.compare import HELD, Comparison
from secateur.compare import compare as compared
from secateur.entries import entries
from secateur.errors import SecateurError, UsageError
from secateur.files import write_json
from secateur.methods import METHODS
from secateur.models import build, parse_shape
from secateur.report.compared import as_table

LABELLED = "give x and y in one .npz, or path/to/file.py:FACTORY that makes pairs (x, y); or leave --on out"


def compare(
    model: Model,
    data: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="Calibration data, as for prune: a folder of images, a .npy, .npz, .safetensors or .pt file, "
            "path/to/file.py:FACTORY, or embedded:digits.",
            show_default=False,
        ),
    ],
    on: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Labelled data to judge by, for choosing never the test data: a .npz, .safetensors or .pt file with x "
            "and y, path/to/file.py:FACTORY that makes pairs, or embedded:digits (here the 2,000 for testing). "
            "Without it: how far the output moves.",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"Of {', '.join(METHODS)}, each with its options: pfp:pivotal, pfp~mean, ft@residual, ft+repair.",
            show_default="all that the data allows",
        ),
    ] = None,
    params: Annotated[
        str | None, typer.Option(metavar="LIMITS", help="Parameters that may remain: 70%,50%,30% or 300k.")
    ] = None,
    macs: Annotated[
        str | None, typer.Option(metavar="LIMITS", help="Multiply-accumulates that may remain: 50%,30% or 2.1G.")
    ] = None,
    repair: Annotated[bool, typer.Option("--repair", help="Judge every method with and without a repair.")] = False,
    draws: Annotated[int, typer.Option(metavar="N", help="Do it N times, each with other calibration points.")] = 1,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write all figures, as JSON, after every network.")
    ] = None,
    force: Force = False,
    weights: Weights = None,
    input: Input = None,
    points: Annotated[int, typer.Option(metavar="N", help="Calibration points of each draw.")] = 256,
    on_points: Annotated[int, typer.Option(metavar="N", help="Points of --on, at most.")] = 10_000,
    batch: BatchSize = 32,
    mean: Mean = None,
    std: Std = None,
    seed: Annotated[int, typer.Option(metavar="N", help="For the choice of points and the draws.")] = 0,
    keep: Keep = None,
    round_to: RoundTo = 1,
    at_least: AtLeast = 1,
    output: OutputOption = "module",
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Prune MODEL by several methods under several budgets, and judge all by the same data."""
    with plain_errors(), interruptible(), Console(stderr=True, quiet=quiet).status("") as status:
        budgets = _budgets(params=params, macs=macs)
        chosen = None if methods is None else [text.strip() for text in methods.split(",")]
        if chosen is not None:
            entries(chosen)  # refused before anything takes time
        if min(draws, points, on_points) < 1:
            cause = f"{draws} draws of {points} points, {on_points} to judge by"
            raise UsageError(cause, remedy="ask for at least 1 of each")
        if out is not None:
            check_out(out, force)
        shapes = [parse_shape(text) for text in input or []]
        scale = {"mean": numbers("mean", mean), "std": numbers("std", std)}
        status.update(Text(f"making {model}"))
        network = build(model, weights)
        shapes = shapes or [default_shape(network)]
        shape = shapes[0][1:]
        status.update(Text(f"reading {data}"))
        wanted = draws * points + (HELD if on is None else 0)
        calibration = read_batches(data, shape=shape, points=wanted, batch=batch, seed=seed, **scale)
        labelled = None if on is None else _labelled(on, shape=shape, points=on_points, batch=batch, seed=seed, **scale)
        by_name = isinstance(calibration.batches[0], Mapping)
        status.update("tracing and comparing")
        terminal = status.console.is_terminal and not quiet
        if terminal:  # the bar comes instead: there is one live display at a time
            status.stop()
        own = model.endswith(".py") or ".py:" in model
        head = {
            "model": model,
            "weights": weights and str(weights),
            "input": shapes,
            "data": calibration.origin,
            "on": labelled and labelled.origin,
        }
        notes = [RANDOM_WEIGHTS] if weights is None and not own else []
        done = 0

        def write(so_far: Comparison) -> None:
            nonlocal done
            assert out is not None
            write_json(out, _record(head, so_far, notes))
            done = len(so_far.cells)

        try:
            found = compared(
                network,
                calibration,
                budgets,
                chosen,
                on=labelled,
                repair=repair,
                draws=draws,
                seed=seed,
                points=points,
                keep=keep or (),
                at_least=at_least,
                round_to=round_to,
                output=output,
                example=None if by_name else tuple(torch.zeros(shape) for shape in shapes),
                progress=terminal,
                after_each=None if out is None else write,
            )
        except KeyboardInterrupt:
            if done:
                typer.echo(f"the figures of {done} networks are in {out}, marked as unfinished", err=True)
            raise
        if out is not None:
            write(found)
        status.stop()
        if as_json:
            typer.echo(json.dumps(_record(head, found, notes), indent=2))
        else:
            _print(Console(quiet=quiet), head, found, notes, out)
        if all(row.figure is None for row in found.rows):
            raise SecateurError("no method could do it", remedy="see what each says, and raise the budget")


def _budgets(**given: str | None) -> dict[str, list[str]]:
    found = {name: text.split(",") for name, text in given.items() if text is not None}
    if len(found) != 1:
        cause = "there is no budget" if not found else "there are budgets in params and in MACs"
        raise UsageError(cause, remedy="say what may remain of one of them: --params 70%,50%,30% or --macs 50%")
    for name, limits in found.items():
        for limit in limits:
            budget.parse({name: limit})
    return found


def _labelled(source: str, **wanted: Any) -> Calibration:
    """Data with labels to judge by; of the embedded digits those that the network was not trained on."""
    if source == "embedded:digits" and wanted["mean"] is None and wanted["std"] is None:
        from secateur.embedded import digits

        x, y = (part[: wanted["points"]] for part in digits("test"))
        pairs = list(zip(x.split(wanted["batch"]), y.split(wanted["batch"])))
        return Calibration(pairs, len(x), True, f"{source} (test)")
    found = read_batches(source, **wanted)
    if not found.labelled:
        raise UsageError(f"{source} has no labels", layer="--on", remedy=LABELLED)
    return found


def _record(head: dict[str, Any], found: Comparison, notes: list[str]) -> dict[str, Any]:
    known = head | found.info
    return known | {"notes": [*found.notes, *notes]}


def _print(console: Console, head: dict[str, Any], found: Comparison, notes: list[str], out: Path | None) -> None:
    where = f"of {head['on']}" if head["on"] else "that were held apart"
    about = f"{found.points} points of {head['data']}, judged on {found.judged:,} {where}"
    console.print(Text(head["model"], "bold"), Text(about, "dim"), sep="\n", end="\n\n")
    console.print(as_table(found))
    for note in notes:
        console.print("", Text(f"Note: {note}"), sep="\n")
    if out is not None:
        console.print("", Text(f"Written: {out}"), sep="\n", soft_wrap=True)
