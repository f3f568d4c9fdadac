"""The whole road: trace, measure, allocate, select, cut, verify."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from torch import nn

from secateur.cost import Cost, cost, magnitude
from secateur.methods.pfp import PFP
from secateur.plan import Plan
from secateur.planning import GroupRow, Job, Settings
from secateur.program import duplicate
from secateur.surgery import cut, tolerance_for, verify


@dataclass(frozen=True)
class Pruned:
    """The smaller network, the plan that made it, and what is known of it. `print(res.summary())` tells it all."""

    model: nn.Module
    plan: Plan
    verification: float  # largest relative difference between the cut and the masked network
    before: Cost
    after: Cost
    rows: tuple[GroupRow, ...]
    eps: float
    points: int
    method: PFP
    notes: tuple[str, ...]

    @property
    def info(self) -> dict[str, Any]:
        """What a saved file tells of it, as plain data."""
        return {
            "method": "pfp",
            "select": self.method.select,
            "delta": self.method.delta,
            "C": self.method.C,
            "seed": self.method.seed,
            "points": self.points,
            "eps": _plain(self.eps),
            "verification": self.verification,
            "before": {"params": self.before.params, "macs": self.before.macs},
            "after": {"params": self.after.params, "macs": self.after.macs},
            "groups": [
                {
                    "name": row.name,
                    "before": row.before,
                    "after": row.after,
                    "mass": _plain(row.mass),
                    "eps": _plain(row.eps),
                    "dropped": row.dropped,
                }
                for row in self.rows
            ],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """A page of plain text: each group, the cost before and after, what was verified and what is promised."""
        width = max(5, *(len(row.name) for row in self.rows))
        lines = [f"{'group':{width}}  {'before':>6}  {'after':>6}  {'mass':>8}  {'eps':>8}  {'dropped':>8}"]
        for row in self.rows:
            error = ("-", "-") if row.after == row.before else (f"{row.eps:.3g}", f"{row.dropped:.3g}")
            cells = f"{row.before:6}  {row.after:6}  {row.mass:8.3g}  {error[0]:>8}  {error[1]:>8}"
            lines.append(f"{row.name:{width}}  {cells}")
        lines.append("")
        for what, old, new in (
            ("parameters", self.before.params, self.after.params),
            ("MACs", self.before.macs, self.after.macs),
        ):
            gone = 1 - new / old if old else 0.0
            lines.append(f"{what}: {magnitude(old)} -> {magnitude(new)} ({gone:.1%} removed)")
        lines.append(f"verified: the cut network equals the masked one to {self.verification:.1e} (relative)")
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
    method: `"pfp"`, the paper's.
    select: `"derand"` (the most sensitive channels), `"rand"`, `"partial"` or `"pivotal"` (draws, reweighed).
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
    if draft.plan.kept:
        small = cut(model, draft.plan)
        difference = verify(model, draft.plan, [job.first_batch], tolerance=tolerance_for(model))
    else:
        small, difference = duplicate(model), 0.0
    return Pruned(
        model=small,
        plan=draft.plan,
        verification=difference,
        before=job.before,
        after=cost(small, job.example),
        rows=draft.rows,
        eps=draft.eps,
        points=draft.points,
        method=job.method,
        notes=draft.notes,
    )


def _plain(number: float) -> float | None:
    """A number that JSON can hold."""
    return number if math.isfinite(number) else None
