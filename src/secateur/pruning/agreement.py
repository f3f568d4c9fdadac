"""What to expect of a pruned network: its agreement with the original on samples that pruning has not used."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur.certificates import fingerprints
from secateur.certificates.bounds import clopper_pearson
from secateur.network.batches import BATCH, batch_size, eval_outputs, take
from secateur.network.divergence import are_class_scores, output_divergence
from secateur.network.footprint import batch_that_fits
from secateur.network.modules import unwrap
from secateur.pruning.pool import Pair

UNUSED = 256  # samples, at most, that pruning sets aside to measure agreement on
LOW = 0.9  # agreement below it comes with a warning
MORE = 'more calibration samples (samples=), recovery (effort="thorough", sc.recover) or retraining'
COLLAPSED = 0.5  # and below this, with the remark that the budget is out of reach
WARNINGS = ("the network has collapsed", "low agreement")  # how the notes on low agreement begin
TAIL = 0.025  # on each side of the 95% interval


@dataclass(frozen=True)
class Agreement:
    """How near the smaller network is to the original, on samples that no fit and no measurement has used.

    Attributes:
        samples: number of such samples; 0 if the data had none left.
        same: number of them for which both networks answer with the same class; None unless the output is class scores.
        low, high: Clopper-Pearson interval of the share of such answers, with 95% confidence; None as for `same`.
        pixels: share of pixels with the same class, for maps of scores; None for other outputs.
        divergence: output divergence from the original; NaN without samples.
        original_accuracy, accuracy: of the original and of the smaller network; None without labels.
        left_out: number of further samples for which the original's own output is NaN.
    """

    samples: int
    divergence: float
    same: int | None = None
    low: float | None = None
    high: float | None = None
    original_accuracy: float | None = None
    accuracy: float | None = None
    left_out: int = 0
    pixels: float | None = None

    @property
    def share(self) -> float | None:
        """The share of samples with the same answer, or of pixels with the same class."""
        return self.pixels if self.same is None else self.same / self.samples

    def __str__(self) -> str:
        if not self.samples:
            cause = "no unused samples were left"
            if self.left_out:
                cause = "the original's own output is NaN for each unused sample"
            return (
                f"Expect: unknown, since {cause}; pass more data or a smaller samples= to see how often the smaller "
                "network gives the original's answer."
            )
        answer, accuracy = "", ""
        if self.share is not None and self.low is not None and self.high is not None:
            interval = f"{100 * self.low:.1f} to {100 * self.high:.1f}"
            answer = f"the smaller network gives the original's answer for {self.share:.1%} (95% interval {interval}); "
        if self.pixels is not None:
            answer = f"the smaller network gives the original's class for {self.pixels:.1%} of the pixels; "
        if self.accuracy is not None:
            accuracy = f", accuracy {self.accuracy:.1%}, of the original {self.original_accuracy:.1%}"
        return (
            f"Expect: on {self.samples:,} samples that pruning has not used, {answer}output divergence "
            f"{self.divergence:.2g}{accuracy}."
        )

    @property
    def _counted(self) -> str:
        return "samples" if self.pixels is None else "pixels"

    def notes(self, *, repaired: bool, failed: bool = False) -> tuple[str, ...]:
        """Return a warning if the agreement is low, or that the network has collapsed, and which samples were left out.

        Args:
            repaired: whether the smaller network was repaired.
            failed: whether a repair was tried and failed, for a reason that another note gives.
        """
        notes = []
        found = (
            f"the smaller network gives the original's answer for only {self.share or 0:.1%} of unused {self._counted}"
        )
        if self.share is not None and self.share < COLLAPSED:
            repair = "without the repair, which failed, or " if failed else "without a repair (repair=True) or "
            notes.append(
                f"{WARNINGS[0]}: {found}; this budget is out of reach {'' if repaired else repair}without "
                f"training the network further: choose a milder one, or try {MORE}"
            )
        elif self.share is not None and self.share < LOW:
            repair = "the repair, which failed, " if failed else "repair=True, "
            notes.append(f"{WARNINGS[1]}: {found}; {'' if repaired else repair}a milder budget, {MORE} helps")
        if self.left_out:
            notes.append(f"{self.left_out:,} unused samples were left out: the original's own output for them is NaN")
        return tuple(notes)


def measure(original: nn.Module, small: nn.Module, pairs: Sequence[Pair], used: Collection[str] = ()) -> Agreement:
    """Return the agreement of two networks on batches with their labels, in evaluation mode and without gradients.

    Args:
        pairs: batches and their labels, None where there are none.
        used: fingerprints of samples that pruning has used; they are left out.

    A sample for which the original's output is NaN is left out and counted. One for which only the smaller network's
    is NaN has another answer.
    """
    original, small = unwrap(original), unwrap(small)
    samples = same = right = original_right = left_out = 0
    divergence, are_scores, labelled = 0.0, True, True
    pixels: float | None = None  # of maps of scores: the sum over samples of the share with the same class
    size = batch_that_fits(original, pairs[0][0]) if pairs else BATCH
    for call, labels in _parts(pairs, frozenset(used), size):
        wanted = eval_outputs(original, call)
        size = batch_size(call)
        answered = _answered(wanted, size)
        if not answered.all():
            left_out += int((~answered).sum())
            chosen = answered.nonzero()[:, 0]
            call, wanted = take(call, chosen), [_rows(one, chosen, size) for one in wanted]
            labels = None if labels is None else labels[chosen.to(labels.device)]
            if not (size := len(chosen)):
                continue
        found = eval_outputs(small, call)
        divergence += output_divergence(found, wanted) * size
        samples += size
        if wanted and are_class_scores(wanted[0]) and len(wanted[0]) > size:  # rows of a map, one for each pixel
            same_class = wanted[0].argmax(1) == found[0].argmax(1)
            pixels = (pixels or 0.0) + float(same_class.double().mean()) * size
            are_scores = labelled = False
            continue
        are_scores &= len(wanted) == 1 and are_class_scores(wanted[0])
        labelled &= are_scores and labels is not None and _are_classes(labels, wanted[0].shape[1])
        if are_scores:
            old, new = wanted[0].argmax(1).cpu(), found[0].argmax(1).cpu()
            new[~_answered(found, size)] = -1
            same += int((old == new).sum())
            if labelled and labels is not None:
                original_right += int((old == labels.cpu()).sum())
                right += int((new == labels.cpu()).sum())
    if not samples:
        return Agreement(samples=0, divergence=math.nan, left_out=left_out)
    labelled &= are_scores
    return Agreement(
        samples=samples,
        divergence=divergence / samples,
        same=same if are_scores else None,
        low=1.0 - clopper_pearson(samples - same, samples, TAIL) if are_scores else None,
        high=clopper_pearson(same, samples, TAIL) if are_scores else None,
        original_accuracy=original_right / samples if labelled else None,
        accuracy=right / samples if labelled else None,
        left_out=left_out,
        pixels=None if pixels is None else pixels / samples,
    )


def _parts(pairs: Sequence[Pair], used: Collection[str], size: int) -> Iterator[Pair]:
    """Return the samples that have not been used, in batches of at most this size."""
    for call, labels in pairs:
        new = [i for i, one in enumerate(fingerprints.of(call)) if one not in used]
        for which in torch.tensor(new, dtype=torch.long).split(size):
            if len(which):
                yield take(call, which), None if labels is None else labels[which.to(labels.device)]


def _answered(outputs: Sequence[Tensor], size: int) -> Tensor:
    """Return for which samples of a batch no output is NaN."""
    fine = torch.ones(size, dtype=torch.bool)
    for one in outputs:
        if one.dim() and len(one) == size:
            fine &= ~one.isnan().reshape(size, -1).any(1).cpu()
    return fine


def _rows(output: Tensor, chosen: Tensor, size: int) -> Tensor:
    return output[chosen.to(output.device)] if output.dim() and len(output) == size else output


def _are_classes(labels: Tensor, classes: int) -> bool:
    whole = labels.dim() == 1 and not labels.is_floating_point()
    return whole and 0 <= int(labels.min()) <= int(labels.max()) < classes
