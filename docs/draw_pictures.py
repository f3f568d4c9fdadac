"""Draw the figures of the guide pages into docs/images: from the package's own network and digits, and from records.

python docs/draw_pictures.py                # all
python docs/draw_pictures.py bench export   # some

Screenshots of the report page are taken by docs/take_screenshots.py.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import secateur as sc
from secateur.certificates.bounds import clopper_pearson
from secateur.embedded import digits, lenet5
from secateur.report import figures
from secateur.report.charts import Axis, Chart, Series

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
WIDTH = 6.0


@cache
def pruned() -> sc.Pruned:
    """The network of docs/prune.md."""
    return sc.prune(lenet5(), digits("calibration")[0], budget={"params": "30%"}, samples=None)


def prune() -> Any:
    """Channels of every group, before and after."""
    return sc.figures.groups(pruned(), width=WIDTH)


def inspect() -> Any:
    """The layers of a ResNet20, none of them cut."""
    from secateur.report.layout import placed
    from secateur.zoo.names import build

    model = build("zoo:resnet20")
    graph = sc.trace(model, torch_zeros(1, *model.input_shape))
    res = [
        {"name": one.name, "kind": one.kind, "before": one.channels, "after": one.channels, "inputs": list(one.inputs)}
        for one in graph.layers
    ]
    return figures.draw_network(placed(res), width=WIDTH)


def torch_zeros(*shape: int) -> Any:
    """Return an input of zeros."""
    import torch

    return torch.zeros(shape)


def compare() -> Any:
    """Accuracy of several methods under several budgets, as in docs/compare.md."""
    methods = ["residual", "pfp", "ft", "ft+repair"]
    budgets = {"params": ["60%", "40%", "20%", "10%", "5%"]}
    return sc.compare(lenet5(), digits("calibration")[0], budgets, methods, on=digits("test")).plot(width=WIDTH)


def certificates() -> Any:
    """The certified rate of disagreement against the number of held-out samples, for several observed rates."""
    sizes = [100, 200, 300, 500, 1000, 2000, 3000, 5000, 10_000, 20_000]
    series = []
    for style, rate in enumerate((0.0, 0.005, 0.02, 0.05)):
        bounds = [clopper_pearson(round(rate * size), size, 1e-3) for size in sizes]
        series.append(Series(f"observed {rate:.1%}", sizes, bounds, style=style))
    axes = Axis("held-out samples", "log"), Axis("certified rate of other answers", percent=True)
    chart = Chart("bound", "Certified rate against samples", *axes, tuple(series))
    return figures.draw(chart, width=WIDTH)


def bench() -> Any:
    """Speedup against MACs kept, from results/speedup.json."""
    rows = _record("speedup")["by_macs"]
    kinds = dict.fromkeys((row["network"], row["multiples_of"]) for row in rows)
    series = []
    for style, (network, multiple) in enumerate(kinds):
        own = sorted(
            (row for row in rows if (row["network"], row["multiples_of"]) == (network, multiple)),
            key=lambda row: row["macs_left"],
        )
        low, high = ([row["interval"][end] for row in own] for end in (0, 1))
        name = network if multiple == 1 else f"{network}, round_to={multiple}"
        points = [row["macs_left"] for row in own], [row["speedup"] for row in own]
        series.append(Series(name, *points, low=low, high=high, style=style))
    parts = sorted({round(row["macs_left"], 1) for row in rows})
    series.append(Series("as many times fewer MACs", parts, [1 / part for part in parts], "level"))
    chart = Chart("speedup", "", Axis("MACs kept", percent=True), Axis("times as fast, one thread"), tuple(series))
    return figures.draw(chart, width=WIDTH)


def export() -> Any:
    """Times of ResNet56 and of the pruned one in torch and in onnxruntime, from results/onnx_resnet56.json."""
    times = _record("onnx_resnet56")["times"]
    names = list(times)
    series = (
        Series("original", names, [times[name]["original_ms"] for name in names], "back"),
        Series("half of the MACs", names, [times[name]["cut_ms"] for name in names], "bar"),
    )
    chart = Chart("times", "", Axis("ResNet56, one image, one thread", "category"), Axis("ms"), series)
    return figures.draw(chart, width=WIDTH)


def retraining() -> Any:
    """Accuracy of ResNet20 at half of its MACs against the epochs of retraining, from results/recovery.json."""
    rows = [row for row in _record("recovery")["records"] if row["network"] == "zoo:resnet20" and row["trial"] is None]
    kinds = {
        ("residual+repair", True): "secateur, the original as teacher",
        ("residual+repair", False): "secateur, labels only",
        ("ft", True): "filter norms, the original as teacher",
        ("ft", False): "filter norms, labels only",
    }
    series = []
    for style, ((start, teacher), name) in enumerate(kinds.items()):
        own = {row["epochs"]: row["accuracy"] for row in rows if (row["start"], row["teacher"]) == (start, teacher)}
        points = sorted((epochs, accuracy) for epochs, accuracy in own.items() if epochs)
        if points:
            series.append(Series(name, [x for x, _ in points], [y for _, y in points], style=style))
    axes = Axis("epochs of retraining", "log"), Axis("test accuracy in percent")
    return figures.draw(Chart("retraining", "", *axes, tuple(series)), width=WIDTH)


def theory() -> Any:
    """The error of each layer of ResNet20 by theory and as certified, from results/theory.json."""
    rows = [row for row in _record("theory")["rows"] if row["network"] == "ResNet20" and row["layer"] != "output"]
    series = []
    for number, select in enumerate(("rand", "derand")):
        own = [row for row in rows if row["select"] == select and row["a_priori"] > 0]  # 0: only dead units are gone
        names = [row["layer"].replace("layer", "") for row in own]
        for style, (key, words) in enumerate((("a_priori", "before the cut, by theory"), ("certified", "certified"))):
            series.append(Series(f"{select}, {words}", names, [row[key] for row in own], style=2 * number + style))
    series.append(Series("from 1 on nothing is guaranteed", names, [1.0] * len(names), "level"))
    axes = Axis("layer", "category"), Axis("error relative to z+ + z-", "log")
    drawn = figures.draw(Chart("theory", "", *axes, tuple(series)), width=WIDTH)
    drawn.axes[0].legend(frameon=False, fontsize=7, ncol=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return drawn


PICTURES: dict[str, Callable[[], Any]] = {
    "prune": prune,
    "inspect": inspect,
    "compare": compare,
    "certificates": certificates,
    "bench": bench,
    "export": export,
    "retraining": retraining,
    "theory": theory,
}


def _record(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def main() -> None:
    """Draw the pictures that are named, or all."""
    warnings.filterwarnings("ignore")
    IMAGES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURES:
        path = IMAGES / f"{name}.svg"
        path.write_bytes(figures.as_bytes(PICTURES[name](), "svg"))
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
