"""The choice among a cut network and its repairs: the one whose output is nearest to that of the original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from secateur._torch import BatchNorm
from secateur.network.batches import Call, batch_size, eval_outputs, first_batches, forward
from secateur.network.divergence import divergence_sums, mean_divergence
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
    """Held-out samples, and what the original, the network as cut and the repaired one give for them."""

    batch: Call
    wanted: Sequence[Tensor]
    cut: Sequence[Tensor]
    repaired: Sequence[Tensor]

    @classmethod
    def of(
        cls,
        original: nn.Module,
        small: nn.Module,
        repaired: nn.Module,
        batch: Call,
        known: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
    ) -> Judged:
        """Run the networks.

        Args:
            known: outputs of the original and of the repaired network for these samples, from a run on more of them.
                They are taken if they have the shapes that these samples give: a shape may depend on all values.
        """
        cut = eval_outputs(small, batch)
        if known is None or any([one.shape for one in outputs] != [one.shape for one in cut] for outputs in known):
            known = eval_outputs(original, batch), eval_outputs(repaired, batch)
        return cls(batch, known[0], cut, known[1])


def nearest(small: nn.Module, repaired: nn.Module, judged: Sequence[Judged], fitted: Sequence[Call]) -> Nearest:
    """Return the network nearest to the original: the cut, the repaired, or the repaired with new norm statistics.

    Args:
        judged: this process's share of the held-out samples.
        fitted: samples for new norm statistics; the first NORMED of them are used.
    """
    before = _divergence([(one.cut, one.wanted) for one in judged])
    after, norms = _divergence([(one.repaired, one.wanted) for one in judged]), False
    renormed = _with_new_norms(repaired, first_batches(fitted, NORMED))
    if renormed is not None:
        divergence = _divergence([(eval_outputs(renormed, one.batch), one.wanted) for one in judged])
        if divergence < after:
            repaired, after, norms = renormed, divergence, True
    if after < before:
        return Nearest(repaired, before, after, repaired=True, norms=norms)
    return Nearest(duplicate(small), before, before, repaired=False, norms=False)


def _divergence(outputs: Sequence[tuple[Sequence[Tensor], Sequence[Tensor]]]) -> float:
    """Return the divergence of outputs from wanted ones, over these batches and those of all other processes."""
    count = torch.tensor(max((len(wanted) for _, wanted in outputs), default=0))
    reduce_over_all(count, "max")  # a process may have no batch
    sums = torch.zeros(int(count), 2, dtype=torch.float64)
    for found, wanted in outputs:
        sums += divergence_sums(found, wanted)
    reduce_over_all(sums, "sum")
    return mean_divergence(sums)


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
