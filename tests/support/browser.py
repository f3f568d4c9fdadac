"""A real browser for tests of pages: Debian's Chromium, headless, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
MISSING = "no Chromium: install it (Debian: apt-get install chromium), or name it in CHROMIUM"


def chromium() -> str:
    """Return the program, or skip the test."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip(MISSING)
    return found


@contextmanager
def running() -> Iterator[Any]:
    """Run a browser with a profile of its own."""
    program = chromium()
    playwright = pytest.importorskip("playwright.sync_api", reason="install playwright: pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A tab that records errors in the console and requests to any address."""

    def __init__(self, browser: Any, *, width: int = 1200, dark: bool = False, downloads: Path | None = None) -> None:
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda one: one.type in ("error", "warning") and self.problems.append(one.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda one: self.requests.append(one.url))

    def open(self, place: Path | str) -> Any:
        """Open a file or an address, and return the page."""
        self.page.goto(place if isinstance(place, str) else place.resolve().as_uri())
        return self.page

    def draw_all(self) -> None:
        """Scroll past every chart, since charts are drawn when they come into view."""
        self.page.evaluate("for (const one of document.querySelectorAll('.drawing')) one.scrollIntoView()")
        for chart in self.page.query_selector_all(".drawing"):
            chart.scroll_into_view_if_needed()
            self.page.wait_for_function("one => one.data !== undefined", arg=chart)
