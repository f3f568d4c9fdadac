"""The choice among a cut network and its repairs: the one whose output is nearest to that of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur._torch import BatchNorm
from secateur.network.batches import (
    Call,
    SplitBatch,
    batch_size,
    eval_outputs,
    first_batches,
    fitted_samples,
    forward,
    held_out_samples,
)
from secateur.network.divergence import output_divergence
from secateur.network.modules import duplicate, mode
from secateur.network.processes import own_share, reduce_over_all

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


def nearest(small: nn.Module, repaired: nn.Module, original: nn.Module, parts: Sequence[SplitBatch]) -> Nearest:
    """Return the network nearest to the original: the cut, the repaired, or the repaired with new norm statistics."""
    held_out = own_share(first_batches(held_out_samples(parts), JUDGED))
    wanted = [eval_outputs(original, batch) for batch in held_out]
    before = _divergence(small, held_out, wanted)
    after, norms = _divergence(repaired, held_out, wanted), False
    renormed = _with_new_norms(repaired, first_batches(fitted_samples(parts), NORMED))
    if renormed is not None and (divergence := _divergence(renormed, held_out, wanted)) < after:
        repaired, after, norms = renormed, divergence, True
    if after < before:
        return Nearest(repaired, before, after, repaired=True, norms=norms)
    return Nearest(duplicate(small), before, before, repaired=False, norms=False)


def _divergence(network: nn.Module, batches: Sequence[Call], wanted: Sequence[Sequence[Tensor]]) -> float:
    """Return the mean divergence over these samples and those of all other processes."""
    total = torch.zeros(2, dtype=torch.float64)
    for batch, old in zip(batches, wanted, strict=True):
        size = batch_size(batch)
        gap = output_divergence(eval_outputs(network, batch), old)
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
