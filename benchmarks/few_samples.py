"""Pruning with few calibration samples: what sizes and repair contribute, and how results vary with the samples.

    python benchmarks/few_samples.py --data DIR                                # all of it; stop and start again at will
    python benchmarks/few_samples.py --data DIR --network resnet20 --samples 256
    python benchmarks/few_samples.py --data DIR --network resnet50 --test      # also the test images, met once

Every row is one network, budget, number of samples, seed of the samples and variant: `cut` (no repair), `norms` (no
repair, norm statistics estimated again), `repaired` (the default) and `uniform` (every group keeps the same part, and
the network is repaired). Each is evaluated on images that pruning has not used and that are not test images: for
CIFAR-10 2,000 other training images, for ImageNet the other images of `calibration/`. `agreement` is how often the
network gives the original's answer, `divergence` the output divergence from the original, `repair_divergence` the same
on the samples of the fits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import scale, trained
from environment import Rows, add_data_option, add_keep_option, options, prepare, print_rows, write_record
from quality import accuracy, pictures, prune_as

VARIANTS = {
    "cut": "residual-repair",
    "norms": "residual-repair",
    "repaired": "residual+repair",
    "uniform": "residual@uniform+repair",
}
EVALUATED = 2000  # training images of CIFAR-10, the last of a permutation; samples are the first
KEY = ("network", "budget", "samples", "seed", "variant")


@dataclass(frozen=True)
class Work:
    """One network with its budgets of MACs, numbers of samples, seeds and variants."""

    name: str
    budgets: tuple[float, ...]
    samples: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)
    variants: tuple[str, ...] = ("repaired",)


WORK = (
    Work("zoo:resnet20", (0.5,), (64, 1024), variants=tuple(VARIANTS)),
    Work("zoo:resnet20", (0.3,), (256,), seeds=(0, 1, 2, 3, 4)),
    Work("zoo:resnet20", (0.3,), (1024,), seeds=(0, 1, 2, 3, 4)),
    Work("zoo:resnet56", (0.3,), (1024,), seeds=(0, 1, 2, 3, 4)),
    Work("torchvision:mobilenet_v2", (0.8, 0.7), (256,), variants=("norms", "repaired")),
    Work("torchvision:resnet50", (0.8, 0.58), (256, 500), variants=("norms", "repaired")),
)


@dataclass(frozen=True)
class Images:
    """The calibration samples of a row, and the images with labels to evaluate on."""

    x: Tensor
    others: list[tuple[Tensor, Tensor]]


def cifar(name: str, root: Path, samples: int, seed: int) -> Images:
    """Return training images of CIFAR-10, at random by the seed."""
    from secateur.data import dataset

    train = dataset("cifar10", "train", root, download=False).scaled(*scale(name))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    others = [(train.inputs(part), train.targets[part]) for part in order[-EVALUATED:].split(250)]
    return Images(train.inputs(order[:samples]), others)


def imagenet(name: str, root: Path, samples: int, seed: int) -> Images:
    """Return images of `calibration/`, at random by the seed; the others are evaluated on."""
    files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = [files[i] for i in order]
    x, _ = pictures(chosen[:samples], scale(name))
    rest = chosen[samples:]
    return Images(x, [pictures(rest[i : i + 50], scale(name)) for i in range(0, len(rest), 50)])


def tests(name: str, root: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the test images of a network with their labels."""
    from secateur.data import dataset

    if name.startswith("zoo:"):
        test = dataset("cifar10", "test", root, download=False).scaled(*scale(name))
        yield from ((test.inputs(part), test.targets[part]) for part in torch.arange(len(test)).split(250))
    else:
        files = sorted((root / "imagenet-val-mini" / "test").iterdir())
        yield from (pictures(files[i : i + 50], scale(name)) for i in range(0, len(files), 50))


def evaluated(model: nn.Module, small: nn.Module, others: list[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Return agreement, divergence and accuracy on images that pruning has not used; nothing if there are none."""
    from secateur.pruning.agreement import measure

    found = measure(model, small, [(((x,), {}), y) for x, y in others])
    if not found.samples or found.share is None or found.accuracy is None or found.original_accuracy is None:
        return {"evaluated_on": 0}
    return {
        "evaluated_on": found.samples,
        "agreement": round(100 * found.share, 2),
        "divergence": round(found.divergence, 4),
        "accuracy": round(100 * found.accuracy, 2),
        "original_accuracy": round(100 * found.original_accuracy, 2),
    }


def measured(work: Work, images: Images, seed: int, cells: list[tuple[float, str]], args: Any) -> Iterator[dict]:
    """Yield a row for each budget and variant; the network is measured once for all."""
    import secateur as sc
    from secateur.pruning.job import Job
    from secateur.refit.repair import _with_new_norms

    model = trained(work.name, args.data)
    batches = list(images.x.split(64))
    job = Job.of(model, batches, {"macs": "50%"}, sc.PruneSettings(samples=None, seed=seed))
    evidence = job.evidence()
    for budget, variant in cells:
        started = time.process_time()
        res = prune_as(job, evidence, VARIANTS[variant], {"macs": f"{100 * budget:g}%"}, seed=seed)
        small = _with_new_norms(res.model, [((x,), {}) for x in batches]) if variant == "norms" else res.model
        assert small is not None
        row = {
            "network": work.name,
            "budget": budget,
            "samples": len(images.x),
            "seed": seed,
            "variant": variant,
            "macs": round(res.after.macs / res.before.macs, 4),
            "smallest_group": min(row.after for row in res.rows),
            **evaluated(model, small, images.others),
            "repair_divergence": None if res.repair is None else round(res.repair.after, 4),
            "cpu_seconds": round(time.process_time() - started, 1),
        }
        if args.test:
            batches_of_test = list(tests(work.name, args.data))
            row |= {"test": accuracy(small, batches_of_test), "original_test": accuracy(model, batches_of_test)}
        yield row


def run(args: argparse.Namespace) -> None:
    """Measure the rows that are not there yet, and write the record of all."""
    rows = Rows("few_samples")
    done = {_key(row) for row in rows.read(args.keep) if not args.test or "test" in row}
    for work in WORK:
        if args.network not in work.name:
            continue
        for samples in work.samples:
            if args.samples not in (None, samples):
                continue
            for seed in work.seeds:
                cells = [(budget, variant) for budget in work.budgets for variant in work.variants]
                cells = [(b, v) for b, v in cells if (work.name, b, samples, seed, v) not in done]
                if args.budget:
                    cells = [(b, v) for b, v in cells if b == args.budget]
                if cells:
                    read = cifar if work.name.startswith("zoo:") else imagenet
                    for row in measured(work, read(work.name, args.data, samples, seed), seed, cells, args):
                        rows.add(row)
                        print(*(f"{key}={value}" for key, value in row.items()), flush=True)
                    gather(rows)
    gather(rows)


def gather(rows: Rows) -> None:
    """Write the record: the last row of every network, budget, number of samples, seed and variant."""
    last = {_key(row): row for row in rows.read()}
    found = [last[key] for key in sorted(last)]
    what = "pruning with few calibration samples, evaluated on images that pruning has not used"
    write_record("few_samples", {"what": what, "rows": found}, commits={row["commit"] for row in found})
    shown = [{key: row.get(key, "-") for key in (*KEY, "agreement", "divergence", "test")} for row in found]
    print_rows({key: key for key in shown[0]} if shown else {}, shown)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[part] for part in KEY)


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__, threads=2)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights")
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    parser.add_argument("--samples", type=int, help="only this number of calibration samples")
    parser.add_argument("--budget", type=float, help="only this budget, for example 0.58")
    parser.add_argument("--test", action="store_true", help="also evaluate on the test images")
    add_keep_option(parser)
    args = parser.parse_args()
    prepare(args.threads)
    run(args)


if __name__ == "__main__":
    main()
