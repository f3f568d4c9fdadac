"""From a request to a plan: measure, allocate, select, once or in several steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypedDict, Unpack

from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph
from secateur.costs.cost import Cost, cost, shares
from secateur.costs.sizes import Sizes
from secateur.errors import SecateurError, UsageError
from secateur.methods.base import Evidence, GroupRow, Method
from secateur.methods.selection import Selection
from secateur.network.batches import Call, batch_size, example_of
from secateur.network.examples import Example
from secateur.network.footprint import batch_that_fits
from secateur.network.modules import named_tensors, unwrap
from secateur.network.outputs import compared_outputs
from secateur.pruning import errors
from secateur.pruning.allocation import Allocation
from secateur.pruning.budget import Budget
from secateur.pruning.budget import parse as parse_budget
from secateur.pruning.growth import Growth, Ladder, allocate, fill, ladder, largest, ways_out, within
from secateur.pruning.pace import Pace
from secateur.pruning.pool import Pair, Pool
from secateur.pruning.scope import check_not_listed
from secateur.pruning.settings import PruneSettings
from secateur.pruning.sharing import with_shared_memory
from secateur.refit.trials import CHECKS
from secateur.stages import stage
from secateur.surgery.cut import cut, mask
from secateur.surgery.plan import Plan
from secateur.surgery.rewrite import runnable
from secateur.tracing.trace import trace

ROUNDS = 3  # of allocation, each with the unit costs at the previous sizes
CORRECTIONS = 5  # networks that are cut and timed to meet a latency budget
CLOSE = 0.015  # of a latency budget: near enough
TRIED = {"quick": 0, "default": CHECKS, "thorough": 10**6}  # cuts that are run as a whole, by effort


class Reading(TypedDict, total=False):
    """How the data and the network of a job are read; `sc.prune` explains each part."""

    graph: ChannelGraph | None
    example: Example | None
    to_inputs: Callable[[Any], Any] | None
    progress: bool
    unused: int  # of the samples that the settings leave over, up to this many are set aside


@dataclass(frozen=True)
class Draft:
    """A plan, and the figures behind it."""

    plan: Plan
    rows: tuple[GroupRow, ...]
    level: float  # where the allocation stopped; for pfp the relative error that the budget leaves room for
    samples: int
    scores: dict[str, Tensor]  # of each unit of each group by the method, before any cut
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One request: its data read, its network traced, its method resolved."""

    model: nn.Module
    graph: ChannelGraph
    example: Example
    calibration: list[Call]
    labels: list[Tensor] | None
    budget: Budget
    settings: PruneSettings
    method: Method
    allocation: Allocation
    before: Cost
    notes: tuple[str, ...] = ()
    progress: bool = False
    unused: tuple[Pair, ...] = ()  # batches that no measurement and no fit uses, with their labels
    factors: Mapping[str, float] = field(default_factory=dict)  # by which the output's error exceeds that of a group

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        budget: Mapping[str, object],
        settings: PruneSettings,
        **reading: Unpack[Reading],
    ) -> Job:
        """Read the data, trace the model, and check the settings against its groups."""
        example, to_inputs, unused = reading.get("example"), reading.get("to_inputs"), reading.get("unused", 0)
        limits = parse_budget(budget)
        errors.check_settings(limits, settings)
        more = unused + errors.samples_for_excess(settings)
        check_not_listed(model, data, example, to_inputs)
        pool = Pool.of(data, settings.samples, seed=settings.seed, unused=more, example=example, to_inputs=to_inputs)
        settings = with_shared_memory(model, pool, settings)
        single = example_of(pool.calls[0]) if example is None else example
        graph = reading.get("graph")
        if graph is None:
            with stage("trace"):
                graph = trace(
                    model,
                    single,
                    keep=settings.keep,
                    free_outputs=settings.free_outputs,
                    output=settings.output,
                    prune_inputs=settings.prune_inputs,
                )
        else:
            _check_graph(graph, model, settings)
        graph.check_prunable()
        model = compared_outputs(model, graph.free_outputs, settings.task)
        pool = _that_fits(pool, model, settings)
        for numbers in (settings.at_least, settings.round_to):
            _check_patterns(numbers, graph)
        pool, settings, notes = errors.with_measured_excess(model, graph, pool, settings)
        factors: dict[str, float] = {}
        if limits.output_eps is not None:
            factors, settings, found = errors.by_theorem(model, graph, pool.calls, single, settings)
            notes += found
        method, allocation = settings.resolve()
        return cls(
            model=model,
            graph=graph,
            example=single,
            calibration=pool.calls,
            labels=pool.labels,
            budget=limits,
            settings=settings,
            method=method,
            allocation=allocation,
            before=cost(model, single),
            notes=(*graph.remarks, *pool.notes, *notes),
            factors=factors,
            progress=reading.get("progress", False),
            unused=tuple(pool.unused),
        )

    def on(self, pool: Pool, settings: PruneSettings) -> Job:
        """Return the same job on other samples and with other settings; the network is not traced again."""
        method, allocation = settings.resolve()
        pool = _that_fits(pool, self.model, settings)
        return replace(
            self, calibration=pool.calls, labels=pool.labels, settings=settings, method=method, allocation=allocation
        )

    @property
    def first_batch(self) -> Any:
        """The first calibration batch, as `verify` takes it."""
        args, kwargs = self.calibration[0]
        return args or kwargs

    @property
    def every_unit(self) -> dict[str, list[int]]:
        """All units of every group that may be cut."""
        return {group.name: list(range(group.size)) for group in self.graph.prunable}

    def evidence(self) -> Evidence:
        """Return what the first step measures on; drafts that share it measure once.

        >>> evidence = job.evidence()
        >>> [replace(job, budget=budget).draft(evidence) for budget in budgets]
        """
        return self._evidence(runnable(self.model, self.graph), self.every_unit)

    def _evidence(self, network: nn.Module, kept: Mapping[str, Sequence[int]]) -> Evidence:
        return Evidence(
            network=network,
            graph=self.graph,
            batches=self.calibration,
            labels=self.labels,
            kept=kept,
            seed=self.settings.seed,
            memory=self.settings.memory,
            checks=TRIED[self.settings.effort],
            progress=self.progress,
        )

    def draft(self, first: Evidence | None = None) -> Draft:
        """Measure, allocate and select, once per step; each step measures the network that the last one left.

        Args:
            first: the evidence of this job or of another one on the same data; its measurements are used again.
        """
        first = self.evidence() if first is None else first
        base = first.network
        whole = cost(base, self.example)
        sizes = Sizes(self.graph, whole)
        pace = self._pace()
        kept = self.every_unit
        scales = {name: [1.0] * len(units) for name, units in kept.items()}
        rows = {group.name: GroupRow(group.name, group.size, group.size) for group in self.graph.prunable}
        scores = {name: self.method.numbers(one) for name, one in first.scores(self.method).items()}
        for step in range(1, self.settings.steps + 1):
            so_far = Plan.keeping(self.graph, kept, scales)
            evidence = self._evidence(mask(self.model, so_far), kept) if so_far.kept else first
            found = evidence.scores(self.method)
            self._check_found(found)
            counts = {name: len(units) for name, units in kept.items()}
            for number in range(1, ROUNDS + 1):  # the cost of a unit depends on the sizes of the other groups
                costs = self._unit_costs(sizes, counts, pace)
                levels = self.allocation.levels(evidence, costs, whole=self.budget.error is not None)
                levels = {name: one * self.factors.get(name, 1.0) for name, one in levels.items()}
                multiple = pace.table.multiple if pace else 1
                growth = Growth({name: self._ladder(name, levels[name], multiple) for name in found if name in levels})
                chooser = _Chooser(self, sizes, growth, found, kept, scales, pace)
                part = step / self.settings.steps
                position = chooser.position(part)
                if pace and (limit := self._latency_limit(pace)) < 1:
                    last = number == ROUNDS or not self.allocation.uses_costs
                    chooser, position = chooser.fast_enough(limit**part, measure=last)
                    growth = chooser.growth
                level = growth.level(position)
                if self._fills:
                    growth, position = fill(growth, position, within(sizes, chooser.ceilings(part)))
                    chooser = replace(chooser, growth=growth)
                counts = {**counts, **growth.counts(position)}
                if not self.allocation.uses_costs:
                    break
            chosen = chooser.choose(position)
            rows |= {name: self.method.row(rows[name], found[name], counts[name], one) for name, one in chosen.items()}
            kept, scales = chooser.applied(chosen)
        samples = sum(batch_size(call) for call in self.calibration)
        return Draft(
            plan=Plan.keeping(self.graph, kept, scales),
            rows=tuple(self._with_costs(rows.values(), sizes, whole)),
            level=level,
            samples=samples,
            scores=scores,
            notes=(*self._notes(list(rows.values()), found, samples), *(pace.notes if pace else ())),
        )

    def _pace(self) -> Pace | None:
        """Return how fast cut networks are; None without a limit of the time."""
        if not self.budget.latency_ms:
            return None
        return Pace.of(self.model, self.graph, self.example, self.settings, progress=self.progress)

    def _latency_limit(self, pace: Pace) -> float:
        """Return the time that may remain, as a part of the original's."""
        assert self.budget.latency_ms is not None
        return self.budget.latency_ms.of(pace.original_ms) / pace.original_ms

    @property
    def _fills(self) -> bool:
        """Whether groups grow in steps of several units, so that a budget in params or MACs is worth filling."""
        ceilings = self.budget.params or self.budget.macs
        limited = bool(ceilings) and not self.budget.latency_ms
        return self.settings.round_to != 1 and limited and not self.method.random_size

    def _with_costs(self, rows: Iterable[GroupRow], sizes: Sizes, whole: Cost) -> Iterator[GroupRow]:
        """Yield the rows with the parameters and MACs in each group, and with those that its own cut saves."""
        parts = shares(self.graph, whole)
        params, macs = sizes.params({}), sizes.macs({})
        for row in rows:
            alone = {row.name: max(1, row.after)}
            yield replace(
                row,
                params=round(parts[row.name].params * whole.params),
                macs=round(parts[row.name].macs * whole.macs),
                params_saved=params - sizes.params(alone),
                macs_saved=macs - sizes.macs(alone),
            )

    def _check_found(self, found: Mapping[str, Any]) -> None:
        if not found:
            names = ", ".join(group.name for group in self.graph.prunable[:3])
            raise SecateurError(
                "no layer that runs in evaluation mode consumes a channel that may be cut",
                layer=names,
                remedy="use method='ft' or 'random', which do not measure consumers",
            )

    def _ladder(self, name: str, levels: Any, multiple: int) -> Ladder:
        """Return how a group grows, in steps of `multiple` unless the settings name others."""
        steps = multiple if self.settings.round_to == 1 else _of_group(self.settings.round_to, name)
        return ladder(levels, at_least=_of_group(self.settings.at_least, name), round_to=steps)

    def _unit_costs(self, sizes: Sizes, counts: Mapping[str, int], pace: Pace | None) -> dict[str, float]:
        """Return the cost of one unit of each group at these sizes, as a part of the original's."""
        limits = self.budget.ceilings(self.before.params, self.before.macs) or ({} if pace else {"macs": 0.0})
        found = {}
        now = pace.predicted(sizes, counts) if pace else 0.0
        for name, count in counts.items():
            fewer = {**counts, name: max(1, count - 1)} if count > 1 else {**counts, name: min(2, sizes.units(name))}
            found[name] = sum(
                abs(measure(counts) - measure(fewer)) / max(measure({}), 1)
                for measure in (getattr(sizes, resource) for resource in limits)
            )
            if pace:  # over a whole step of the table, within which the time is the same
                less, more = max(1, count - pace.table.multiple), min(count + pace.table.multiple, sizes.units(name))
                other = less if less < count else more
                change = abs(now - pace.predicted(sizes, {**counts, name: other}))
                found[name] += change / max(1, abs(count - other))
        return found

    def _notes(self, rows: Sequence[GroupRow], found: Mapping[str, Any], samples: int) -> list[str]:
        notes = list(self.notes)
        inputs = [row.name for row in rows if row.name not in found and self.graph[row.name].from_input]
        unused = [row.name for row in rows if row.name not in found and row.name not in inputs]
        if inputs:
            notes.append(f"{', '.join(inputs)}: {self.method.name} ranks filters, and inputs have none; kept")
        if unused:
            notes.append(
                f"{', '.join(unused)}: no layer that {self.method.name} knows consumes it in evaluation mode; kept"
            )
        if self.budget.error is not None and all(row.after == row.before for row in rows):
            notes.append(f"no unit was removed: an error of {self.budget.error:g} needs all of them, or more draws")
        return notes + self.method.notes(rows, samples)


@dataclass(frozen=True)
class _Chooser:
    """The search for the largest network within the budget, in one step."""

    job: Job
    sizes: Sizes
    growth: Growth
    found: Mapping[str, Any]
    kept: Mapping[str, Sequence[int]]
    scales: Mapping[str, Sequence[float]]
    pace: Pace | None = None

    def choose(self, position: int) -> dict[str, Selection]:
        """Return the selected units of each group, as indices among the remaining ones."""
        counts = self.growth.counts(position)
        return {name: self.job.method.choose(name, self.found[name], count) for name, count in counts.items()}

    def applied(self, chosen: Mapping[str, Selection]) -> tuple[dict[str, list[int]], dict[str, list[float]]]:
        """Return the units and scales in terms of the original network."""
        kept, scales = dict[str, list[int]](), dict[str, list[float]]()
        for name, units in self.kept.items():
            one = chosen.get(name, Selection(tuple(range(len(units))), (1.0,) * len(units)))
            kept[name] = [units[i] for i in one.kept]
            scales[name] = [self.scales[name][i] * scale for i, scale in zip(one.kept, one.scales, strict=True)]
        return kept, scales

    def ceilings(self, part: float) -> dict[str, float]:
        """Return the costs that are `part` of the way from the original to the budget, geometrically."""
        before = self.job.before
        whole = {"params": before.params, "macs": before.macs}
        return {
            name: whole[name] * (min(limit, whole[name]) / whole[name]) ** part if part < 1 else limit
            for name, limit in self.job.budget.ceilings(before.params, before.macs).items()
        }

    def position(self, part: float) -> int:
        """Return how far the groups may grow, `part` of the way from the original to the budget."""
        budget, ceilings = self.job.budget, self.ceilings(part)
        if budget.error is not None:
            return self.growth.above(budget.error)
        position = allocate(self.growth, self.sizes, ceilings)
        if self.job.method.random_size:
            position = self._sampled_within(position, ceilings)
        return position

    def _sampled_within(self, most: int, ceilings: Mapping[str, float]) -> int:
        """Return the largest position whose sampled channels fit: they may be more than expected."""

        def fits(position: int) -> bool:
            params, macs = self.sizes.exact(self.applied(self.choose(position))[0])
            spent = {"params": params, "macs": macs}
            return all(spent[name] <= ceiling for name, ceiling in ceilings.items())

        position = largest(self.growth, fits)
        if position < 0:
            raise SecateurError(
                "the channels sampled for the smallest network exceed the budget",
                layer=type(unwrap(self.job.model)).__name__,
                remedy="raise the budget, try another seed, or use select='pivotal'",
            )
        return position

    def fast_enough(self, limit: float, *, measure: bool) -> tuple[_Chooser, int]:
        """Return the largest network that takes at most a part `limit` of the original's time, and its position.

        The table predicts the time. If networks may be timed, the prediction is corrected by the times of whole
        networks, cut for real and timed interleaved with the original, so that other load affects both.
        """
        pace, factor, best = self._pace, 1.0, None
        for _ in range(CORRECTIONS if measure and pace.here else 1):
            found = self._predicted_within(limit / factor)
            if found is None:
                break
            if not measure or not pace.here:
                return found
            real = found[0]._measured(found[1], 20)
            if real <= limit and (best is None or real > best[0]):
                best = (real, found)
            if (1 - CLOSE) * limit <= real <= limit or (found[1] == self.growth.steps and real <= limit):
                break
            factor = 1.005 * real / pace.predicted(self.sizes, found[0].growth.counts(found[1]))
        if best is not None:
            return best[1]
        least = self._measured(0, 100) if pace.here else pace.predicted(self.sizes, self.growth.counts(0))
        if pace.here and least <= limit:
            return self, 0  # the table misleads, but the smallest network is fast enough
        set_sizes = (self.job.settings.at_least, self.job.settings.round_to) != (1, 1)
        ways = ways_out(self.growth, self.job.graph) if set_sizes else "raise the budget"
        raise SecateurError(
            f"the budget cannot be met: {limit * pace.original_ms:.3g} ms may remain ({limit:.0%} of "
            f"{pace.original_ms:.3g} ms), the smallest network takes {least * pace.original_ms:.3g} ms ({least:.0%})",
            layer=type(unwrap(self.job.model)).__name__,
            remedy=f"{ways}; on a busy machine, try again",
        )

    def _predicted_within(self, limit: float) -> tuple[_Chooser, int] | None:
        """Return the largest network that is fast enough by the table, filled up group by group."""
        ceilings = within(self.sizes, self.ceilings(1.0))

        def fits(growth: Growth, position: int) -> bool:
            counts = growth.counts(position)
            return self._pace.predicted(self.sizes, counts) <= limit and ceilings(growth, position)

        position = largest(self.growth, lambda position: fits(self.growth, position))
        if position < 0:
            return None
        growth, position = fill(self.growth, position, fits)
        return replace(self, growth=growth), position

    @property
    def _pace(self) -> Pace:
        assert self.pace is not None
        return self.pace

    def _measured(self, position: int, runs: int) -> float:
        made = Plan.keeping(self.job.graph, *self.applied(self.choose(position)))
        network = cut(self.job.model, made) if made.kept else self.job.model
        return self._pace.measured(network, runs)


def _check_graph(graph: ChannelGraph, model: nn.Module, settings: PruneSettings) -> None:
    """Raise an error for a graph of another network, or one that was traced with other settings."""
    for name, tensor in named_tensors(unwrap(model)).items():
        if graph.shapes.get(name) != tuple(tensor.shape):
            raise UsageError(
                f"the graph is of another network: it has {name} of shape {graph.shapes.get(name)}, this network of "
                f"shape {tuple(tensor.shape)}",
                layer=name,
                remedy="pass graph=sc.trace(model, example) of this network, or leave graph out",
            )
    inputs = settings.prune_inputs and not any(group.from_input for group in graph.groups)
    if settings.keep or settings.free_outputs or settings.output not in ("module", graph.output) or inputs:
        raise UsageError(
            "keep=, free_outputs=, output= and prune_inputs= were settled when the graph was traced",
            remedy="pass them to sc.trace instead, or leave graph out",
        )


def _that_fits(pool: Pool, model: nn.Module, settings: PruneSettings) -> Pool:
    """Return the same samples in batches on which the network can run in the memory that there is."""
    return pool.in_batches(batch_that_fits(unwrap(model), pool.calls[0], settings.memory, most=pool.largest))


def _of_group(numbers: int | Mapping[str, int], name: str) -> int:
    if isinstance(numbers, int):
        return numbers
    return next((number for pattern, number in numbers.items() if fnmatchcase(name, pattern)), 1)


def _check_patterns(numbers: int | Mapping[str, int], graph: ChannelGraph) -> None:
    for pattern in numbers if isinstance(numbers, Mapping) else ():
        if not any(fnmatchcase(group.name, pattern) for group in graph.prunable):
            raise UsageError(
                f"the pattern {pattern!r} matches no group that may be cut",
                remedy=f"the groups are {', '.join(group.name for group in graph.prunable[:8])}",
            )
