"""Write the measurements in docs/retraining.md from results/recovery.json.

python benchmarks/recovery_page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from environment import read_record
from history import ROOT
from recovery import WORK, Cell, _cell

PAGE: Path = ROOT / "docs" / "retraining.md"
HEADING = "## Measurements\n"
NAMES = {
    "zoo:resnet20": "ResNet20, CIFAR-10",
    "zoo:resnet56": "ResNet56, CIFAR-10",
    "zoo:resnet56-b": "ResNet56-B, CIFAR-10",
    "zoo:vgg16-bn": "VGG16-BN, CIFAR-10",
    "torchvision:resnet50": "ResNet-50, ImageNet",
    "torchvision:mobilenet_v2": "MobileNetV2, ImageNet",
}
NOISE = 0.7  # points: two standard errors of an accuracy near 93% on 5,000 images
KINDS = (("residual+repair", False), ("residual+repair", True), ("residual-repair", True))


def section(record: dict[str, Any]) -> str:
    """Return the section: rows with epochs, rows with few samples, trials."""
    rows = {_cell(row): row for row in record["records"]}
    parts = [
        HEADING,
        f"From [the record](../results/recovery.json) of `python benchmarks/recovery.py`, which has {len(rows)} of "
        f"{len(WORK)} rows so far; `--plan` lists the others. Test images were met once, by each finished network.\n",
        *_retrained(rows),
        *_few(rows),
        *_trials(rows),
    ]
    return "\n".join(parts)


def _retrained(rows: dict[Cell, dict[str, Any]]) -> Iterator[str]:
    found = [cell for cell in rows if cell.epochs and cell.trial is None]
    if found:
        yield "All training data, `Training(epochs=N)`, accuracy on the test images in percent:\n"
        head = ("network", "kept", "start", "teacher", "epochs", "accuracy")
        yield from _table(
            head,
            (
                (
                    *_place(one),
                    f"`{one.start}`",
                    "original" if one.teacher else "none",
                    one.epochs,
                    rows[one]["accuracy"],
                )
                for one in found
            ),
        )
        if len({one.epochs for one in found}) > 1:
            yield "![Accuracy of ResNet20 at half of its MACs against epochs of retraining](images/retraining.svg)\n"


def _few(rows: dict[Cell, dict[str, Any]]) -> Iterator[str]:
    places = list(dict.fromkeys((one.network, one.resource, one.budget, one.samples) for one in rows if one.samples))
    if not places:
        return
    yield "A few samples without labels, accuracy on the test images in percent, and minutes on one busy core:\n"
    table = []
    for network, resource, budget, samples in places:
        cells = [Cell(network, resource, budget, start, True, 0, samples, recover) for start, recover in KINDS]
        values = [rows[cell]["accuracy"] if cell in rows else "" for cell in cells]
        minutes = rows[cells[1]]["recover_minutes"] if cells[1] in rows else ""
        table.append((*_place(cells[0]), samples, *values, minutes))
    head = ("network", "kept", "samples", "repair", "repair and recover", "recover from the plain cut", "minutes")
    yield from _table(head, table)


def _trials(rows: dict[Cell, dict[str, Any]]) -> Iterator[str]:
    found = {cell: row["validation"][-1] for cell, row in rows.items() if cell.short}
    base = {cell.teacher: accuracy for cell, accuracy in found.items() if not cell.trial}
    changed = sorted(
        ((round(accuracy - base[cell.teacher], 2), cell) for cell, accuracy in found.items() if cell.trial),
        key=lambda pair: -pair[0],
    )
    if True in base:
        yield "What helps: ResNet20 at half of its MACs, 2 epochs of 10,000 images, one setting changed at a time. The"
        yield "accuracies are of validation images, which the original has been trained on, so only their differences"
        yield f"mean anything; below about {NOISE} points they do not. With the original as teacher, the defaults reach"
        yield f"{base[True]}{f', without {base[False]}' if False in base else ''}.\n"
        lines = [(f"`{cell.trial}`", "original" if cell.teacher else "none", f"{gain:+}") for gain, cell in changed]
        yield from _table(("setting", "teacher", "points"), lines)


def _place(cell: Cell) -> tuple[str, str]:
    return NAMES[cell.network], f"{cell.budget:.0%} of the {'MACs' if cell.resource == 'macs' else 'parameters'}"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def page() -> str:
    """Return the page with its last section replaced."""
    above = PAGE.read_text().partition(HEADING)[0].rstrip()
    return f"{above}\n\n{section(read_record('recovery')).rstrip()}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
