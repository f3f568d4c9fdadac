"""Which method suits a network: several of them under the same budgets, on the same points, judged by the same data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur import fingerprints
from secateur.allocations import Allocation
from secateur.batches import Call, batch_size, take, with_labels
from secateur.budget import Budget
from secateur.budget import parse as parse_budget
from secateur.cost import Cost
from secateur.curves import movement
from secateur.entries import entries
from secateur.errors import SecateurError, UsageError
from secateur.forward import forward
from secateur.graph import Output
from secateur.methods import METHODS
from secateur.methods.base import Evidence, Method
from secateur.planning import Job
from secateur.pool import Pair, Pool
from secateur.program import Example, first_line, mode, unwrap
from secateur.progress import bar
from secateur.prune import carry_out

HELD = 256  # points held apart, at most, where there is no labelled data; and no more than a quarter of all
BATCH = 256  # points that are judged together, at most


@dataclass(frozen=True)
class Cell:
    """One method under one budget, on the points of one draw. What could not be done has no figures and says why."""

    method: str
    budget: str
    draw: int
    params: int | None = None
    macs: int | None = None
    figure: float | None = None  # the accuracy, or how far the output moved
    seconds: float | None = None  # to measure, choose, cut, verify and repair; all that it rests on is counted in full
    why: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One method under one budget: means over the draws that are done, and the lowest and highest figure."""

    method: str
    budget: str
    draws: int
    params: float | None
    macs: float | None
    figure: float | None
    low: float | None
    high: float | None
    seconds: float | None
    why: str | None  # of the first draw that could not be done


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `print(found)` is a table; `found.rows` are its figures, `found.info` all as plain data."""

    resource: str
    budgets: tuple[str, ...]
    methods: tuple[str, ...]
    measure: str  # what the figures are: "accuracy" or "movement"
    original: float | None  # accuracy of the network as it was
    judged: int  # points that the figures are from
    points: int  # that each draw has to measure on
    draws: int
    seed: int
    before: Cost
    cells: tuple[Cell, ...] = ()
    finished: bool = False
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """The methods under each budget, in the order in which they were asked for; those without any cell left out."""
        found = []
        for budget in self.budgets:
            for method in self.methods:
                cells = [cell for cell in self.cells if (cell.method, cell.budget) == (method, budget)]
                if cells:
                    found.append(_row(method, budget, cells))
        return tuple(found)

    def best_first(self, budget: str) -> list[Row]:
        """The rows of one budget, the best figure first, those without one last.

        >>> found.best_first("50%")[0].method
        'residual+repair'
        """
        sign = -1 if self.measure == "accuracy" else 1
        rows = [row for row in self.rows if row.budget == budget]
        return sorted(rows, key=lambda row: (row.figure is None, sign * (row.figure or 0.0)))

    @property
    def info(self) -> dict[str, Any]:
        """All of it as plain data."""
        known = asdict(self) | {"before": {"params": self.before.params, "macs": self.before.macs}}
        del known["cells"]
        rows = []
        for row in self.rows:
            cells = [asdict(cell) for cell in self.cells if (cell.method, cell.budget) == (row.method, row.budget)]
            each = [{key: value for key, value in one.items() if key not in ("method", "budget")} for one in cells]
            rows.append(asdict(row) | {"cells": each})
        return known | {"rows": rows}

    def __str__(self) -> str:
        width = max(map(len, self.methods))
        lines = [f"{'budget':>10}  {'method':{width}}  {'params':>7}  {'MACs':>7}  {self.measure:>9}"]
        for budget in self.budgets:
            for row in self.best_first(budget):
                kept = (_part(row.params, self.before.params), _part(row.macs, self.before.macs), self.figure(row))
                lines.append(f"{budget:>10}  {row.method:{width}}  {kept[0]:>7}  {kept[1]:>7}  {kept[2]:>9}")
        if self.original is not None:
            lines.append(f"the original: {self.original:.2%} of {self.judged:,} points are right")
        lines += [f"{row.method} at {row.budget}: {row.why}" for row in self.rows if row.why is not None]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def figure(self, row: Row) -> str:
        """The figure of a row as people read it."""
        if row.figure is None:
            return "-"
        return f"{row.figure:.2%}" if self.measure == "accuracy" else f"{row.figure:.3g}"


def compare(
    model: nn.Module,
    data: Any,
    budgets: Mapping[str, Any],
    methods: Sequence[str | Method] | None = None,
    *,
    on: Any = None,
    repair: bool = False,
    draws: int = 1,
    seed: int = 0,
    points: int = 256,
    delta: float = 1e-12,
    C: float = 1.0,
    keep: Sequence[str] = (),
    at_least: int | Mapping[str, int] = 1,
    round_to: int | Mapping[str, int] = 1,
    output: Output = "module",
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    memory: int | None = None,
    progress: bool = False,
    after_each: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Prune by several methods under several budgets, and judge every network by the same points.

    >>> print(sc.compare(model, images, {"params": ["50%", "30%"]}, ["pfp", "ft", "ft@residual+repair"], on=(x, y)))

    budgets: one resource, `params` or `macs`, and one or several limits for it.
    methods: names with options, such as `pfp:pivotal`, `pfp~mean`, `ft@residual`, `thinet+repair`, `residual-repair`,
        or methods of your own; all that the data allows if not given. Without +repair or -repair a method does as in
        `prune`, where only residual repairs.
    on: labelled data that nothing has seen, to be judged by: pairs (x, y) with the number of the class in y. Choose by
        validation data, not by test data. Without it a part of `data` is held apart, and the figure is how far the
        output moves from the original's there: for class scores the divergence of the probabilities.
    repair: judge every method with and without a repair.
    draws: do it so often, with other points of the data each time, and other seeds.
    points: for each draw to measure on. Of the data the first draws x points are used, beside those held apart.
    after_each: called with what is known so far whenever one more network has been judged.

    The rest is as for `prune`. All methods see the same points; the network is traced once, and what several methods
    measure is measured once for each draw. A method that cannot do it has a row that says why.
    """
    if draws < 1 or points < 1:
        raise UsageError(f"draws is {draws} and points {points}", remedy="give whole numbers from 1 up")
    resource, limits = _limits(budgets)
    chosen = None if methods is None else entries(methods, repair=repair)
    held_most = HELD if on is None else 0
    wanted = draws * points + held_most
    pool = Pool(list(with_labels(data, example=example, to_inputs=to_inputs, points=wanted)))
    if chosen is None:
        chosen = entries([name for name in METHODS if name != "taylor" or pool.labelled], repair=repair)
    held, parts = pool.parts(points, draws, held_most, seed)
    base = Job.of(
        model,
        pool.some(parts[0]),
        {resource: "100%"},
        to_inputs=lambda pair: pair[0][0] or pair[0][1],
        example=example,
        points=None,
        keep=keep,
        at_least=at_least,
        round_to=round_to,
        output=output,
        memory=memory,
    )
    judge = _Moved(model, pool.some(held)) if on is None else _Right(model, on, base.example, to_inputs)
    found = Comparison(
        resource=resource,
        budgets=tuple(limits),
        methods=tuple(map(str, chosen)),
        measure=judge.measure,
        original=judge.original,
        judged=judge.points,
        points=len(parts[0]),
        draws=draws,
        seed=seed,
        before=base.before,
        notes=(*base.graph.notes, *_told(pool, parts, points, held), *judge.notes(pool, parts)),
    )
    with bar("comparing", draws * len(chosen) * len(limits), progress) as advance:
        for draw, part in enumerate(parts):
            pairs = pool.some(part)
            labels = [label for _, label in pairs if label is not None]
            job = replace(
                base,
                calibration=[call for call, _ in pairs],
                labels=labels if len(labels) == len(pairs) else None,
                seed=seed + draw,
            )
            seen = Shared.of(job.evidence())
            known: dict[str, tuple[Method, Allocation]] = {}
            for entry in chosen:
                if entry.stem not in known:
                    known[entry.stem] = entry.judges(delta=delta, C=C, seed=seed + draw)
                method, allocation = known[entry.stem]
                for name, limit in limits.items():
                    asked = replace(job, method=method, allocation=allocation, repair=entry.repaired, budget=limit)
                    cell = _tried(asked, seen, judge, Cell(str(entry), name, draw))
                    found = replace(found, cells=(*found.cells, cell))
                    if after_each is not None:
                        after_each(found)
                    advance()
    return replace(found, finished=True)


@dataclass(frozen=True)
class Shared(Evidence):
    """Evidence for several jobs, with the seconds that each measurement took and the others that it rests on."""

    took: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    rests_on: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)
    under_way: list[set[str]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, evidence: Evidence) -> Shared:
        """The same evidence."""
        return cls(**{one.name: getattr(evidence, one.name) for one in fields(evidence)})

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        """As for all evidence."""
        if what not in self._known:
            start, before = time.perf_counter(), sum(self.took.values())
            self.under_way.append({what})
            try:
                super().once(what, measure)
            finally:
                self.rests_on[what] = self.under_way.pop()
            within = sum(self.took.values()) - before  # what it asked for was counted under its own name
            self.took[what] = time.perf_counter() - start - within
        for used in self.under_way[-1:]:
            used |= self.rests_on[what]
        return self._known[what]

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        """What the work gives, and the seconds that it would have taken if nothing had been measured before."""
        start, before = time.perf_counter(), dict(self.took)
        self.under_way[:] = [set()]
        found = work()
        used = self.under_way.pop()
        return found, time.perf_counter() - start + sum(before.get(one, 0.0) for one in used)


class _Right:
    """Judges by the share of points whose class has the highest score."""

    measure = "accuracy"

    def __init__(self, model: nn.Module, on: Any, example: Example, to_inputs: Callable[[Any], Any] | None) -> None:
        self.on = list(on) if isinstance(on, Iterator) else on
        self.read = {"example": example, "to_inputs": to_inputs}
        self.points = 0
        self.original = self(model)

    def _batches(self) -> Iterator[tuple[Call, Tensor]]:
        for call, labels in with_labels(self.on, **self.read):
            if labels is None:
                raise UsageError(
                    "the data to judge by has no labels",
                    layer="on",
                    remedy="give pairs (x, y); without them, leave `on` out to see how far the output moves",
                )
            for first in range(0, batch_size(call), BATCH):
                part = slice(first, first + BATCH)
                yield take(call, part), labels[part]

    def __call__(self, network: nn.Module) -> float:
        right = points = 0
        for call, labels in self._batches():
            scores = _outputs(network, call)[0]
            _check_classes(scores, labels)
            right += int((scores.argmax(1) == labels.to(scores.device)).sum())
            points += len(labels)
        if not points:
            raise SecateurError("there is no data to judge by", layer="on", remedy="give at least one batch")
        self.points = points
        return right / points

    def notes(self, pool: Pool, parts: Sequence[Sequence[int]]) -> list[str]:
        """Whether some of the points were used to choose channels."""
        used = {one for part in parts for call, _ in pool.some(part) for one in fingerprints.of(call)}
        known = sum(one in used for call, _ in self._batches() for one in fingerprints.of(call))
        if not known:
            return []
        return [f"{known:,} of the {self.points:,} points to judge by are calibration points too: the figures flatter"]


class _Moved:
    """Judges by how far the output is from the original's."""

    measure = "movement"
    original = None

    def __init__(self, model: nn.Module, pairs: Sequence[Pair]) -> None:
        self.calls = [call for call, _ in pairs]
        self.points = sum(map(batch_size, self.calls))
        if not self.points:
            raise SecateurError(
                "there are too few points to hold some apart",
                layer="data",
                remedy="give at least 4, or labelled data to judge by",
            )
        self.wanted = [_outputs(model, call) for call in self.calls]

    def __call__(self, network: nn.Module) -> float:
        total = 0.0
        for call, wanted in zip(self.calls, self.wanted, strict=True):
            total += movement(_outputs(network, call), wanted) * batch_size(call)
        return total / self.points

    def notes(self, pool: Pool, parts: Sequence[Sequence[int]]) -> list[str]:
        return []


def _tried(job: Job, seen: Shared, judge: Callable[[nn.Module], float], cell: Cell) -> Cell:
    """The cell with its figures, or with why there are none."""
    try:
        res, seconds = seen.timed(lambda: carry_out(job, job.draft(seen)))
        if job.repair and res.repair is None and res.plan.kept:
            return replace(cell, why=next(note for note in res.notes if "not repaired" in note).splitlines()[0])
        figure = judge(res.model)
    except (SecateurError, RuntimeError) as error:  # one method that fails, for whatever reason, leaves the others
        why = str(error) if isinstance(error, SecateurError) else first_line(error)
        return replace(cell, why=why.splitlines()[0])
    return replace(
        cell, params=res.after.params, macs=res.after.macs, figure=figure, seconds=seconds, notes=tuple(res.notes)
    )


@torch.no_grad()
def _outputs(network: nn.Module, call: Call) -> list[Tensor]:
    """What the network gives, its numbers all finite."""
    inner = unwrap(network)
    with mode(inner, False):
        leaves = pytree.tree_leaves(forward(inner, call))
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    if not found or not all(bool(torch.isfinite(leaf).all()) for leaf in found):
        raise SecateurError(
            "its output has NaN or infinite values" if found else "it gives no numbers",
            layer=type(inner).__name__,
            remedy="check the weights and the data for such values",
        )
    return found


def _check_classes(scores: Tensor, labels: Tensor) -> None:
    fits = scores.dim() == 2 and labels.dim() == 1 and not labels.is_floating_point()
    if not fits or not 0 <= int(labels.min()) <= int(labels.max()) < scores.shape[1]:
        raise UsageError(
            f"the network gives {tuple(scores.shape)}, the labels are {labels.dtype} of shape {tuple(labels.shape)}, "
            f"from {labels.min().item():g} to {labels.max().item():g}",
            layer="on",
            remedy="give the number of the class for each point, from 0 up; for other tasks leave `on` out",
        )


def _limits(budgets: Mapping[str, Any]) -> tuple[str, dict[str, Budget]]:
    """The resource, and its limits by what they are called."""
    if not isinstance(budgets, Mapping) or len(budgets) != 1 or next(iter(budgets)) not in ("params", "macs"):
        raise UsageError(
            f"the budgets are {budgets!r}", remedy='give limits for one resource, params or macs: {"params": ["50%"]}'
        )
    resource, given = next(iter(budgets.items()))
    several = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not several:
        raise UsageError(f"there is no budget for {resource}", remedy="give one or several, such as ['50%', '30%']")
    found = [(one, parse_budget({resource: one})) for one in several]
    return resource, {(one.strip() if isinstance(one, str) else str(getattr(b, resource))): b for one, b in found}


def _told(pool: Pool, parts: Sequence[Sequence[int]], points: int, held: Sequence[int]) -> list[str]:
    notes = []
    if len(parts[0]) < points:
        notes.append(f"{len(parts[0])} points to measure on instead of {points}: the data has no more")
    if len({one for part in parts for one in part}) < sum(map(len, parts)):
        left = len(pool) - len(held)
        notes.append(f"the draws share points: each has {len(parts[0])} of {left}, so they spread too little")
    return notes


def _row(method: str, budget: str, cells: Sequence[Cell]) -> Row:
    done = [cell for cell in cells if cell.figure is not None]

    def mean(name: str) -> float | None:
        return statistics.fmean(getattr(cell, name) for cell in done) if done else None

    figures = [cell.figure for cell in done if cell.figure is not None]
    return Row(
        method=method,
        budget=budget,
        draws=len(done),
        params=mean("params"),
        macs=mean("macs"),
        figure=mean("figure"),
        low=min(figures, default=None),
        high=max(figures, default=None),
        seconds=mean("seconds"),
        why=next((cell.why for cell in cells if cell.why is not None), None),
    )


def _part(value: float | None, whole: float) -> str:
    return "-" if value is None else f"{value / whole if whole else 0.0:.1%}"
