"""Recover a pruned network on a few samples without labels, by gradient steps towards features and outputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.certificates import fingerprints
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.batches import (
    Call,
    batch_size,
    calls,
    count_samples,
    eval_outputs,
    fitted_samples,
    forward,
    held_out_samples,
    hold_out,
    split,
    take,
)
from secateur.network.divergence import output_divergence
from secateur.network.modules import device_of, duplicate, mode, unwrap
from secateur.progress import bar
from secateur.surgery.cut import wrap_like
from secateur.surgery.plan import Plan
from secateur.training.augmentation import Augmentation, are_images, sound_augmentation, with_function
from secateur.training.averages import copies, put
from secateur.training.distillation import Teacher, check_outputs
from secateur.training.learning_rates import learning_rate
from secateur.training.settings import Training

Half = Literal["off", "bf16"]
Augment = Literal["auto", "none"] | Callable[[Tensor], Tensor]
STEPS, BATCH, RATE = 600, 64, 5e-3
FEWEST = 32  # samples
SMALL = 1e-3  # the least size that a tensor of weights counts as
LOOKS = 10  # evaluations on held-out samples
COPIES = 32  # of each sample, differently changed
SEEN = (
    "the held-out samples took part in pruning, which flatters the network as it was: pass at least "
    f"{FEWEST} that it has not used"
)
TEMPERATURE, FEATURES, DECAY = 4.0, 1.0, 0.0  # of class scores, weight of features, weight decay


@dataclass(frozen=True)
class RecoverSettings:
    """The settings of `recover` that a recipe has; an invalid value is a `UsageError` that names it."""

    steps: int = STEPS
    batch: int = BATCH
    lr: float = RATE
    minutes: float | None = None
    amp: Half = "off"

    def __post_init__(self) -> None:
        if self.amp not in get_args(Half):
            raise UsageError(f"amp is {self.amp!r}", remedy="use 'off' or 'bf16'")
        for name in ("steps", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name} is {value!r}", remedy="use a whole number from 1 up")
        for name in ("lr", "minutes"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
            if not number and (value is not None or name == "lr"):
                raise UsageError(f"{name} is {value!r}", remedy="use a number above 0")


@dataclass(frozen=True)
class Recovered:
    """The result of `recover`.

    Attributes:
        model: the recovered network; the given one is unchanged.
        before: output divergence from the original on held-out samples, before.
        after: the same afterwards; never larger.
        steps: gradient steps of the returned network; 0 if none brought it nearer.
        samples: number of samples for the gradient steps.
        held_out: number of samples that chose when to stop.
        seconds: the time of it all.
        losses: what was minimised.
        augmentation: how images were changed.
        notes: what a reader of the result should know.
    """

    model: nn.Module
    before: float
    after: float
    steps: int
    samples: int
    held_out: int
    seconds: float
    losses: tuple[str, ...]
    augmentation: str
    notes: tuple[str, ...] = ()

    def summary(self) -> str:
        """Return the result in a few lines."""
        lines = [
            f"Output divergence from the original on {self.held_out} held-out samples: {self.after:.3g}, before "
            f"{self.before:.3g}.",
            f"{self.steps} steps on {self.samples} samples without labels, {self.seconds / 60:.1f} minutes.",
            f"Augmentation: {self.augmentation}.",
        ]
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])


@known_keywords
def recover(
    small: nn.Module,
    model: nn.Module,
    data: Any,
    *,
    plan: Plan | None = None,
    samples: int | None = None,
    steps: int = STEPS,
    batch: int = BATCH,
    lr: float = RATE,
    minutes: float | None = None,
    augment: Augment = "auto",
    amp: Half = "off",
    to_inputs: Callable[[Any], Any] | None = None,
    memory: int = 1 << 29,
    seed: int = 0,
    progress: bool = False,
) -> Recovered:
    """Return the pruned network after gradient steps on a few samples without labels.

    >>> res = sc.prune(model, images, budget={"macs": "50%"})
    >>> found = sc.recover(res.model, model, images, plan=res.plan, minutes=10)
    >>> print(found.summary())

    The outputs are matched to the original's, and so are the features that enter the last layer, before they are
    pooled. Both networks are in evaluation mode, so the statistics of norms stay as they are. Some samples are held
    out, and the network that is nearest to the original on these samples is returned: by that measure it is never
    worse than before. If the data have at least 32 samples that pruning has not used, up to a quarter of all, these are
    held out: `sc.prune(model, images, budget, samples=400)` of 500 images leaves 100. Otherwise it is one sample in
    four, and a note says that the repair was fitted to them, which flatters the network as it was; where images may be
    augmented, the held-out ones are changed too, into images that no repair has seen.

    Args:
        small: the pruned network, repaired or not; it is left unchanged.
        model: the original network.
        data: samples as for `prune`, at least 32; labels are ignored.
        plan: how the network was cut, so that features without the removed channels can be matched.
        samples: the number of samples to use; all if not given.
        steps: gradient steps of AdamW, in one cycle of the learning rate.
        batch: samples in each step.
        lr: the largest learning rate, relative to the size of each weight tensor (its root mean square), so that one
            value suits networks with large and with small weights.
        minutes: the time after which it ends; the learning rate falls in time for that.
        augment: `"auto"` mirrors and shifts images if the original gives the same answers for them, and mixes pairs of
            them; `"none"` leaves them as they are; or a function of a batch of inputs, called in every step.
        amp: `"bf16"` takes the steps in bfloat16, in about half of the time where the processor has it in hardware;
            held-out samples are always judged in full precision.
        to_inputs: turns a batch into the input of the network: a tensor, a tuple of arguments or a dict of keywords.
        memory: bytes for outputs and features of the original, which runs once for each changed sample.
        seed: of the order and the augmentation.
        progress: show a progress bar on the standard error stream.
    """
    started = time.perf_counter()
    RecoverSettings(steps, batch, lr, minutes, amp)  # checks them
    settings = Training(
        epochs=1, optimizer="adam", lr=lr, temperature=TEMPERATURE, feature_weight=FEATURES, seed=seed, amp=amp
    )
    original, student = unwrap(model), duplicate(unwrap(small))
    teacher = Teacher(original, student, settings, plan, pooled=True, memory=memory)
    if not any(parameter.requires_grad for parameter in student.parameters()):
        raise UsageError("all parameters are frozen", layer=type(student).__name__, remedy="unfreeze some")
    batches = list(calls(data, to_inputs=to_inputs, samples=samples))
    if (found := count_samples(batches)) < FEWEST:
        raise SecateurError(f"{found} samples are too few", layer="data", remedy=f"pass at least {FEWEST}, better 500")
    unused = _unused(batches, frozenset(fingerprints.remembered(small)))
    parts = hold_out(batches, which=_held_out(unused))
    fitted = _mixed(fitted_samples(parts), batch, torch.Generator().manual_seed(seed))
    held = list(split(held_out_samples(parts)))
    changes = _augmentation(augment, original, held)
    if augment == "auto" and all(map(are_images, held)):
        held += [changes(call, torch.Generator().manual_seed(seed)) for call in held if changes.changes]
        changes = changes.mixing()  # the original answers for mixed images, too; they are not what users have
    with mode(original, False), mode(student, False):
        judge = Judge(original, student, held)
        limit = math.inf if minutes is None else 60 * minutes
        notes = _descend(teacher, fitted, changes, judge, steps, limit - (time.perf_counter() - started), progress)
    if unused.sum() < FEWEST:
        notes += (SEEN,)
    put(student, judge.best_weights)
    return Recovered(
        model=wrap_like(small, student),
        before=judge.before,
        after=judge.best,
        steps=judge.best_step,
        samples=count_samples(fitted),
        held_out=count_samples(held_out_samples(parts)),
        seconds=time.perf_counter() - started,
        losses=teacher.losses,
        augmentation=changes.about,
        notes=(*teacher.notes, *notes),
    )


def _unused(batches: Sequence[Call], used: frozenset[str]) -> Tensor:
    """Return for each sample whether pruning has not used it."""
    return torch.tensor([not used or one not in used for call in batches for one in fingerprints.of(call)])


def _held_out(unused: Tensor) -> Tensor | None:
    """Return which samples are held out: unused ones, up to a quarter of all; None if any will do, or they are few."""
    if unused.all() or unused.sum() < FEWEST:
        return None
    return unused & (unused.cumsum(0) <= max(FEWEST, len(unused) // 4))


class Judge:
    """Output divergence on held-out samples, and the weights that had the smallest."""

    def __init__(self, original: nn.Module, student: nn.Module, batches: Sequence[Call]) -> None:
        self.student, self.batches = student, batches
        self.wanted = [eval_outputs(original, batch) for batch in batches]
        check_outputs(eval_outputs(student, batches[0]), self.wanted[0])
        self.before = self.best = self.divergence()
        self.best_step = 0
        self.best_weights = copies(student)

    def divergence(self) -> float:
        """Return the mean divergence now."""
        total = 0.0
        for batch, wanted in zip(self.batches, self.wanted, strict=True):
            total += output_divergence(eval_outputs(self.student, batch), wanted) * batch_size(batch)
        return total / count_samples(self.batches)

    def look(self, step: int) -> None:
        """Remember the weights if they are the best so far."""
        if (found := self.divergence()) < self.best:
            self.best, self.best_step, self.best_weights = found, step, copies(self.student)


def _descend(
    teacher: Teacher,
    batches: Sequence[Call],
    changes: Augmentation,
    judge: Judge,
    steps: int,
    limit: float,
    progress: bool,
) -> tuple[str, ...]:
    """Take the gradient steps until they are done or the seconds are over; return notes."""
    student, settings, device = teacher.student, teacher.settings, device_of(teacher.student).type
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    sizes = [max(SMALL, float(parameter.detach().square().mean().sqrt())) for parameter in trained]
    optimizer = torch.optim.AdamW([{"params": [one]} for one in trained], settings.lr, weight_decay=DECAY)
    different = len(batches) * (COPIES if changes.changes else 1)
    began, looks, step, done = time.perf_counter(), 0, 0, 0.0
    with bar("recovering", steps, progress) as advance:
        while done < 1:
            entry = step % different
            call = changes(batches[entry % len(batches)], torch.Generator().manual_seed(settings.seed + entry))
            step += 1
            done = min(1.0, max(step / steps, (time.perf_counter() - began) / limit if limit > 0 else 1.0))
            for group, size in zip(optimizer.param_groups, sizes, strict=True):
                group["lr"] = size * learning_rate(settings, 0, done)
            with torch.autocast(device, torch.bfloat16, enabled=settings.amp == "bf16"):
                with teacher.watch(student) as seen:
                    forward(student, call)
                loss = teacher.loss(seen, key=entry if changes.repeatable else None)
            if not loss.isfinite():
                return (_not_finite(step, learning_rate(settings, 0, done), judge.best_step),)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            advance()
            if int(done * LOOKS) > looks:
                looks = int(done * LOOKS)
                judge.look(step)
    early = (f"the time was over after {step} of {steps} steps",) if step < steps else ()
    if judge.best_step:
        return early
    return (*early, "no step brought the output nearer to the original's on held-out samples: the network is as before")


def _not_finite(step: int, rate: float, best: int) -> str:
    """Return a note if the network is better than before; otherwise it is an error."""
    cause = f"the loss is NaN or infinite in step {step}, at a learning rate of {rate:.3g}"
    if not best:
        raise SecateurError(cause, remedy="lower lr, or look for NaN in the weights; the given network is unchanged")
    return f"{cause}; the network is that of step {best}"


def _augmentation(augment: Augment, original: nn.Module, held: Sequence[Call]) -> Augmentation:
    if callable(augment):
        return with_function(augment)
    if augment not in ("auto", "none"):
        raise UsageError(f"augment is {augment!r}", remedy="use 'auto', 'none', or a function of a batch of inputs")
    return sound_augmentation(original, held) if augment == "auto" else Augmentation((), "none, as asked")


def _mixed(samples: Sequence[Call], size: int, source: torch.Generator) -> list[Call]:
    """Return the samples in random batches of this size; in their own batches if their shapes differ."""
    sizes = [batch_size(call) for call in samples]

    def joined(*leaves: Any) -> Any:
        per_sample = all(isinstance(x, Tensor) and x.dim() and len(x) == n for x, n in zip(leaves, sizes, strict=True))
        return torch.cat(leaves) if per_sample else leaves[0]

    try:
        whole = pytree.tree_map(joined, *samples)
    except (RuntimeError, ValueError):  # samples of different shapes
        return list(split(samples, size))
    order = torch.randperm(sum(sizes), generator=source)
    return [take(whole, chosen) for chosen in order.split(size)]
