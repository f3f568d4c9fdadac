"""From a request to a plan: measure, allocate, select, once or in several steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypedDict, cast

from torch import Tensor, nn

from secateur.allocate import Growth, Ladder, allocate, ladder, largest
from secateur.allocations import Allocation
from secateur.batches import Call, batch_size, example_of, with_labels
from secateur.bench import bench
from secateur.budget import Budget
from secateur.budget import parse as parse_budget
from secateur.cost import Cost, cost, latency
from secateur.errors import SecateurError, UsageError
from secateur.graph import ChannelGraph, Output
from secateur.methods import METHODS
from secateur.methods.base import Evidence, GroupRow, Method
from secateur.methods.pfp import PFP, SELECTS, Select
from secateur.methods.residual import Residual
from secateur.plan import Plan
from secateur.program import Example, unwrap
from secateur.select import Selection
from secateur.sensitivity import no_data, runnable
from secateur.sizes import Sizes
from secateur.surgery import cut, mask
from secateur.trace import trace

ROUNDS = 3  # of sharing the budget out, each with the unit costs of the last one's sizes
TRIES = 20  # steps back until a network that must be fast enough is


class Settings(TypedDict, total=False):
    """What `plan` and `prune` take beside model, data and budget; `prune` says what each means."""

    method: str | Method | None
    select: str | None
    allocation: str | None
    repair: bool | None
    sensitivity: str
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
class Draft:
    """A plan, and how it came about."""

    plan: Plan
    rows: tuple[GroupRow, ...]
    level: float  # down to which the groups grew: for pfp the common relative error that the budget leaves room for
    points: int
    scores: dict[str, Tensor]  # what the method gave to each unit of each group, before any cut
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One request, its data gathered and its network traced."""

    model: nn.Module
    graph: ChannelGraph
    example: Example
    calibration: list[Call]
    labels: list[Tensor] | None
    budget: Budget
    method: Method
    allocation: Allocation
    repair: bool
    seed: int
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
        method: str | Method | None = None,
        select: str | None = None,
        allocation: str | None = None,
        repair: bool | None = None,
        sensitivity: str = "max",
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
        if steps < 1 or (points is not None and points < 1):
            raise UsageError(f"steps is {steps} and points {points}", remedy="give whole numbers from 1 up")
        chosen, shared = judges(
            method, select=select, allocation=allocation, sensitivity=sensitivity, delta=delta, C=C, seed=seed
        )
        pairs = list(with_labels(data, example=example, to_inputs=to_inputs, points=points))
        if not pairs:
            raise no_data()
        calibration, labels = [call for call, _ in pairs], [label for _, label in pairs if label is not None]
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
            labels=labels if len(labels) == len(pairs) else None,
            budget=limits,
            method=chosen,
            allocation=shared,
            repair=isinstance(chosen, Residual) if repair is None else repair,
            seed=seed,
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

    @property
    def whole(self) -> dict[str, list[int]]:
        """All units of every group that may be cut."""
        return {group.name: list(range(group.size)) for group in self.graph.prunable}

    def evidence(self) -> Evidence:
        """What the first step looks at.

        >>> seen = job.evidence()
        >>> [replace(job, budget=budget).draft(seen) for budget in budgets]
        """
        return self._evidence(runnable(self.model, self.graph), self.whole)

    def _evidence(self, network: nn.Module, kept: Mapping[str, Sequence[int]]) -> Evidence:
        return Evidence(
            network=network,
            graph=self.graph,
            batches=self.calibration,
            labels=self.labels,
            kept=kept,
            seed=self.seed,
            memory=self.memory,
            progress=self.progress,
        )

    def draft(self, first: Evidence | None = None) -> Draft:
        """Measure, allocate and select, once for each step; each measures the network that the last one left.

        first: what `evidence` gave, for this job or for one of the same data that differs in what it asks for; what has
            been measured with it is not measured again.
        """
        first = self.evidence() if first is None else first
        base = first.network
        sizes = Sizes(self.graph, cost(base, self.example))
        whole_time = latency(self.model, self.example).median_ms if self.budget.latency_ms else math.nan
        kept = self.whole
        scales = {name: [1.0] * len(units) for name, units in kept.items()}
        rows = {group.name: GroupRow(group.name, group.size, group.size) for group in self.graph.prunable}
        scores = {name: self.method.numbers(one) for name, one in first.scores(self.method).items()}
        for step in range(1, self.steps + 1):
            so_far = Plan.keeping(self.graph, kept, scales)
            evidence = self._evidence(mask(self.model, so_far), kept) if so_far.kept else first
            found = evidence.scores(self.method)
            self._check_found(found)
            counts = {name: len(units) for name, units in kept.items()}
            for _ in range(ROUNDS):  # what a unit costs depends on the sizes of the other groups
                levels = self.allocation.levels(evidence, self._unit_costs(sizes, counts))
                growth = Growth({name: self._ladder(name, levels[name]) for name in found if name in levels})
                chooser = _Chooser(self, sizes, growth, found, kept, scales)
                position = chooser.position(step / self.steps, whole_time)
                counts = {**counts, **growth.counts(position)}
                if self.allocation.name != "residual":
                    break
            chosen = chooser.choose(position)
            rows |= {name: self.method.row(rows[name], found[name], counts[name], one) for name, one in chosen.items()}
            kept, scales = chooser.applied(chosen)
        points = sum(batch_size(call) for call in self.calibration)
        return Draft(
            plan=Plan.keeping(self.graph, kept, scales),
            rows=tuple(rows.values()),
            level=growth.level(position),
            points=points,
            scores=scores,
            notes=tuple(self._notes(list(rows.values()), found, points)),
        )

    def _check_found(self, found: Mapping[str, Any]) -> None:
        if not found:
            names = ", ".join(group.name for group in self.graph.prunable[:3])
            raise SecateurError(
                "no layer that evaluation runs reads a channel that may be cut",
                layer=names,
                remedy="see print(sc.trace(model, example)); output='graph' may see more",
            )

    def _ladder(self, name: str, levels: Any) -> Ladder:
        return ladder(levels, at_least=_of_group(self.at_least, name, 1), round_to=_of_group(self.round_to, name, 1))

    def _unit_costs(self, sizes: Sizes, counts: Mapping[str, int]) -> dict[str, float]:
        """What a unit of each group costs at these sizes, as a part of the whole, in what the budget is about."""
        limits = self.budget.ceilings(self.before.params, self.before.macs) or {"macs": 0.0}
        found = {}
        for name, count in counts.items():
            fewer = {**counts, name: max(1, count - 1)} if count > 1 else {**counts, name: min(2, sizes.units(name))}
            found[name] = sum(
                abs(measure(counts) - measure(fewer)) / max(measure({}), 1)
                for measure in (getattr(sizes, resource) for resource in limits)
            )
        return found

    def _notes(self, rows: Sequence[GroupRow], found: Mapping[str, Any], points: int) -> list[str]:
        notes = list(self.graph.notes)
        unread = [row.name for row in rows if row.name not in found]
        if unread:
            notes.append(
                f"{', '.join(unread)}: read by no layer in evaluation that {self.method.name} knows; kept whole"
            )
        return notes + self.method.notes(rows, points)


@dataclass(frozen=True)
class _Chooser:
    """The search for the largest network that the budget allows, among those of one step."""

    job: Job
    sizes: Sizes
    growth: Growth
    found: Mapping[str, Any]
    kept: Mapping[str, Sequence[int]]
    scales: Mapping[str, Sequence[float]]

    def choose(self, position: int) -> dict[str, Selection]:
        """The units of each group, counted among those that were still there."""
        counts = self.growth.counts(position)
        return {name: self.job.method.choose(name, self.found[name], count) for name, count in counts.items()}

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
        if isinstance(self.job.method, PFP) and self.job.method.select in ("rand", "partial"):
            position = self._realised(position, ceilings)
        if budget.latency_ms:
            limit = budget.latency_ms.of(whole_time)
            if limit < whole_time:
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
        """Cut for real and measure: what a channel saves in time no table knows as well as the device itself.

        The cut network and the original are timed in turn, so that what else the machine does hits both alike; the
        time is its part of the original's, times what that took.
        """

        def milliseconds(position: int, runs: int) -> float:
            made = Plan.keeping(self.job.graph, *self.applied(self.choose(position)))
            network = cut(self.job.model, made) if made.kept else self.job.model
            return whole / bench(self.job.model, network, self.job.example, runs=runs).speedup

        def fits(position: int) -> bool:
            return position <= most and milliseconds(position, 20) <= limit

        nearly = max(1, self.growth.steps // 256)  # less than times can tell apart
        position = largest(self.growth, fits, nearly)
        if position < 0 and milliseconds(0, 100) <= limit:  # a busy moment, not a slow network
            position = largest(self.growth, fits, nearly)
        for _ in range(TRIES):
            if position < 0:
                break
            if milliseconds(position, 50) <= limit:
                return position
            position -= max(1, self.growth.steps // 50)
        least = milliseconds(0, 100)
        cause = "the budget cannot be met" if least > limit else "times vary too much to find what meets the budget"
        raise SecateurError(
            f"{cause}: {limit:.3g} ms may remain ({limit / whole:.0%} of {whole:.3g} ms), "
            f"the smallest network takes {least:.3g} ms ({least / whole:.0%})",
            layer=type(unwrap(self.job.model)).__name__,
            remedy="raise the budget, lower at_least or round_to, keep fewer layers; on a busy machine, try again",
        )


def judges(
    method: str | Method | None = None,
    *,
    select: str | None = None,
    allocation: str | None = None,
    sensitivity: str = "max",
    delta: float = 1e-12,
    C: float = 1.0,
    seed: int = 0,
) -> tuple[Method, Allocation]:
    """What says which channels go, and what says how many of each group; `prune` says what each setting means.

    >>> judges("ft", allocation="residual")
    (FT(), Allocation(name='residual', ...))
    """
    pfp = PFP(select=_draw(select), delta=delta, C=C, seed=seed, sensitivity=sensitivity)
    chosen = _method(method, select, pfp)
    return chosen, Allocation(allocation or chosen.allocation, pfp)


def _method(method: str | Method | None, select: str | None, pfp: PFP) -> Method:
    """The method that was asked for; `select` alone says it too."""
    if isinstance(method, Method):
        return method
    name = method or ("pfp" if select in SELECTS else "residual")
    if name not in METHODS:
        raise UsageError(f"method is {name!r}", remedy=f"use one of {', '.join(METHODS)}")
    allowed = {"pfp": SELECTS, "residual": ("residual",)}.get(name, ())
    if select is not None and select not in allowed:
        raise UsageError(
            f"select is {select!r} with method {name!r}",
            remedy=f"use one of {', '.join(allowed)}" if allowed else "leave select out: this method keeps the largest",
        )
    if name == "pfp":
        return pfp
    kind = METHODS[name]
    return kind(**{"seed": pfp.seed} if "seed" in kind.__dataclass_fields__ else {})  # type: ignore[attr-defined]


def _draw(select: str | None) -> Select:
    return cast(Select, select) if select in SELECTS else "derand"


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
