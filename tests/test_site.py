"""The documentation site: no page is wider than a phone, wide blocks scroll, and formulas need no script."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Watched, running

ROOT = Path(__file__).parents[1]
PHONE = 390  # pixels
TOOLS = ("sphinx", "furo", "myst_nb", "latex2mathml")  # of the extra `docs`

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in TOOLS), reason="install the tools: pip install -e '.[docs]'"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    out = tmp_path_factory.mktemp("site")
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [sys.executable, "-m", "sphinx", "--quiet", "--doctree-dir", str(out / "trees"), "docs", str(out / "html")],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": source}, check=True, timeout=540,
    )  # fmt: skip
    return out / "html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser for all tests."""
    with running() as found:
        yield found


def test_on_a_phone_no_page_is_clipped_and_wide_blocks_scroll(site: Path, browser: Any) -> None:
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 30
    tab = Watched(browser, width=PHONE)
    scrolling = 0
    for page in pages:
        shown = tab.open(page)
        assert shown.evaluate("document.documentElement.scrollWidth") == PHONE, page.name
        # Whatever is wider than its box on the page can be scrolled there.
        hidden = shown.evaluate(
            "[...document.querySelectorAll('article pre, article .table-wrapper, article div.formula')]"
            ".filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX != 'auto').length"
        )
        assert hidden == 0, page.name
        scrolling += shown.evaluate(
            "[...document.querySelectorAll('article pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
        )
    assert scrolling > 0 and tab.problems == []
    tab.context.close()


def test_formulas_are_mathml_and_load_nothing(site: Path, browser: Any) -> None:
    tab = Watched(browser)
    for name in ("theory", "method", "guarantee", "repair"):
        shown = tab.open(site / f"{name}.html")
        formulas = shown.evaluate(
            "[...document.querySelectorAll('article math')].map(e => e.getBoundingClientRect().width)"
        )
        assert formulas and min(formulas) > 0
        assert "$" not in shown.inner_text("article p:has(math)"), "a formula was not understood"
    assert not any("mathjax" in one.lower() or "katex" in one.lower() for one in tab.requests)
    assert all(one.startswith("file:") for one in tab.requests) and tab.problems == []
    tab.context.close()
