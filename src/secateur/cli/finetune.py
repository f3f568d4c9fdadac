"""`secateur finetune`: train a pruned network with its original as teacher, and save it again."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
from rich.text import Text
from torch import Tensor, nn

import secateur as sc
from secateur.certificates import fingerprints
from secateur.cli import options
from secateur.cli.inputs import Reading, check_out, note_operators, runs_code, trained_original_of
from secateur.cli.options import ADVANCED, DATA, MODELS, OUTPUT, RUN, RUNS_CODE, SOURCES, argument, count, option
from secateur.cli.screen import Screen, heading, unwrapped
from secateur.data.calibration import Calibration
from secateur.errors import SecateurError, UsageError
from secateur.network.examples import revive
from secateur.storage.checkpoint import read_info, read_plan
from secateur.tables import paragraphs
from secateur.training.augmentation import sound_augmentation
from secateur.training.settings import Precision
from secateur.zoo.names import build

READING = Reading(samples=50_000, batch=64)
EPOCHS = 10
MANY = 10**6  # steps, where only the time is limited
TRIAL = 3  # batches that are timed for --minutes
VALIDATION = 10  # every tenth labelled sample is held out
DROPPED = ("certificate", "agreement", "verification")  # what a file says about the weights from before
ORIGINAL, NONE = "original", "none"
AMP = "auto, off, bf16 or fp16"


def finetune(
    *,
    small: Annotated[Path, argument("SMALL", "The pruned network, a file that secateur prune saved.")],
    epochs: Annotated[int | None, count(RUN, "Passes over the data.", show_default="10")] = None,
    minutes: Annotated[float | None, option(RUN, "M", "Instead: as long as this.")] = None,
    labels: Annotated[bool, option(RUN, "", "Use the labels of the data too.", "--labels")] = False,
    teacher: Annotated[str, option(RUN, "NAME", f"original, none, or {RUNS_CODE}.")] = ORIGINAL,
    lr: Annotated[
        float | None, option(RUN, "RATE", "Largest learning rate.", show_default="0.01, 0.0001 unlabelled")
    ] = None,
    data: Annotated[str, option(DATA, "SOURCE", f"Training data, never test data: {SOURCES}.")],
    model: Annotated[
        str | None, option(DATA, "MODEL", f"The original: {MODELS}.", show_default="the one that SMALL names")
    ] = None,
    weights: options.Weights = None,
    reading: Reading = READING,
    out: Annotated[Path, option(OUTPUT, "FILE", "File for the fine-tuned network.")],
    force: options.Force = False,
    resume: Annotated[bool, option(RUN, "", "With --labels: continue a run that was interrupted.", "--resume")] = False,
    amp: Annotated[str, option(ADVANCED, "TYPE", f"Mixed precision: {AMP}; without --labels off or bf16.")] = "auto",
    screen: Screen,
) -> None:
    """Train SMALL with its original as teacher, with labels or without, and save it as a file of the same kind."""
    _check_options(epochs, minutes, labels, teacher)
    state = out.with_name(f"{out.name}.state")
    _check_resume(resume, labels, minutes, amp, state)
    check_out(out, force)
    model = trained_original_of(small, model, weights)
    info, plan = read_info(small), read_plan(small)
    example = revive(plan.example)
    with screen.status(f"building {model}"):
        original = build(model, weights)
        network = sc.load(small, original)
        taught = original if teacher == ORIGINAL else None if teacher == NONE else build(teacher)
    note_operators(screen, model)
    with screen.status(f"reading {data}"):
        found = reading.read(data, example, labels=labels)
    own: dict[str, Any] = {"seed": reading.seed} | ({"lr": lr} if lr is not None else {})
    if labels:
        job = Labelled(network, original, found, reading.batch, reading.seed)
        own["amp"] = amp
        record, lines, notes = job.train(taught, plan, epochs, minutes, own, state, progress=screen.live)
    else:
        assert taught is not None
        passes = (epochs or EPOCHS) * found.samples * 3 // 4  # every fourth sample is held out
        res = sc.recover(
            network,
            taught,
            found.batches,
            plan=plan,
            steps=max(1, passes // reading.batch) if minutes is None else MANY,
            batch=reading.batch,
            minutes=minutes,
            amp="bf16" if amp == "bf16" else "off",
            progress=screen.live,
            **own,
        )
        network, lines, notes = res.model, res.summary().splitlines()[:3], list(res.notes)
        record = {name: value for name, value in vars(res).items() if name not in ("model", "notes")}
    if dropped := [name for name in DROPPED if info.get(name) is not None]:
        notes.append(f"dropped, since it was measured with the weights before fine-tuning: {', '.join(dropped)}")
    kept = {name: value for name, value in info.items() if name not in (*DROPPED, "versions", "fingerprints", "notes")}
    used = _used(info.get("fingerprints"), found)
    head = {"small": str(small), "model": model, "data": found.origin, "teacher": teacher, "labels": labels}
    added = {"finetuned": head | record, "fingerprints": used, "notes": [*_notes(info), *notes]}
    sc.save(out, network, plan, info=kept | added)
    if labels and minutes is None:
        state.unlink(missing_ok=True)
    screen.show(
        head | record | {"notes": notes, "out": str(out)},
        *heading(str(small), f"fine-tuned on {found.samples:,} samples of {found.origin}"),
        Text("\n".join(lines)),
        *paragraphs("Note: ", notes),
        "",
        unwrapped(f"Saved: {out} ({out.stat().st_size / 1e3:,.0f} kB)."),
    )


class Labelled:
    """Labelled samples, one in ten of them held out, and the training of a network on the others."""

    def __init__(self, network: nn.Module, original: nn.Module, data: Calibration, batch: int, seed: int) -> None:
        self.network, self.batch, self.seed = network, batch, seed
        x, y = _pairs(data)
        held = torch.arange(len(x)) % VALIDATION == VALIDATION - 1
        if not held.any() or held.all():
            raise SecateurError(f"{len(x)} samples are too few", layer="data", remedy=f"pass at least {VALIDATION}")
        self.x, self.y = x[~held], y[~held]
        self.held_out = list(zip(x[held].split(batch), y[held].split(batch)))
        self.changes = sound_augmentation(original, [((one,), {}) for one, _ in self.held_out])
        self.loss: Any = "mse" if y.is_floating_point() else "cross-entropy"

    def __len__(self) -> int:
        return -(-len(self.x) // self.batch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the training samples in a new order, augmented again."""
        source = torch.Generator().manual_seed(self.seed + number)
        for chosen in torch.randperm(len(self.x), generator=source).split(self.batch):
            (x,), _ = self.changes(((self.x[chosen],), {}), source)
            yield x, self.y[chosen]

    def train(
        self,
        teacher: nn.Module | None,
        plan: sc.Plan,
        epochs: int | None,
        minutes: float | None,
        settings: dict[str, Any],
        state: Path,
        *,
        progress: bool,
    ) -> tuple[dict[str, Any], list[str], list[str]]:
        """Train the network; return a record, what to show, and notes. Runs without a time limit write their state."""
        batches: Any = self
        state_path = state if minutes is None else None
        if minutes is not None:
            trial = First(self, TRIAL)
            short = sc.Training(epochs=1, loss=self.loss, **settings)
            timed = sc.train(copy.deepcopy(self.network), trial, short, teacher=teacher, plan=plan)
            affordable = max(1, int(60 * minutes / (timed.seconds / len(trial))))
            batches, epochs = (
                (First(self, affordable), 1) if affordable < len(self) else (self, affordable // len(self))
            )
        full = sc.Training(epochs=epochs or 10, loss=self.loss, **settings)
        before = sc.evaluate(self.network, self.held_out, loss=self.loss)
        result = sc.train(
            self.network, batches, full, teacher=teacher, plan=plan, state_path=state_path, progress=progress
        )
        after = sc.evaluate(self.network, self.held_out, loss=self.loss)
        record = {
            "epochs": full.epochs,
            "batches": len(batches),
            "seconds": result.seconds,
            "before": asdict(before),
            "after": asdict(after),
            "losses": list(result.losses),
            "augmentation": self.changes.about,
        }
        accuracy = "" if after.top1 is None else f"accuracy {after.top1:.1%} (before {before.top1:.1%}), "
        lines = [
            f"On {after.samples} held-out samples: {accuracy}loss {after.loss:.4g} (before {before.loss:.4g}).",
            f"{full.epochs} epochs of {len(batches)} batches in {result.seconds / 60:.1f} minutes; minimised: "
            f"{', '.join(result.losses)}.",
            f"Augmentation: {self.changes.about}.",
        ]
        return record, lines, list(result.notes)


@dataclass(frozen=True)
class First:
    """The first batches of each epoch."""

    batches: Labelled
    count: int

    def __len__(self) -> int:
        return min(self.count, len(self.batches))

    def epoch(self, number: int) -> Iterator[Any]:
        """Return the batches of an epoch."""
        return iter([batch for batch, _ in zip(self.batches.epoch(number), range(len(self)))])


def _pairs(data: Calibration) -> tuple[Tensor, Tensor]:
    """Return all inputs and all labels."""
    pairs = [batch for batch in data.batches if isinstance(batch, tuple | list) and len(batch) == 2]
    if len(pairs) < len(data.batches) or not all(isinstance(part, Tensor) for pair in pairs for part in pair):
        raise UsageError(
            f"{data.origin} has no labels, or more than one input",
            layer="--labels",
            remedy="name a folder of classes, or a file with x and y; or leave --labels out",
        )
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def _check_options(epochs: int | None, minutes: float | None, labels: bool, teacher: str) -> None:
    if epochs is not None and minutes is not None:
        raise UsageError("--epochs and --minutes are both given", remedy="use one of them")
    if minutes is not None and not 0 < minutes < float("inf"):
        raise UsageError(f"--minutes is {minutes}", remedy="use a number above 0")
    if teacher not in (ORIGINAL, NONE) and not runs_code(teacher):
        raise UsageError(
            f"--teacher is {teacher!r}", remedy="use original, none, or path/to/file.py:FACTORY of a trained network"
        )
    if teacher == NONE and not labels:
        raise UsageError("there is nothing to learn from", remedy="pass --labels, or leave --teacher none out")


def _check_resume(resume: bool, labels: bool, minutes: float | None, amp: str, state: Path) -> None:
    if amp not in get_args(Precision):
        raise UsageError(f"--amp is {amp!r}", remedy=f"use {AMP}")
    if not labels:
        if resume or amp == "fp16":
            raise UsageError(
                f"--{'resume' if resume else 'amp fp16'} needs --labels", remedy="leave it out, or pass --labels"
            )
        return
    if resume and minutes is not None:
        raise UsageError("a run with --minutes cannot be resumed", remedy="use --epochs")
    if resume and not state.exists():
        raise UsageError(f"there is no {state} to resume from", remedy="leave --resume out")
    if not resume and minutes is None and state.exists():
        raise UsageError(
            f"{state} is the state of an interrupted run", remedy="pass --resume, or remove the file to start again"
        )


def _used(before: object, data: Calibration) -> str:
    """Return the fingerprints of all samples that the network has seen, which certify refuses."""
    inputs = [batch[0] if isinstance(batch, tuple | list) else batch for batch in data.batches]
    own = [one for x in inputs for one in fingerprints.of(x)]
    return fingerprints.pack([*own, *(fingerprints.unpack(before) if isinstance(before, str) else ())])


def _notes(info: dict[str, Any]) -> Sequence[str]:
    notes = info.get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []
