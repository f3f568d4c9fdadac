"""A progress bar on the standard error stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(description: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
    """Show the progress of a task within a `with` block; call the function it returns after each part.

    >>> with bar("fitting layers", 20, show=True) as advance:
    ...     advance()

    Args:
        total: the number of parts, None if it is not known.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as progress:
        task = progress.add_task(description, total=total)
        yield lambda parts=1: progress.advance(task, parts)
