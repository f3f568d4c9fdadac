"""Sections of pages in docs that are made from records, and tables in them.

    python benchmarks/sections.py       # write them

The table of int8 in docs/export.md, and that of detectors in docs/parts.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coverage_page import cells
from environment import RESULTS, read_record, write_atomic

DOCS = RESULTS.parent / "docs"
END = "<!-- end -->"
NAMES = {
    "zoo:resnet56": "ResNet56, half of the MACs",
    "torchvision:mobilenet_v2": "MobileNetV2, 80 % of the MACs",
    "torchvision:resnet50": "ResNet50, 58 % of the MACs",
}
FILES = {"fp32": "single precision", "pruned": "pruned", "int8": "int8", "pruned+int8": "pruned and int8"}


def int8(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of files: size, certificate and latency."""
    rows = {(row["network"], row["variant"], row["kind"]): row for row in record["rows"]}
    yield cells("network", "file", "size", "drop, observed", "drop, certified", "one image", "times as fast")
    yield cells("---", "---", *["---:"] * 5)
    for network, words in NAMES.items():
        for variant, file in FILES.items():
            if (row := rows.get((network, variant, "certificate"))) is None:
                continue
            drops = (f"{100 * row[key]:.2f} points" for key in ("drop_observed", "drop_certified"))
            timed = rows.get((network, variant, "latency"))
            times = (f"{timed['median_ms']:.1f} ms", f"{timed['speedup']:.2f}") if timed else ("-", "-")
            yield cells(words, file, f"{row['bytes'] / 1e3:,.0f} kB", *drops, *times)


def detectors(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table of detectors."""
    yield cells("model", "scope", "MACs left", "parameters left", "verified to", "ONNX equals torch to", "outcome")
    yield cells("---", "---", *["---:"] * 4, "---")
    for row in record["rows"]:
        shares = (f"{row[key]:.0%}" if key in row else "-" for key in ("macs_left", "params_left"))
        errors = (f"{row[key]:.0e}" if key in row else "-" for key in ("verified", "export_difference"))
        scope = ", ".join(f"`{part}`" for part in row["scope"])
        outcome = row["outcome"] if row["outcome"] == "ok" else f"{row['outcome']}: {row['stage']}"
        yield cells(f"`{row['network']}`", scope, *shares, *errors, outcome)


SECTIONS = {"int8": ("export.md", int8), "detectors": ("parts.md", detectors)}


def page(name: str) -> str:
    """Return the page with the section of a record replaced."""
    file, lines = SECTIONS[name]
    begin = f"<!-- from results/{name}.json -->"
    above, found, rest = (DOCS / file).read_text().partition(begin)
    if not found:
        raise ValueError(f"docs/{file} has no line {begin}")
    table = "\n".join(lines(read_record(name)))
    return f"{above}{begin}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for name, (file, _) in SECTIONS.items():
        write_atomic(DOCS / file, page(name))
