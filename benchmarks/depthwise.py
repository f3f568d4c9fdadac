"""What depthwise layers cost when a network is pruned and repaired without retraining: MobileNetV2 at 80 % of its MACs.

    python benchmarks/depthwise.py --data DIR     # writes results/depthwise.json

A depthwise layer consumes one channel for each that it produces. So its channels are removed together with those of
the layer before it, and a refit can compensate only with this one channel: no neighbour can replace it. The record has,
for the layers of each kind, the squared error at their outputs on held-out samples before and after the refit; then the
accuracy without the repair, and with only the hidden channels of the blocks prunable, or only those of the streams
between them. Accuracy and divergence are measured on the images of `calibration/` that pruning has not used; the test
images are not used.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from checkpoints import trained
from environment import add_data_option, options, prepare, write_record
from quality import WORK, accuracy, pictures
from secateur.network.divergence import output_divergence

MACS = "80%"


def kinds(model: nn.Module) -> dict[str, str]:
    """Return the kind of every convolution: depthwise, 1x1 or kxk."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            square = "1x1" if module.kernel_size == (1, 1) else "kxk"
            found[name] = "depthwise" if module.groups > 1 else square
    return found


def fits(res: Any, model: nn.Module) -> dict[str, dict[str, float]]:
    """Return by kind of layer their number and the mean relative error before and after the refit."""
    sums: dict[str, list[tuple[float, float]]] = defaultdict(list)
    kind = kinds(model)
    for layer in res.repair.layers:
        sums[kind.get(layer.name, "linear")].append((layer.before, layer.after))
    return {
        name: {
            "layers": len(pairs),
            "error_before": sum(before for before, _ in pairs) / len(pairs),
            "error_after": sum(after for _, after in pairs) / len(pairs),
        }
        for name, pairs in sums.items()
    }


@torch.no_grad()
def divergence(model: nn.Module, small: nn.Module, x: torch.Tensor) -> float:
    """Return the output divergence of the small network from the original."""
    return sum(output_divergence([small.eval()(part)], [model(part)]) * len(part) for part in x.split(50)) / len(x)


def study(root: Path) -> dict[str, Any]:
    """Prune in several ways with the same images, and evaluate on the others."""
    import secateur as sc

    model = trained("torchvision:mobilenet_v2", root)
    files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    count = next(work.samples for work in WORK if "mobilenet" in work.name)
    x, _ = pictures([files[i] for i in order[:count]])
    others, labels = pictures([files[i] for i in order[count:]])
    dev = list(zip(others.split(50), labels.split(50), strict=True))
    graph = sc.trace(model, x[:1])
    depthwise = {name for name, kind in kinds(model).items() if kind == "depthwise"}
    hidden = [g.name for g in graph.prunable if any(slot.parameter.rsplit(".", 1)[0] in depthwise for slot in g.slots)]
    streams = [g.name for g in graph.prunable if g.name not in hidden]
    original = sc.cost(model, x[:1])
    inside = sum(p.numel() for n, m in model.named_modules() if n in depthwise for p in m.parameters())
    rows = []
    for what, settings in (
        ("all channels", {}),
        ("all channels, no repair", {"repair": False}),
        ("hidden channels only", {"keep": streams}),
        ("stream channels only", {"keep": hidden}),
    ):
        res = sc.prune(model, list(x.split(32)), {"macs": MACS}, samples=None, **settings)
        row = {"what": what, "macs_left": res.after.macs / original.macs, "accuracy": accuracy(res.model, dev)}
        row["divergence"] = divergence(model, res.model, others)
        if res.repair is not None:
            row["fits"] = fits(res, model)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return {
        "original_accuracy": accuracy(model, dev),
        "evaluated_on": len(others),
        "calibration_samples": count,
        "groups": {"hidden": len(hidden), "streams": len(streams)},
        "depthwise_part_of_params": inside / original.params,
        "rows": rows,
    }


def main() -> None:
    """Run the study and write the record."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "imagenet-val-mini and weights")
    args = parser.parse_args()
    prepare(args.threads)
    what = f"MobileNetV2 at {MACS} of its MACs, evaluated on ImageNet images that neither pruning nor the test uses"
    write_record("depthwise", {"what": what, **study(args.data)})


if __name__ == "__main__":
    main()
