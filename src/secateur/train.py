"""Training: one plain loop, for one process or many, that a kill cannot spoil."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from secateur import resume
from secateur.errors import SecateurError, UsageError
from secateur.evaluate import Evaluation, Step, Tally, batches_of, check_batches, device_of, evaluate
from secateur.journal import Bar, Journal
from secateur.layout import own_layout, synchronised_norms
from secateur.learner import Learner
from secateur.processes import Process, check_agreement, copy_from_first, distributed, wait_for_all
from secateur.program import mode, unwrap
from secateur.training import Training, learning_rate

__all__ = ["Epoch", "Evaluation", "Training", "TrainingResult", "distributed", "evaluate", "learning_rate", "train"]


@dataclass(frozen=True)
class Epoch:
    """What happened in one epoch."""

    epoch: int  # from 1
    lr: float  # of its last batch
    loss: float
    top1: float | None  # share of right answers while training
    validation: Evaluation | None
    seconds: float  # without the validation
    images_per_second: float

    @classmethod
    def of(cls, record: dict[str, Any]) -> Epoch:
        """The epoch that a record, made by `asdict`, tells of."""
        validation = record["validation"]
        return cls(**{**record, "validation": validation and Evaluation(**validation)})


@dataclass(frozen=True)
class TrainingResult:
    """The epochs of a run, those before an interruption too."""

    epochs: tuple[Epoch, ...]
    resumed: int  # how many of them came from the state file

    @property
    def last(self) -> Epoch | None:
        """The last epoch; none if none was asked for."""
        return self.epochs[-1] if self.epochs else None

    @property
    def seconds(self) -> float:
        """The time spent on training."""
        return sum(epoch.seconds for epoch in self.epochs)


def train(
    model: nn.Module,
    batches: Any,
    settings: Training,
    *,
    validation: Any = None,
    step: Step | None = None,
    log: str | Path | None = None,
    tensorboard: bool = False,
    state_path: str | Path | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Train a network in place.

    >>> settings = Training(epochs=40, lr=0.01, weight_decay=1e-4, milestones=(25, 35))
    >>> train(model, batches, settings, validation=held_out, state_path="run.state", progress=True).last.validation
    Evaluation(points=6000, loss=0.031, top1=0.991, top5=1.0)

    Any other task needs one function, which gives the mean loss of a batch. The batch comes on the network's device:

    >>> def step(model, batch):
    ...     return my_loss(model(batch["image"], batch["scale"]), batch["target"])
    >>> train(model, loader, settings, step=step)

    batches: pairs (x, y), or what `step` takes: a list, a DataLoader, or an object whose `epoch(k)` gives the batches
        of epoch k, counted from 0. The random numbers of torch, numpy and Python are seeded at each epoch's start.
    validation: batches for `evaluate` after every epoch.
    step: instead of the loss that the settings name.
    log: a file that gets a JSON line per epoch; or a folder for it, which with `tensorboard` gets the curves too.
    state_path: a file for the whole state, written after every epoch. If it is there, training goes on from it, and
        ends bit for bit as if never interrupted, on the same machine. More epochs may be asked for, nothing else.
    on_epoch: called with each `Epoch` when it is safely on the disk.
    progress: show a progress bar on the standard error stream.

    Under torchrun each process gives its own part of the batches, as many as the others (see `distributed`); the result
    is that of one process with all of them, but for batch norms, which see the part of their process only unless
    `sync_batchnorm` is set. Only the first process writes and shows.
    """
    inner = unwrap(model)
    device = device_of(inner)
    length = _length(batches)
    _check(inner, batches, length, settings)
    path = Path(state_path) if state_path is not None else None
    with ExitStack() as stack:
        process = stack.enter_context(distributed())
        run = {**asdict(settings), "batches": length, "processes": process.world}
        del run["epochs"]
        state = _resumed(path, inner, run, settings) if path else None
        records = list(state.epochs) if state else []
        check_agreement(
            {"batches per epoch": -1 if length is None else length, "epochs done": len(records)},
            device,
            "give each process as many batches, and a state_path that all of them can read",
        )
        journal = Journal(Path(log) if log is not None and process.first else None, tensorboard and process.first)
        stack.callback(journal.close)
        journal.catch_up(records)
        stack.enter_context(mode(inner, True))
        stack.enter_context(own_layout(inner))
        stack.enter_context(synchronised_norms(inner, settings.sync_batchnorm))
        bar = stack.enter_context(Bar(progress and process.first, settings.epochs, len(records), length))
        learner: Learner | None = None
        for epoch in range(len(records), settings.epochs):
            _seed(settings.seed, epoch, process, batches)
            stream = iter(batches_of(batches, epoch))
            if learner is None:
                first = list(islice(stream, 1))
                learner = Learner(inner, settings, step, first, state)
                stack.callback(learner.optimizer.zero_grad)
                stream = chain(first, stream)
            means, seconds = _one_epoch(learner, stream, epoch, length, bar)
            copy_from_first([*inner.buffers()])  # each process has its own statistics of batch norms
            record = Epoch(
                epoch=epoch + 1,
                lr=learner.rate,
                loss=means.loss,
                top1=means.top1,
                validation=None if validation is None else evaluate(inner, validation, loss=settings.loss, step=step),
                seconds=seconds,
                images_per_second=means.points / seconds,
            )
            records.append(asdict(record))
            if process.first:
                if path:
                    resume.write(path, inner, learner.optimizer, learner.scaler, run, records)
                journal.write(records[-1])
            if on_epoch:
                on_epoch(record)
        wait_for_all(device)  # the others may want to read what the first one writes
    return TrainingResult(tuple(map(Epoch.of, records)), resumed=len(state.epochs) if state else 0)


def _check(model: nn.Module, batches: Any, length: int | None, settings: Training) -> None:
    """Refuse what cannot be trained, or not so."""
    check_batches(batches)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("the network has nothing to train", layer=type(model).__name__, remedy="unfreeze parameters")
    kind = device_of(model).type
    if settings.sync_batchnorm and kind != "cuda":
        raise UsageError(f"sync_batchnorm works on GPUs, the network is on the {kind}", remedy="set it to False")
    if settings.warmup_epochs and length is None:
        raise UsageError("warmup_epochs needs batches with a len()", remedy="give such batches, or set it to 0")


def _resumed(path: Path, model: nn.Module, run: dict[str, Any], settings: Training) -> resume.State | None:
    """What a run before this one left, its weights already in the network; nothing if there was none."""
    resume.prepare(path, model)
    state = resume.read(path, run)
    if state:
        done = len(state.epochs)
        if done > settings.epochs:
            raise SecateurError(f"{path} holds {done} epochs, epochs is {settings.epochs}", remedy=resume.AGAIN)
        state.fill_model(path, model)
    return state


def _one_epoch(
    learner: Learner, stream: Iterable[Any], epoch: int, length: int | None, bar: Bar
) -> tuple[Evaluation, float]:
    """Learn from every batch once; gives the means over all processes, and the seconds."""
    tally = Tally(learner.device)
    started = time.perf_counter()
    for number, batch in enumerate(stream, 1):
        learner.set_rate(epoch, number / length if length else 1.0)
        tally.add(*learner.learn(batch))
        if bar.due():
            tally.look()
            bar.show(epoch, number, tally.loss, tally.points / (time.perf_counter() - started))
        _check_finite(tally, epoch)
    tally.look()
    _check_finite(tally, epoch)
    seconds = time.perf_counter() - started
    bar.show(epoch, tally.batches, tally.loss, tally.points / seconds)
    return tally.result(), seconds


def _seed(seed: int, epoch: int, process: Process, batches: Any) -> None:
    """Seed all random numbers, so that an epoch is the same whatever ran before it."""
    digest = hashlib.sha256(f"{seed}/{epoch}/{process.rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    for owner in (batches, getattr(batches, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)


def _length(batches: Any) -> int | None:
    """How many batches an epoch has, if that is known."""
    try:
        return len(batches)
    except TypeError:  # a DataLoader has a len() even where its data set has none
        return None


def _check_finite(tally: Tally, epoch: int) -> None:
    if tally.broken is not None:
        raise SecateurError(
            f"the loss is NaN or infinite in epoch {epoch + 1}, batch {tally.broken}",
            remedy="lower lr, set clip_norm, or look for NaN in the data; a state file holds the epoch before",
        )
