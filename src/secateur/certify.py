"""Certify a smaller network: statements with confidence 1 - delta from held-out points, and no unknown constant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur import fingerprints
from secateur.batches import Call, batch_size, calls, on_device_of, take
from secateur.certificate import Certificate, Statement
from secateur.errors import SecateurError, UsageError
from secateur.layer_errors import LayerErrors
from secateur.plan import Plan
from secateur.program import Example, call_arguments, first_line, mode, owner, unwrap
from secateur.statements import Sample

Task = Literal["classification", "regression"]
LABELS = ("y", "labels")
CHUNK = 16  # points whose layers are looked at together
COPIES = 0.01  # more than this part of the points that are copies of others is worth a note
T = TypeVar("T")


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
    plan: Plan | None = None,
    layers: bool = False,
    chosen_from: int = 1,
    used: str | Iterable[str] | None = None,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
) -> Certificate:
    """What held-out points say about a smaller network, each statement with confidence 1 - delta.

    >>> cert = sc.certify(model, small, [(images, labels)], delta=1e-3)
    >>> print(cert)
    >>> cert["drop"].bound

    heldout: a tensor (one batch) or an iterable of batches, with labels or without. Points drawn independently from
        what the network will meet in use, which neither calibration, training nor any choice has seen.
    eps: relative errors of the outputs; for each, how often it is exceeded at most.
    beta: the share of inputs that may exceed the smallest certified error.
    labels: True demands labels, False ignores them; otherwise they are used where there are any.
    task: `"classification"` where outputs are [points, classes], else `"regression"`.
    range: for regression, the largest change of an output that can be; without it nothing is said of means.
    plan: what was cut; needed for `layers`.
    layers: also certify every layer that reads a cut group (slow); these statements share one delta.
    chosen_from: how many networks the small one was chosen from on these very points; each gets its share of delta.
    used: fingerprints of the points that calibration or training saw, as `fingerprints.pack` wrote them or as a list;
        data with such a point is refused.
    example, to_inputs: as for `sensitivity`.
    """
    _check(delta=delta, eps=eps, beta=beta, task=task, range=range, chosen_from=chosen_from)
    if layers and plan is None:
        raise UsageError("layers=True needs the plan", remedy="give plan=, such as res.plan or read_plan(file)")
    known = frozenset(fingerprints.unpack(used) if isinstance(used, str) else used or ())
    original, small = unwrap(original), unwrap(small)
    errors = LayerErrors(original, small, plan) if layers and plan is not None else None
    seen = _Seen(task)
    with mode(original, False), mode(small, False), torch.no_grad():
        for batch, call in _pairs(heldout, example, to_inputs):
            seen.add_points(call, known)
            y = None if labels is False else _labels_of(batch, example)
            if y is None and labels:
                raise UsageError("a batch has no labels", layer="data", remedy="give batches (x, y), or labels=None")
            seen.add_outputs(*_outputs(original, small, call, errors), y)
    sample = Sample(seen.count(), delta, chosen_from)
    statements = list(seen.statements(sample, eps, beta, range))
    notes = seen.notes(range)
    if errors is not None:
        sharing = len(errors.plan.reads)
        for slot, found in errors.found.items():
            name = owner(slot.parameter)
            if slot in errors.left_out:
                notes.append(f"{name} is left out: {errors.left_out[slot]}")
            else:
                statements.append(sample.layer(name, found, beta, sharing))
    return Certificate(tuple(statements), sample.points, delta, chosen_from, tuple(notes))


def drop_certified(
    original: nn.Module, network: nn.Module, heldout: Any, *, drop: float, delta: float, **data: Any
) -> bool:
    """Whether held-out points with labels certify that accuracy drops by at most `drop`, with confidence 1 - delta.

    >>> drop_certified(model, small, [(images, labels)], drop=0.01, delta=1e-3)
    True

    data: `chosen_from`, `used`, `example` and `to_inputs`, as for `certify`.
    """
    if not -1 <= drop <= 1:
        raise UsageError(f"drop is {drop}", remedy="give the share of right answers that may be lost: 0.01 for 1 %")
    bound = certify(original, network, heldout, delta=delta, labels=True, task="classification", **data)["drop"].bound
    return bound is not None and bound <= drop


def fixed_sequence(candidates: Iterable[T], test: Callable[[T], bool]) -> T | None:
    """The last candidate that passes before the first that fails; None if already the first one fails.

    >>> fixed_sequence(networks, lambda net: drop_certified(model, net, heldout, drop=0.01, delta=1e-3))

    candidates: in an order fixed before the held-out points were looked at, as from the largest network to the
        smallest. Then each is tested at the full delta, and still the one returned is right with confidence 1 - delta:
        to return a wrong one, the first wrong one in the order must have passed its test.
    """
    last = None
    for candidate in candidates:
        if not test(candidate):
            break
        last = candidate
    return last


@dataclass
class _Seen:
    """What is known of every point so far."""

    task: Task | None
    prints: list[str] = field(default_factory=list)
    disagree: int = 0
    losses: int = 0
    gains: int = 0
    labelled: int = 0
    relative: list[float] = field(default_factory=list)  # of each point: the error of the outputs
    largest: list[float] = field(default_factory=list)  # the largest change of an output
    absolute: list[float] = field(default_factory=list)  # the mean change of an output
    squared: list[float] = field(default_factory=list)

    def add_points(self, call: Call, used: frozenset[str]) -> None:
        """Count the points of a batch, and refuse those that were used before."""
        prints = fingerprints.of(call)
        again = sum(one in used for one in prints)
        if again:
            raise SecateurError(
                f"{again} of the {len(prints)} points in a batch were used before, for calibration or training",
                layer="data",
                remedy="give points that nothing has seen, such as a part of the validation set kept for this alone",
            )
        self.prints += prints

    def add_outputs(self, f: Tensor, fhat: Tensor, y: Tensor | None) -> None:
        """Set the outputs for one batch beside each other, in double precision."""
        if f.shape != fhat.shape:
            raise SecateurError(
                f"the original gives shape {tuple(f.shape)}, the small network {tuple(fhat.shape)}",
                remedy="compare networks whose outputs are alike",
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
                f"outputs of shape {tuple(f.shape)} are no scores of classes", remedy="use task='regression'"
            )
        before, after = f.argmax(1), fhat.argmax(1)
        self.disagree += int((before != after).sum())
        if y is not None:
            y = _class_numbers(y, f)
            self.labelled += len(y)
            self.losses += int(((before == y) & (after != y)).sum())
            self.gains += int(((before != y) & (after == y)).sum())

    def count(self) -> int:
        """How many points there were; none, or labels for some of them only, are refused."""
        if not self.prints:
            raise SecateurError("there are no held-out points", layer="data", remedy="give at least one batch")
        if self.labelled not in (0, len(self.prints)):
            raise UsageError("only some batches have labels", layer="data", remedy="give all of them labels, or none")
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
                        remedy="give a range that no change can exceed, from what the outputs mean",
                    )
                yield sample.mean("mean change", self.absolute, range)
                yield sample.mean("mean squared change", self.squared, range**2)

    def notes(self, range: float | None) -> list[str]:
        notes, points = [], len(self.prints)
        if self.task == "regression" and range is None:
            notes.append(
                "nothing is said of mean changes: a rare one may be as large as it likes, unless range= is given"
            )
        again = points - len(set(self.prints))
        if again > COPIES * points:
            notes.append(
                f"{again:,} of {points:,} points are copies of others; right only if use repeats them as often"
            )
        return notes


def _check(
    *, delta: float, eps: Sequence[float], beta: float, task: str | None, range: float | None, chosen_from: int
) -> None:
    for name, value in (("delta", delta), ("beta", beta)):
        if not 0 < value < 1:
            raise UsageError(f"{name} is {value}", remedy=f"give {name} as a number between 0 and 1, both excluded")
    if not all(0 <= one < math.inf for one in eps):
        raise UsageError(f"eps is {list(eps)}", remedy="give relative errors from 0 on, like 0.1")
    if task not in (None, *get_args(Task)):
        raise UsageError(f"task is {task!r}", remedy=f"give {' or '.join(map(repr, get_args(Task)))}")
    if range is not None and not 0 < range < math.inf:
        raise UsageError(f"range is {range}", remedy="give the largest change of an output that can be")
    if chosen_from < 1:
        raise UsageError(f"chosen_from is {chosen_from}", remedy="give the number of networks, at least 1")


def _pairs(data: Any, example: Example | None, to_inputs: Callable[[Any], Any] | None) -> Iterator[tuple[Any, Call]]:
    """Every batch as it came, and as a call of the network."""
    whole = isinstance(data, Tensor | tuple | dict) or not isinstance(data, Iterable)
    taken = example.keys() if isinstance(example, Mapping) else ()
    for batch in [data] if whole else data:
        inputs = data if whole else [batch]
        if isinstance(batch, Mapping) and to_inputs is None:
            inputs = {name: value for name, value in batch.items() if name in taken or name not in LABELS}
        for call in calls(inputs, example=example, to_inputs=to_inputs):
            yield batch, call


def _labels_of(batch: Any, example: Example | None) -> Tensor | None:
    """What comes after the inputs in a batch, if it is a tensor."""
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
            f"labels of shape {tuple(y.shape)} and type {y.dtype} for {len(scores)} points are no class numbers",
            layer="data",
            remedy="give one whole number for each point, or labels=False",
        )
    y = y.cpu().long()
    if int(y.min()) < 0 or int(y.max()) >= scores.shape[1]:
        raise UsageError(
            f"labels run from {int(y.min())} to {int(y.max())}, the network has {scores.shape[1]} classes",
            layer="data",
            remedy="number the classes from 0 on, as the network does",
        )
    return y


def _outputs(original: nn.Module, small: nn.Module, call: Call, errors: LayerErrors | None) -> tuple[Tensor, Tensor]:
    """What both networks give, on the CPU in double precision; the errors of the layers on the way, if wanted."""
    size = batch_size(call)
    if errors is None:
        return _run(original, call), _run(small, call)
    parts = [take(call, slice(start, start + CHUNK)) for start in range(0, size, CHUNK)]
    pairs = [errors.run(part, _run) for part in parts]
    return torch.cat([f for f, _ in pairs]), torch.cat([fhat for _, fhat in pairs])


def _run(network: nn.Module, call: Call) -> Tensor:
    args, kwargs = on_device_of(network, call)
    name, points = type(network).__name__, batch_size(call)
    try:
        found = pytree.tree_leaves(network(*args, **kwargs))
    except Exception as error:
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]
        raise SecateurError(
            f"the network could not run on a batch of shape {shapes}: {first_line(error)}",
            layer=name,
            remedy="give batches of inputs as forward takes them; to_inputs= can turn yours into such",
        ) from error
    if len(found) != 1 or not isinstance(found[0], Tensor) or found[0].shape[:1] != (points,):
        raise SecateurError(
            f"{len(found)} outputs, or not one row for each of {points} points",
            layer=name,
            remedy="wrap the network so that it gives one tensor [points, ...]",
        )
    values = found[0].detach().cpu().double()
    if not torch.isfinite(values).all():
        raise SecateurError(
            "the output is NaN or infinite for a held-out point", layer=name, remedy="check the weights and the inputs"
        )
    return values
