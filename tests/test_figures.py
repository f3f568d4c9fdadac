"""The figures in the documentation are those of the records."""

from __future__ import annotations

import json

import draw_accuracy as draw
import pytest

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
