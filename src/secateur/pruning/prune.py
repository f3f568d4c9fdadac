"""Prune a network: trace, measure, allocate, select, cut, verify, repair."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from secateur.certificates import fingerprints
from secateur.certificates.bounds import samples_for_drop
from secateur.certificates.certify import drop_certified, fixed_sequence
from secateur.channels.graph import ChannelGraph, Output
from secateur.checks import known_keywords
from secateur.costs.cost import cost
from secateur.deprecation import renamed_arguments
from secateur.errors import SecateurError, UsageError
from secateur.methods.base import Method
from secateur.methods.pfp.method import Select
from secateur.network.batches import Call, as_batches, batch_size, calls, count_samples, take
from secateur.network.examples import Example
from secateur.network.memory import memory_errors
from secateur.network.modules import duplicate, named_tensors, one_at_a_time
from secateur.network.outputs import compared_outputs, with_all_outputs
from secateur.network.processes import copy_from_first, distributed, in_use
from secateur.profiling.table import Engine, LatencyTable
from secateur.pruning.agreement import UNUSED, measure
from secateur.pruning.budget import parse, parse_drop
from secateur.pruning.job import Draft, Job, Reading
from secateur.pruning.pool import Pair
from secateur.pruning.result import Pruned
from secateur.pruning.scope import Scope, refuse_with_scope, unpack
from secateur.pruning.settings import CERTIFICATE_DELTA, SAMPLES, SAMPLING_DELTA, Effort, PruneSettings
from secateur.refit.repair import Repair, refit
from secateur.stages import profiled, stage
from secateur.surgery.cut import cut, wrap_like
from secateur.surgery.plan import Plan
from secateur.surgery.rewrite import runnable
from secateur.surgery.verify import tolerance_for, verify
from secateur.training.recovery import FEWEST, recover


@renamed_arguments(points="samples")
@known_keywords
@one_at_a_time
def plan(
    model: nn.Module,
    data: Any,
    budget: Mapping[str, object],
    *,
    method: str | Method = "residual",
    select: Select | None = None,
    allocation: str | None = None,
    repair: bool | None = None,
    sensitivity: str = "max",
    delta: float = SAMPLING_DELTA,
    certificate_delta: float = CERTIFICATE_DELTA,
    C: float | Literal["measured"] = 1.0,
    seed: int = 0,
    samples: int | None = SAMPLES,
    steps: int = 1,
    task: Literal["segmentation"] | None = None,
    scope: str | Sequence[str] = (),
    keep: Sequence[str] = (),
    free_outputs: Sequence[str | int] = (),
    at_least: int | Mapping[str, int] = 1,
    round_to: int | Mapping[str, int] = 1,
    output: Output = "module",
    prune_inputs: bool = False,
    latency_table: str | LatencyTable | None = None,
    engine: Engine = "torch",
    memory: int | None = None,
    effort: Effort = "default",
    graph: ChannelGraph | None = None,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    progress: bool = False,
) -> Plan:
    """Return which channels to keep under a budget; nothing is cut.

    >>> plan = sc.plan(model, images, budget={"macs": "50%"}, method="pfp", select="derand", keep=["fc"])
    >>> print(plan)

    Args:
        model, data, budget: as for `prune`, and so are all settings.
    """
    settings = PruneSettings.among(locals())
    with memory_errors(), distributed() as process:
        progress = progress and process.first
        reading = Reading(graph=graph, example=example, to_inputs=to_inputs, progress=progress)
        if settings.scope:
            refuse_with_scope(budget, None, graph)
            part = Scope.of(model, data, settings, example=example, to_inputs=to_inputs)
            return replace(_job_of(part, budget, settings, progress).draft().plan, scope=part.paths)
        return Job.of(model, data, budget, settings, **reading).draft().plan


@renamed_arguments(points="samples")
@known_keywords
@one_at_a_time
def prune(
    model: nn.Module,
    data: Any,
    budget: Mapping[str, object],
    *,
    heldout: Any = None,
    method: str | Method = "residual",
    select: Select | None = None,
    allocation: str | None = None,
    repair: bool | None = None,
    sensitivity: str = "max",
    delta: float = SAMPLING_DELTA,
    certificate_delta: float = CERTIFICATE_DELTA,
    C: float | Literal["measured"] = 1.0,
    seed: int = 0,
    samples: int | None = SAMPLES,
    steps: int = 1,
    task: Literal["segmentation"] | None = None,
    scope: str | Sequence[str] = (),
    keep: Sequence[str] = (),
    free_outputs: Sequence[str | int] = (),
    at_least: int | Mapping[str, int] = 1,
    round_to: int | Mapping[str, int] = 1,
    output: Output = "module",
    prune_inputs: bool = False,
    latency_table: str | LatencyTable | None = None,
    engine: Engine = "torch",
    memory: int | None = None,
    effort: Effort = "default",
    graph: ChannelGraph | None = None,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    progress: bool = False,
) -> Pruned:
    """Return a smaller network within a budget: measured, planned, cut, verified and repaired.

    The original stays as it is. Under `torchrun`, every process calls this with the same network and data; each works
    on its share of the samples, and all return the same result.

    >>> res = sc.prune(model, images, budget={"params": "40%"})
    >>> res.model, res.plan, res.verification
    >>> print(res.summary())

    Args:
        model: the trained network.
        data: calibration data: a tensor or numpy array (one batch), a `torch.utils.data.Dataset` of single samples, a
            `DataLoader`, or an iterable of batches. Most methods ignore labels beside the inputs. Never use test data.
        budget: what may remain: `{"params": "40%"}`, `{"macs": 2.1e9}`, `{"latency_ms": 8.0}`, or several of them. Or
            what may be lost: `{"drop": "1%"}` returns the smallest network, by MACs in steps of 5%, for which held-out
            samples certify that accuracy drops by at most one percentage point. Or, for pfp, an error: `{"eps": 0.5}`
            sizes every group for that relative error in each layer (the paper's Algorithm 1), `{"output_eps": 0.5}`
            for that error of the output, by the main theorem, which asks for very large groups.
        heldout: for a budget in drop: batches (x, y) that neither training nor calibration has seen.
        method: `"residual"` (least residual), `"pfp"` (the paper's), `"ft"`, `"softnet"`, `"thinet"`, `"fpgm"`,
            `"taylor"` (needs labels beside the inputs), `"random"`, or your own `secateur.methods.Method`.
        select: for pfp: `"derand"` (keep the most sensitive channels; its default), or importance sampling by
            `"rand"`, `"partial"` or `"pivotal"`.
        allocation: how the budget is divided among the groups: `"uniform"`, `"pfp"` or `"residual"`; by default the
            method's own.
        repair: refit the layers of the cut network by least squares; by default only for residual.
        sensitivity: for pfp: `"max"` (the paper's), `"mean"`, `"rms"` or a quantile such as `"q0.99"`.
        delta: for pfp: failure probability of the sampling guarantee.
        certificate_delta: for a budget in drop: failure probability of the certificate.
        C: for pfp: factor by which fresh data may exceed the measured sensitivities. `"measured"` estimates it from
            samples beyond the calibration samples, by an order statistic: all but 5% of inputs keep to it, and half of
            delta is spent on that.
        seed: for the choice of samples, and for random methods.
        samples: number of calibration samples, chosen at random by the seed; None uses all. Of an iterator, whose
            order cannot be changed, the first ones are used, and a note says so. Up to 256 of the samples left over
            show how often the smaller network gives the original's answer: `res.agreement`.
        steps: cut in this many steps, measuring again after each.
        task: `"segmentation"` if the outputs are maps of class scores: they are compared by the KL divergence per
            pixel, and `res.agreement` is about pixels. Without it, outputs of more than two axes are compared by value.
        scope: names or patterns of submodules (`"backbone"`) of a model that cannot be exported as a whole, such as a
            detector. The whole model runs on the data in its own way (a batch may be `(list of images, targets)`); the
            submodules are traced, cut, verified and repaired on the inputs that they get there. The budget, the costs
            and the agreement are those of the submodules, `res.model` is the whole model.
        keep: names or patterns of layers whose filters stay.
        free_outputs: outputs that need not keep their channels, such as feature maps beside the predictions: paths,
            indices or patterns, as for `trace`. They are not compared with the original's.
        at_least: units that every group keeps; a mapping from patterns of group names sets it by group.
        round_to: group sizes are multiples of it; a mapping from patterns of group names sets it by group.
        output: `"module"` cuts your own class, `"graph"` the exported program.
        prune_inputs: prune inputs of the network, too, where a linear layer or a convolution consumes them. The smaller
            network still takes all of them, and this layer selects those that are kept.
        latency_table: for a budget in latency: a file that `secateur profile` wrote, on this machine or another, or a
            `LatencyTable`. Without it the network's layers are timed here, once: the table is kept in the cache folder.
        engine: for a budget in latency: what runs the network, `"torch"` or `"onnxruntime"`.
        memory: bytes for temporary arrays; by default half of the free memory, and no more than 1.5 GB.
        effort: `"quick"` estimates all divergences and tries no cut; `"default"` tries a few cuts; `"thorough"` tries
            two of every group, and recovers the network after the repair (`recover`).
        graph: the channel graph of this network from `trace`, which is then not traced again; keep, free_outputs,
            output and prune_inputs are those of the trace.
        example: an input to trace the network with; by default the first sample.
        to_inputs: turns a batch into the network's inputs: a tensor, a tuple of arguments or a dict of keywords.
        progress: show progress bars on the standard error stream.

    Raises:
        SecateurError: the budget cannot be met, the data or the weights are not finite, or the cut cannot be verified.
    """
    settings = PruneSettings.among(locals())
    drop = isinstance(budget, Mapping) and "drop" in budget
    if drop:
        settings = _with_certificate_delta(settings)
    elif heldout is not None:
        raise UsageError(
            "heldout= belongs to a budget in drop", remedy='pass budget={"drop": "1%"}, or leave heldout out'
        )
    if settings.scope:
        refuse_with_scope(budget, heldout, graph)
    with memory_errors(), distributed() as process, profiled() as profile:
        progress = progress and process.first
        reading = Reading(graph=graph, example=example, to_inputs=to_inputs, progress=progress, unused=UNUSED)
        if settings.scope:
            part = Scope.of(model, data, settings, example=example, to_inputs=to_inputs, unused=UNUSED)
            job = _job_of(part, budget, settings, progress)
            found = carry_out(job, job.draft())
            found = part.whole(with_agreement(found, job.model, [(call, None) for call in part.unused]))
        else:
            job = Job.of(model, data, {"macs": "100%"} if drop else budget, settings, **reading)
            found = _as_far_as_certified(job, parse_drop(budget), heldout) if drop else carry_out(job, job.draft())
            if found.plan.free_outputs or settings.task:
                found = replace(found, model=wrap_like(model, found.model))  # the job has a stand-in without wrappers
            found = with_agreement(found, job.model, job.unused)
    return replace(found, profile=tuple(profile.as_rows()))


def _job_of(part: Scope, budget: Mapping[str, object], settings: PruneSettings, progress: bool) -> Job:
    """Return the job for a part of a larger model."""
    own = replace(settings, samples=None)  # they were chosen when the whole model was run
    return Job.of(part.network, part.pairs, budget, own, to_inputs=unpack, progress=progress)


def _with_certificate_delta(settings: PruneSettings) -> PruneSettings:
    """Accept the old spelling of `certificate_delta`, which was `delta`."""
    if settings.delta == SAMPLING_DELTA or settings.method == "pfp":
        return settings
    warnings.warn(
        "delta= for a budget in drop is deprecated and will be removed in 0.3; use certificate_delta=",
        DeprecationWarning,
        stacklevel=6,  # the caller of `prune`, behind its decorators
    )
    return replace(settings, delta=SAMPLING_DELTA, certificate_delta=settings.delta)


def _as_far_as_certified(job: Job, drop: float, heldout: Any) -> Pruned:
    """Return the last network of a fixed sequence of sizes that passes its test; see `certify.fixed_sequence`."""
    if heldout is None:
        raise UsageError("there is no held-out data", remedy="pass heldout=[(x, y), ...] that nothing has seen yet")
    model, delta = job.model, job.settings.certificate_delta
    batches = list(as_batches(heldout))
    evidence = job.evidence()
    whole = carry_out(job, job.draft(evidence))

    def candidates() -> Iterator[Pruned]:
        yield whole
        for percent in range(95, 0, -5):
            smaller = replace(job, budget=parse({"macs": f"{percent}%"}))
            try:
                draft = smaller.draft(evidence)
            except SecateurError:  # below the smallest size
                return
            yield carry_out(smaller, draft)

    def passes(one: Pruned) -> bool:
        return drop_certified(
            model, one.model, batches, drop=drop, delta=delta, used=whole.fingerprints, example=job.example
        )

    found = fixed_sequence(candidates(), passes)
    samples = sum(batch_size(call) for call in calls(batches, example=job.example))
    if found is None:
        raise SecateurError(
            f"{samples} held-out samples cannot certify a drop of {drop:.2%} even for the original, "
            f"with confidence {1 - delta:g}",
            layer=type(model).__name__,
            remedy=f"pass at least {samples_for_drop(0, 0, drop, delta)} samples, allow a larger drop, or raise "
            "certificate_delta",
        )
    note = (
        f"certified: accuracy drops by at most {drop:.2%}, with confidence {1 - delta:g}, if the {samples} held-out "
        "samples are independent of training and calibration and come from the same source as future inputs"
    )
    return replace(found, notes=(*found.notes, note))


def carry_out(job: Job, draft: Draft) -> Pruned:
    """Return the network of a draft: cut, verified, and repaired if the settings ask for it.

    >>> carry_out(job, job.draft()).model
    """
    model, report, notes = job.model, None, draft.notes
    if draft.plan.kept:
        with stage("cut and verify"):
            small = cut(model, draft.plan)
            difference = verify(model, draft.plan, [job.first_batch], tolerance=tolerance_for(model))
        if job.settings.repaired:
            small, report, more = _repaired(small, job, draft.plan)
            notes += more
    else:
        small, difference = duplicate(model), 0.0
    used = _remember(small, model, job.calibration)
    if draft.plan.kept and job.settings.effort == "thorough" and job.settings.repaired:
        judges = _judges(job)
        small, more = _recovered(small, job, draft.plan, judges)
        notes += more
        used = _remember(small, model, [*job.calibration, *judges])
    return Pruned(
        model=with_all_outputs(small),
        plan=draft.plan,
        verification=difference,
        before=job.before,
        after=cost(small, job.example),
        rows=draft.rows,
        level=draft.level,
        samples=draft.samples,
        method=job.method,
        allocation=job.allocation.name,
        repair=report,
        scores={name: [float(f"{v:.6g}") for v in one.tolist()] for name, one in draft.scores.items()},
        fingerprints=used,
        notes=notes,
        graph=job.graph,
        settings=job.settings,
        budget=job.budget.as_dict(),
    )


def with_agreement(res: Pruned, model: nn.Module, unused: Sequence[Pair]) -> Pruned:
    """Return the same result with its agreement with the original on samples that pruning has not used.

    >>> with_agreement(carry_out(job, job.draft()), job.model, job.unused).agreement

    If no channel was removed, nothing is measured. A network that does not run on these samples is kept, and a note
    says why there is no figure.

    Args:
        model: the original network.
        unused: batches with their labels. Samples among them that pruning has used are left out.
    """
    if not res.plan.kept:
        return res
    try:
        with memory_errors(), stage("agreement"):
            task = None if res.settings is None else res.settings.task
            original, small = (compared_outputs(one, res.plan.free_outputs, task) for one in (model, res.model))
            found = measure(original, small, unused, used=fingerprints.unpack(res.fingerprints))
    except SecateurError as error:
        return replace(res, notes=(*res.notes, f"agreement with the original was not measured: {error}"))
    repaired = res.repair is not None
    failed = not repaired and res.settings is not None and res.settings.repaired
    return replace(res, agreement=found, notes=(*res.notes, *found.notes(repaired=repaired, failed=failed)))


def _remember(small: nn.Module, model: nn.Module, samples: Sequence[Call]) -> str:
    """Let the smaller network remember these samples and those of the original; return their fingerprints."""
    own = (one for call in samples for one in fingerprints.of(call))
    used = fingerprints.pack([*fingerprints.remembered(model), *own])
    fingerprints.remember(small, used)
    return used


def _judges(job: Job) -> list[Call]:
    """Return every other sample that pruning has not used, if they are enough to judge the recovery."""
    found = [take(call, slice(0, None, 2)) for call, _ in job.unused]
    return found if count_samples(found) >= FEWEST else []


def _recovered(small: nn.Module, job: Job, plan: Plan, judges: Sequence[Call]) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the network after gradient steps on the calibration samples; one that cannot take them stays as it is.

    Args:
        judges: samples that the repair has not used; if they are enough, they choose when to stop.
    """
    try:
        with memory_errors(), stage("recovery"):
            found = recover(
                small,
                job.model,
                [*job.calibration, *judges],
                plan=plan,
                seed=job.settings.seed,
                to_inputs=lambda call: call[0] or call[1],
                progress=job.progress,
            )
    except SecateurError as error:
        return small, (f"not recovered: {error}",)
    copy_from_first(list(named_tensors(found.model).values()))
    note = f"recovered: output divergence {found.after:.2g} on held-out samples, before {found.before:.2g}"
    return found.model, (note, *found.notes)


def _repaired(small: nn.Module, job: Job, plan: Plan) -> tuple[nn.Module, Repair | None, tuple[str, ...]]:
    """Return the repaired network; one that cannot be repaired stays as it was cut, and a note says why."""
    original = runnable(job.model, job.graph)
    try:
        with memory_errors():
            network, report = refit(
                small, original, job.calibration, plan, memory=job.settings.memory, progress=job.progress
            )
    except SecateurError as error:
        if in_use():  # the other processes would wait for this one
            raise
        return small, None, (f"not repaired: {error}",)
    return network, report, report.notes
