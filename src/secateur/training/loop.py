"""Training: one plain loop, for one process or several, that resumes after a kill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.modules import device_of, mode, unwrap
from secateur.network.processes import Process, check_agreement, copy_from_first, distributed, wait_for_all
from secateur.surgery.plan import Plan
from secateur.training import resume
from secateur.training.distillation import Teacher, weights_hash
from secateur.training.epochs import Diverged, Epochs
from secateur.training.evaluation import (
    Evaluation,
    RunningMeans,
    Step,
    check_batches,
    evaluate,
    in_batches,
)
from secateur.training.journal import Bar, Journal
from secateur.training.layout import own_layout, synchronised_norms
from secateur.training.learner import Learner
from secateur.training.learning_rates import learning_rate
from secateur.training.settings import Training

GROWTH = 100  # a loss that is so many times that of the first epoch diverges
OF_TEACHERS = ("temperature", "teacher_weight", "feature_weight")  # settings without a meaning otherwise

__all__ = ["Epoch", "Evaluation", "Training", "TrainingResult", "distributed", "evaluate", "learning_rate", "train"]


@dataclass(frozen=True)
class Epoch:
    """The record of one epoch."""

    epoch: int  # from 1
    lr: float  # of its last batch
    loss: float
    top1: float | None  # share of correct answers during training; None without classes
    validation: Evaluation | None
    seconds: float  # without the validation
    images_per_second: float

    @classmethod
    def of(cls, record: dict[str, Any]) -> Epoch:
        """Return the epoch of a record that `asdict` made."""
        validation = record["validation"]
        return cls(**{**record, "validation": validation and Evaluation(**validation)})


@dataclass(frozen=True)
class TrainingResult:
    """The epochs of a run, including those before an interruption.

    Attributes:
        epochs: their records.
        resumed: number of epochs from the state file.
        losses: what was minimised: the loss of the labels, those of the teacher.
        notes: what a reader of the result should know.
    """

    epochs: tuple[Epoch, ...]
    resumed: int
    losses: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def last(self) -> Epoch | None:
        """The last epoch, None without epochs."""
        return self.epochs[-1] if self.epochs else None

    @property
    def seconds(self) -> float:
        """The training time, without validation."""
        return sum(epoch.seconds for epoch in self.epochs)


@known_keywords
def train(
    model: nn.Module,
    batches: Any,
    settings: Training,
    *,
    validation: Any = None,
    step: Step | None = None,
    teacher: nn.Module | None = None,
    plan: Plan | None = None,
    log: str | Path | None = None,
    tensorboard: bool = False,
    state_path: str | Path | None = None,
    on_epoch: Callable[[Epoch], object] | None = None,
    progress: bool = False,
) -> TrainingResult:
    """Train a network in place.

    >>> settings = Training(epochs=40, lr=0.01, weight_decay=1e-4, milestones=(25, 35))
    >>> train(model, batches, settings, validation=held_out, state_path="run.state", progress=True).last.validation
    Evaluation(samples=6000, loss=0.031, top1=0.991, top5=1.0)

    Any other task needs one function that returns the mean loss of a batch, which is on the network's device:

    >>> def step(model, batch):
    ...     return my_loss(model(batch["image"], batch["scale"]), batch["target"])
    >>> train(model, loader, settings, step=step)

    A pruned network learns most from its original. It runs once for each batch; the batches need no labels then:

    >>> train(res.model, batches, Training(epochs=10), teacher=model, plan=res.plan)

    If the loss becomes NaN or infinite, that is an error, and the network has the weights of the last epoch again.

    Under torchrun each process passes its own part of the batches, equally many (see `distributed`). The result is that
    of one process with all of them, except that batch norms see only the part of their process, unless `sync_batchnorm`
    is set. Only the first process writes files and shows progress.

    Args:
        model: the network.
        batches: pairs (x, y) of tensors or numpy arrays, or whatever `step` takes: a list, a DataLoader, a
            `torch.utils.data.Dataset` of single samples (shuffled into batches of 64), or an object whose `epoch(k)`
            returns the batches of epoch k, counted from 0. Each epoch seeds the random numbers of torch, numpy and
            Python.
        settings: epochs, optimizer, learning rate and so on.
        validation: batches for `evaluate` after every epoch.
        step: `step(model, batch)` returns the mean loss of a batch, instead of the loss of the settings.
        teacher: a network with the same outputs, such as the original of a pruned network. Its class scores (KL
            divergence), other outputs (squared error) and features are matched; see `temperature`, `teacher_weight` and
            `feature_weight` of the settings. Batches may be x or (x,), without labels.
        plan: how the network was cut from the teacher, so that features without the removed channels can be matched.
        log: a file that gets a JSON line per epoch, or a folder for it.
        tensorboard: also write curves into the folder `log`.
        state_path: a file for the state, written after every epoch. If it exists, training resumes from it and ends bit
            for bit as if it had not been interrupted, on the same machine. Only the number of epochs may be increased,
            with `schedule="steps"`.
        on_epoch: called with each `Epoch` after its state is written; training stops if it returns True. Of several
            processes, the first one decides. A stopped run that is started again continues with the next epoch; one
            that was stopped by `patience` does not.
        progress: show a progress bar on the standard error stream.
    """
    inner = unwrap(model)
    device = device_of(inner)
    batches = in_batches(batches, shuffle=True)
    length = _length(batches)
    _check(inner, batches, length, settings, validated=validation is not None)
    taught = None if teacher is None else Teacher(unwrap(teacher), inner, settings, plan)
    path = Path(state_path) if state_path is not None else None
    with ExitStack() as stack:
        process = stack.enter_context(distributed())
        run = _identity(settings, length, process, taught)
        state = _resumed(path, inner, run, settings) if path else None
        records = list(state.epochs) if state else []
        check_agreement(
            {"batches per epoch": -1 if length is None else length, "epochs done": len(records)},
            device,
            "pass equally many batches in each process, and a state_path that all of them can read",
        )
        journal = Journal(Path(log) if log is not None and process.first else None, tensorboard and process.first)
        stack.callback(journal.close)
        journal.catch_up(records)
        stack.enter_context(mode(inner, True))
        if taught:
            stack.enter_context(mode(taught.model, False))
            stack.enter_context(own_layout(taught.model))
        stack.enter_context(own_layout(inner))
        stack.enter_context(synchronised_norms(inner, settings.sync_batchnorm))
        bar = stack.enter_context(Bar(progress and process.first, settings.epochs, len(records), length))
        epochs = Epochs(inner, batches, settings, step, taught, state, process)
        stack.callback(epochs.close)
        for epoch in range(len(records), settings.epochs):
            if _stalled(records, settings.patience):
                break
            learner, stream = epochs.begin(epoch)
            with epochs.keeping_good_weights():
                means, seconds = _one_epoch(learner, stream, epoch, length, bar)
                _check_growth(means.loss, records, learner.rate)
            copy_from_first(epochs.buffers())  # the statistics of batch norms differ between processes
            with epochs.result_in_place():
                found = None if validation is None else evaluate(inner, validation, loss=settings.loss, step=step)
            record = Epoch(
                epoch=epoch + 1,
                lr=learner.rate,
                loss=means.loss,
                top1=means.top1,
                validation=found,
                seconds=seconds,
                images_per_second=means.samples / seconds,
            )
            records.append(asdict(record))
            if process.first:
                if path:
                    resume.write(path, inner, learner.optimizer, learner.scaler, run, records, learner.average)
                journal.write(records[-1])
            with epochs.result_in_place():
                stopped = on_epoch and _first_says_true(on_epoch(record), device)
            if stopped:
                break
        epochs.finish(len(records))
        wait_for_all(device)  # the others may read the files that the first one writes
    return TrainingResult(
        tuple(map(Epoch.of, records)),
        resumed=len(state.epochs) if state else 0,
        losses=_losses(settings, step, taught),
        notes=taught.notes if taught else (),
    )


def _identity(settings: Training, length: int | None, process: Process, teacher: Teacher | None) -> dict[str, Any]:
    """Return everything that must be the same when a run resumes."""
    run: dict[str, Any] = {**asdict(settings), "batches": length, "processes": process.world}
    if settings.schedule == "steps":
        del run["epochs"]  # the learning rates of the first epochs do not depend on their number
    if teacher:
        return run | {"teacher": weights_hash(teacher.model)}
    return {name: value for name, value in run.items() if name not in OF_TEACHERS}


def _losses(settings: Training, step: Step | None, teacher: Teacher | None) -> tuple[str, ...]:
    """Return the names of what was minimised."""
    theirs = teacher.losses if teacher else ()
    if teacher and not teacher.labelled:
        return theirs
    own = (
        "the loss of the step"
        if step
        else "cross-entropy"
        if settings.loss == "cross-entropy"
        else "mean squared error"
    )
    return (own, *theirs)


def _stalled(records: Sequence[dict[str, Any]], patience: int | None) -> bool:
    """Return whether the best validation was at least `patience` epochs ago; a run that resumes finds the same."""
    if patience is None or not records:
        return False
    found = [record["validation"] for record in records]
    values = [-one["loss"] if one["top1"] is None else one["top1"] for one in found]
    return len(values) - 1 - values.index(max(values)) >= patience


def _first_says_true(answer: object, device: torch.device) -> bool:
    """Return whether the first process has the answer True, so that all stop together."""
    flag = torch.tensor(int(answer is True), device=device)
    copy_from_first([flag])
    return bool(flag)


def _check(model: nn.Module, batches: Any, length: int | None, settings: Training, *, validated: bool) -> None:
    """Refuse a network, batches and settings that do not go together."""
    check_batches(batches)
    if settings.patience is not None and not validated:
        raise UsageError("patience needs validation data", remedy="pass validation=, or set patience to None")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("all parameters are frozen", layer=type(model).__name__, remedy="unfreeze some")
    kind = device_of(model).type
    if settings.sync_batchnorm and kind != "cuda":
        raise UsageError(f"sync_batchnorm works on GPUs only, the network is on the {kind}", remedy="set it to False")
    if settings.warmup_epochs and length is None:
        raise UsageError("warmup_epochs needs batches with a len()", remedy="pass such batches, or set it to 0")


def _resumed(path: Path, model: nn.Module, run: dict[str, Any], settings: Training) -> resume.State | None:
    """Return the state of an interrupted run, after its weights are copied into the network; None without one."""
    resume.prepare(path, model)
    state = resume.read(path, run)
    if state:
        done = len(state.epochs)
        if done > settings.epochs:
            raise SecateurError(f"{path} has {done} epochs, epochs is {settings.epochs}", remedy=resume.AGAIN)
        state.fill_model(path, model)
    return state


def _one_epoch(
    learner: Learner, stream: Iterable[Any], epoch: int, length: int | None, bar: Bar
) -> tuple[Evaluation, float]:
    """Train on every batch once; return the means over all processes, and the seconds."""
    means = RunningMeans(learner.device)
    rates: list[float] = []
    started = time.perf_counter()
    for number, batch in enumerate(stream, 1):
        learner.set_rate(epoch, number / length if length else 0.5)
        rates.append(learner.rate)
        means.add(*learner.learn(batch))
        if bar.due():
            means.fetch()
            bar.show(epoch, number, means.loss, means.samples / (time.perf_counter() - started))
        _check_finite(means, epoch, rates)
    means.fetch()
    _check_finite(means, epoch, rates)
    seconds = time.perf_counter() - started
    bar.show(epoch, means.batches, means.loss, means.samples / seconds)
    return means.result(), seconds


def _length(batches: Any) -> int | None:
    """Return the number of batches in an epoch, None if it is not known."""
    try:
        return len(batches)
    except TypeError:  # a DataLoader has a len() even where its data set has none
        return None


def _check_growth(loss: float, records: Sequence[dict[str, Any]], rate: float) -> None:
    """Refuse a loss that is finite and yet diverges."""
    if records and loss > GROWTH * max(1.0, records[0]["loss"]):
        raise Diverged(
            f"the loss has grown from {records[0]['loss']:.3g} in the first epoch to {loss:.3g} in epoch "
            f"{len(records) + 1}, at a learning rate of {rate:.3g}; the weights are "
            f"those after epoch {len(records)} again",
            remedy="lower lr, or set clip_norm; a state file has the last epoch before",
        )


def _check_finite(means: RunningMeans, epoch: int, rates: Sequence[float]) -> None:
    if means.not_finite is not None:
        rate = rates[means.not_finite - 1]
        weights = f"those after epoch {epoch}" if epoch else "those from before the training"
        raise Diverged(
            f"the loss is NaN or infinite in epoch {epoch + 1}, batch {means.not_finite}, at a learning rate of "
            f"{rate:.3g}; the weights are {weights} again",
            remedy="lower lr, set clip_norm, or look for NaN in the data; a state file has the last finite epoch",
        )
