"""Certify a smaller network: statements with confidence 1 - delta from held-out samples, without unknown constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.certificates import fingerprints
from secateur.certificates.certificate import Certificate, Statement
from secateur.certificates.images import Boxes, LabelMaps
from secateur.certificates.layer_errors import LayerErrors
from secateur.certificates.statements import Sample
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.network.batches import Call, as_batches, batch_size, calls, forward, split, whole_calls
from secateur.network.examples import Example, call_arguments
from secateur.network.footprint import split_to_fit
from secateur.network.modules import mode, owner, unwrap
from secateur.network.outputs import without_outputs
from secateur.surgery.cut import free_outputs_of
from secateur.surgery.plan import Plan

Task = Literal["classification", "regression", "segmentation", "detection"]
LABELS = ("y", "labels")
CHUNK = 16  # samples whose layers are compared together
DUPLICATES = 0.01  # a larger share of duplicates among the samples is noted
T = TypeVar("T")


@known_keywords
def certify(
    original: nn.Module,
    small: nn.Module,
    heldout: Any,
    *,
    delta: float = 1e-3,
    eps: Sequence[float] = (),
    beta: float = 0.05,
    labels: bool | None = None,
    task: Task | None = None,
    range: float | None = None,
    threshold: float = 0.5,
    plan: Plan | None = None,
    layers: bool = False,
    chosen_from: int = 1,
    used: str | Iterable[str] | None = None,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
) -> Certificate:
    """Return statements about a smaller network from held-out samples, each with confidence 1 - delta.

    >>> cert = sc.certify(model, small, [(images, labels)], delta=1e-3)
    >>> print(cert)
    >>> cert["drop"].bound

    Args:
        original: the original network.
        small: the smaller network.
        heldout: a tensor (one batch) or an iterable of batches, with or without labels. The samples must be drawn
            independently from the distribution of inputs in use, and not used for calibration, training or any choice.
        delta: probability that a statement is false.
        eps: relative errors of the outputs; for each, the rate at which it is exceeded is bounded.
        beta: share of inputs that may exceed the smallest certified error.
        labels: True requires labels, False ignores them; by default they are used where there are any.
        task: by default `"classification"` if the outputs are [samples, classes], else `"regression"`. For
            `"segmentation"` the first output is a map of class scores, and the labels are maps of classes. For
            `"detection"` the outputs are a list with a dict of boxes, labels and scores for each image, and a batch may
            be `(list of images, targets)`.
        range: for regression, the largest possible change of an output; without it there is no bound on means.
        threshold: for detection, the score from which a detection counts.
        plan: the plan that `small` was cut by; needed for `layers`.
        layers: also certify every layer that consumes a cut group (slow); these statements share one delta.
        chosen_from: number of networks that `small` was chosen from on these samples; each gets its share of delta.
        used: fingerprints of the samples that calibration or training used, from `fingerprints.pack` or as a list;
            data with such a sample is refused.
        example: arguments of the network, if it takes more than one.
        to_inputs: turns a batch into the arguments of the network.
    """
    _check(delta=delta, eps=eps, beta=beta, task=task, range=range, chosen_from=chosen_from)
    if task in ("segmentation", "detection") and (eps or layers or range is not None):
        raise UsageError(f"eps, range and layers are not for {task}", remedy="leave them out")
    if layers and plan is None:
        raise UsageError("layers=True needs the plan", remedy="pass plan=, such as res.plan or read_plan(file)")
    known = frozenset(fingerprints.unpack(used) if isinstance(used, str) else used or ())
    free = plan.free_outputs if plan is not None else free_outputs_of(small)
    original, small = (without_outputs(unwrap(network), free) for network in (original, small))
    if task in ("segmentation", "detection"):
        kind: LabelMaps | Boxes = LabelMaps() if task == "segmentation" else Boxes(threshold)
        with mode(original, False), mode(small, False), torch.no_grad():
            prints = _compare_images(original, small, heldout, kind, labels, known, example, to_inputs)
        sample = Sample(len(prints), delta, chosen_from)
        notes = _copies(prints)
        return Certificate(tuple(kind.statements(sample)), sample.samples, delta, chosen_from, tuple(notes))
    errors = LayerErrors(original, small, plan) if layers and plan is not None else None
    compared = _Comparison(task)
    with mode(original, False), mode(small, False), torch.no_grad():
        for batch, call in _pairs(heldout, example, to_inputs):
            compared.add_samples(call, known)
            y = None if labels is False else _labels_of(batch, example)
            if y is None and labels:
                raise UsageError("a batch has no labels", layer="data", remedy="pass batches (x, y), or labels=None")
            compared.add_outputs(*_outputs(original, small, call, errors), y)
    sample = Sample(compared.count(), delta, chosen_from)
    statements = list(compared.statements(sample, eps, beta, range))
    notes = compared.notes(range)
    if errors is not None:
        sharing = len(errors.plan.consumes)
        for slot, found in errors.found.items():
            name = owner(slot.parameter)
            if slot in errors.left_out:
                notes.append(f"{name} is left out: {errors.left_out[slot]}")
            else:
                statements.append(sample.layer(name, found, beta, sharing))
    return Certificate(tuple(statements), sample.samples, delta, chosen_from, tuple(notes))


def drop_certified(
    original: nn.Module, network: nn.Module, heldout: Any, *, drop: float, delta: float, **data: Any
) -> bool:
    """Return whether held-out samples with labels certify a drop in accuracy of at most `drop`.

    >>> drop_certified(model, small, [(images, labels)], drop=0.01, delta=1e-3)
    True

    Args:
        drop: share of correct answers that may be lost.
        delta: probability that a certified statement is false.
        data: `chosen_from`, `used`, `example` and `to_inputs`, as for `certify`.
    """
    if not -1 <= drop <= 1:
        raise UsageError(f"drop is {drop}", remedy="pass the share of correct answers that may be lost: 0.01 for 1 %")
    bound = certify(original, network, heldout, delta=delta, labels=True, task="classification", **data)["drop"].bound
    return bound is not None and bound <= drop


def fixed_sequence(candidates: Iterable[T], test: Callable[[T], bool]) -> T | None:
    """Return the last candidate that passes before the first one that fails; None if the first one fails.

    >>> fixed_sequence(networks, lambda net: drop_certified(model, net, heldout, drop=0.01, delta=1e-3))

    Each candidate is tested at the full delta, and the result is still correct with confidence 1 - delta: to return a
    wrong candidate, the first wrong one in the order must have passed its test.

    Args:
        candidates: in an order that was fixed without the held-out samples, such as from the largest network to the
            smallest.
        test: whether a candidate passes.
    """
    last = None
    for candidate in candidates:
        if not test(candidate):
            break
        last = candidate
    return last


@dataclass
class _Comparison:
    """The outputs of two networks compared, sample by sample."""

    task: Task | None
    prints: list[str] = field(default_factory=list)
    disagree: int = 0
    losses: int = 0
    gains: int = 0
    labelled: int = 0
    relative: list[float] = field(default_factory=list)  # relative error of the outputs of each sample
    largest: list[float] = field(default_factory=list)  # largest change of an output
    absolute: list[float] = field(default_factory=list)  # mean change of an output
    squared: list[float] = field(default_factory=list)

    def add_samples(self, call: Call, used: frozenset[str]) -> None:
        """Count the samples of a batch; samples that were used before are refused."""
        self.prints += _new_prints(call, used)

    def add_outputs(self, f: Tensor, fhat: Tensor, y: Tensor | None) -> None:
        """Compare the outputs for one batch."""
        if f.shape != fhat.shape:
            raise SecateurError(
                f"the outputs of the original have shape {tuple(f.shape)}, those of the small network "
                f"{tuple(fhat.shape)}",
                remedy="compare networks with equal output shapes",
            )
        classes = f.dim() == 2 and f.shape[1] > 1
        self.task = self.task or ("classification" if classes else "regression")
        change = (fhat - f).flatten(1)
        gap = change.norm(dim=1)
        self.relative += torch.where(gap > 0, gap / f.flatten(1).norm(dim=1), 0.0).tolist()
        if self.task == "regression":
            self.largest += change.abs().amax(1).tolist()
            self.absolute += change.abs().mean(1).tolist()
            self.squared += change.square().mean(1).tolist()
            return
        if not classes:
            raise UsageError(
                f"expected class scores [samples, classes], got outputs of shape {tuple(f.shape)}",
                remedy="use task='regression'",
            )
        before, after = f.argmax(1), fhat.argmax(1)
        self.disagree += int((before != after).sum())
        if y is not None:
            y = _class_numbers(y, f)
            self.labelled += len(y)
            self.losses += int(((before == y) & (after != y)).sum())
            self.gains += int(((before != y) & (after == y)).sum())

    def count(self) -> int:
        """Return the number of samples; no samples, or labels for only some of them, are refused."""
        if not self.prints:
            raise SecateurError("there are no held-out samples", layer="data", remedy="pass at least one batch")
        if self.labelled not in (0, len(self.prints)):
            raise UsageError("only some batches have labels", layer="data", remedy="label all batches, or none")
        return len(self.prints)

    def statements(self, sample: Sample, eps: Sequence[float], beta: float, range: float | None) -> Iterator[Statement]:
        if self.task == "classification":
            yield sample.disagreement(self.disagree)
            if self.labelled:
                yield sample.drop(self.losses, self.gains)
        for one in eps:
            yield sample.error_above(one, self.relative)
        yield sample.error(self.relative, beta)
        if self.task == "regression":
            yield sample.change(self.largest, beta)
            if range is not None:
                if max(self.largest) > range:
                    raise UsageError(
                        f"an output changed by {max(self.largest):.4g}, more than range={range:g}",
                        remedy="pass a range that no change of an output can exceed",
                    )
                yield sample.mean("mean change", self.absolute, range)
                yield sample.mean("mean squared change", self.squared, range**2)

    def notes(self, range: float | None) -> list[str]:
        notes = []
        if self.task == "regression" and range is None:
            notes.append("there is no bound on mean changes without range=, since a rare change may have any size")
        return notes + _copies(self.prints)


def _copies(prints: Sequence[str]) -> list[str]:
    """Return a note if many samples are copies of others."""
    samples, again = len(prints), len(prints) - len(set(prints))
    if again <= DUPLICATES * samples:
        return []
    return [f"{again:,} of {samples:,} samples are copies of others; valid only if inputs in use repeat as often"]


def _new_prints(call: Call, used: frozenset[str]) -> list[str]:
    """Return the fingerprints of the samples of a batch; samples that were used before are refused."""
    prints = fingerprints.of(call)
    again = sum(one in used for one in prints)
    if again:
        raise SecateurError(
            f"{again} of the {len(prints)} samples in a batch were used before, for calibration or training",
            layer="data",
            remedy="pass samples that nothing has used, such as a part of the validation set reserved for this",
        )
    return prints


def _compare_images(
    original: nn.Module,
    small: nn.Module,
    heldout: Any,
    kind: LabelMaps | Boxes,
    labels: bool | None,
    known: frozenset[str],
    example: Example | None,
    to_inputs: Callable[[Any], Any] | None,
) -> list[str]:
    """Compare the outputs of both networks image by image, and return the fingerprints of the images."""
    prints = list[str]()
    for batch in as_batches(heldout):
        y = None if labels is False or isinstance(kind, Boxes) else _labels_of(batch, example)
        if y is None and labels and isinstance(kind, LabelMaps):
            raise UsageError("a batch has no labels", layer="data", remedy="pass batches (x, y), or labels=None")
        inputs = _without_labels(batch, example) if to_inputs is None else batch
        for call in whole_calls([inputs], example, to_inputs):
            prints += _new_prints(call, known)
            kind.add(forward(small, call), forward(original, call), y, type(original).__name__)
    if not prints:
        raise SecateurError("there are no held-out samples", layer="data", remedy="pass at least one batch")
    if isinstance(kind, LabelMaps) and len(kind.before) not in (0, len(prints)):
        raise UsageError("only some batches have labels", layer="data", remedy="label all batches, or none")
    return prints


def _without_labels(batch: Any, example: Example | None) -> Any:
    """Return a dict without its labels, unless the network takes them; any other batch as it is."""
    taken = example.keys() if isinstance(example, Mapping) else ()
    if not isinstance(batch, Mapping):
        return batch
    return {name: value for name, value in batch.items() if name in taken or name not in LABELS}


def _check(
    *, delta: float, eps: Sequence[float], beta: float, task: str | None, range: float | None, chosen_from: int
) -> None:
    for name, value in (("delta", delta), ("beta", beta)):
        if not 0 < value < 1:
            raise UsageError(f"{name} is {value}", remedy="pass a number between 0 and 1, both excluded")
    if not all(0 <= one < math.inf for one in eps):
        raise UsageError(f"eps is {list(eps)}", remedy="pass relative errors from 0 up, such as 0.1")
    if task not in (None, *get_args(Task)):
        raise UsageError(f"task is {task!r}", remedy=f"pass {' or '.join(map(repr, get_args(Task)))}")
    if range is not None and not 0 < range < math.inf:
        raise UsageError(f"range is {range}", remedy="pass the largest possible change of an output")
    if chosen_from < 1:
        raise UsageError(f"chosen_from is {chosen_from}", remedy="pass the number of networks, at least 1")


def _pairs(data: Any, example: Example | None, to_inputs: Callable[[Any], Any] | None) -> Iterator[tuple[Any, Call]]:
    """Yield every batch as it is, and as a call of the network."""
    single = isinstance(data, Tensor | np.ndarray | tuple | dict)
    for batch in as_batches(data):
        inputs = batch if single else [batch]
        if isinstance(batch, Mapping) and to_inputs is None:
            inputs = _without_labels(batch, example)
        for call in calls(inputs, example=example, to_inputs=to_inputs):
            yield batch, call


def _labels_of(batch: Any, example: Example | None) -> Tensor | None:
    """Return the labels of a batch: the tensor after the inputs, or named `y` or `labels`."""
    if isinstance(batch, Mapping):
        taken = example.keys() if isinstance(example, Mapping) else ()
        y = next((batch[name] for name in LABELS if name in batch and name not in taken), None)
    else:
        inputs = len(call_arguments(example)[0]) if example is not None else 1
        y = batch[inputs] if isinstance(batch, tuple | list) and len(batch) > inputs else None
    return y if isinstance(y, Tensor) else None


def _class_numbers(y: Tensor, scores: Tensor) -> Tensor:
    if y.shape != scores.shape[:1] or y.is_floating_point() or y.is_complex():
        raise UsageError(
            f"expected {len(scores)} class numbers, got labels of shape {tuple(y.shape)} and type {y.dtype}",
            layer="data",
            remedy="pass one integer for each sample, or labels=False",
        )
    y = y.cpu().long()
    if int(y.min()) < 0 or int(y.max()) >= scores.shape[1]:
        raise UsageError(
            f"labels run from {int(y.min())} to {int(y.max())}, the network has {scores.shape[1]} classes",
            layer="data",
            remedy="number the classes from 0 up, as the network does",
        )
    return y


def _outputs(original: nn.Module, small: nn.Module, call: Call, errors: LayerErrors | None) -> tuple[Tensor, Tensor]:
    """Return the outputs of both networks; with `errors`, the layers are compared on the way."""
    if errors is None:
        pairs = [(_run(original, part), _run(small, part)) for part in split_to_fit(original, [call])]
    else:
        pairs = [errors.run(part, _run) for part in split([call], CHUNK)]
    outputs, small_outputs = zip(*pairs, strict=True)
    return torch.cat(outputs), torch.cat(small_outputs)


def _run(network: nn.Module, call: Call) -> Tensor:
    """Return the output of a network on the CPU in double precision."""
    found = [leaf for leaf in pytree.tree_leaves(forward(network, call)) if leaf is not None]
    name, samples = type(network).__name__, batch_size(call)
    if len(found) != 1 or not isinstance(found[0], Tensor) or found[0].shape[:1] != (samples,):
        raise SecateurError(
            f"expected one output with a row for each of {samples} samples, got {len(found)} outputs"
            + (f" of shape {tuple(found[0].shape)}" if len(found) == 1 and isinstance(found[0], Tensor) else ""),
            layer=name,
            remedy="wrap the network so that it returns one tensor [samples, ...]; for label maps and boxes use "
            "task='segmentation' or 'detection'",
        )
    values = found[0].detach().cpu().double()
    if not torch.isfinite(values).all():
        raise SecateurError(
            "the output for a held-out sample is NaN or infinite", layer=name, remedy="check the weights and the inputs"
        )
    return values
