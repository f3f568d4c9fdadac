"""Figures for papers, drawn by matplotlib from the same charts as the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, UsageError
from secateur.report import figures
from secateur.report.charts import Axis, Chart, Series
from support.written_sweeps import write_sweep

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def res() -> sc.Pruned:
    return sc.prune(lenet5(), digits("calibration")[0][:64], {"params": "40%"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("figures") / "run")


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def test_the_figure_has_the_points_of_the_chart(folder: Path) -> None:
    made = sc.figures.accuracy(folder, "macs")
    chart = figures.result_of(folder).charts["macs"]
    assert legend(made) == [one.name for one in chart.series if not one.of]
    lines = {line.get_label(): line for line in made.axes[0].get_lines()}
    first = chart.series[0]
    assert list(lines[first.name].get_xdata()) == list(first.x) and list(lines[first.name].get_ydata()) == list(first.y)
    assert made.axes[0].get_xlabel() == "MACs kept" and made.axes[0].get_ylabel() == "test accuracy (%)"
    assert len(made.axes[0].collections) == 2  # bands


def test_lines_differ_without_colour(folder: Path) -> None:
    methods = [line for line in sc.figures.accuracy(folder).axes[0].get_lines() if line.get_label() in ("pfp", "ft")]
    assert len({(line.get_marker(), line.get_linestyle()) for line in methods}) == 2


def test_every_chart_of_every_kind_can_be_drawn(res: sc.Pruned, folder: Path) -> None:
    times = sc.Bench(sc.Latency(2, 1, 3, 20, 1), sc.Latency(1, 0.5, 2, 20, 1), 2.0, 1.5, 2.5)
    found = sc.compare(lenet5(), digits("calibration")[0][:300], {"params": ["50%"]}, ["ft"], samples=16)
    for source in (res, folder, times, found, sc.read_sweep(folder)):
        for chart in figures.result_of(source).charts.values():
            assert figures.as_bytes(figures.draw(chart), "svg").startswith(b"<?xml")
    for made in (
        sc.figures.groups(res),
        sc.figures.saved(res, "MACs"),
        sc.figures.repair(res),
        sc.figures.network(res),
        sc.figures.times(times),
        sc.figures.comparison(found),
        sc.figures.training(folder, "validation", "pfp"),
        res.plot(),
        found.plot(),
        sc.read_sweep(folder).plot("macs"),
    ):
        assert made.axes


@pytest.mark.parametrize(("form", "begins"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_equal_figures_give_equal_bytes(res: sc.Pruned, form: str, begins: bytes) -> None:
    first, second = (figures.as_bytes(sc.figures.groups(res), form) for _ in range(2))
    assert first == second and first.startswith(begins)


@pytest.mark.parametrize(("width", "inches"), [("column", 3.35), ("full", 6.9), (5, 5.0)])
def test_widths(res: sc.Pruned, width: Any, inches: float) -> None:
    assert sc.figures.groups(res, width=width).get_size_inches()[0] == pytest.approx(inches)


def test_wrong_calls(res: sc.Pruned, folder: Path) -> None:
    for call, message in (
        (lambda: sc.figures.groups(res, width="wide"), "column or full"),
        (lambda: sc.figures.groups(res, width=-1), "the width is -1"),
        (lambda: sc.figures.accuracy(folder, "energy"), "use one of params, macs"),
        (lambda: sc.figures.groups(3), "a int cannot be drawn"),
        (lambda: sc.figures.network(folder), "no layers to draw"),
    ):
        with pytest.raises(UsageError, match=message):
            call()


def test_without_matplotlib_the_error_says_what_to_install(res: sc.Pruned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(SecateurError, match=r"secateur\[figures\]"):
        res.plot()


def test_missing_values_are_gaps_and_dollars_are_text() -> None:
    series = Series("a $x$", ["p", "q"], [1.0, None], low=[0.5, None], high=[1.5, None])
    figure = figures.draw(Chart("c", "t", Axis("x", "category"), Axis("y", "log"), (series, Series("b", ["q"], [2.0]))))
    figures.as_bytes(figure, "png")
    assert legend(figure)[0] == r"a \$x\$"
