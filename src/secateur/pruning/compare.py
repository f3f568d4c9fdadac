"""Compare pruning methods under the same budgets, on the same samples, evaluated on the same data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.certificates import fingerprints
from secateur.channels.graph import ChannelGraph, Output
from secateur.checks import known_keywords
from secateur.deprecation import renamed_arguments
from secateur.errors import SecateurError, UsageError, first_line
from secateur.methods import METHODS
from secateur.methods.base import Evidence, Method
from secateur.network.batches import Call, batch_size, forward, take, with_labels
from secateur.network.divergence import output_divergence
from secateur.network.examples import Example
from secateur.network.footprint import batch_that_fits, split_to_fit
from secateur.network.memory import memory_errors
from secateur.network.modules import mode, one_at_a_time, unwrap
from secateur.network.outputs import compared_outputs
from secateur.progress import bar
from secateur.pruning.budget import Budget
from secateur.pruning.budget import parse as parse_budget
from secateur.pruning.comparison import Cell, Comparison
from secateur.pruning.job import Job
from secateur.pruning.pool import Pair, Pool
from secateur.pruning.prune import carry_out
from secateur.pruning.scope import Scope, refuse_with_scope, unpack
from secateur.pruning.settings import SAMPLES, SAMPLING_DELTA, Effort, PruneSettings
from secateur.pruning.variants import variants

HELD = 256  # samples held out, at most, where there is no labelled data; and no more than a quarter of all
BATCH = 256  # samples that are evaluated together, at most


@renamed_arguments(points="samples", draws="repeats")
@known_keywords
@one_at_a_time
def compare(
    model: nn.Module,
    data: Any,
    budgets: Mapping[str, Any],
    methods: Sequence[str | Method] | None = None,
    *,
    on: Any = None,
    repair: bool = False,
    repeats: int = 1,
    delta: float = SAMPLING_DELTA,
    C: float = 1.0,
    seed: int = 0,
    samples: int = SAMPLES,
    task: Literal["segmentation"] | None = None,
    scope: str | Sequence[str] = (),
    keep: Sequence[str] = (),
    free_outputs: Sequence[str | int] = (),
    at_least: int | Mapping[str, int] = 1,
    round_to: int | Mapping[str, int] = 1,
    output: Output = "module",
    prune_inputs: bool = False,
    memory: int | None = None,
    effort: Effort = "default",
    graph: ChannelGraph | None = None,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    progress: bool = False,
    after_each: Callable[[Comparison], None] | None = None,
) -> Comparison:
    """Prune by several methods under several budgets, and evaluate every network on the same samples.

    >>> print(sc.compare(model, images, {"params": ["50%", "30%"]}, ["pfp", "ft", "ft@residual+repair"], on=(x, y)))

    All methods use the same calibration samples; the network is traced once, and measurements that several methods
    share are made once per calibration set. A method that fails has a row with its error.

    Args:
        model, data: as for `prune`; of the data, repeats x samples are drawn at random by the seed, and those held out.
        budgets: one resource, `params` or `macs`, and one or several limits for it.
        methods: names with options, such as `pfp:pivotal`, `pfp~mean`, `ft@residual`, `thinet+repair`,
            `residual-repair`, or methods of your own; by default all that the data allows. Without +repair or -repair
            a method is repaired as in `prune`, where only residual is.
        on: labelled data that nothing has seen, to evaluate on: pairs (x, y) with class indices in y. Choose by
            validation data, not by test data. Without it a part of `data` is held out, and the value is the output
            divergence there: the KL divergence of class scores, else the relative squared error.
        repair: evaluate every method with and without a repair.
        repeats: number of calibration sets, each with its own samples and seed.
        samples: number of calibration samples in each set.
        after_each: called with the comparison so far whenever one more network has been evaluated.

        All other settings are as for `prune`.
    """
    settings = PruneSettings.among({**locals(), "repair": None})
    if repeats < 1:
        raise UsageError(f"repeats is {repeats}", remedy="use a whole number from 1 up")
    resource, limits = _limits(budgets)
    if task and on is not None:
        raise UsageError("on= evaluates the accuracy of classes, not of maps", remedy="leave on or task out")
    if settings.scope:
        if on is not None:
            raise UsageError("on= evaluates the whole model, and scope= prunes a part of it", remedy="leave on out")
        refuse_with_scope(budgets, None, graph)
        wanted = replace(settings, samples=repeats * samples + HELD)
        part = Scope.of(model, data, wanted, example=example, to_inputs=to_inputs)
        model, data, example, to_inputs = part.network, part.pairs, None, unpack
        settings = replace(settings, scope=())
    chosen = None if methods is None else variants(methods, repair=repair)
    if any(variant.inputs for variant in chosen or ()):
        raise UsageError(
            "the network is traced once for all methods, so +inputs cannot be part of one of them",
            remedy="pass prune_inputs=True, which is for all methods",
        )
    held_most = HELD if on is None else 0
    pool = Pool.of(data, repeats * samples + held_most, seed=seed, example=example, to_inputs=to_inputs)
    if chosen is None:
        chosen = variants([name for name in METHODS if name != "taylor" or pool.labels], repair=repair)
    held, parts = pool.parts(samples, repeats, held_most, seed)
    sets = [Pool(pool.some(part)) for part in parts]
    base = Job.of(
        model,
        sets[0].pairs,
        {resource: "100%"},
        replace(settings, samples=None),
        to_inputs=lambda pair: pair[0][0] or pair[0][1],
        graph=graph,
        example=example,
    )
    original = base.model  # without its free outputs
    evaluator = (
        _Divergence(original, pool.some(held)) if on is None else _Accuracy(original, on, base.example, to_inputs)
    )
    found = Comparison(
        resource=resource,
        budgets=tuple(limits),
        methods=tuple(map(str, chosen)),
        measure=evaluator.measure,
        original=evaluator.original,
        evaluated=evaluator.samples,
        samples=len(parts[0]),
        repeats=repeats,
        seed=seed,
        before=base.before,
        notes=(*base.notes, *pool.notes, *_sample_notes(pool, parts, samples, held), *evaluator.notes(sets)),
    )
    with memory_errors(), bar("comparing", repeats * len(chosen) * len(limits), progress) as advance:
        for repeat, calibration in enumerate(sets):
            seeded = replace(settings, seed=seed + repeat)
            evidence = TimedEvidence.of(base.on(calibration, seeded).evidence())
            jobs: dict[str, Job] = {}  # by method and allocation, whose scores are shared
            for variant in chosen:
                own = variant.settings(seeded)
                job = jobs.setdefault(variant.stem, base.on(calibration, own))
                for name, limit in limits.items():
                    asked = replace(job, settings=own, budget=limit)
                    cell = _evaluated(asked, evidence, evaluator, Cell(str(variant), name, repeat))
                    found = replace(found, cells=(*found.cells, cell))
                    if after_each is not None:
                        after_each(found)
                    advance()
    return replace(found, finished=True)


@dataclass(frozen=True)
class TimedEvidence(Evidence):
    """Evidence for several jobs, with the seconds that each measurement took and the others that it rests on."""

    took: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    rests_on: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)
    under_way: list[set[str]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def of(cls, evidence: Evidence) -> TimedEvidence:
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


class _Accuracy:
    """Evaluates by the share of samples whose class has the highest score."""

    measure = "accuracy"

    def __init__(self, model: nn.Module, on: Any, example: Example, to_inputs: Callable[[Any], Any] | None) -> None:
        self.on = list(on) if isinstance(on, Iterator) else on
        self.read = {"example": example, "to_inputs": to_inputs}
        self.model, self.size = unwrap(model), 0  # samples at a time, known with the first batch
        self.samples = 0
        self.original = self(model)

    def _batches(self) -> Iterator[tuple[Call, Tensor]]:
        for call, labels in with_labels(self.on, **self.read):
            if labels is None:
                raise UsageError(
                    "the evaluation data has no labels",
                    layer="on",
                    remedy="pass pairs (x, y); or leave `on` out to compare output divergences",
                )
            if not self.size:
                self.size = batch_that_fits(self.model, call, most=BATCH)
            for first in range(0, batch_size(call), self.size):
                part = slice(first, first + self.size)
                yield take(call, part), labels[part]

    def __call__(self, network: nn.Module) -> float:
        right = samples = 0
        for call, labels in self._batches():
            scores = _outputs(network, call)[0]
            _check_classes(scores, labels)
            right += int((scores.argmax(1) == labels.to(scores.device)).sum())
            samples += len(labels)
        if not samples:
            raise SecateurError("the evaluation data is empty", layer="on", remedy="give at least one batch")
        self.samples = samples
        return right / samples

    def notes(self, sets: Sequence[Pool]) -> list[str]:
        """Return a warning if some of the samples were used for calibration."""
        used = {one for pool in sets for call in pool.calls for one in fingerprints.of(call)}
        known = sum(one in used for call, _ in self._batches() for one in fingerprints.of(call))
        if not known:
            return []
        return [f"{known:,} of the {self.samples:,} evaluation samples are calibration samples too: values are biased"]


class _Divergence:
    """Evaluates by the output divergence from the original."""

    measure = "divergence"
    original = None

    def __init__(self, model: nn.Module, pairs: Sequence[Pair]) -> None:
        self.calls = list(split_to_fit(unwrap(model), (call for call, _ in pairs)))
        self.samples = sum(map(batch_size, self.calls))
        if not self.samples:
            raise SecateurError(
                "there are too few samples to hold some out",
                layer="data",
                remedy="pass at least 4, or labelled data to evaluate on",
            )
        self.wanted = [_outputs(model, call) for call in self.calls]

    def __call__(self, network: nn.Module) -> float:
        total = 0.0
        for call, wanted in zip(self.calls, self.wanted, strict=True):
            total += output_divergence(_outputs(network, call), wanted) * batch_size(call)
        return total / self.samples

    def notes(self, sets: Sequence[Pool]) -> list[str]:
        return []


def _evaluated(job: Job, evidence: TimedEvidence, evaluate: Callable[[nn.Module], float], cell: Cell) -> Cell:
    """Return the cell with its figures, or with the error."""
    try:
        res, seconds = evidence.timed(lambda: carry_out(job, job.draft(evidence)))
        if job.settings.repaired and res.repair is None and res.plan.kept:
            return replace(cell, error=next(note for note in res.notes if "not repaired" in note).splitlines()[0])
        value = evaluate(compared_outputs(res.model, res.plan.free_outputs, job.settings.task))
    except (SecateurError, RuntimeError) as error:  # one method that fails, for whatever reason, leaves the others
        cause = str(error) if isinstance(error, SecateurError) else first_line(error)
        return replace(cell, error=cause.splitlines()[0])
    return replace(
        cell, params=res.after.params, macs=res.after.macs, value=value, seconds=seconds, notes=tuple(res.notes)
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
            remedy="give the number of the class for each sample, from 0 up; for other tasks leave `on` out",
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


def _sample_notes(pool: Pool, parts: Sequence[Sequence[int]], samples: int, held: Sequence[int]) -> list[str]:
    notes = []
    if len(parts[0]) < samples:
        notes.append(f"{len(parts[0])} calibration samples instead of {samples}: the data has no more")
    if len({one for part in parts for one in part}) < sum(map(len, parts)):
        left = len(pool) - len(held)
        notes.append(f"the repeats share samples: each has {len(parts[0])} of {left}, so their spread is too small")
    return notes
