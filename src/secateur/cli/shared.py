"""What every command does: options by the same names, errors without tracebacks, Ctrl-C without half-written files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from secateur.errors import SecateurError, UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors, and JSON if asked for.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite FILE if it is there.")]
Weights = Annotated[Path | None, typer.Option(metavar="FILE", help="State dict for MODEL, as .safetensors or .pt.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Points in one batch.")]
Mean = Annotated[
    str | None, typer.Option(metavar="NUMBERS", help="Subtracted from the data: 0.5, or one for each channel.")
]
Std = Annotated[str | None, typer.Option(metavar="NUMBERS", help="Divides the data: 0.25, or 0.229,0.224,0.225.")]
RoundTo = Annotated[int, typer.Option(metavar="N", help="Make the sizes of groups multiples of N.")]
AtLeast = Annotated[int, typer.Option(metavar="N", help="Channels that every group keeps.")]

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it


@contextmanager
def plain_errors() -> Iterator[None]:
    """Print our own errors without a traceback; exit with 2 for a wrong call, 1 for a failed job."""
    try:
        yield
    except SecateurError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into a short message and the exit code that shells expect."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted: no half-written file is left", err=True)
        raise typer.Exit(INTERRUPTED) from None


def check_out(out: Path, force: bool) -> None:
    """Refuse a place that cannot be written to before the work begins, not after it."""
    folder = out.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", remedy="make it first, or save somewhere else")
    if out.is_dir():
        raise UsageError(f"{out} is a folder", remedy=f"give a file, such as {out / 'small.safetensors'}")
    if out.exists() and not force:
        raise UsageError(f"{out} is already there", remedy="give another name, or --force to overwrite it")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written to", remedy="check its permissions, or save somewhere else")


def numbers(name: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--{name} is {text!r}", remedy="write one number, or one for each channel: 0.485,0.456,0.406"
        ) from None


def default_shape(model: nn.Module) -> tuple[int, ...]:
    """The input that a model of the zoo or of timm says it was made for, else an ImageNet photo."""
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple):
        return (1, *shape)
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, name, None)
        if isinstance(config, dict) and config.get("input_size"):
            return (1, *config["input_size"])
    return (1, 3, 224, 224)
