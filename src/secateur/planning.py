"""From a request to a plan: measure, allocate, select, once or in several steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypedDict

from torch import nn

from secateur.allocate import Growth, allocate, ladder, largest
from secateur.batches import Call, batch_size, calls, example_of
from secateur.bounds import points_needed
from secateur.budget import Budget
from secateur.budget import parse as parse_budget
from secateur.cost import Cost, cost, latency
from secateur.errors import SecateurError, UsageError
from secateur.graph import ChannelGraph, Output
from secateur.methods import METHODS
from secateur.methods.pfp import PFP, Select
from secateur.plan import Plan
from secateur.program import Example, unwrap
from secateur.select import Selection
from secateur.sensitivity import Sensitivity, measure, no_data, runnable
from secateur.sizes import Sizes
from secateur.surgery import cut, mask
from secateur.trace import trace

TRIES = 20  # steps back until a network that must be fast enough is


class Settings(TypedDict, total=False):
    """What `plan` and `prune` take beside model, data and budget; `prune` says what each means."""

    method: str
    select: Select
    delta: float
    C: float
    seed: int
    points: int | None
    steps: int
    keep: Sequence[str]
    at_least: int | Mapping[str, int]
    round_to: int | Mapping[str, int]
    output: Output
    example: Example | None
    to_inputs: Callable[[Any], Any] | None
    memory: int | None
    progress: bool


@dataclass(frozen=True)
class GroupRow:
    """What happened to one group."""

    name: str
    before: int
    after: int
    mass: float  # sum of the sensitivities before any cut; NaN where no layer reads the group
    eps: float = 0.0  # relative error that a draw of this size promises, with probability 1 - delta for each step
    dropped: float = 0.0  # sum of the sensitivities that went, times C: bounds the error of keeping the largest


@dataclass(frozen=True)
class Draft:
    """A plan, and how it came about."""

    plan: Plan
    rows: tuple[GroupRow, ...]
    eps: float  # the common relative error that the budget leaves room for
    points: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One request, its data gathered and its network traced."""

    model: nn.Module
    graph: ChannelGraph
    example: Example
    calibration: list[Call]
    budget: Budget
    method: PFP
    steps: int
    at_least: int | Mapping[str, int]
    round_to: int | Mapping[str, int]
    memory: int | None
    progress: bool
    before: Cost

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        budget: Mapping[str, object],
        *,
        method: str = "pfp",
        select: Select = "derand",
        delta: float = 1e-12,
        C: float = 1.0,
        seed: int = 0,
        points: int | None = 256,
        steps: int = 1,
        keep: Sequence[str] = (),
        at_least: int | Mapping[str, int] = 1,
        round_to: int | Mapping[str, int] = 1,
        output: Output = "module",
        example: Example | None = None,
        to_inputs: Callable[[Any], Any] | None = None,
        memory: int | None = None,
        progress: bool = False,
    ) -> Job:
        limits = parse_budget(budget)
        if method not in METHODS:
            raise UsageError(f"method is {method!r}", remedy=f"use one of {', '.join(METHODS)}")
        if steps < 1 or (points is not None and points < 1):
            raise UsageError(f"steps is {steps} and points {points}", remedy="give whole numbers from 1 up")
        chosen = METHODS[method](select=select, delta=delta, C=C, seed=seed)
        calibration = list(calls(data, example=example, to_inputs=to_inputs, points=points))
        if not calibration:
            raise no_data()
        single = example_of(calibration[0]) if example is None else example
        graph = trace(model, single, keep=keep, output=output)
        graph.check_prunable()
        for numbers in (at_least, round_to):
            _check_patterns(numbers, graph)
        return cls(
            model=model,
            graph=graph,
            example=single,
            calibration=calibration,
            budget=limits,
            method=chosen,
            steps=steps,
            at_least=at_least,
            round_to=round_to,
            memory=memory,
            progress=progress,
            before=cost(model, single),
        )

    @property
    def first_batch(self) -> Any:
        args, kwargs = self.calibration[0]
        return args or kwargs

    def draft(self) -> Draft:
        """Measure, allocate and select, once for each step; each measures the network that the last one left."""
        base = runnable(self.model, self.graph)
        sizes = Sizes(self.graph, cost(base, self.example))
        whole_time = latency(self.model, self.example).median_ms if self.budget.latency_ms else math.nan
        kept = {group.name: list(range(group.size)) for group in self.graph.prunable}
        scales = {name: [1.0] * len(units) for name, units in kept.items()}
        rows: dict[str, GroupRow] = {g.name: GroupRow(g.name, g.size, g.size, math.nan) for g in self.graph.prunable}
        for step in range(1, self.steps + 1):
            so_far = Plan.keeping(self.graph, kept, scales)
            network = mask(self.model, so_far) if so_far.kept else base
            measured = measure(network, self.graph, self.calibration, memory=self.memory, progress=self.progress)
            found = {name: replace(one, values=one.values[kept[name]]) for name, one in measured.items()}
            self._check_found(found)
            growth = Growth(
                {
                    name: ladder(
                        self.method.levels(one),
                        at_least=_of_group(self.at_least, name, 1),
                        round_to=_of_group(self.round_to, name, 1),
                    )
                    for name, one in found.items()
                }
            )
            chooser = _Chooser(self, sizes, growth, found, kept, scales)
            position = chooser.position(step / self.steps, whole_time)
            chosen = chooser.choose(position)
            rows |= self._rows(rows, found, growth.counts(position), chosen)
            kept, scales = chooser.applied(chosen)
        points = sum(batch_size(call) for call in self.calibration)
        return Draft(
            plan=Plan.keeping(self.graph, kept, scales),
            rows=tuple(rows.values()),
            eps=growth.level(position),
            points=points,
            notes=tuple(self._notes(list(rows.values()), points)),
        )

    def _check_found(self, found: Mapping[str, Sensitivity]) -> None:
        if not found:
            names = ", ".join(group.name for group in self.graph.prunable[:3])
            raise SecateurError(
                "no layer that evaluation runs reads a channel that may be cut",
                layer=names,
                remedy="see print(sc.trace(model, example)); output='graph' may see more",
            )

    def _rows(
        self,
        before: Mapping[str, GroupRow],
        found: Mapping[str, Sensitivity],
        counts: Mapping[str, int],
        chosen: Mapping[str, Selection],
    ) -> dict[str, GroupRow]:
        """What one step adds: errors of several steps add up."""
        rows = {}
        for name, one in found.items():
            row, selection = before[name], chosen[name]
            rows[name] = replace(
                row,
                after=len(selection.kept),
                mass=one.mass if math.isnan(row.mass) else row.mass,
                eps=row.eps + float(self.method.eps(one, counts[name])),
                dropped=row.dropped + self.method.bound(one, selection),
            )
        return rows

    def _notes(self, rows: Sequence[GroupRow], points: int) -> list[str]:
        notes = list(self.graph.notes)
        unread = [row.name for row in rows if math.isnan(row.mass)]
        if unread:
            notes.append(f"{', '.join(unread)}: read by no layer in evaluation, so kept whole")
        cut_rows = [row for row in rows if row.after < row.before]
        derand = self.method.select == "derand"
        vacuous = [row for row in cut_rows if (row.dropped if derand else row.eps) >= 1]
        if vacuous:
            bound = "dropped" if derand else "eps"
            notes.append(
                f"in {len(vacuous)} of {len(cut_rows)} cut groups the promised error is vacuous ({bound} >= 1): "
                "there the sizes are a well-founded guess, not a guarantee; measure the network on held-out data"
            )
        if self.method.select == "pivotal" and cut_rows:
            notes.append("eps is what rand promises at these sizes; pivotal varies less but has no bound of its own")
        least = points_needed(self.method.delta, max(row.before for row in rows))
        if points < least:
            notes.append(f"{points} points are few: delta = {self.method.delta:g} asks for at least {least}")
        return notes


@dataclass(frozen=True)
class _Chooser:
    """The search for the largest network that the budget allows, among those of one step."""

    job: Job
    sizes: Sizes
    growth: Growth
    found: Mapping[str, Sensitivity]
    kept: Mapping[str, Sequence[int]]
    scales: Mapping[str, Sequence[float]]

    def choose(self, position: int) -> dict[str, Selection]:
        """The units of each group, counted among those that were still there."""
        counts = self.growth.counts(position)
        return {name: self.job.method.choose(name, one, counts[name]) for name, one in self.found.items()}

    def applied(self, chosen: Mapping[str, Selection]) -> tuple[dict[str, list[int]], dict[str, list[float]]]:
        """The units and scales in terms of the original network."""
        kept, scales = dict[str, list[int]](), dict[str, list[float]]()
        for name, units in self.kept.items():
            one = chosen.get(name, Selection(tuple(range(len(units))), (1.0,) * len(units)))
            kept[name] = [units[i] for i in one.kept]
            scales[name] = [self.scales[name][i] * scale for i, scale in zip(one.kept, one.scales, strict=True)]
        return kept, scales

    def position(self, part: float, whole_time: float) -> int:
        """How far the groups may grow; `part` of the way from the whole network to the budget, geometrically."""
        before, budget = self.job.before, self.job.budget
        whole = {"params": before.params, "macs": before.macs}
        ceilings = {
            name: whole[name] * (min(limit, whole[name]) / whole[name]) ** part if part < 1 else limit
            for name, limit in budget.ceilings(before.params, before.macs).items()
        }
        position = allocate(self.growth, self.sizes, ceilings)
        if self.job.method.select in ("rand", "partial"):
            position = self._realised(position, ceilings)
        if budget.latency_ms:
            limit = min(budget.latency_ms.of(whole_time), whole_time)
            position = self._fast_enough(position, whole_time * (limit / whole_time) ** part, whole_time)
        return position

    def _realised(self, most: int, ceilings: Mapping[str, float]) -> int:
        """A draw may hold more distinct channels than expected: find the largest position whose draw fits."""

        def fits(position: int) -> bool:
            params, macs = self.sizes.exact(self.applied(self.choose(position))[0])
            spent = {"params": params, "macs": macs}
            return all(spent[name] <= ceiling for name, ceiling in ceilings.items())

        position = largest(self.growth, fits)
        if position < 0:
            raise SecateurError(
                "the draw of the smallest network is larger than the budget",
                layer=type(unwrap(self.job.model)).__name__,
                remedy="raise the budget, try another seed, or use select='pivotal'",
            )
        return position

    def _fast_enough(self, most: int, limit: float, whole: float) -> int:
        """Cut for real and measure: what a channel saves in time no table knows as well as the device itself."""
        times: dict[int, float] = {}

        def milliseconds(position: int, runs: int) -> float:
            made = Plan.keeping(self.job.graph, *self.applied(self.choose(position)))
            network = cut(self.job.model, made) if made.kept else self.job.model
            times[position] = latency(network, self.job.example, runs=runs).median_ms
            return times[position]

        position = largest(self.growth, lambda at: at <= most and milliseconds(at, 10) <= limit)
        for _ in range(TRIES):
            if position >= 0 and milliseconds(position, 50) <= limit:
                return position
            position -= max(1, self.growth.steps // 50)
        least = times.get(0) or milliseconds(0, 50)
        raise SecateurError(
            f"the budget cannot be met: {limit:.3g} ms may remain ({limit / whole:.0%} of {whole:.3g} ms), "
            f"the smallest network takes {least:.3g} ms ({least / whole:.0%})",
            layer=type(unwrap(self.job.model)).__name__,
            remedy="raise the budget, lower at_least or round_to, keep fewer layers; on a busy machine, try again",
        )


def _of_group(numbers: int | Mapping[str, int], name: str, default: int) -> int:
    if isinstance(numbers, int):
        return numbers
    return next((number for pattern, number in numbers.items() if fnmatchcase(name, pattern)), default)


def _check_patterns(numbers: int | Mapping[str, int], graph: ChannelGraph) -> None:
    for pattern in numbers if isinstance(numbers, Mapping) else ():
        if not any(fnmatchcase(group.name, pattern) for group in graph.prunable):
            raise UsageError(
                f"the pattern {pattern!r} matches no group that may be cut",
                remedy=f"the groups are {', '.join(group.name for group in graph.prunable[:8])}",
            )
