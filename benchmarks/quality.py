"""Accuracy right after pruning, without any retraining: our default, the paper's method, others, and Torch-Pruning.

python benchmarks/quality.py --data DIR                         # all of it; stop and start again at will
python benchmarks/quality.py --data DIR --network resnet56 --methods residual,pfp --draws 0
python benchmarks/quality_page.py                               # docs/quality.md from the records

Every cell is one network, method, budget and draw of calibration points: images of the training set (of `calibration/`
for ImageNet), without augmentation; only taylor sees their labels. No setting is judged by the test set: each network
that comes out meets it once, for the record. Methods are written as `secateur compare` takes them. Torch-Pruning's are
tp-l1, tp-l2, tp-taylor, global as its own global pruner does, with +norms where the norm statistics were estimated anew
afterwards; it crashes on option-A shortcuts, so it runs on the option-B network, and ours beside it.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import IMAGENET, NETWORKS
from environment import PARTIAL, RESULTS, append_record, peak_mb, prepare, read_records, versions, write_whole

RECORD, LINES = RESULTS / "quality.json", PARTIAL / "quality.jsonl"
OURS = "residual+repair"
PUBLISHED = ("pfp", "pfp~mean", "ft", "softnet", "thinet", "fpgm", "taylor", "random")
PARTS = ("residual-repair", "ft+repair", "ft@residual+repair", "pfp+repair", "thinet+repair", "random+repair")
DATA_FREE = ("ft", "softnet", "fpgm", "tp-l1", "tp-l2")  # the same for every draw, so they run once
RIVALS = ("tp-l1", "tp-l2", "tp-taylor", "tp-l2+norms", "tp-taylor+norms")


@dataclass(frozen=True)
class Work:
    """One network and what is tried on it."""

    name: str
    resource: str
    budgets: tuple[float, ...]
    methods: tuple[str, ...]
    points: int = 1024


WORK = (
    Work("zoo:resnet56", "macs", (0.7, 0.5, 0.3), (OURS, *PUBLISHED, *PARTS)),
    Work("zoo:resnet20", "macs", (0.7, 0.5), (OURS, *PUBLISHED, *PARTS)),
    Work("zoo:vgg16-bn", "params", (0.2, 0.1), (OURS, "pfp", "ft", "ft+repair"), points=4096),
    Work("torchvision:mobilenet_v2", "macs", (0.8,), (OURS, "pfp", "ft", "ft+repair"), points=256),
    Work("zoo:resnet56-b", "macs", (0.7, 0.5), (OURS, *RIVALS)),
)


@dataclass(frozen=True)
class Images:
    """Calibration points of one draw, and the test set."""

    model: nn.Module
    x: Tensor
    y: Tensor
    test: list[tuple[Tensor, Tensor]]


def cifar(work: Work, root: Path, draw: int) -> Images:
    """A CIFAR-10 checkpoint, training images of this draw, and the 10,000 test images."""
    from secateur.data import dataset
    from secateur.models import build

    file, _, scale = NETWORKS[work.name]
    train, test = (dataset("cifar10", part, root, download=False).scaled(*scale) for part in ("train", "test"))
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(draw))[: work.points]
    batches = [(test.inputs(part), test.targets[part]) for part in torch.arange(len(test)).split(250)]
    return Images(build(work.name, root / "weights" / file), train.inputs(chosen), train.targets[chosen], batches)


def imagenet(work: Work, root: Path, draw: int) -> Images:
    """MobileNetV2, images of `calibration/`, and the 1,000 of `test/`."""
    from secateur.models import build

    model = build(work.name, root / "weights" / "mobilenet_v2-b0353104.pth")
    files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(draw))[: work.points].tolist()
    x, y = pictures([files[i] for i in order])
    tests = sorted((root / "imagenet-val-mini" / "test").iterdir())
    return Images(model, x, y, [pictures(tests[i : i + 50]) for i in range(0, len(tests), 50)])


def pictures(files: list[Path]) -> tuple[Tensor, Tensor]:
    """The images of some files, scaled as for ImageNet, and their classes."""
    import numpy as np
    from PIL import Image

    mean, std = (torch.tensor(v).view(3, 1, 1) for v in IMAGENET)
    pixels = [torch.from_numpy(np.array(Image.open(f).convert("RGB"))).permute(2, 0, 1) for f in files]
    return (torch.stack(pixels).float() / 255 - mean) / std, torch.tensor([int(f.name.split("_")[0]) for f in files])


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """The percentage that the network puts into the right class."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)
    return round(100 * right / sum(len(y) for _, y in batches), 2)


def judged(model: nn.Module, images: Images) -> dict[str, float]:
    """The accuracy on all test images, and of the 1,000 from ImageNet also on the first half."""
    found = {"accuracy": accuracy(model, images.test)}
    if sum(len(y) for _, y in images.test) == 1000:
        found["first_500"] = accuracy(model, images.test[: len(images.test) // 2])
    return found


def ours(work: Work, images: Images, draw: int, cells: list[tuple[str, float]]) -> Iterator[dict[str, Any]]:
    """Our methods: traced once, measured once for all of them."""
    from secateur.budget import parse
    from secateur.entries import Entry
    from secateur.planning import Job, judges
    from secateur.prune import carry_out

    data = [(images.x[i : i + 64], images.y[i : i + 64]) for i in range(0, len(images.x), 64)]
    job = Job.of(images.model, data, {work.resource: "50%"}, points=None, seed=draw, delta=1e-16)
    seen = job.evidence()
    for label, budget in cells:
        entry = Entry.parse(label)
        method, allocation = judges(
            entry.method, select=entry.select, allocation=entry.allocation, sensitivity=entry.sensitivity or "max",
            seed=draw, delta=1e-16,
        )  # fmt: skip
        wanted = replace(
            job, method=method, allocation=allocation, repair=bool(entry.repair),
            budget=parse({work.resource: f"{100 * budget:g}%"}),
        )  # fmt: skip
        started = time.perf_counter()
        res = carry_out(wanted, wanted.draft(seen))
        seconds = time.perf_counter() - started
        fixed = res.repair
        yield {
            "method": label,
            "budget": budget,
            "params": res.after.params / res.before.params,
            "macs": res.after.macs / res.before.macs,
            **judged(res.model, images),
            "movement": None if fixed is None else fixed.after,
            "new_norms": None if fixed is None else fixed.norms,
            "seconds": round(seconds, 1),
            "notes": [note for note in res.notes if "repair" in note],
        }


def rivals(work: Work, images: Images, cells: list[tuple[str, float]]) -> Iterator[dict[str, Any]]:
    """Torch-Pruning's global pruner with one of its importances, at the ratio that meets the budget."""
    import secateur as sc

    example, whole = images.x[:1], sc.cost(images.model, images.x[:1])
    model = copy.deepcopy(images.model).eval()
    for i in range(0, len(images.x), 128):  # for Taylor; the others do not look at gradients
        nn.functional.cross_entropy(model(images.x[i : i + 128]), images.y[i : i + 128]).backward()
    found: dict[tuple[str, float], nn.Module] = {}
    for label, budget in cells:
        started = time.perf_counter()
        importance = label.split("+")[0]
        if (importance, budget) not in found:
            found[importance, budget] = _to_budget(model, example, importance, budget * whole.macs)
        small = copy.deepcopy(found[importance, budget])
        if label.endswith("+norms"):
            _new_norms(small, images.x)
        after = sc.cost(small, example)
        yield {
            "method": label,
            "budget": budget,
            "params": after.params / whole.params,
            "macs": after.macs / whole.macs,
            **judged(small, images),
            "seconds": round(time.perf_counter() - started, 1),
            "notes": [],
        }


def _to_budget(model: nn.Module, example: Tensor, importance: str, macs: float) -> nn.Module:
    """The largest network within the budget, by bisection of the ratio."""
    import secateur as sc

    low, high = 0.0, 1.0
    best = None
    for _ in range(9):
        ratio = (low + high) / 2
        small = _torch_pruned(model, example, importance, ratio)
        try:
            left = sc.cost(small, example).macs
        except Exception:  # a ratio that leaves a network which does not run is too much
            left = 0
        if 0 < left <= macs:
            high, best = ratio, small
        elif left:
            low = ratio
        else:
            high = ratio
    assert best is not None
    return best


def _torch_pruned(model: nn.Module, example: Tensor, importance: str, ratio: float) -> nn.Module:
    import torch_pruning as tp

    small = copy.deepcopy(model)
    for new, old in zip(small.parameters(), model.parameters(), strict=True):
        new.grad = None if old.grad is None else old.grad.clone()  # which the copy leaves out
    kinds = {
        "tp-taylor": tp.importance.GroupTaylorImportance,
        "tp-l1": lambda: tp.importance.GroupMagnitudeImportance(p=1),
        "tp-l2": lambda: tp.importance.GroupMagnitudeImportance(p=2),
    }
    last = [m for m in small.modules() if isinstance(m, nn.Linear)]
    tp.pruner.BasePruner(
        small, example, importance=kinds[importance](), global_pruning=True, pruning_ratio=ratio, ignored_layers=last
    ).step()
    small.zero_grad()
    return small


@torch.no_grad()
def _new_norms(model: nn.Module, x: Tensor) -> None:
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    for i in range(0, len(x), 128):
        model(x[i : i + 128])
    model.eval()


def run(args: argparse.Namespace) -> None:
    """Run the cells that are not there yet, and gather all records."""
    done = {(r["network"], r["method"], r["budget"], r["draw"]) for r in read_records(LINES)}
    asked = args.methods.split(",") if args.methods else None
    for draw in map(int, args.draws.split(",")):
        for work in WORK:
            if args.network not in work.name:
                continue
            methods = [m for m in work.methods if asked is None or m in asked]
            methods = [m for m in methods if draw == 0 or m not in DATA_FREE]
            cells = [(m, b) for m in methods for b in work.budgets if (work.name, m, b, draw) not in done]
            if args.budgets:
                cells = [cell for cell in cells if str(cell[1]) in args.budgets.split(",")]
            if not cells:
                continue
            images = (cifar if "zoo:" in work.name else imagenet)(work, args.data, draw)
            base = {"network": work.name, "draw": draw, "points": len(images.x), "resource": work.resource}
            if (work.name, "original", 1.0, 0) not in done:
                done.add((work.name, "original", 1.0, 0))
                whole = {"method": "original", "budget": 1.0, "params": 1.0, "macs": 1.0, "seconds": 0.0, "notes": []}
                append_record(LINES, {**base, **whole, "draw": 0, **judged(images.model, images)})
            mine, theirs = ([c for c in cells if c[0].startswith("tp-") == rival] for rival in (False, True))
            found = ours(work, images, draw, mine) if mine else iter(())
            beside = rivals(work, images, theirs) if theirs else iter(())
            for several in (found, beside):
                for row in several:
                    record = {**base, **row, "peak_mb": peak_mb()}
                    append_record(LINES, record)
                    print(work.name, draw, row["method"], row["budget"], row["accuracy"], row["seconds"], flush=True)
            gather()


def gather() -> None:
    """Write results/quality.json."""
    last = {(r["network"], r["method"], r["budget"], r["draw"]): r for r in read_records(LINES)}
    lines = ",\n".join(json.dumps(last[key]) for key in sorted(last))
    packages = versions("secateur", "torch", "torchvision", "torch-pruning")
    write_whole(RECORD, f'{{"versions": {json.dumps(packages)},\n"records": [\n{lines}\n]}}\n')


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--network", default="", help="a part of the network's name")
    parser.add_argument("--methods", help="only these, comma separated")
    parser.add_argument("--budgets", help="only these, comma separated: 0.5,0.7")
    parser.add_argument("--draws", default="0,1,2")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    prepare(args.threads)
    run(args)


if __name__ == "__main__":
    main()
