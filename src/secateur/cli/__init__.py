"""The command line: `secateur inspect`, `prune`, `train`, `sweep`, `report`, `demo`."""

from __future__ import annotations

from typing import Annotated

import torch
import typer

from secateur import __version__
from secateur.cli import networks, runs

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


for command in (networks.inspect, networks.prune, runs.train, runs.sweep, runs.report, networks.demo):
    app.command()(command)
