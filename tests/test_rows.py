"""Rows as CSV, Markdown, LaTeX, HTML and a frame."""

from __future__ import annotations

import csv
import io
import math
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import secateur as sc
from secateur import rows
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError
from secateur.tables import percent

ROWS = [
    {"group": "conv1", "kept": 9, "part": 0.45, "cut": True},
    {"group": "fc_1 & <b>|", "kept": 1200, "part": None, "cut": False},
]
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)
tables = st.lists(st.fixed_dictionaries({"name": texts, "figure": st.integers() | st.none()}), min_size=1, max_size=4)


def test_markdown() -> None:
    assert rows.markdown(ROWS, formats={"part": percent}).splitlines() == [
        "| group | kept | part | cut |",
        "|:--|--:|--:|:--|",
        "| conv1 | 9 | 45.0% | yes |",
        r"| fc_1 &amp; &lt;b&gt;\| | 1,200 | - | no |",
    ]
    assert rows.markdown([]) == ""


def test_latex() -> None:
    made = rows.latex(ROWS, formats={"part": percent}, caption="Groups, 50%", label="tab:groups").splitlines()
    assert made[:4] == [r"\begin{table}", r"\centering", r"\caption{Groups, 50\%}", r"\label{tab:groups}"]
    assert made[4] == r"\begin{tabular}{lrrl}" and made[-1] == r"\end{table}"
    assert r"fc\_1 \& <b>| & 1,200 & - & no \\" in made and r"conv1 & 9 & 45.0\% & yes \\" in made
    assert rows.latex(ROWS).splitlines()[0] == r"\begin{tabular}{lrrl}"


def test_special_characters_of_latex() -> None:
    made = rows.latex([{"x": r"a\b{c}~d^e±f"}])
    assert r"a\textbackslash{}b\{c\}\textasciitilde{}d\textasciicircum{}e$\pm$f" in made


def test_floats_that_are_no_numbers() -> None:
    assert rows.cells([{"a": math.nan, "b": math.inf, "c": 0.12345}]) == [["-", "inf", "0.123"]]


def test_missing_keys_are_missing_values() -> None:
    assert rows.csv_text([{"a": 1}, {"b": 2}]) == "a,b\n1,\n,2\n"
    assert rows.cells([{"a": 1}, {"b": 2}]) == [["1", "-"], ["-", "2"]]


@given(tables)
def test_csv_can_be_read_again(table: list[dict[str, object]]) -> None:
    found = list(csv.DictReader(io.StringIO(rows.csv_text(table), newline="")))
    assert found == [{k: "" if v is None else str(v) for k, v in row.items()} for row in table]


class Cells(HTMLParser):
    """The texts of the cells, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.removesuffix("\n")


@given(tables)
def test_html_and_markdown_hold_the_texts_and_no_other_element(table: list[dict[str, object]]) -> None:
    made = Cells(rows.html(table))
    assert made.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert made.rows == [rows.headings(table), *rows.cells(table)]
    rendered = Cells(MarkdownIt("commonmark", {"html": True}).enable("table").render(rows.markdown(table)))
    assert not rendered.tags - {"table", "thead", "tbody", "tr", "th", "td", "code", "em", "strong", "a", "img", "p"}
    assert len(rendered.rows) == len(table) + 1


def test_a_caption_is_escaped() -> None:
    assert '<caption style="text-align:left">&lt;script&gt;</caption>' in rows.html(ROWS, caption="<script>")


def test_a_frame_has_all_digits() -> None:
    frame = rows.frame([{"a": 1 / 3, "b": "x"}, {"a": None, "b": "y"}])
    assert list(frame.columns) == ["a", "b"] and frame["a"][0] == 1 / 3 and math.isnan(frame["a"][1])


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(SecateurError, match="pip install pandas"):
        rows.frame(ROWS)


def test_every_result_has_html_and_a_frame() -> None:
    images = digits("calibration")[0][:300]
    model = lenet5()
    graph = sc.trace(model, images[:1])
    plan = sc.random_plan(graph)
    res = sc.prune(model, images[:64], {"params": "50%"})
    bench = sc.Bench(sc.Latency(2, 1, 3, 20, 1), sc.Latency(1, 0.5, 2, 20, 1), 2.0, 1.5, 2.5)
    cert = sc.certify(model, res.model, [digits("test")])
    found = sc.compare(model, images, {"params": ["50%"]}, ["ft"], samples=16)
    for one, count in ((graph, 4), (plan, 3), (res, 3), (bench, 2), (cert, len(cert.statements)), (found, 1)):
        assert len(one.to_frame()) == count
        tags = Cells(one._repr_html_()).tags
        assert "table" in tags or "ol" in tags
    assert "99.9" in cert._repr_html_() and "All this holds if" in cert._repr_html_()
