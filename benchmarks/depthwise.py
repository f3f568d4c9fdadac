"""What depthwise layers cost when a network is pruned and repaired without retraining: MobileNetV2 at 80 % of its MACs.

python benchmarks/depthwise.py --data DIR     # writes results/depthwise.json

A depthwise layer reads one channel for each that it makes. So its channels go together with those of the layer before
it, and a fit can make good only what this one channel can say: neighbours cannot stand in for what is gone. Shown is,
for the layers of each kind, which part of the squared error at their outputs the fit takes away on held-out points;
then how the network fares without the repair, and when only the hidden channels of the blocks may go, or only those of
the streams between them. Accuracy and movement are on the images of `calibration/` that pruning has not seen; the test
images have no part in this.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from environment import RESULTS, prepare, versions, write_whole
from quality import WORK, accuracy, pictures
from secateur.curves import movement

RECORD = RESULTS / "depthwise.json"
MACS = "80%"


def kinds(model: nn.Module) -> dict[str, str]:
    """For every convolution its kind."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            square = "1x1" if module.kernel_size == (1, 1) else "kxk"
            found[name] = "depthwise" if module.groups > 1 else square
    return found


def fits(res: Any, model: nn.Module) -> dict[str, dict[str, float]]:
    """By kind of layer: how many, and the error before and after the fit, as parts of what was wanted."""
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
def moved(model: nn.Module, small: nn.Module, x: torch.Tensor) -> float:
    """How far the outputs are from the original's."""
    return sum(movement([small.eval()(part)], [model(part)]) * len(part) for part in x.split(50)) / len(x)


def study(root: Path) -> dict[str, Any]:
    """Prune in several ways with the same images, judge by the others."""
    import secateur as sc
    from secateur.models import build

    model = build("torchvision:mobilenet_v2", root / "weights" / "mobilenet_v2-b0353104.pth").eval()
    files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    count = next(work.points for work in WORK if "mobilenet" in work.name)
    x, _ = pictures([files[i] for i in order[:count]])
    others, labels = pictures([files[i] for i in order[count:]])
    dev = list(zip(others.split(50), labels.split(50), strict=True))
    graph = sc.trace(model, x[:1])
    depthwise = {name for name, kind in kinds(model).items() if kind == "depthwise"}
    hidden = [g.name for g in graph.prunable if any(slot.parameter.rsplit(".", 1)[0] in depthwise for slot in g.slots)]
    streams = [g.name for g in graph.prunable if g.name not in hidden]
    whole = sc.cost(model, x[:1])
    inside = sum(p.numel() for n, m in model.named_modules() if n in depthwise for p in m.parameters())
    rows = []
    for what, settings in (
        ("all channels", {}),
        ("all channels, no repair", {"repair": False}),
        ("hidden channels only", {"keep": streams}),
        ("stream channels only", {"keep": hidden}),
    ):
        res = sc.prune(model, list(x.split(32)), {"macs": MACS}, points=None, **settings)
        row = {"what": what, "macs_left": res.after.macs / whole.macs, "accuracy": accuracy(res.model, dev)}
        row["movement"] = moved(model, res.model, others)
        if res.repair is not None:
            row["fits"] = fits(res, model)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return {
        "original_accuracy": accuracy(model, dev),
        "judged_by": len(others),
        "calibration_points": count,
        "groups": {"hidden": len(hidden), "streams": len(streams)},
        "depthwise_part_of_params": inside / whole.params,
        "rows": rows,
    }


def main() -> None:
    """Run the study and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    prepare(args.threads)
    what = f"MobileNetV2 at {MACS} of its MACs, judged by ImageNet images that neither pruning nor a test uses"
    record = {"what": what, **study(args.data), "versions": versions("secateur", "torch", "torchvision")}
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
