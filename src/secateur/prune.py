"""The whole road: trace, measure, allocate, select, cut, verify."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

from torch import Tensor, nn

from secateur.batches import batch_size, calls
from secateur.bounds import points_for_drop
from secateur.budget import parse, parse_drop
from secateur.certify import drop_certified, fixed_sequence
from secateur.cost import Cost, cost, magnitude
from secateur.errors import SecateurError, UsageError
from secateur.fingerprints import of, pack
from secateur.methods.base import GroupRow, Method
from secateur.plan import Plan
from secateur.planning import Draft, Job, Settings
from secateur.program import duplicate
from secateur.repair import Repair, refit
from secateur.sensitivity import runnable
from secateur.surgery import cut, tolerance_for, verify

FIGURES = ("mass", "eps", "dropped", "harm")  # what is told of a group, if the method knows it


@dataclass(frozen=True)
class Pruned:
    """The smaller network, the plan that made it, and what is known of it. `print(res.summary())` tells it all."""

    model: nn.Module
    plan: Plan
    verification: float  # largest relative difference between the cut and the masked network
    before: Cost
    after: Cost
    rows: tuple[GroupRow, ...]
    level: float  # down to which the groups grew; for pfp the common relative error that the budget left room for
    points: int
    method: Method
    allocation: str
    repair: Repair | None
    sensitivities: dict[str, list[float]]  # what the method gave to each unit of each group, before any cut
    fingerprints: str  # of the calibration points, so that they are not taken for held-out ones
    notes: tuple[str, ...]

    @property
    def info(self) -> dict[str, Any]:
        """What a saved file tells of it, as plain data."""
        return {
            "method": self.method.name,
            **self.method.settings(),
            "allocation": self.allocation,
            "repair": None if self.repair is None else _plain(asdict(self.repair)),
            "points": self.points,
            "level": _plain(self.level),
            "verification": self.verification,
            "before": {"params": self.before.params, "macs": self.before.macs},
            "after": {"params": self.after.params, "macs": self.after.macs},
            "groups": [_plain(asdict(row)) for row in self.rows],
            "fingerprints": self.fingerprints,
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """A page of plain text: each group, the cost before and after, what was verified and what is promised."""
        columns = [key for key in FIGURES if any(not math.isnan(getattr(row, key)) for row in self.rows)]
        width = max(5, *(len(row.name) for row in self.rows))
        lines = ["  ".join([f"{'group':{width}}", f"{'before':>6}", f"{'after':>6}", *(f"{c:>8}" for c in columns)])]
        for row in self.rows:
            cells = [_cell(getattr(row, key)) for key in columns]
            lines.append("  ".join([f"{row.name:{width}}", f"{row.before:6}", f"{row.after:6}", *cells]))
        lines.append("")
        for what, old, new in (
            ("parameters", self.before.params, self.after.params),
            ("MACs", self.before.macs, self.after.macs),
        ):
            gone = 1 - new / old if old else 0.0
            lines.append(f"{what}: {magnitude(old)} -> {magnitude(new)} ({gone:.1%} removed)")
        lines.append(f"verified: the cut network equals the masked one to {self.verification:.1e} (relative)")
        if self.repair is not None:
            lines.append(repaired(self.repair))
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def plan(model: nn.Module, data: Any, budget: Mapping[str, object], **settings: Unpack[Settings]) -> Plan:
    """Which channels stay under a budget; takes what `prune` takes.

    >>> plan = sc.plan(model, images, budget={"macs": "50%"}, select="derand", delta=1e-12, seed=0, keep=["fc"])
    >>> print(plan)
    """
    return Job.of(model, data, budget, **settings).draft().plan


def prune(
    model: nn.Module, data: Any, budget: Mapping[str, object], *, heldout: Any = None, **settings: Unpack[Settings]
) -> Pruned:
    """A smaller network within a budget: measured, planned, cut and verified. The original is untouched.

    >>> res = sc.prune(model, images, budget={"params": "40%"})
    >>> res.model, res.plan, res.verification
    >>> print(res.summary())

    data: a tensor (one batch) or an iterable of batches; labels beside the inputs are ignored. Never test data.
    budget: what may remain: `{"params": "40%"}`, `{"macs": 2.1e9}`, `{"latency_ms": 8.0}`, or several at once. Or what
        may be lost: `{"drop": "1%"}` gives the smallest network, by MACs in steps of 5 %, of which held-out points
        certify that accuracy drops by at most one point, with confidence 1 - delta (then 1e-3 unless given).
    heldout: for such a budget: batches (x, y) that neither training nor calibration has seen.
    method: `"residual"` (least residual, the default), `"pfp"` (the paper's), `"ft"`, `"softnet"`, `"thinet"`,
        `"fpgm"`, `"taylor"` (needs labels beside the inputs), `"random"`, or a `secateur.methods.Method` of your own.
    select: for pfp: `"derand"` (the most sensitive channels), `"rand"`, `"partial"` or `"pivotal"` (draws, reweighed).
    allocation: how the groups share the budget: `"uniform"`, `"pfp"` or `"residual"`; what belongs to the method if
        not given.
    repair: fit the layers of the cut network anew, in closed form; as for residual, unless given.
    sensitivity: for pfp: `"max"` (the paper's), `"mean"`, `"rms"` or a quantile such as `"q0.99"`.
    delta: the probability with which the promised error may be exceeded.
    C: how far fresh data may exceed the sensitivities, as a factor.
    seed: for the draws.
    points: how many points of the data to measure on; None for all.
    steps: cut in so many steps, measuring again after each.
    keep: layer names or patterns whose filters stay.
    at_least: units that every group keeps; a mapping from patterns of group names sets it by group.
    round_to: sizes of groups are multiples of it; a mapping from patterns of group names sets it by group.
    output: `"module"` cuts your own class, `"graph"` the exported program.
    example, to_inputs, memory, progress: as for `sensitivity`.
    """
    if isinstance(budget, Mapping) and "drop" in budget:
        return _as_far_as_certified(model, data, budget, heldout, **settings)
    if heldout is not None:
        raise UsageError("held-out data is for a budget in drop", remedy='give budget={"drop": "1%"}, or leave it out')
    job = Job.of(model, data, budget, **settings)
    return carry_out(job, job.draft())


def _as_far_as_certified(
    model: nn.Module, data: Any, budget: Mapping[str, object], heldout: Any, **settings: Unpack[Settings]
) -> Pruned:
    """The last network of a sequence fixed beforehand that passes its test; see `certify.fixed_sequence`."""
    drop, delta = parse_drop(budget), settings.pop("delta", 1e-3)
    if heldout is None:
        raise UsageError("there is no held-out data", remedy="give heldout=[(x, y), ...] that nothing has seen yet")
    batches = list(heldout) if not isinstance(heldout, Tensor | tuple | dict) else [heldout]
    job = Job.of(model, data, {"macs": "100%"}, **settings)
    evidence = job.evidence()
    whole = carry_out(job, job.draft(evidence))

    def candidates() -> Iterator[Pruned]:
        yield whole
        for percent in range(95, 0, -5):
            smaller = replace(job, budget=parse({"macs": f"{percent}%"}))
            try:
                draft = smaller.draft(evidence)
            except SecateurError:  # so small it cannot be
                return
            yield carry_out(smaller, draft)

    def passes(one: Pruned) -> bool:
        return drop_certified(
            model, one.model, batches, drop=drop, delta=delta, used=whole.fingerprints, example=job.example
        )

    found = fixed_sequence(candidates(), passes)
    points = sum(batch_size(call) for call in calls(batches, example=job.example))
    if found is None:
        raise SecateurError(
            f"{points} held-out points cannot certify a drop of {drop:.2%} even for the original, "
            f"with confidence {1 - delta:g}",
            layer=type(model).__name__,
            remedy=f"give at least {points_for_drop(0, 0, drop, delta)} points, allow more, or raise delta",
        )
    note = (
        f"certified: accuracy drops by at most {drop:.2%}, with confidence {1 - delta:g}, by {points} held-out points "
        "drawn independently from what the network will meet"
    )
    return replace(found, notes=(*found.notes, note))


def carry_out(job: Job, draft: Draft) -> Pruned:
    """Cut as drafted, verify, and repair if the job says so.

    >>> carry_out(job, job.draft()).model
    """
    model, fixed, notes = job.model, None, draft.notes
    if draft.plan.kept:
        small = cut(model, draft.plan)
        difference = verify(model, draft.plan, [job.first_batch], tolerance=tolerance_for(model))
        if job.repair:
            small, fixed, more = _repaired(small, job, draft.plan)
            notes += more
    else:
        small, difference = duplicate(model), 0.0
    return Pruned(
        model=small,
        plan=draft.plan,
        verification=difference,
        before=job.before,
        after=cost(small, job.example),
        rows=draft.rows,
        level=draft.level,
        points=draft.points,
        method=job.method,
        allocation=job.allocation.name,
        repair=fixed,
        sensitivities={name: [float(f"{v:.6g}") for v in one.tolist()] for name, one in draft.scores.items()},
        fingerprints=pack(one for call in job.calibration for one in of(call)),
        notes=notes,
    )


def repaired(repair: Repair) -> str:
    """What the repair did, in a sentence.

    >>> repaired(res.repair)
    'repaired: 20 of 20 layers fitted anew; on held-out points the output moved by 0.052 instead of 1.3'
    """
    changed = sum(layer.kept < layer.outputs for layer in repair.layers)
    norms = ", norm statistics estimated anew" if repair.norms else ""
    return (
        f"repaired: {changed} of {len(repair.layers)} layers fitted anew{norms}; on held-out points the output moved "
        f"by {repair.after:.2g} instead of {repair.before:.2g}"
    )


def _repaired(small: nn.Module, job: Job, plan: Plan) -> tuple[nn.Module, Repair | None, tuple[str, ...]]:
    """The repaired network; a network that cannot be repaired is told, and stays as it was cut."""
    try:
        network, found = refit(
            small, runnable(job.model, job.graph), job.calibration, plan, memory=job.memory, progress=job.progress
        )
    except SecateurError as error:
        return small, None, (f"not repaired: {error}",)
    return network, found, found.notes


def _cell(value: float) -> str:
    return f"{'-' if math.isnan(value) else format(value, '.3g'):>8}"


def _plain(value: Any) -> Any:
    """A value that JSON can hold."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
