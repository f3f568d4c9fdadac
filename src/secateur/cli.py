"""The command line: `secateur inspect`, `secateur demo`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import torch
import typer
from rich.console import Console
from rich.text import Text
from torch import nn

from secateur import __version__
from secateur import demo as demonstration
from secateur.cost import cost
from secateur.errors import SecateurError, UsageError
from secateur.models import build, parse_shape
from secateur.report.groups import ROWS, as_dict, as_table
from secateur.trace import trace

app = typer.Typer(
    help="Cut whole filters out of trained PyTorch networks, and prove that the cut is exact.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"secateur {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Hold the options that come before a command."""


@app.command()
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="zoo:NAME, torchvision:NAME, timm:NAME, or path/to/file.py:FACTORY.",
            show_default=False,
        ),
    ],
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="SHAPE", help="Shape of an input, like 1x3x224x224; repeat it for several inputs."),
    ] = None,
    output: Annotated[
        Literal["module", "graph"],
        typer.Option(help="What a cut gives back: your own class, or the exported graph with its sizes rewritten."),
    ] = "module",
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Layer name or pattern to keep whole; may be repeated."),
    ] = None,
    all: Annotated[bool, typer.Option("--all", help=f"Show more than {ROWS} groups; indices in JSON.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show which channels of MODEL can be cut, what they cost, and why the others stay."""
    with _plain_errors(), Console(stderr=True).status("") as status:
        shapes = [parse_shape(text) for text in input or []]
        status.update(Text(f"making {model}"))
        network = build(model)
        origin = "given" if shapes else "the default; set it with --input"
        shapes = shapes or [_default_shape(network)]
        example = tuple(torch.zeros(shape) for shape in shapes)
        status.update("counting parameters and MACs")
        counted = cost(network, example)
        status.update("tracing channels")
        graph = trace(network, example, keep=keep or (), output=output)
        status.stop()
        if as_json:
            head = {"model": model, "input": shapes}
            typer.echo(json.dumps(head | as_dict(graph, counted, indices=all), indent=None if all else 2))
            return
        console = Console()
        written = ", ".join("x".join(map(str, shape)) for shape in shapes)
        console.print(Text(model, "bold"), Text(f"input {written} ({origin})", "dim"), sep="\n", end="\n\n")
        console.print(as_table(graph, counted, rows=None if all else ROWS))


@app.command()
def demo() -> None:
    """Inspect a small residual network, cut half of its filters, and prove the cut."""
    with _plain_errors():
        demonstration.run(Console())


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Print our own errors without a traceback; exit with 2 for a wrong call, 1 for a failed job."""
    try:
        yield
    except SecateurError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


def _default_shape(model: nn.Module) -> tuple[int, ...]:
    """The input that a model of the zoo or of timm says it was made for, else an ImageNet photo."""
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple):
        return (1, *shape)
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, name, None)
        if isinstance(config, dict) and config.get("input_size"):
            return (1, *config["input_size"])
    return (1, 3, 224, 224)
