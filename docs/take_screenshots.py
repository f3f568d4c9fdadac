"""Take the screenshots of the report page for the documentation, in headless Chromium.

python docs/take_screenshots.py runs/lenet300100 resnet56.safetensors

The first source is the folder of a sweep, the second a pruned network. Pictures are reduced to 128 colours.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from secateur.report.page import write_page  # noqa: E402
from secateur.report.sources import read_source  # noqa: E402
from support.browser import Watched, running  # noqa: E402

IMAGES = ROOT / "docs" / "images"


def shoot(browser: Any, page: Path, name: str, place: str, *, width: int, height: int, dark: bool = False) -> None:
    """Take one picture from a section on."""
    tab = Watched(browser, width=width, dark=dark)
    shown = tab.open(page)
    tab.draw_all()
    shown.set_viewport_size({"width": width, "height": height})
    shown.evaluate("place => document.querySelector(place).scrollIntoView()", place)
    shown.wait_for_timeout(500)
    path = IMAGES / f"{name}.png"
    shown.screenshot(path=path)
    tab.context.close()
    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(128)
    reduced.save(path, optimize=True)
    print(f"written: {path.relative_to(ROOT)}, {path.stat().st_size / 1e3:.0f} kB")


def main() -> None:
    """Take all of them."""
    sweep, network = map(Path, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder, running() as browser:
        pages = [write_page(Path(folder) / f"{n}.html", [read_source(one)]) for n, one in enumerate((sweep, network))]
        shoot(browser, pages[0], "report-sweep", "#r1-size", width=1100, height=700)
        shoot(browser, pages[0], "report-phone", "#r1", width=390, height=760, dark=True)
        shoot(browser, pages[1], "report-groups", "#r1-groups", width=1100, height=700)
        shoot(browser, pages[1], "report-network", "#r1-network", width=1100, height=720, dark=True)


if __name__ == "__main__":
    main()
