"""What every command does: options by the same names, errors without tracebacks, Ctrl-C without half-written files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from secateur.errors import SecateurError, UsageError

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


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
        raise typer.Exit(130) from None
