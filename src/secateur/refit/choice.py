"""The choice among a cut network and its repairs: the one whose output is nearest to that of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur._torch import BatchNorm
from secateur.network.batches import Call, batch_size, eval_outputs, first_batches, forward
from secateur.network.divergence import output_divergence
from secateur.network.modules import duplicate, mode
from secateur.network.processes import reduce_over_all

JUDGED = 128  # held-out samples, at most, that choose
NORMED = 64  # samples for new norm statistics


@dataclass(frozen=True)
class Nearest:
    """The network that was chosen, with output divergences from the original on held-out samples."""

    network: nn.Module
    before: float  # of the network as cut
    after: float  # of the chosen one
    repaired: bool
    norms: bool  # whether it has new norm statistics


@dataclass(frozen=True)
class Judged:
    """Held-out samples, and the outputs of the original and of the repaired network for them."""

    batch: Call
    wanted: Sequence[Tensor]
    repaired: Sequence[Tensor]

    @classmethod
    def of(cls, original: nn.Module, repaired: nn.Module, batch: Call) -> Judged:
        """Run both networks."""
        return cls(batch, eval_outputs(original, batch), eval_outputs(repaired, batch))


def nearest(small: nn.Module, repaired: nn.Module, judged: Sequence[Judged], fitted: Sequence[Call]) -> Nearest:
    """Return the network nearest to the original: the cut, the repaired, or the repaired with new norm statistics.

    Args:
        judged: this process's share of the held-out samples.
        fitted: samples for new norm statistics; the first NORMED of them are used.
    """
    before = _divergence(small, judged)
    after, norms = _divergence(None, judged), False
    renormed = _with_new_norms(repaired, first_batches(fitted, NORMED))
    if renormed is not None and (divergence := _divergence(renormed, judged)) < after:
        repaired, after, norms = renormed, divergence, True
    if after < before:
        return Nearest(repaired, before, after, repaired=True, norms=norms)
    return Nearest(duplicate(small), before, before, repaired=False, norms=False)


def _divergence(network: nn.Module | None, judged: Sequence[Judged]) -> float:
    """Return the mean divergence over these samples and those of all other processes; of the repaired one if None."""
    total = torch.zeros(2, dtype=torch.float64)
    for one in judged:
        size = batch_size(one.batch)
        gap = output_divergence(one.repaired if network is None else eval_outputs(network, one.batch), one.wanted)
        total += torch.tensor([gap * size, size], dtype=torch.float64)
    reduce_over_all(total, "sum")
    return float(total[0] / total[1])


@torch.no_grad()
def _with_new_norms(network: nn.Module, batches: Sequence[Call]) -> nn.Module | None:
    """Return a copy whose batch norms have the statistics of these samples; None if it has no such norms."""
    copy = duplicate(network)
    norms = [m for m in copy.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    batches = [batch for batch in batches if batch_size(batch) > 1]  # a single sample has no variance
    if not norms or not batches:
        return None
    momenta = [norm.momentum for norm in norms]
    with mode(copy, False):
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None  # a plain mean over all batches
        for batch in batches:
            forward(copy, batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return copy
