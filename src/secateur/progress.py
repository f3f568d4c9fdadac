"""A progress bar on the standard error stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def bar(what: str, total: int, show: bool) -> Iterator[Callable[[], None]]:
    """Show how far something is that has so many parts; call what it gives after each.

    >>> with bar("fitting layers", 20, show=True) as advance:
    ...     advance()
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)
