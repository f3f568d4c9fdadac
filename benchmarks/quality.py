"""Accuracy right after pruning, without retraining: our default, the paper's method, others, and Torch-Pruning.

    python benchmarks/quality.py --data DIR                         # all of it; stop and start again at will
    python benchmarks/quality.py --data DIR --network resnet56 --methods residual+repair,pfp --repeats 0
    python benchmarks/quality_page.py                               # docs/quality.md from the records

Every row is one network, method, budget and repeat. A repeat has its own calibration samples: images of the training
set (of `calibration/` for ImageNet), without augmentation; only taylor uses their labels. No setting was chosen on the
test set: each pruned network is evaluated on it once, for the record. Methods are written as for `secateur compare`.
Those of Torch-Pruning are tp-l1, tp-l2 and tp-taylor, pruned globally by its own pruner, and with +norms where the norm
statistics were estimated again afterwards; it crashes on option-A shortcuts, so it runs on the option-B network, beside
ours.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import IMAGENET, Scale, scale, trained
from environment import Rows, add_data_option, add_keep_option, options, peak_mb, prepare, write_record

OURS = "residual+repair"
PUBLISHED = ("pfp", "pfp~mean", "ft", "softnet", "thinet", "fpgm", "taylor", "random")
PARTS = ("residual-repair", "ft+repair", "ft@residual+repair", "pfp+repair", "thinet+repair", "random+repair")
DATA_FREE = ("ft", "softnet", "fpgm", "tp-l1", "tp-l2")  # the same in every repeat, so they run once
PEERS = ("tp-l1", "tp-l2", "tp-taylor", "tp-l2+norms", "tp-taylor+norms")


@dataclass(frozen=True)
class Work:
    """One network, the budgets and the methods."""

    name: str
    resource: str
    budgets: tuple[float, ...]
    methods: tuple[str, ...]
    samples: int = 1024


WORK = (
    Work("zoo:resnet56", "macs", (0.7, 0.5, 0.3), (OURS, *PUBLISHED, *PARTS)),
    Work("zoo:resnet20", "macs", (0.7, 0.5), (OURS, *PUBLISHED, *PARTS)),
    Work("zoo:vgg16-bn", "params", (0.2, 0.1), (OURS, "pfp", "ft", "ft+repair"), samples=4096),
    Work("torchvision:mobilenet_v2", "macs", (0.8,), (OURS, "pfp", "ft", "ft+repair"), samples=256),
    Work("zoo:resnet56-b", "macs", (0.7, 0.5), (OURS, *PEERS)),
)


@dataclass(frozen=True)
class Images:
    """A trained network, the calibration samples of one repeat, and the test set."""

    model: nn.Module
    x: Tensor
    y: Tensor
    test: list[tuple[Tensor, Tensor]]


def cifar(work: Work, root: Path, repeat: int) -> Images:
    """Return a CIFAR-10 checkpoint, training images of this repeat, and the 10,000 test images."""
    from secateur.data import dataset

    train, test = (
        dataset("cifar10", part, root, download=False).scaled(*scale(work.name)) for part in ("train", "test")
    )
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(repeat))[: work.samples]
    batches = [(test.inputs(part), test.targets[part]) for part in torch.arange(len(test)).split(250)]
    return Images(trained(work.name, root), train.inputs(chosen), train.targets[chosen], batches)


def imagenet(work: Work, root: Path, repeat: int) -> Images:
    """Return MobileNetV2, images of `calibration/`, and the 1,000 of `test/`."""
    files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(repeat))[: work.samples].tolist()
    x, y = pictures([files[i] for i in order])
    tests = sorted((root / "imagenet-val-mini" / "test").iterdir())
    return Images(trained(work.name, root), x, y, [pictures(tests[i : i + 50]) for i in range(0, len(tests), 50)])


def pictures(files: list[Path], scaled: Scale = IMAGENET) -> tuple[Tensor, Tensor]:
    """Return the images in these files, scaled, and their classes."""
    import numpy as np
    from PIL import Image

    mean, std = (torch.tensor(v).view(3, 1, 1) for v in scaled)
    pixels = [torch.from_numpy(np.array(Image.open(f).convert("RGB"))).permute(2, 0, 1) for f in files]
    return (torch.stack(pixels).float() / 255 - mean) / std, torch.tensor([int(f.name.split("_")[0]) for f in files])


@torch.no_grad()
def accuracy(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Return the percentage of correct classes."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in batches)
    return round(100 * right / sum(len(y) for _, y in batches), 2)


def tested(model: nn.Module, images: Images) -> dict[str, float]:
    """Return the accuracy on all test images, and for the 1,000 of ImageNet also on the first half."""
    found = {"accuracy": accuracy(model, images.test)}
    if sum(len(y) for _, y in images.test) == 1000:
        found["first_500"] = accuracy(model, images.test[: len(images.test) // 2])
    return found


def prune_as(
    job: Any,
    evidence: Any,
    label: str,
    budget: dict[str, str],
    *,
    seed: int,
    sizes: str | None = None,
    repair: bool | None = None,
) -> Any:
    """Prune by a method as `secateur compare` writes it, with the evidence that `job` has gathered for all of them.

    Args:
        sizes: the kind of sensitivity that allocates the budget, where it differs from the one that chooses channels.
        repair: whether to repair afterwards; by default as in `label`, where no suffix means no repair.
    """
    from secateur.pruning.budget import parse as parse_budget
    from secateur.pruning.prune import carry_out
    from secateur.pruning.variants import Variant

    variant = Variant.parse(label)
    repaired = bool(variant.repair) if repair is None else repair
    settings = replace(variant.settings(job.settings), seed=seed, repair=repaired)
    method, allocation = settings.resolve()
    if sizes:
        _, allocation = replace(settings, allocation="pfp", sensitivity=sizes).resolve()
    budgets = parse_budget(budget)
    wanted = replace(job, settings=settings, method=method, allocation=allocation, budget=budgets)
    return carry_out(wanted, wanted.draft(evidence))


def ours(work: Work, images: Images, repeat: int, cells: list[tuple[str, float]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each of our methods and budgets; the network is traced and measured once for all."""
    import secateur as sc
    from secateur.pruning.job import Job

    data = [(images.x[i : i + 64], images.y[i : i + 64]) for i in range(0, len(images.x), 64)]
    settings = sc.PruneSettings(samples=None, seed=repeat, delta=1e-16)
    job = Job.of(images.model, data, {work.resource: "50%"}, settings)
    evidence = job.evidence()
    for label, budget in cells:
        started = time.perf_counter()
        res = prune_as(job, evidence, label, {work.resource: f"{100 * budget:g}%"}, seed=repeat)
        seconds = time.perf_counter() - started
        repair = res.repair
        yield {
            "method": label,
            "budget": budget,
            "params": res.after.params / res.before.params,
            "macs": res.after.macs / res.before.macs,
            **tested(res.model, images),
            "divergence": None if repair is None else repair.after,
            "new_norms": None if repair is None else repair.norms,
            "seconds": round(seconds, 1),
            "notes": [note for note in res.notes if "repair" in note],
        }


def peers(images: Images, cells: list[tuple[str, float]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each importance of Torch-Pruning and budget: its global pruner at the ratio that fits."""
    import secateur as sc

    example, original = images.x[:1], sc.cost(images.model, images.x[:1])
    model = copy.deepcopy(images.model).eval()
    for i in range(0, len(images.x), 128):  # for Taylor; the others ignore gradients
        nn.functional.cross_entropy(model(images.x[i : i + 128]), images.y[i : i + 128]).backward()
    found: dict[tuple[str, float], nn.Module] = {}
    for label, budget in cells:
        started = time.perf_counter()
        importance = label.split("+")[0]
        if (importance, budget) not in found:
            found[importance, budget] = _to_budget(model, example, importance, budget * original.macs)
        small = copy.deepcopy(found[importance, budget])
        if label.endswith("+norms"):
            _new_norms(small, images.x)
        after = sc.cost(small, example)
        yield {
            "method": label,
            "budget": budget,
            "params": after.params / original.params,
            "macs": after.macs / original.macs,
            **tested(small, images),
            "seconds": round(time.perf_counter() - started, 1),
            "notes": [],
        }


def _to_budget(model: nn.Module, example: Tensor, importance: str, macs: float) -> nn.Module:
    """Return the largest network within the budget, found by bisection of the ratio."""
    import secateur as sc

    low, high = 0.0, 1.0
    best = None
    for _ in range(9):
        ratio = (low + high) / 2
        small = _torch_pruned(model, example, importance, ratio)
        try:
            left = sc.cost(small, example).macs
        except Exception:  # the ratio is too large: the network no longer runs
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
        new.grad = None if old.grad is None else old.grad.clone()  # the copy has none
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
    """Measure the rows that are not there yet, and write the record of all."""
    rows = Rows("quality")
    done = set(map(_key, rows.read(args.keep)))
    asked = args.methods.split(",") if args.methods else None
    for repeat in map(int, args.repeats.split(",")):
        for work in WORK:
            if args.network not in work.name:
                continue
            methods = [m for m in work.methods if asked is None or m in asked]
            methods = [m for m in methods if repeat == 0 or m not in DATA_FREE]
            cells = [(m, b) for m in methods for b in work.budgets if (work.name, m, b, repeat) not in done]
            if args.budgets:
                cells = [cell for cell in cells if str(cell[1]) in args.budgets.split(",")]
            if not cells:
                continue
            images = (cifar if "zoo:" in work.name else imagenet)(work, args.data, repeat)
            base = {"network": work.name, "repeat": repeat, "samples": len(images.x), "resource": work.resource}
            if (work.name, "original", 1.0, 0) not in done:
                done.add((work.name, "original", 1.0, 0))
                original = {"method": "original", "budget": 1.0, "params": 1.0, "macs": 1.0}
                original |= {"seconds": 0.0, "notes": [], **tested(images.model, images)}
                rows.add({**base, **original, "repeat": 0})
            theirs = [cell for cell in cells if cell[0].startswith("tp-")]
            mine = [cell for cell in cells if cell not in theirs]
            for found in (ours(work, images, repeat, mine) if mine else (), peers(images, theirs) if theirs else ()):
                for row in found:
                    rows.add({**base, **row, "peak_mb": peak_mb()})
                    cell = row["method"], row["budget"], row["accuracy"], row["seconds"]
                    print(work.name, repeat, *cell, flush=True)
            gather(rows)


def gather(rows: Rows) -> None:
    """Write the record: the last row of every network, method, budget and repeat that `WORK` asks for."""
    last = {_key(row): row for row in rows.read()}
    wanted = {(work.name, *cell) for work in WORK for cell in (("original", 1.0), *product(work.methods, work.budgets))}
    records = [last[key] for key in sorted(last) if key[:3] in wanted]
    write_record("quality", {"records": records}, commits={row["commit"] for row in records})


def _key(row: dict[str, Any]) -> tuple[str, str, float, int]:
    return row["network"], row["method"], row["budget"], row["repeat"]


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights")
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--budgets", help="only these, separated by commas: 0.5,0.7")
    parser.add_argument("--repeats", default="0,1,2", help="seeds of the calibration samples (default: %(default)s)")
    add_keep_option(parser)
    args = parser.parse_args()
    prepare(args.threads)
    run(args)


if __name__ == "__main__":
    main()
