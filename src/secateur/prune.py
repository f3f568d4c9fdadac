"""The whole road: trace, measure, allocate, select, cut, verify."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from torch import nn

from secateur.cost import Cost, cost, magnitude
from secateur.errors import SecateurError
from secateur.methods.base import GroupRow, Method
from secateur.plan import Plan
from secateur.planning import Job, Settings
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
    notes: tuple[str, ...]

    @property
    def info(self) -> dict[str, Any]:
        """What a saved file tells of it, as plain data."""
        return {
            "method": self.method.name,
            **self.method.settings(),
            "allocation": self.allocation,
            "repair": None if self.repair is None else asdict(self.repair),
            "points": self.points,
            "level": _plain(self.level),
            "verification": self.verification,
            "before": {"params": self.before.params, "macs": self.before.macs},
            "after": {"params": self.after.params, "macs": self.after.macs},
            "groups": [{key: _plain(value) for key, value in asdict(row).items()} for row in self.rows],
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


def prune(model: nn.Module, data: Any, budget: Mapping[str, object], **settings: Unpack[Settings]) -> Pruned:
    """A smaller network within a budget: measured, planned, cut and verified. The original is untouched.

    >>> res = sc.prune(model, images, budget={"params": "40%"})
    >>> res.model, res.plan, res.verification
    >>> print(res.summary())

    data: a tensor (one batch) or an iterable of batches; labels beside the inputs are ignored. Never test data.
    budget: what may remain: `{"params": "40%"}`, `{"macs": 2.1e9}`, `{"latency_ms": 8.0}`, or several at once.
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
    job = Job.of(model, data, budget, **settings)
    draft = job.draft()
    fixed, notes = None, draft.notes
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
    return None if isinstance(value, float) and not math.isfinite(value) else value
