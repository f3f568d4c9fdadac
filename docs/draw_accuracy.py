"""Draw docs/accuracy.svg from results/quality.json: accuracy against MACs, without retraining.

python docs/draw_accuracy.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS, PICTURE = ROOT / "results" / "quality.json", ROOT / "docs" / "accuracy.svg"
WIDTH, HEIGHT = 800, 430  # of the picture
LEFT, TOP, PANEL, TALL, GAP = 52, 46, 300, 244, 96  # of the panels
LOW, HIGH = 0.0, 100.0  # accuracy in percent
BUDGETS = (1.0, 0.7, 0.5, 0.3)


@dataclass(frozen=True)
class Line:
    """One method: how the records call it, its label, and how it is drawn."""

    method: str
    label: str
    colour: str
    dashes: str = ""
    mark: str = "circle"


# Colours of Okabe and Ito, which colour-blind readers can tell apart; dashes and marks tell them apart in grey.
OURS = Line("residual+repair", "secateur", "#d55e00")
PANELS = {
    ("zoo:resnet56-b", "ResNet56-B, beside Torch-Pruning"): (
        OURS,
        Line("tp-l2+norms", "L2 norm, norms re-estimated", "#0072b2", "6 3", "square"),
        Line("tp-taylor+norms", "Taylor, norms re-estimated", "#009e73", "2 3", "diamond"),
        Line("tp-taylor", "Taylor", "#56b4e9", "8 3 2 3", "triangle"),
        Line("tp-l2", "L2 norm", "#767676", "1 3", "cross"),
    ),
    ("zoo:resnet56", "ResNet56, beside other methods"): (
        OURS,
        Line("ft+repair", "filter norms + repair", "#0072b2", "6 3", "square"),
        Line("thinet", "ThiNet", "#009e73", "2 3", "diamond"),
        Line("pfp", "PFP, as in the paper", "#56b4e9", "8 3 2 3", "triangle"),
        Line("ft", "filter norms", "#767676", "1 3", "cross"),
    ),
}


def curve(records: list[dict[str, Any]], network: str, method: str) -> list[tuple[float, float]]:
    """Return (part of the MACs, mean accuracy in percent) of one method, from the original down."""
    found = []
    for budget in BUDGETS:
        name = "original" if budget == 1.0 else method
        rows = [r for r in records if (r["network"], r["method"], r["budget"]) == (network, name, budget)]
        if rows:
            # The records hold percentages.
            found.append((budget, fmean(row["accuracy"] for row in rows)))
    return found


def picture(records: list[dict[str, Any]]) -> str:
    """Return the figure as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="12" '
        'font-family="system-ui, sans-serif"><title>Accuracy against MACs, before retraining</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for number, ((network, title), lines) in enumerate(PANELS.items()):
        left = LEFT + number * (PANEL + GAP)
        parts += _axes(left, title)
        for place, line in enumerate(lines):
            parts += _line([_at(left, *point) for point in curve(records, network, line.method)], line)
            parts += _key(left, place, line)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _at(left: float, macs: float, accuracy: float) -> tuple[float, float]:
    return left + (1.0 - macs) / 0.75 * PANEL, TOP + (HIGH - accuracy) / (HIGH - LOW) * TALL


def _axes(left: float, title: str) -> list[str]:
    parts = [f'<text x="{left}" y="{TOP - 18}" font-size="14" font-weight="600" fill="#1a1a1a">{escape(title)}</text>']
    for accuracy in range(0, 101, 20):
        y = _at(left, 1.0, accuracy)[1]
        parts.append(f'<path d="M{left} {y:.1f}h{PANEL}" stroke="#dddddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#444444">{accuracy}%</text>')
    for macs in BUDGETS:
        x = _at(left, macs, 0)[0]
        parts.append(f'<text x="{x:.1f}" y="{TOP + TALL + 16}" text-anchor="middle" fill="#444444">{macs:.0%}</text>')
    middle = left + PANEL / 2
    label = "MACs that remain (top-1 accuracy, CIFAR-10, no retraining)"
    return [*parts, f'<text x="{middle}" y="{TOP + TALL + 33}" text-anchor="middle" fill="#444444">{label}</text>']


def _line(points: list[tuple[float, float]], line: Line) -> list[str]:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    width = 3 if line is OURS else 1.8
    dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    drawn = f'<path d="{path}" fill="none" stroke="{line.colour}" stroke-width="{width}"{dashes}/>'
    return [drawn, *(_mark(x, y, line) for x, y in points)]


def _mark(x: float, y: float, line: Line) -> str:
    shapes = {
        "square": f'<rect x="{x - 3.5:.1f}" y="{y - 3.5:.1f}" width="7" height="7" fill="{line.colour}"/>',
        "diamond": f'<path d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z" fill="{line.colour}"/>',
        "triangle": f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z" fill="{line.colour}"/>',
        "cross": f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{line.colour}" stroke-width="2"/>',
    }
    return shapes.get(line.mark, f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.2" fill="{line.colour}"/>')


def _key(left: float, place: int, line: Line) -> list[str]:
    x, y = left + 40, TOP + TALL + 56 + 17 * place
    weight = ' font-weight="600"' if line is OURS else ""
    sample = _line([(x, y), (x + 30, y)], line)
    return [*sample, f'<text x="{x + 42}" y="{y + 4}" fill="#1a1a1a"{weight}>{escape(line.label)}</text>']


if __name__ == "__main__":
    PICTURE.write_text(picture(json.loads(RECORDS.read_text())["records"]))
    print(f"written: {PICTURE.relative_to(ROOT)}")
