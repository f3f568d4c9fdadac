"""Figures as people read them."""

from __future__ import annotations

import math

import pytest
from rich.text import Text

from secateur import tables


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [(0.5, 1, "50.0%"), (0.12345, 2, "12.35%"), (0, 1, "0.0%"), (0.0004, 1, "<0.1%"), (0.0005, 1, "0.1%"),
     (1e-6, 2, "<0.01%"), (None, 1, "-"), (math.nan, 1, "-"), (-0.01, 1, "-1.0%")],
)  # fmt: skip
def test_percent(share: float | None, digits: int, text: str) -> None:
    assert tables.percent(share, digits) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (12345.6, "12,346"), (math.inf, "inf"), (math.nan, "-"), (None, "-"), (0, "0")],
)
def test_number(value: float | None, text: str) -> None:
    assert tables.number(value) == text


def test_plain_text_has_no_colour_and_no_trailing_space() -> None:
    made = tables.table("name", "figure", last=["status"])
    made.add_row("a", "1", Text("good", "green"))
    text = tables.plain(made)
    assert text.splitlines()[0].split() == ["name", "figure", "status"]
    assert text.splitlines()[2].split() == ["a", "1", "good"]
    assert "\x1b" not in text and all(line == line.rstrip() for line in text.splitlines())


def test_paragraphs_have_an_empty_line_before_each() -> None:
    assert tables.plain(tables.Text("\n").join(map(Text, map(str, tables.paragraphs("Note: ", ["a", "b"]))))) == (
        "\nNote: a\n\nNote: b"
    )
