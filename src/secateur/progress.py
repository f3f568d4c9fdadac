"""A progress bar: on the standard error stream of a terminal, or in the output of a notebook's cell."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

INTERVAL = 0.2  # seconds between two updates in a notebook


@contextmanager
def bar(description: str, total: int | None, show: bool) -> Iterator[Callable[..., None]]:
    """Show the progress of a task within a `with` block; call the function it returns after each part.

    >>> with bar("fitting layers", 20, show=True) as advance:
    ...     advance()

    Args:
        total: the number of parts, None if it is not known.
    """
    if show and in_notebook():
        with NotebookBar(description, total) as shown:
            yield lambda parts=1: shown.show(shown.done + parts)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not show) as progress:
        task = progress.add_task(description, total=total)
        yield lambda parts=1: progress.advance(task, parts)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    return getattr(found, "kernel", None) is not None


class NotebookBar:
    """A progress bar in the output of a cell, which disappears at the end. It needs no widgets."""

    def __init__(self, description: str, total: int | None) -> None:
        self.description, self.total, self.done = description, total, 0
        self._updated = 0.0
        self._output: Any = None

    def __enter__(self) -> NotebookBar:
        from IPython.display import HTML, display

        self._output = display(HTML(self._html()), display_id=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._update("")

    def show(self, done: int, about: str = "") -> None:
        """Show the number of finished parts, and a text beside it."""
        self.done = done
        if time.monotonic() - self._updated >= INTERVAL:
            self._updated = time.monotonic()
            self._update(self._html(about))

    def _update(self, text: str) -> None:
        from IPython.display import HTML

        if self._output is not None:
            self._output.update(HTML(text))

    def _html(self, about: str = "") -> str:
        size = f' max="{self.total}" value="{self.done}"' if self.total else ""
        count = f"{self.done}/{self.total}" if self.total else str(self.done)
        return f"{escape(self.description)} <progress{size}></progress> {count} {escape(about)}"
