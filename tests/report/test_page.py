"""The report page, as text and in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.errors import SecateurError, UsageError
from secateur.report.charts import COLOURS
from secateur.report.page import page, write_page
from secateur.report.pruned import pruned
from secateur.report.sources import of_record, read_source
from support.browser import Watched, running
from support.written_sweeps import write_sweep

NASTY = "<script>hacked = 1</script>"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def contrast(one: str, other: str) -> float:
    """The ratio of WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def nasty_network() -> nn.Module:
    layers = nn.Sequential()
    layers.add_module(NASTY, nn.Conv2d(1, 8, 3))
    layers.add_module("act", nn.ReLU())
    layers.add_module("last", nn.Conv2d(8, 4, 3))
    return layers.eval()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of every kind, and a page about all of them."""
    folder = tmp_path_factory.mktemp("page")
    images = digits("calibration")[0]
    model = lenet5()
    res = sc.prune(model, images[:128], {"params": "40%"})
    sc.save(folder / "residual.safetensors", res, architecture="zoo:lenet5")
    sc.save(folder / "pfp.safetensors", sc.prune(model, images[:64], {"params": "50%"}, method="pfp"))
    sc.save(folder / "nasty.safetensors", sc.prune(nasty_network(), torch.rand(16, 1, 9, 9), {"macs": "60%"}))
    found = sc.compare(model, images[:320], {"params": ["50%", "30%"]}, ["ft", "pfp"], samples=32)
    (folder / "comparison.json").write_text(json.dumps(found.info))
    (folder / "certificate.json").write_text(sc.certify(model, res.model, [digits("test")]).to_json())
    write_sweep(folder / "sweep")
    write_page(folder / "all.html", [read_source(folder / name) for name in SOURCES])
    return folder


SOURCES = (
    "sweep",
    "residual.safetensors",
    "pfp.safetensors",
    "nasty.safetensors",
    "comparison.json",
    "certificate.json",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def opened(browser: Any, place: Path) -> Watched:
    """One tab with the page about everything, and all charts drawn."""
    watched = Watched(browser)
    watched.open(place / "all.html")
    watched.draw_all()
    return watched


@pytest.fixture
def tab(opened: Watched) -> Iterator[Watched]:
    yield opened
    assert opened.problems == []


# As text


def test_an_existing_file_is_not_overwritten_without_force(place: Path) -> None:
    result = [read_source(place / "certificate.json")]
    target = place / "there.html"
    target.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        write_page(target, result)
    assert target.read_text() == "mine"
    write_page(target, result, force=True, title="Mine & yours")
    assert "<title>Mine &amp; yours</title>" in target.read_text()


def test_a_folder_that_does_not_exist_is_refused(place: Path) -> None:
    with pytest.raises(SecateurError, match="there is no folder"):
        write_page(place / "nowhere" / "page.html", [read_source(place / "certificate.json")])


def test_nothing_to_show_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to show"):
        page([])


def test_the_page_holds_everything_and_asks_for_nothing(place: Path) -> None:
    text = (place / "all.html").read_text()
    assert len(text.encode()) < 6e6
    head = text[: text.index('<script type="application/json"')]
    assert not re.search(r"(src|href)=.(https?:)?//", head)
    assert text.count("plotly.js v") <= 1 and "default-src 'none'" in head


def test_names_with_html_stay_text(place: Path) -> None:
    text = (place / "all.html").read_text()
    assert NASTY not in text and "&lt;script&gt;hacked" in text


def test_colours_can_be_told_from_both_backgrounds() -> None:
    style = (Path(sc.__file__).parent / "report" / "templates" / "page.css").read_text()
    themes = [
        dict(re.findall(r"--(\w+): (#\w{6})", part)) for part in re.findall(r"\{([^{}]*--back: #\w{6}[^{}]*)\}", style)
    ]
    assert len(themes) >= 3
    for theme in themes[:3]:
        for back in (theme["back"], theme["panel"]):
            assert all(contrast(theme[name], back) >= 4.5 for name in ("text", "soft", "link", "mark"))
            assert all(contrast(colour, back) >= 3 for colour in COLOURS), back
        assert contrast(theme["text"], theme["warn"]) >= 4.5


def test_another_kind_of_record_is_refused() -> None:
    with pytest.raises(UsageError, match="no comparison, certificate, timing or reproduction"):
        of_record("x.json", {"some": "thing"})


# In a browser


def test_every_chart_has_its_traces_and_nothing_is_fetched(tab: Watched) -> None:
    shown = tab.page
    blocks = json.loads(shown.inner_text("#data"))["blocks"]
    drawn = shown.evaluate(
        "[...document.querySelectorAll('[data-block=plot]')].map(b => [b.id, b.querySelector('.drawing').data.length])"
    )
    assert dict(drawn) == {key: len(one["charts"][0]["data"]) for key, one in blocks.items() if one["kind"] == "plot"}
    assert len(drawn) >= 14
    assert all(url.startswith(("file:", "data:", "blob:")) for url in tab.requests)
    assert shown.evaluate("window.hacked") is None


def test_the_legend_switches_a_method_off_and_on(tab: Watched) -> None:
    shown = tab.page
    block = "#r1-size-params-1"
    shown.locator(f"{block} .drawing").scroll_into_view_if_needed()
    button = shown.locator(f"{block} .legend button", has_text="pfp")
    shape = f"document.querySelector('{block} .drawing').data.filter(t => t.legendgroup === 'pfp').map(t => t.visible)"
    button.click()
    assert shown.evaluate(shape) == [False] * 4 and button.get_attribute("aria-pressed") == "false"
    button.press("Enter")  # by keyboard
    assert shown.evaluate(shape) == [True] * 4 and button.get_attribute("aria-pressed") == "true"


def test_a_point_shows_its_figures(tab: Watched) -> None:
    shown = tab.page
    block = shown.locator("#r1-size-params-1 .drawing")
    block.scroll_into_view_if_needed()
    at = shown.evaluate(
        """() => { const d = document.querySelector('#r1-size-params-1 .drawing');
        const t = d.data.findIndex(t => t.name === 'ft' && t.mode === 'lines+markers'), l = d._fullLayout;
        const box = d.getBoundingClientRect(), x = l.xaxis.d2p(d.data[t].x[0]), y = l.yaxis.d2p(d.data[t].y[0]);
        return [box.left + l._size.l + x, box.top + l._size.t + y]; }"""
    )
    shown.mouse.move(*at)
    text = "document.querySelector('#r1-size-params-1 .hoverlayer').textContent"
    shown.wait_for_function(f"() => {text}.includes('validation')")
    text = shown.locator("#r1-size-params-1 .hoverlayer").text_content() or ""
    for word in ("method: ft", "before retraining", "parameters kept", "MACs kept", "networks: 2"):
        assert word in text


def test_a_table_sorts_filters_and_downloads(tab: Watched) -> None:
    shown = tab.page
    block = "#r1-runs-runs-1"

    def column(heading: str) -> list[str]:
        return shown.eval_on_selector_all(
            f"{block} td[data-title='{heading}']", "cells => cells.map(c => c.textContent)"
        )

    heading = shown.locator(f"{block} th button", has_text=re.compile("^PR"))
    heading.click()
    assert column("PR") == sorted(column("PR"), key=lambda one: float(one.rstrip("%")))
    heading.click()
    assert column("PR") == sorted(column("PR"), key=lambda one: -float(one.rstrip("%")))
    assert shown.locator(f"{block} th[aria-sort=descending]").count() == 1
    shown.fill(f"{block} input[type=search]", "pfp")
    assert set(column("method")) == {"pfp"} and shown.inner_text(f"{block} .count") == "6 of 12 rows"
    with shown.expect_download() as waiting:
        shown.click(f"{block} .csv")
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text())))
    assert len(rows) == 6 and {row["method"] for row in rows} == {"pfp"}
    assert [float(row["params_removed"]) for row in rows] == sorted(
        (float(r["params_removed"]) for r in rows), reverse=True
    )


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<svg"), ("png", b"\x89PNG")])
@pytest.mark.parametrize("block", ["#r1-size-params-1", "#r2-network-network-1"])
def test_figures_download(tab: Watched, block: str, form: str, begins: bytes) -> None:
    shown = tab.page
    shown.locator(f"{block} .body").scroll_into_view_if_needed()
    with shown.expect_download() as waiting:
        shown.click(f"{block} button.{form}")
    assert Path(waiting.value.path()).read_bytes().startswith(begins)


def test_the_theme_changes_and_follows_the_system(tab: Watched) -> None:
    shown = tab.page
    back = "getComputedStyle(document.body).backgroundColor"
    font = "document.querySelector('.drawing').layout.font.color"
    light, dark = ("rgb(255, 255, 255)", "#16191d"), ("rgb(20, 23, 26)", "#e8eaed")
    for system, expected in (("dark", dark), ("light", light)):
        shown.emulate_media(color_scheme=system)
        shown.wait_for_function(f"() => {font} === '{expected[1]}'")
        assert shown.evaluate(back) == expected[0]
    for expected in (light, dark, light):  # light, dark, and again as the system
        shown.click("#theme")
        assert (shown.evaluate(back), shown.evaluate(font)) == expected


def test_search_in_the_network(tab: Watched) -> None:
    shown = tab.page
    block = "#r2-network-network-1"
    shown.fill(f"{block} input[type=search]", "conv")
    assert shown.locator(f"{block} .hit").count() == 2
    assert "1 of 2: conv1: conv2d, 20 channels" in shown.inner_text(f"{block} [role=status]")
    shown.press(f"{block} input[type=search]", "Enter")
    assert "2 of 2: conv2" in shown.inner_text(f"{block} [role=status]")
    shown.focus(f"{block} svg")
    shown.press(f"{block} svg", "ArrowDown")
    assert shown.inner_text(f"{block} [role=status]").startswith("fc1: linear, 500 channels")
    before = shown.get_attribute(f"{block} .plane", "transform")
    shown.press(f"{block} svg", "+")
    assert shown.get_attribute(f"{block} .plane", "transform") != before
    nasty = shown.locator("#r4-network-network-1 .node text", has_text="<script>")
    assert nasty.count() == 1


def test_a_phone_needs_no_sideways_scroll(place: Path, browser: Any) -> None:
    tab = Watched(browser, width=390, dark=True)
    shown = tab.open(place / "all.html")
    tab.draw_all()
    assert shown.evaluate("document.documentElement.scrollWidth") == 390
    wide = shown.evaluate(
        "[...document.querySelectorAll('main *')]"
        ".filter(e => !e.closest('svg') && e.getBoundingClientRect().right > 391).length"
    )
    assert wide == 0 and tab.problems == []
    tab.context.close()


def test_every_control_has_a_name_and_every_link_a_target(tab: Watched) -> None:
    shown = tab.page
    unnamed = shown.evaluate(
        """[...document.querySelectorAll('button, input, select')].filter(e => !e.hidden
        && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).map(e => e.outerHTML)"""
    )
    assert unnamed == []
    lost = shown.evaluate(
        "[...document.querySelectorAll('a[href^=\"#\"]')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    )
    ids = shown.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert lost == 0 and len(ids) == len(set(ids))
    levels = shown.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))


def test_print_shows_charts_that_were_never_scrolled_to(place: Path, browser: Any) -> None:
    tab = Watched(browser, dark=True)
    shown = tab.open(place / "all.html")
    assert not shown.evaluate("[...document.querySelectorAll('.drawing')].every(d => d.data)")
    shown.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert shown.evaluate("[...document.querySelectorAll('.drawing')].every(d => d.data)")
    font = "document.querySelector('.drawing').layout.font.color"
    assert shown.evaluate(font) == "#16191d"  # dark text on paper, although the page is dark
    shown.evaluate("dispatchEvent(new Event('afterprint'))")
    assert shown.evaluate(font) == "#e8eaed"
    shown.emulate_media(media="print")
    assert not shown.locator("nav").is_visible() and not shown.locator("#theme").is_visible()
    tab.context.close()


def test_a_network_of_200_layers_can_be_searched(tmp_path: Path, browser: Any) -> None:
    layers = [{"name": "x", "kind": "input", "before": 3, "after": 3, "inputs": []}]
    for number in range(100):  # blocks of two layers and an addition
        last = len(layers) - 1
        for part, after in (("conv1", 1 + number % 64), ("conv2", 64)):
            name, inputs = f"layer{number}.{part}", [len(layers) - 1]
            layers.append({"name": name, "kind": "conv2d", "before": 64, "after": after, "inputs": inputs})
        layers.append({"name": "add", "kind": "add", "before": 64, "after": 64, "inputs": [len(layers) - 1, last]})
    layers.append({"name": "linear", "kind": "linear", "before": 10, "after": 10, "inputs": [len(layers) - 1]})
    file = write_page(tmp_path / "page.html", [pruned("deep", {"layers": layers})])
    tab = Watched(browser)
    shown = tab.open(file)
    block = "#r1-network-network-1"
    assert shown.locator(f"{block} .node rect.before").count() == 202  # also of the last, which has the name of its op
    assert shown.locator(f"{block} .edge").count() == 401
    shown.fill(f"{block} input[type=search]", "layer97.conv1")
    found, frame = (shown.locator(f"{block} {part}").bounding_box() for part in (".picked", "svg"))
    assert found and frame and frame["y"] < found["y"] < frame["y"] + frame["height"]  # it has come into view
    shown.locator(f"{block} button", has_text="Fit").click()
    plane, frame = (shown.locator(f"{block} {part}").bounding_box() for part in (".plane", "svg"))
    assert plane and frame and plane["height"] <= frame["height"]
    assert tab.problems == []
    tab.context.close()


def test_five_thousand_runs(tmp_path: Path, browser: Any) -> None:
    tab = Watched(browser)
    methods = tuple(f"method{n}" for n in range(10))
    write_sweep(tmp_path / "large", networks=50, methods=methods, steps=10, epochs=2)
    file = write_page(tmp_path / "page.html", [read_source(tmp_path / "large")])
    assert file.stat().st_size < 6e6
    shown = tab.open(file)
    assert shown.inner_text("#r1-runs-runs-1 .count") == "5000 rows"
    assert shown.locator("#r1-runs-runs-1 tbody tr").count() == 100
    shown.fill("#r1-runs-runs-1 input[type=search]", "method7")
    assert shown.inner_text("#r1-runs-runs-1 .count") == "500 of 5000 rows"
    assert tab.problems == []
    tab.context.close()
