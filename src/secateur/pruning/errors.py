"""Pruning by error instead of by size: the factors of the main theorem, and the constant C from held-out samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from secateur.certificates.bounds import excess, samples_for_order_statistic
from secateur.channels.graph import ChannelGraph
from secateur.errors import SecateurError, UsageError
from secateur.methods.pfp.sensitivity import exceedance, measure
from secateur.network.batches import Call, batch_size
from secateur.network.examples import Example
from secateur.network.modules import unwrap
from secateur.pruning.budget import Budget
from secateur.pruning.pool import Pool
from secateur.pruning.settings import PruneSettings
from secateur.surgery.rewrite import runnable
from secateur.theory.theorem import products
from secateur.theory.theory import measured_conditions

EXCEEDED = 0.05  # share of inputs that may exceed the sensitivities by more than C


def check_settings(budget: Budget, settings: PruneSettings) -> None:
    """Refuse a budget in error, or a measured C, with a method that guarantees no error."""
    pfp = settings.method == "pfp" and settings.sensitivity == "max"
    if settings.C == "measured" and not pfp:
        raise UsageError('C="measured" is for the method pfp', remedy='write method="pfp", or leave C out')
    if budget.error is None:
        return
    if not pfp or settings.allocation not in (None, "pfp"):
        raise UsageError(
            f"a budget in error ({budget}) needs sizes by sample complexity",
            remedy='write method="pfp" with its own allocation and sensitivity="max"',
        )
    if settings.steps != 1:
        raise UsageError(f"steps is {settings.steps}", remedy="with a budget in error use one step: errors add up")


def samples_for_excess(settings: PruneSettings) -> int:
    """Return how many samples beside those for calibration a measured C needs; 0 for a given one."""
    return samples_for_order_statistic(EXCEEDED, settings.delta / 2) if settings.C == "measured" else 0


def with_measured_excess(
    model: nn.Module, graph: ChannelGraph, pool: Pool, settings: PruneSettings
) -> tuple[Pool, PruneSettings, tuple[str, ...]]:
    """Return the samples that are left, and the settings with C as a number; as they are unless C is to be measured.

    Half of delta is spent on the statement that all but a share of inputs keep to C.
    """
    if settings.C != "measured":
        return pool, settings, ()
    needed, spare = samples_for_excess(settings), sum(batch_size(call) for call, _ in pool.unused)
    if spare < needed:
        raise SecateurError(
            f'C="measured" needs {needed:,} samples beside those for calibration, there are {spare:,}',
            layer="data",
            remedy=f"pass at least {len(pool) + needed:,} samples, use fewer for calibration, or a larger delta",
        )
    beside = Pool(pool.unused)
    fresh, rest = (beside.some(list(part)) for part in (range(needed), range(needed, spare)))
    network = runnable(model, graph)
    found = measure(network, graph, pool.calls, memory=settings.memory)
    each = exceedance(network, graph, [call for call, _ in fresh], found, memory=settings.memory)
    ratios = np.stack([one.numpy() for one in each.values()]).max(0)
    half = settings.delta / 2
    C = excess(ratios, EXCEEDED, half)
    if not np.isfinite(C):
        raise SecateurError(
            "C is infinite: channels that no calibration sample uses are active for others",
            layer=max(each, key=lambda name: float(each[name].max())),
            remedy="use more calibration samples, or select='derand' with a C of your own",
        )
    note = (
        f"C is {C:.4g}, measured on {needed:,} further samples: all but {EXCEEDED:.0%} of inputs keep to it, with "
        f"confidence 1 - {half:g}; the sampling guarantee has the other half of delta"
    )
    return replace(pool, unused=rest if spare > needed else []), replace(settings, C=C, delta=half), (note,)


def by_theorem(
    model: nn.Module, graph: ChannelGraph, batches: Sequence[Call], example: Example, settings: PruneSettings
) -> tuple[dict[str, float], PruneSettings, tuple[str, ...]]:
    """Return for each group the factor from its error to the output's, by the main theorem; delta is shared by layers.

    A group whose layers may err by e has `2 L D e` as its part in the error of the output: D is the product of the
    condition numbers from that layer on, 95% quantiles over the calibration samples.
    """
    conditions = measured_conditions(unwrap(model), batches, example)
    order, count = list(conditions), len(conditions)
    tails = dict(zip(order, products(list(conditions.values())), strict=True))
    factors = {
        group.name: 2 * count * max(tails[slot.parameter] for slot in group.consumes if slot.parameter in tails)
        for group in graph.prunable
        if any(slot.parameter in tails for slot in group.consumes)
    }
    worst = max(factors, key=lambda name: factors[name])
    note = (
        f"by the main theorem the error of a layer counts up to {factors[worst]:.3g} times at the output ({worst}; "
        f"condition numbers {', '.join(f'{value:.3g}' for value in conditions.values())}, 95% quantiles); inputs "
        "beyond these quantiles are not covered"
    )
    return factors, replace(settings, delta=settings.delta / count), (note,)
