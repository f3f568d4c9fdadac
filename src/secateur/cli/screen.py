"""What a command prints: its result as a page or as JSON, and what it is doing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console, Group
from rich.status import Status
from rich.text import Text

from secateur.cli.options import AsCsv, AsJson, Quiet
from secateur.errors import UsageError
from secateur.rows import csv_text


@dataclass(frozen=True)
class Screen:
    """The options --json and --quiet, and the output that follows them."""

    as_json: AsJson = False
    quiet: Quiet = False

    @property
    def live(self) -> bool:
        """Whether progress can be shown."""
        return self._errors.is_terminal and not self.quiet

    def status(self, text: str) -> Status:
        """Return a context that shows, in a terminal, what is being done."""
        return self._errors.status(Text(text))

    def log(self, text: str) -> None:
        """Print a line beside the result."""
        self._errors.print(Text(text, "dim"))

    def show(self, record: Mapping[str, Any], *page: Any, compact: bool = False) -> None:
        """Print the record as JSON, or the parts of the page below each other."""
        if self.as_json:
            typer.echo(json.dumps(record, indent=None if compact else 2))
        else:
            Console(quiet=self.quiet).print(Group(*page), crop=False)

    @property
    def _errors(self) -> Console:
        return Console(stderr=True, quiet=self.quiet)


@dataclass(frozen=True)
class TableScreen(Screen):
    """The same for a command that shows a table, with the option --csv."""

    as_csv: AsCsv = False

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise UsageError("--json and --csv are two forms of one result", remedy="choose one of them")

    def show_table(
        self, record: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], *page: Any, compact: bool = False
    ) -> None:
        """Print the rows of the table as CSV, or show the record or the page."""
        if self.as_csv:
            typer.echo(csv_text(rows), nl=False)
        else:
            self.show(record, *page, compact=compact)


def heading(title: str, about: str) -> tuple[Text, Text, str]:
    """Return the first lines of a page."""
    return Text(title, "bold"), Text(about, "dim"), ""


def unwrapped(text: str) -> Text:
    """Return a line that is never wrapped, so that a path or a command in it can be copied."""
    return Text(text, no_wrap=True, overflow="ignore")
