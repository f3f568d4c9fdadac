"""Rows of plain data in the forms that people publish: CSV, Markdown, LaTeX, HTML and a pandas frame.

A row is a mapping from headings to strings, numbers, booleans or None; a missing value is None. Every function takes
the columns in the order of their first appearance. For Markdown, LaTeX and HTML, floats are written by `tables.number`
unless `formats` has a function for their heading; CSV and frames keep all digits.

>>> rows = [{"group": "conv1", "kept": 9, "part": 0.45}, {"group": "fc1", "kept": 120, "part": None}]
>>> print(markdown(rows, formats={"part": percent}))
| group | kept | part |
|:--|--:|--:|
| conv1 | 9 | 45.0% |
| fc1 | 120 | - |
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from secateur.optional import require
from secateur.tables import number

Row = Mapping[str, Any]
Formats = Mapping[str, Callable[[Any], str]]
NOTHING: Formats = {}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
}


def csv_text(rows: Iterable[Row]) -> str:
    """Return rows as CSV, with a line of headings; a missing value is empty.

    >>> csv_text([{"name": "conv1", "after": 9}, {"name": "conv2", "after": None}])
    'name,after\\nconv1,9\\nconv2,\\n'
    """
    rows = list(rows)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, headings(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def markdown(rows: Iterable[Row], *, formats: Formats = NOTHING) -> str:
    """Return rows as a Markdown table; columns of numbers are aligned to the right."""
    rows = list(rows)
    names = headings(rows)
    if not names:
        return ""
    signs = ["--:" if is_numeric(rows, name) else ":--" for name in names]
    lines = [names, *cells(rows, formats)]
    made = ["| " + " | ".join(_in_markdown(cell) for cell in line) + " |" for line in lines]
    return "\n".join([made[0], "|" + "|".join(signs) + "|", *made[1:]])


def latex(rows: Iterable[Row], *, formats: Formats = NOTHING, caption: str = "", label: str = "") -> str:
    r"""Return rows as a LaTeX table with the rules of the package booktabs; special characters are escaped.

    Args:
        caption: with it, or with a label, the tabular stands in a `table` environment.
        label: for `\ref`.
    """
    rows = list(rows)
    names = headings(rows)
    signs = "".join("r" if is_numeric(rows, name) else "l" for name in names)
    body = [" & ".join(_in_latex(cell) for cell in line) + r" \\" for line in cells(rows, formats)]
    head = " & ".join(map(_in_latex, names)) + r" \\"
    lines = [rf"\begin{{tabular}}{{{signs}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    if caption or label:
        about = [rf"\caption{{{_in_latex(caption)}}}"] if caption else []
        about += [rf"\label{{{label}}}"] if label else []
        lines = [r"\begin{table}", r"\centering", *about, *lines, r"\end{table}"]
    return "\n".join(lines)


def html(rows: Iterable[Row], *, formats: Formats = NOTHING, caption: str = "") -> str:
    """Return rows as an HTML table, as notebooks show it; all text is escaped."""
    rows = list(rows)
    names = headings(rows)
    sides = {name: "right" if is_numeric(rows, name) else "left" for name in names}
    head = "".join(f'<th scope="col" style="text-align:{sides[name]}">{escape(name)}</th>' for name in names)
    lines = [
        "".join(f'<td style="text-align:{sides[name]}">{escape(cell)}</td>' for name, cell in zip(names, line))
        for line in cells(rows, formats)
    ]
    about = f'<caption style="text-align:left">{escape(caption)}</caption>' if caption else ""
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<table>{about}<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table>"


def frame(rows: Iterable[Row]) -> Any:
    """Return rows as a pandas DataFrame; pandas is an optional package."""
    rows = list(rows)
    return require("pandas", install="pandas").DataFrame(rows, columns=headings(rows))


def headings(rows: Sequence[Row]) -> list[str]:
    """Return the headings of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def is_numeric(rows: Sequence[Row], heading: str) -> bool:
    """Return whether a column holds numbers and missing values only, and at least one number."""
    found = [row[heading] for row in rows if row.get(heading) is not None]
    return bool(found) and all(isinstance(one, int | float) and not isinstance(one, bool) for one in found)


def cells(rows: Sequence[Row], formats: Formats = NOTHING) -> list[list[str]]:
    """Return the texts of all cells, row by row."""
    names = headings(rows)
    return [[_text(row.get(name), formats.get(name)) for name in names] for row in rows]


def _text(value: Any, written: Callable[[Any], str] | None) -> str:
    if value is None:
        return "-"
    if written is not None:
        return written(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else number(value) if isinstance(value, float) else str(value)


def _in_markdown(text: str) -> str:
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def _in_latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))
