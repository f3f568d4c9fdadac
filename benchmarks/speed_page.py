"""Write the section on speed in docs/results.md, and draw docs/images/growth.svg, from the records.

python benchmarks/speed_page.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from environment import read_record
from history import ROOT

PAGE: Path = ROOT / "docs" / "results.md"
FIGURE: Path = ROOT / "docs" / "images" / "growth.svg"
BEGIN, END = "<!-- made by benchmarks/speed_page.py -->", "<!-- end -->"
NAMES = {
    "resnet56": "ResNet56, 1,024 images",
    "vgg16-bn": "VGG16-BN, 4,096 images",
    "mobilenet_v2": "MobileNetV2 at 224, 256 images",
    "resnet50": "ResNet50 at 224, 256 images",
    "unet": "U-Net at 224, 16 images",
    "yolov8n": "YOLOv8n at 640, 32 images",
}
PLAIN = {"torchvision:resnet50": "ResNet50", "torchvision:mobilenet_v2": "MobileNetV2", "zoo:vgg16-bn": "VGG16-BN"}
PEERS = {"resnet56": "resnet56-b"}  # Torch-Pruning cannot cut the shortcuts of the original one
FEWEST = 9  # rows for a picture of growth
SERIES = {
    "samples": ("ResNet56, calibration samples", ("resnet56",)),
    "width": ("width, 128 images at 224", ("resnet18", "resnet50", "resnet101")),
    "depth": ("depth, 512 images at 32", ("resnet20", "resnet56", "resnet110")),
}


def section() -> str:
    """Return the section: pruning, its stages, growth, traces, latency, effort."""
    time = read_record("prune_time")
    parts = [BEGIN, "", *_prune(time), *_stages(time["rows"]), *_growth(time["growth"])]
    parts += [*_trace(read_record("trace_speed")["networks"]), *_latency(read_record("latency"))]
    parts += [*_effort(read_record("effort")["rows"]), END]
    return "\n".join(parts)


def _prune(record: dict[str, Any]) -> Iterator[str]:
    rows = {(row["network"], row["tool"]): row for row in record["rows"]}
    before = {row["network"]: row for row in record["before"] if row["tool"] == "secateur"}
    yield "### Pruning\n"
    yield "`sc.prune` to half of the MACs with its defaults, in seconds and as memory over a forward pass; the peer is"
    yield "Torch-Pruning's Taylor importance in the same run. One pass is a forward pass over the same images, the"
    yield "least that any measurement takes. [prune_time](../results/prune_time.json) has the commits and the machine;"
    yield "*before* is the record of version 0.1, of another machine. The processor is shared with other machines, and"
    yield "its speed varies: forward passes in the same process say more than seconds.\n"
    lines = []
    for network, name in NAMES.items():
        if not (row := rows.get((network, "secateur"))):
            continue
        old, peer = before.get(network), rows.get((PEERS.get(network, network), "torch-pruning"))
        limit = "" if row["limit_seconds"] is None else f"{row['limit_seconds']} s, "
        if network == "resnet50" and peer:
            limit = f"{2.5 * peer['prune_seconds']:.0f} s (2.5 x peer), "
        lines.append(
            (
                name,
                _cost(old),
                _cost(row),
                _cost(peer),
                f"{row['forward_seconds']:.1f} s",
                f"{limit}2 GB",
            )
        )
    yield from _table(("network", "before", "now", "peer", "one pass", "limit"), lines)


def _cost(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    return f"{row['prune_seconds']:.0f} s, {row['ratio_to_forward']:.1f} passes, {row['extra_mb'] / 1000:.1f} GB"


def _stages(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    own = [row for row in rows if row["tool"] == "secateur"]
    names = list(dict.fromkeys(stage["stage"] for row in own for stage in row["stages"]))
    names.sort(key=lambda name: name == "other")
    yield "Where the time goes, in seconds (`secateur prune --profile` writes the same for your network):\n"
    times = [{stage["stage"]: stage["seconds"] for stage in row["stages"]} for row in own]
    lines = [(name, *(f"{one[name]:.1f}" if name in one else "" for one in times)) for name in names]
    yield from _table(("stage", *(NAMES[row["network"]].partition(",")[0] for row in own)), lines)


def _growth(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    if len(rows) >= FEWEST:
        yield "How time and memory grow with the samples, the width and the depth of the network:\n"
        yield "![Seconds and memory of pruning against samples, width and depth](images/growth.svg)\n"


def _trace(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "### Tracing\n"
    yield "A trace needs two exports, of evaluation and of training mode; the limit is twice their time. The peer is"
    yield "Torch-Pruning's dependency graph. [trace_speed](../results/trace_speed.json)\n"
    lines = []
    for row in rows:
        peer = row.get("torch_pruning_seconds")
        exports, trace = f"{row['export_seconds']:.2f} s", f"{row['trace_seconds']:.2f} s"
        shown = "fails" if peer is None else f"{peer:.2f} s"
        lines.append((row["network"], exports, trace, f"{row['ratio']:.2f}", shown))
    yield from _table(("network", "exports", "trace", "ratio", "peer"), lines)


def _latency(record: dict[str, Any]) -> Iterator[str]:
    rows = record["summary"]
    if not rows:
        return
    yield "### Latency budgets\n"
    yield "One image, one thread. *At equal accuracy* compares with networks that were pruned to a budget in MACs."
    yield "[latency](../results/latency.json)\n"
    yield from (f"Note: {remark}.\n" for remark in record["remarks"])
    accuracy = {(row["network"], row["budget"]): row for row in record["rows"] if row["resource"] == "latency"}
    lines = []
    for row in rows:
        less, whole = row["less_time"], accuracy[row["network"], row["budget"]]
        lines.append(
            (
                PLAIN[row["network"]],
                f"{row['budget']:.0%}",
                f"{row['time_left']:.1%}",
                f"{whole['accuracy']:.1f}% of {whole['original_accuracy']:.1f}%",
                "" if less is None else f"{less:.0%} less time",
                f"{row['search_seconds']:.0f} s",
            )
        )
    yield from _table(("network", "budget", "time left", "accuracy", "at equal accuracy", "search"), lines)


def _effort(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "### Effort\n"
    yield "What `effort` costs, in forward passes over the samples, and brings: agreement with the original on 1,000"
    yield "further images (244 for MobileNetV2). [effort](../results/effort.json)\n"
    lines = []
    for row in rows:
        ((resource, left),) = row["budget"].items()
        name = PLAIN.get(row["network"], row["network"].removeprefix("zoo:").replace("resnet", "ResNet"))
        budget = f"{left} of the {'MACs' if resource == 'macs' else 'parameters'}"
        lines.append((name, budget, f"`{row['effort']}`", f"{row['passes']:.1f}", f"{row['agreement']:.1f}%"))
    yield from _table(("network", "budget", "effort", "forward passes", "agreement"), lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join(['---', *('---:' for _ in head[1:])])} |"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"
    yield ""


def draw() -> None:
    """Draw how time and memory grow, once they have been measured."""
    rows = read_record("prune_time")["growth"]
    if len(rows) < FEWEST:
        return
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "secateur", "font.family": "sans-serif"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(9, 4.6), sharex="col", layout="constrained")
    for column, (kind, (label, networks)) in enumerate(SERIES.items()):
        samples = {"width": 128, "depth": 512}.get(kind)
        own = [row for row in rows if row["network"] in networks and samples in (None, row["samples"])]
        at = [f"{row['samples']:,}" if kind == "samples" else row["network"].replace("resnet", "ResNet") for row in own]
        for line, (key, scale) in enumerate((("prune_seconds", 1), ("extra_mb", 1000))):
            axis = axes[line][column]
            axis.bar(at, [row[key] / scale for row in own], color="#4c78a8", width=0.6)
            if key == "prune_seconds":
                axis.plot(at, [row["forward_seconds"] for row in own], "o", color="#e45756", label="one forward pass")
            axis.spines[["top", "right"]].set_visible(False)
        axes[1][column].set_xlabel(label)
    axes[0][0].legend(frameon=False)
    axes[0][0].set_ylabel("seconds")
    axes[1][0].set_ylabel("GB over a forward pass")
    figure.savefig(FIGURE, metadata={"Date": None})


def page() -> str:
    """Return the page with the section replaced."""
    text = PAGE.read_text()
    above, _, rest = text.partition(BEGIN)
    below = rest.partition(END)[2]
    return f"{above}{section()}{below}"


if __name__ == "__main__":
    draw()
    PAGE.write_text(page())
