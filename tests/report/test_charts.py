"""Charts as plain data, and as Plotly draws them."""

from __future__ import annotations

import json
import math

from secateur.report.charts import COLOURS, DASHES, MARKS, Axis, Chart, Series, finite, hover_text, plotly


def drawn(*series: Series, y: Axis | None = None) -> dict[str, object]:
    made = plotly(Chart("c", "title", Axis("x", percent=True), y or Axis("y"), series))
    json.dumps(made, allow_nan=False)
    return made


def test_a_line_has_a_band_behind_it() -> None:
    line = Series("a", [1, 2, 3], [5.0, math.nan, 7.0], low=[4.0, None, 6.0], high=[6.0, None, 8.0])
    band, points = drawn(line)["data"]  # type: ignore[misc]
    assert band["x"] == [1, 3, 3, 1] and band["y"] == [6.0, 8.0, 6.0, 4.0] and band["hoverinfo"] == "skip"
    assert points["y"] == [5.0, None, 7.0] and points["legendgroup"] == band["legendgroup"] == "a"
    assert band["showlegend"] is False and "showlegend" not in points


def test_names_and_texts_are_escaped() -> None:
    series = Series("<b>", ["<i>"], [1.0], hover=[{"name": "<script>&"}])
    (trace,) = drawn(series, y=Axis("<u>"))["data"]  # type: ignore[misc]
    assert (
        trace["name"] == "&lt;b&gt;" and trace["x"] == ["&lt;i&gt;"] and trace["text"] == ["name: &lt;script&gt;&amp;"]
    )


def test_a_series_of_another_has_no_place_in_the_legend() -> None:
    (trace,) = drawn(Series("a, chosen", [1], [2.0], "star", of="a"))["data"]  # type: ignore[misc]
    assert trace["legendgroup"] == "a" and trace["showlegend"] is False and trace["marker"]["symbol"] == "star-open"


def test_intervals_and_bars() -> None:
    (trace,) = drawn(Series("a", ["x"], [2.0], "interval", low=[1.5], high=[4.0]))["data"]  # type: ignore[misc]
    assert trace["error_y"]["array"] == [2.0] and trace["error_y"]["arrayminus"] == [0.5]
    made = drawn(Series("before", ["x"], [2.0], "back"), Series("after", ["x"], [1.0], "bar"), y=Axis("y", "log"))
    assert made["layout"]["barmode"] == "overlay" and made["layout"]["yaxis"]["type"] == "log"  # type: ignore[index]


def test_many_series_differ_in_colour_mark_or_dashes() -> None:
    count = len(COLOURS) * len(MARKS)
    looks = {(one.colour, one.mark) for one in (Series("a", [], [], style=style) for style in range(count))}
    assert len(looks) == count
    assert len({(COLOURS[style % 5], DASHES[style % 4]) for style in range(20)}) == 20  # also in grey, without colours


def test_only_finite_numbers_are_drawn() -> None:
    assert [finite(one) for one in (1, 2.5, math.nan, math.inf, None, "1", True)] == [1.0, 2.5] + [None] * 5


def test_hover_texts() -> None:
    shown = hover_text({"a": 0.12345, "b": 12345, "c": None, "d": "x", "e": -0.5, "f": math.nan})
    assert shown == ["a: 0.123", "b: 12,345", "d: x", "e: -0.5", "f: -"]
