"""Accuracy after retraining: with all training data and the original as teacher, or with a few unlabelled samples.

    python benchmarks/recovery.py --data DIR --runs DIR            # all of it; stop and start again at will
    python benchmarks/recovery.py --data DIR --runs DIR --plan     # what is missing, and how long it may take
    python benchmarks/recovery.py --data DIR --runs DIR --only resnet20

Every row is one network, budget, start and retraining. All rows with epochs have the same data (45,000 training images
of CIFAR-10), augmentation, batch size and settings: `Training(epochs=N)`, with nothing else set; a row with a teacher
has the original beside the labels. The 5,000 images of the validation part are evaluated after every epoch. Test images
are met once, by the finished network. Training writes its state four times in an epoch into the folder of runs, from
where a killed run resumes.

Rows with samples have that many unlabelled images and no others. Their starts are the cut network, or the repaired one.

Trials have one setting changed and meet validation images only. Most are short runs, 2 epochs of 10,000 training
images; those of the learning rate, whose best value depends on the length, also have 5 epochs of all training images.
The checkpoints were trained on all 50,000 training images, validation images included. So validation accuracies are too
high in themselves, and they favour small learning rates, which forget less of those images. A row also has the mean
training loss of its last epoch, which does not: learning rates are compared by it.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from checkpoints import scale, trained
from environment import Rows, add_data_option, options, prepare, print_table, write_record
from quality import OURS, accuracy, prune_as
from quality import _to_budget as torch_pruned

BATCH, PARTS, CALIBRATION, TRIAL_IMAGES = 128, 4, 1024, 10_000
CUT_RATE = 1e-2  # learning rate of recovery from a network that was not repaired, which has further to go
LARGE = {"steps": 120, "batch": 32}  # recovery at 224 x 224, where a step takes seconds
SPEED = 8e9  # multiply-accumulates per second, until a row says better


@dataclass(frozen=True)
class Cell:
    """One row to measure.

    Attributes:
        start: the pruned network: a method as `secateur compare` writes it, or tp-l2.
        teacher: whether the original teaches.
        epochs: of retraining on all training data.
        samples: instead, the number of unlabelled samples.
        recover: whether these samples are used for gradient steps too, after pruning and repair.
        trial: settings that differ from the defaults; it meets validation images only.
    """

    network: str
    resource: str
    budget: float
    start: str
    teacher: bool = True
    epochs: int = 0
    samples: int = 0
    recover: bool = False
    trial: str | None = None

    @property
    def short(self) -> bool:
        """Whether this is a trial on a part of the training images."""
        return self.trial is not None and self.epochs <= 2

    @property
    def name(self) -> str:
        """The row in a few words."""
        if self.samples:
            how = f"{self.samples}-samples{'-recover' if self.recover else ''}"
        else:
            how = f"{self.epochs}-epochs{'-teacher' if self.teacher else ''}"
            how += "" if self.trial is None else f"-trial {self.trial or 'defaults'}"
        return f"{self.network} {self.resource}-{self.budget:g} {self.start} {how}"


def retrained(network: str, budget: float, *starts: str, epochs: int = 5, resource: str = "macs") -> list[Cell]:
    """Return the rows of a retraining; the teacher is left out where a start ends in -teacher."""
    return [
        Cell(network, resource, budget, start.removesuffix("-teacher"), not start.endswith("-teacher"), epochs)
        for start in starts
    ]


def few(network: str, budget: float, *samples: int) -> list[Cell]:
    """Return the few-sample rows: repair alone, repair and recover, recover from the plain cut."""
    starts = (("residual+repair", False), ("residual+repair", True), ("residual-repair", True))
    return [Cell(network, "macs", budget, start, True, 0, n, recover) for n in samples for start, recover in starts]


TRIALS = (
    "",
    "lr=0.02",
    "lr=0.005",
    "lr=0.05",
    "temperature=1.0",
    "temperature=2.0",
    "teacher_weight=1.0",
    "feature_weight=0.0",
    "feature_weight=1.0",
    "schedule='cosine'",
    "schedule='linear'",
    "schedule='steps'",
    "ema=0.98",
    "label_smoothing=0.1",
    "clip_norm=1.0",
    "norm_batches=50",
    "total_epochs=8, schedule='cosine'",
    "optimizer='adam'",
)


def trials(network: str, budget: float) -> list[Cell]:
    """Return the trials: the defaults with a teacher and without, and one setting changed at a time."""
    taught = [Cell(network, "macs", budget, OURS, True, 2, trial=trial) for trial in TRIALS]
    long = [Cell(network, "macs", budget, OURS, True, 5, trial=f"lr={rate}") for rate in (0.03, 0.1)]
    return [*long, taught[0], *(replace(one, teacher=False) for one in taught[:3]), *taught[1:]]


WORK = [
    *retrained("zoo:resnet20", 0.5, OURS, f"{OURS}-teacher", "pfp", "ft", "ft+repair", "ft-teacher"),
    *few("zoo:resnet20", 0.5, 512, 1024),
    *trials("zoo:resnet20", 0.5),
    *few("zoo:resnet56", 0.5, 512, 1024),
    *retrained("zoo:resnet20", 0.5, OURS, epochs=20),
    *retrained("zoo:resnet56", 0.5, OURS, f"{OURS}-teacher", "ft"),
    *(cell for epochs in (1, 2, 10) for cell in retrained("zoo:resnet20", 0.5, OURS, "ft-teacher", epochs=epochs)),
    *retrained("zoo:resnet20", 0.5, "ft-teacher", epochs=20),
    *few("zoo:resnet56", 0.3, 512, 1024),
    *few("torchvision:resnet50", 0.58, 500),
    *few("torchvision:resnet50", 0.8, 500),
    *few("torchvision:mobilenet_v2", 0.8, 500),
    *few("torchvision:mobilenet_v2", 0.7, 500),
    *retrained("zoo:vgg16-bn", 0.2, OURS, f"{OURS}-teacher", "ft", resource="params"),
    *retrained("zoo:vgg16-bn", 0.1, OURS, resource="params"),
    *retrained("zoo:resnet56", 0.3, OURS, f"{OURS}-teacher", "ft"),
    *retrained("zoo:resnet56-b", 0.5, OURS, "tp-l2"),
    *retrained("zoo:resnet56", 0.5, "pfp", "ft+repair"),
    *retrained("zoo:resnet56", 0.5, OURS, epochs=20),
    *retrained("zoo:resnet20", 0.5, "ft+repair", f"{OURS}-teacher", epochs=20),
    *retrained("zoo:resnet56", 0.3, "pfp", "ft+repair"),
    *retrained("zoo:resnet56", 0.3, OURS, epochs=20),
    *retrained("zoo:vgg16-bn", 0.2, "pfp", "ft+repair", resource="params"),
    *retrained("zoo:vgg16-bn", 0.1, f"{OURS}-teacher", "pfp", "ft", "ft+repair", resource="params"),
    *retrained("zoo:vgg16-bn", 0.2, OURS, epochs=20, resource="params"),
    *retrained("zoo:vgg16-bn", 0.1, OURS, epochs=20, resource="params"),
    *retrained("zoo:resnet56", 0.5, "ft+repair", epochs=20),
]


@dataclass(frozen=True)
class Sources:
    """The data of a network: training, validation and test."""

    train: Any
    validation: Any
    test: list[tuple[Tensor, Tensor]]
    calibration: Tensor
    labels: Tensor


def sources(network: str, root: Path, samples: int) -> Sources:
    """Return the data; the calibration samples are the first ones of one random order."""
    from quality import pictures
    from secateur.data import dataset

    if not network.startswith("zoo:"):
        files = sorted((root / "imagenet-val-mini" / "calibration").iterdir())
        order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:samples].tolist()
        x, y = pictures([files[i] for i in order], scale(network))
        tests = sorted((root / "imagenet-val-mini" / "test").iterdir())
        batches = [pictures(tests[i : i + 50], scale(network)) for i in range(0, len(tests), 50)]
        return Sources(None, None, batches, x, y)
    parts = (dataset("cifar10", part, root, download=False) for part in ("train", "validation", "test"))
    train, validation, test = (part.scaled(*scale(network)) for part in parts)
    chosen = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:samples]
    batches = [(test.inputs(part), test.targets[part]) for part in torch.arange(len(test)).split(250)]
    return Sources(train, validation, batches, train.inputs(chosen), train.targets[chosen])


def started(cell: Cell, model: nn.Module, data: Sources, folder: Path) -> tuple[nn.Module, Any, float]:
    """Return the pruned network, its plan (None for Torch-Pruning) and the seconds; it is made once, then read."""
    import secateur as sc
    from secateur.pruning.job import Job
    from secateur.storage.checkpoint import read_info, read_plan

    x, y = data.calibration, data.labels
    before = time.perf_counter()
    if cell.start.startswith("tp-"):
        small = torch_pruned(model, x[:1], cell.start, cell.budget * sc.cost(model, x[:1]).macs)
        return small, None, time.perf_counter() - before
    same = replace(cell, epochs=0, recover=False, teacher=True, trial=None)  # rows that share this start
    path = folder / f"{_file_name(same)}.safetensors"
    if not path.exists():
        batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, len(x), 64)]
        settings = sc.PruneSettings(samples=None, seed=0, delta=1e-16)
        job = Job.of(model, batches, {cell.resource: "50%"}, settings)
        res = prune_as(job, job.evidence(), cell.start, {cell.resource: f"{100 * cell.budget:g}%"}, seed=0)
        sc.save(path, res.model, res.plan, info={"seconds": time.perf_counter() - before})
    return sc.load(path, model), read_plan(path), float(read_info(path)["seconds"])


class InParts:
    """The same batches with every epoch divided into parts, so that the state is written more often."""

    def __init__(self, batches: Any, parts: int) -> None:
        self.batches, self.parts = batches, parts

    def __len__(self) -> int:
        return -(-len(self.batches) // self.parts)

    def epoch(self, number: int) -> Iterator[Any]:
        """Return the batches of one part, counted over all epochs."""
        whole, part = divmod(number, self.parts)
        return islice(self.batches.epoch(whole, start=part * len(self)), len(self))


def retrain(cell: Cell, small: nn.Module, plan: Any, model: nn.Module, data: Sources, path: Path) -> dict[str, Any]:
    """Retrain on all training data; return the validation accuracy of each epoch, the losses and the seconds."""
    import secateur as sc
    from secateur.data import Batches
    from secateur.storage.files import read_json, write_json

    held_out = Batches(data.validation, 500, shuffle=False, augment=False, seed=0)
    images = data.train.take(torch.arange(TRIAL_IMAGES)) if cell.short else data.train
    changes = {} if not cell.trial else dict(eval(f"dict({cell.trial})"))
    if "total_epochs" in changes:
        changes["total_epochs"] *= PARTS
    curve_path = path.with_name(f"{path.name}.curve.json")
    curve = read_json(curve_path) if curve_path.exists() else {}

    def note(part: Any) -> None:
        epoch, rest = divmod(part.epoch, PARTS)
        if not rest:
            curve[str(epoch)] = round(100 * float(sc.evaluate(small, held_out).top1 or 0), 2)
            write_json(curve_path, curve)
            print(cell.name, "epoch", epoch, curve[str(epoch)], f"{part.seconds:.0f} s for a part", flush=True)

    result = sc.train(
        small,
        InParts(Batches(images, BATCH, shuffle=True, augment=True, seed=0), PARTS),
        sc.Training(epochs=cell.epochs * PARTS, **changes),
        teacher=model if cell.teacher else None,
        plan=plan,
        state_path=path.with_name(f"{path.name}.state"),
        on_epoch=note,
    )
    curve[str(cell.epochs)] = round(100 * float(sc.evaluate(small, held_out).top1 or 0), 2)  # as it is returned
    return {
        "validation": [curve.get(str(epoch)) for epoch in range(1, cell.epochs + 1)],
        "losses": list(result.losses),
        "train_loss": round(sum(part.loss for part in result.epochs[-PARTS:]) / PARTS, 5),
        "train_minutes": round(result.seconds / 60, 1),
    }


def measure(cell: Cell, root: Path, folder: Path) -> dict[str, Any]:
    """Return a finished row."""
    import secateur as sc

    model = trained(cell.network, root)
    data = sources(cell.network, root, cell.samples or CALIBRATION)
    small, plan, seconds = started(cell, model, data, folder)
    before, after = (sc.cost(network, data.calibration[:1]) for network in (model, small))
    row = {**asdict(cell), "start_minutes": round(seconds / 60, 2)}
    row |= {"params": after.params / before.params, "macs": after.macs / before.macs}
    if cell.epochs:
        held_out = [(data.validation.inputs(i), data.validation.targets[i]) for i in torch.arange(5000).split(250)]
        row["start_validation"] = accuracy(small, held_out)
        row |= retrain(cell, small, plan, model, data, folder / _file_name(cell))
    elif cell.recover:
        rate: dict[str, Any] = {"lr": CUT_RATE} if cell.start.endswith("-repair") else {}
        rate |= {} if cell.network.startswith("zoo:") else LARGE
        found = sc.recover(small, model, list(data.calibration.split(64)), plan=plan, **rate)
        small = found.model
        row |= {"recover_minutes": round(found.seconds / 60, 1), "steps": found.steps}
        row |= {"divergence_before": found.before, "divergence_after": found.after}
    return row | {"accuracy": accuracy(small, data.test) if cell.trial is None else None}


def _file_name(cell: Cell) -> str:
    return re.sub(r"[^\w.+-]+", "_", cell.name)


def missing(rows: Rows, only: str) -> list[Cell]:
    """Return the rows that are not measured, in their order."""
    done = {_cell(row) for row in rows.read()}
    return [cell for cell in WORK if cell not in done and only in cell.name]


def _cell(row: dict[str, Any]) -> Cell:
    return Cell(**{name: row.get(name) for name in Cell.__dataclass_fields__})


def show_plan(rows: Rows, cells: list[Cell], root: Path) -> None:
    """Print the missing rows and how long each may take, by the speed of the finished ones."""
    import secateur as sc

    costs: dict[str, float] = {}

    def work(cell: Cell) -> float:
        if cell.network not in costs:
            side = 32 if cell.network.startswith("zoo:") else 224
            costs[cell.network] = float(sc.cost(trained(cell.network, root), torch.zeros(1, 3, side, side)).macs)
        share = cell.budget if cell.resource == "macs" else 0.5
        images = TRIAL_IMAGES if cell.short else 45_000
        return images * cell.epochs * costs[cell.network] * (3 * share + cell.teacher)

    known = [(work(cell), row["train_minutes"]) for row in rows.read() if (cell := _cell(row)).epochs]
    speed = sum(w for w, _ in known) / (60 * sum(m for _, m in known)) if known else SPEED
    table = [(cell.name, f"{work(cell) / speed / 3600:.1f} h" if cell.epochs else "minutes") for cell in cells]
    print_table(["missing", "estimate"], table)
    print(f"{len(cells)} rows, {sum(map(work, cells)) / speed / 3600:.0f} hours of training")


def gather(rows: Rows) -> None:
    """Write the record: the last row of each cell."""
    last = {_cell(row): row for row in rows.read()}
    records = [last[cell] for cell in WORK if cell in last]
    note = "minutes were measured on one thread, beside other work on the machine"
    write_record("recovery", {"timing": note, "records": records}, commits={row["commit"] for row in records})


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__, threads=1)
    add_data_option(parser, "cifar-10-batches-py, imagenet-val-mini and weights")
    parser.add_argument("--runs", type=Path, required=True, help="folder for starts and unfinished runs")
    parser.add_argument("--only", default="", help="only rows whose name contains this")
    parser.add_argument("--plan", action="store_true", help="print what is missing, with an estimate of the time")
    args: argparse.Namespace = parser.parse_args()
    prepare(args.threads)
    rows = Rows("recovery")
    cells = missing(rows, args.only)
    if args.plan:
        show_plan(rows, cells, args.data)
        return
    args.runs.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        row = rows.add(measure(cell, args.data, args.runs))
        (args.runs / f"{_file_name(cell)}.state").unlink(missing_ok=True)
        print(cell.name, row["accuracy"], flush=True)
        gather(rows)
    gather(rows)


if __name__ == "__main__":
    main()
