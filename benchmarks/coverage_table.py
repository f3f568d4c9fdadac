"""The page docs/coverage.md, made from the record results/coverage.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

Row = dict[str, Any]

OUTCOMES = ("ok", "wrong", "statistics", "vacuous", "too little", "refused", "crash", "too slow")
SECTIONS = ("torchvision", "timm", "transformers")
TOOLS = ("secateur", "torch-pruning")

HEAD = """\
# Coverage

Made by `python benchmarks/coverage.py` and `python benchmarks/coverage.py --table` with {versions}.
Random weights and norm statistics; half of each group removed at random. *torchvision* is every convolutional
classification network it has, *timm* one or two small variants of each convolutional family; *transformers* are counted
apart, and only the hidden channels of their MLPs and their convolutions can be cut exactly.

- **ok**: the smaller network equals the masked original, trains and exports, and lost at least 30 % of its parameters
- **wrong**: it runs, but its output is not that of the masked network
- **statistics**: the same, and channels under a norm over channels (LayerNorm, GroupNorm, ...) went, which changes what
  that norm computes
- **vacuous**: masking did not change the output, so nothing is proved
- **too little**: under 30 % of the parameters went
- **refused**: an error of secateur's own that says why
- **crash**: pruning, the forward pass, a training step, or (secateur only) the export of the result failed

For Torch-Pruning the mask is read off the entries of the original that survived. A network cut in graph output is asked
for gradients in evaluation mode only, not for a training step.

## How this record was made

- The secateur column is one run of all networks, in two parts.
- The Torch-Pruning column is complete, but 15 timm networks ended at the limit of 300 s and gc_efficientnetv2_rw_t
  was stopped for want of memory, on a machine busy with other work; two of them (mnasnet_small, mixnet_xl) fell into a
  pause of several minutes. They may do better on a quiet machine.
- What counts as *statistics* was widened during that run, to RMS norms; one result moved from *wrong* to *statistics*.
- All seconds below were taken beside other jobs and are only an upper bound; results/trace_speed.json has quiet ones.
"""


def page(content: dict[str, Any]) -> str:
    """Write the page: a summary, every network, and what the tools said where they failed."""
    rows: list[Row] = content["records"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    parts = [HEAD.format(versions=versions), summary(rows), "## Every network\n", networks(rows)]
    parts += [complaints(tool, rows) for tool in TOOLS]
    return "\n".join(part for part in parts if part)


def summary(rows: list[Row]) -> str:
    """Count the outcomes of every section and tool."""
    heads = [outcome for outcome in OUTCOMES if any(row["outcome"] == outcome for row in rows)]
    lines = [cells("networks", "tool", "count", *heads), cells(*["---"] * (len(heads) + 3))]
    for section in SECTIONS:
        for tool in TOOLS:
            found = Counter(row["outcome"] for row in rows if (row["section"], row["tool"]) == (section, tool))
            if found:
                lines.append(cells(section, tool, found.total(), *(found[head] for head in heads)))
    return "\n".join(lines) + "\n"


def networks(rows: list[Row]) -> str:
    """Give a line for every network, both tools side by side."""
    ours_heads = ("network", "side", "params", "secateur", "removed", "difference", "trace + cut")
    heads = (*ours_heads, "Torch-Pruning", "removed", "difference")
    lines = [
        "Removed: share of the parameters, and of the multiply-adds. Difference: to the masked network, relative.\n"
    ]
    lines += [cells(*heads), cells(*["---"] * len(heads))]
    pairs: dict[str, dict[str, Row]] = {}
    for row in rows:
        pairs.setdefault(row["network"], {})[row["tool"]] = row
    for name, tools in pairs.items():
        ours, theirs = tools.get("secateur", {}), tools.get("torch-pruning", {})
        known = ours if "params" in ours else theirs
        size = f"{known['params'] / 1e6:.1f} M" if "params" in known else ""
        through_graph = ours.get("outcome") == "ok" and ours["output"] == "graph"
        verdict = ours.get("outcome", "") + (" (graph)" if through_graph else "")
        seconds = f"{ours['trace_seconds']:.1f} + {ours['cut_seconds']:.1f} s" if "cut_seconds" in ours else ""
        left = (name, known.get("side", ""), size, verdict, removed(ours), difference(ours), seconds)
        lines.append(cells(*left, theirs.get("outcome", ""), removed(theirs), difference(theirs)))
    return "\n".join(lines) + "\n"


def complaints(tool: str, rows: list[Row]) -> str:
    """List what a tool said where it failed."""
    failed = [row for row in rows if row["tool"] == tool and "error" in row]
    if not failed:
        return ""
    lines = [f"## What {tool} said\n"]
    for row in failed:
        said = " ".join(row["error"].split())[:200].replace("|", "\\|")
        lines.append(f"- `{row['network']}` ({row.get('stage', row['outcome'])}): {said}")
    return "\n".join(lines) + "\n"


def cells(*values: object) -> str:
    return "| " + " | ".join(str(value) for value in values) + " |"


def removed(row: Row) -> str:
    return f"{row['params_removed']:.0%}, {row['macs_removed']:.0%}" if "macs_removed" in row else ""


def difference(row: Row) -> str:
    value = row.get("difference_float64", row.get("difference"))
    return "" if value is None else f"{value:.0e}"
