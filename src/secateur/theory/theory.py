"""What theory alone guarantees about a network that the paper's method has cut, beside the certified error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.certificates.bounds import excess, order_statistic, samples_for_order_statistic
from secateur.certificates.certify import certify
from secateur.channels.graph import ChannelGraph
from secateur.channels.program import Program, export
from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.methods.pfp.bounds import expected_unique, sample_complexity
from secateur.methods.pfp.sensitivity import Sensitivity, measure
from secateur.network.batches import Call, calls, no_data, split
from secateur.network.examples import Example, revive
from secateur.network.modules import mode, owner, unwrap
from secateur.surgery.plan import Plan
from secateur.theory.conditions import condition_numbers, layer_order
from secateur.theory.propagation import propagate
from secateur.theory.statement import LayerTheory, Theory
from secateur.theory.theorem import allowed_errors, network_error
from secateur.tracing.trace import trace

USUAL = 0.95  # quantile of the condition numbers on the first half of the samples; the second half corrects it


@dataclass(frozen=True)
class Cut:
    """A cut by the paper's method: what each group's size guarantees."""

    plan: Plan
    eps: Mapping[str, float]  # error of the sums over each cut group, relative to z+ + z-
    delta: float
    C: float
    used: str | None  # fingerprints of the calibration samples

    @classmethod
    def of(cls, result: Any, plan: Plan | None = None) -> Cut:
        """Return the cut of a `Pruned`, or of the information in a file together with its plan."""
        info: Mapping[str, Any] = result if isinstance(result, Mapping) else result.info
        plan = plan if plan is not None else result.plan
        if info.get("method") != "pfp" or info.get("sensitivity", "max") != "max":
            raise UsageError(
                f"the network was cut by {info.get('method')}, which guarantees nothing before the cut",
                remedy='prune with method="pfp" and sensitivity="max"; a certificate is for every method',
            )
        if info.get("repair") is not None:
            raise UsageError(
                "the network was repaired: its weights are no longer those that the guarantee is about",
                remedy="prune with repair=False; a certificate is for repaired networks too",
            )
        column = "dropped" if info["select"] == "derand" else "eps"
        cut = {group.name for group in plan.groups}
        found = {row["name"]: math.inf if row[column] is None else row[column] for row in info["groups"]}
        used = info.get("fingerprints")
        return cls(plan, {name: found[name] for name in cut}, info["delta"], info["C"], used)


@known_keywords
def theory(
    original: nn.Module,
    result: Any,
    heldout: Any,
    *,
    eps: float = 0.5,
    beta: float = 0.05,
    delta: float = 1e-3,
    small: nn.Module | None = None,
    plan: Plan | None = None,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
) -> Theory:
    """Return what theory alone says about a network cut by the paper's method, and the certified error beside it.

    >>> res = sc.prune(model, images, budget={"params": "50%"}, method="pfp", select="rand")
    >>> print(sc.theory(model, res, heldout))

    There are three statements about the relative error of the output. The main theorem multiplies the condition numbers
    of all layers. The propagated bound follows entrywise errors through the exported program, for any architecture. The
    certificate needs neither: it compares the two networks on held-out samples, and is what to rely on.

    The first two rest on the guarantee of every layer, which holds with probability 1 - `delta` of the pruning over its
    random choice (with `derand`: for inputs whose shares exceed the sensitivities by no more than C), also for inputs
    that earlier cuts have moved.

    Args:
        original: the network before the cut.
        result: the `Pruned` that `prune` returned, or the information of a saved file, with `small` and `plan`.
        heldout: samples that neither training nor calibration has used.
        eps: error of the network for which the theorem's group sizes are computed.
        beta: share of inputs that may break the statements about fresh inputs.
        delta: probability that such a statement is false.
        small: the cut network; by default that of the result.
        plan: the plan of the cut; by default that of the result.
        example: arguments of the network, if it takes more than one.
        to_inputs: turns a batch into the arguments of the network.
    """
    cut, inner = Cut.of(result, plan), unwrap(original)
    example = revive(cut.plan.example, like=inner) if example is None else example
    graph = trace(inner, example, output=cut.plan.output, prune_inputs=bool(cut.plan.selects))
    program = export(inner, example)
    heldout = list(heldout) if isinstance(heldout, Iterator) else heldout
    batches = list(calls(heldout, example=example, to_inputs=to_inputs))
    single = list(split(batches, 1))
    if not single:
        raise no_data()
    notes: list[str] = []
    feeding = _feeding(graph, cut)
    layers = [_row(graph, cut, weight, names) for weight, names in feeding.items()]
    errors = {weight: sum(cut.eps[name] for name in names) for weight, names in feeding.items()}
    with mode(inner, False):
        conditions = _measured(program, single, notes)
        found = measure(inner, graph, batches)
        propagated, unchanged = _propagated(program, single, errors, beta, delta, notes)
    largest = usual = None
    if conditions is not None:
        order = layer_order(program)
        table = np.array([[one[name] for name in order] for one in conditions])
        own = [errors.get(name, 0.0) for name in order]
        largest = table.max(0)
        usual = _usual(table, beta, delta, notes)
        layers = _with_sizes(layers, order, largest, usual, found, feeding, cut, eps)
    network = small if small is not None else result.model
    certificate = certify(
        original,
        network,
        heldout,
        delta=delta,
        beta=beta,
        labels=False,
        used=cut.used,
        example=example,
        to_inputs=to_inputs,
    )
    return Theory(
        layers=tuple(layers),
        eps=eps,
        theorem_largest=None if largest is None else network_error(own, largest.tolist()),
        theorem_usual=None if usual is None else network_error(own, usual.tolist()),
        propagated=propagated,
        unchanged=unchanged,
        certified=certificate["error"].bound,
        samples=len(single),
        beta=beta,
        delta=delta,
        notes=tuple(notes),
    )


def measured_conditions(model: nn.Module, batches: Sequence[Call], example: Example) -> dict[str, float]:
    """Return for each layer of a chain the 95% quantile, over samples, of its largest condition number at a sample."""
    program = export(model, example)
    with mode(model, False):
        each = [condition_numbers(program, _inputs(call)) for call in split(batches, 1)]
    return {name: float(np.quantile([one[name] for one in each], USUAL, method="higher")) for name in each[0]}


def _feeding(graph: ChannelGraph, cut: Cut) -> dict[str, list[str]]:
    """Return for the weight of each layer with cut inputs the groups that it consumes."""
    found: dict[str, list[str]] = {}
    for name in sorted(cut.eps):
        for slot in graph[name].consumes:
            found.setdefault(slot.parameter, []).append(name)
    return found


def _row(graph: ChannelGraph, cut: Cut, weight: str, names: Sequence[str]) -> LayerTheory:
    kept = {group.name: len(group.kept) for group in cut.plan.groups}
    return LayerTheory(
        layer=owner(weight),
        group=", ".join(names),
        units=sum(graph[name].size for name in names),
        kept=sum(kept[name] for name in names),
        eps=sum(cut.eps[name] for name in names),
    )


def _inputs(call: Call) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]


def _measured(program: Program, single: Sequence[Call], notes: list[str]) -> list[dict[str, float]] | None:
    try:
        return [condition_numbers(program, _inputs(call)) for call in single]
    except SecateurError as error:
        notes.append(f"the main theorem does not apply: {error}")
        return None


def _usual(table: np.ndarray[Any, Any], beta: float, delta: float, notes: list[str]) -> np.ndarray[Any, Any] | None:
    """Return condition numbers that no layer exceeds for all but a share beta of inputs.

    The first half of the samples gives the shape, one quantile per layer; the second half gives the common factor, by
    an order statistic of the largest ratio, so that the statement is about all layers at once.
    """
    half = len(table) // 2
    shape = np.quantile(table[:half], USUAL, axis=0, method="higher") if half else table[:0]
    try:
        return shape * excess(_ratios(table[half:], shape), beta, delta)
    except SecateurError as error:
        notes.append(f"no condition numbers for fresh inputs: {error}")
        return None


def _ratios(table: np.ndarray[Any, Any], shape: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(table > 0, table / shape, 0.0).max(1) if len(shape) else table[:0, 0]


def _propagated(
    program: Program, single: Sequence[Call], errors: Mapping[str, float], beta: float, delta: float, notes: list[str]
) -> tuple[float | None, float | None]:
    """Return the error that all but a share of inputs keep to, and the share of samples whose class cannot change."""
    relative, kept = list[float](), list[bool]()
    try:
        for call in single:
            found = propagate(program, _inputs(call), errors)
            error = torch.zeros_like(found.value) if found.error is None else found.error
            gap, size = float(error.double().norm()), float(found.value.double().norm())
            relative.append(0.0 if not gap else gap / size if size else math.inf)
            if found.value.dim() == 2 and found.value.shape[1] > 1:
                kept.append(_class_is_certain(found.value[0], error[0]))
    except SecateurError as problem:
        notes.append(f"no propagated bound: {problem}")
        return None, None
    rank = order_statistic(len(relative), beta, delta)
    if rank is None:
        least = samples_for_order_statistic(beta, delta)
        notes.append(f"no propagated bound for fresh inputs: {len(relative)} samples, at least {least} are needed")
    share = sum(kept) / len(kept) if kept else None
    return (None if rank is None else sorted(relative)[rank - 1]), share


def _class_is_certain(scores: Tensor, error: Tensor) -> bool:
    best = int(scores.argmax())
    others = torch.arange(len(scores), device=scores.device) != best
    return bool((scores[best] - error[best] > (scores + error)[others]).all())


def _with_sizes(
    layers: Sequence[LayerTheory],
    order: Sequence[str],
    largest: np.ndarray[Any, Any],
    usual: np.ndarray[Any, Any] | None,
    found: Mapping[str, Sensitivity],
    feeding: Mapping[str, Sequence[str]],
    cut: Cut,
    eps: float,
) -> list[LayerTheory]:
    """Add the condition numbers, and the group sizes that the theorem asks for."""
    at = {owner(name): place for place, name in enumerate(order)}
    rows = []
    for row, names in zip(layers, feeding.values(), strict=True):
        place = at[row.layer]
        row = replace(row, largest=float(largest[place]))
        row = replace(row, asked_largest=_asked(place, largest, names, found, cut, eps))
        if usual is not None:
            row = replace(row, usual=float(usual[place]), asked_usual=_asked(place, usual, names, found, cut, eps))
        rows.append(row)
    return rows


def _asked(
    place: int,
    conditions: np.ndarray[Any, Any],
    names: Sequence[str],
    found: Mapping[str, Sensitivity],
    cut: Cut,
    eps: float,
) -> int:
    """Return how many units of the groups that a layer consumes the theorem asks for; all where that is not enough."""
    share = allowed_errors(eps, conditions.tolist())[place] / len(names)
    return sum(units_for(share, found[name], cut.delta / len(conditions), cut.C) for name in names)


def units_for(eps: float, one: Sensitivity, delta: float, C: float) -> int:
    """Return the expected number of distinct units that the sample complexity of an error asks for, at most all.

    >>> units_for(0.5, sensitivity, delta=1e-12, C=1.0)
    18
    """
    if eps <= 0 or not one.mass:
        return len(one.values) if one.mass else 1
    try:
        draws = sample_complexity(eps, one.mass, one.sites, delta, C)
    except (SecateurError, OverflowError):  # more draws than a number can hold
        return len(one.values)
    units = expected_unique(float(min(draws, 10**300)), one.values.numpy() / one.mass)
    return min(len(one.values), math.ceil(units))
