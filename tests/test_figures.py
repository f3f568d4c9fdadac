"""The figures in the documentation are those of the records."""

from __future__ import annotations

import json

import draw_accuracy as draw
import draw_pictures
import pytest

from secateur.report import figures
from support.docs_snippets import ROOT


def test_the_figure_of_accuracy_is_up_to_date() -> None:
    assert draw.PICTURE.read_text() == draw.picture(json.loads(draw.RECORDS.read_text())["records"])


def test_the_table_of_the_readme_shows_the_records() -> None:
    records = json.loads(draw.RECORDS.read_text())["records"]
    text = (ROOT / "README.md").read_text()
    for network, method, budget, shown in (
        ("zoo:resnet56-b", "residual+repair", 0.5, "| 91.1% |"),
        ("zoo:resnet56-b", "tp-l2+norms", 0.5, "| 77.4% ("),
        ("zoo:resnet56", "residual+repair", 0.5, "| 91.5% |"),
        ("zoo:resnet56", "ft+repair", 0.5, "| 88.7% ("),
        ("zoo:resnet56", "residual+repair", 0.3, "| 86.4% |"),
        ("zoo:resnet56", "ft+repair", 0.3, "| 76.7% ("),
        ("zoo:vgg16-bn", "residual+repair", 0.2, "| 91.6% |"),
        ("torchvision:mobilenet_v2", "residual+repair", 0.8, "| 66.6% |"),
    ):
        rows = [r for r in records if (r["network"], r["method"], r["budget"]) == (network, method, budget)]
        mean = sum(row["accuracy"] for row in rows) / len(rows)
        assert f"{float(shown.strip('|% (')):.1f}" == f"{mean + 1e-9:.1f}", (network, method, budget)
        assert shown in text


def test_a_curve_starts_at_the_original() -> None:
    records = [
        {"network": "n", "method": "original", "budget": 1.0, "accuracy": 90.0},
        {"network": "n", "method": "m", "budget": 0.5, "accuracy": 80.0},
        {"network": "n", "method": "m", "budget": 0.5, "accuracy": 84.0},
    ]
    assert draw.curve(records, "n", "m") == [(1.0, 90.0), (0.5, pytest.approx(82.0))]


@pytest.mark.parametrize("name", ["prune", "inspect", "compare", "certificates", "bench", "export"])
def test_a_guide_shows_its_picture(name: str) -> None:
    assert name in draw_pictures.PICTURES and (draw_pictures.IMAGES / f"{name}.svg").stat().st_size < 100_000
    assert f"](images/{name}.svg)" in (ROOT / "docs" / f"{name}.md").read_text()


@pytest.mark.parametrize("name", ["certificates", "bench", "export"])  # the others prune networks first
def test_a_picture_can_be_drawn_again(name: str) -> None:
    assert figures.as_bytes(draw_pictures.PICTURES[name](), "svg").startswith(b"<?xml")


def test_screenshots_are_small_and_shown() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    shots = list(draw_pictures.IMAGES.glob("*.png"))
    assert len(shots) >= 4
    for shot in shots:
        assert shot.stat().st_size < 100_000 and f"](images/{shot.name})" in pages
