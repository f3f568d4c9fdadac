"""One number for each unit from all its shares: the largest, a mean, a root mean square, or a quantile over samples."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction

import torch
from torch import Tensor

from secateur.errors import UsageError
from secateur.methods.pfp.shares import DONE, Packed, raise_shares, sites, sum_shares
from secateur.network.layer_calls import GroupCall
from secateur.network.modules import Slot
from secateur.network.processes import gather_from_all, reduce_over_all

QUANTILE = re.compile(r"q(0?\.[0-9]+)")


def statistic(kind: str, size: int, slots: Iterable[Slot]) -> Largest | Mean:
    """Return an empty statistic.

    >>> statistic("q0.99", 64, [Slot("conv2.weight", 1)])

    Args:
        kind: `max`, `mean`, `rms` or a quantile such as `q0.99`.
        size: the number of units; units from there on are part of the sums, but their statistic is not wanted.
        slots: the slots that will be observed.
    """
    check_kind(kind)
    if kind == "max":
        return Largest(size)
    if kind in ("mean", "rms"):
        return Mean(size, slots, squared=kind == "rms")
    return Quantile(size, Fraction(kind[1:]))


def check_kind(kind: str) -> None:
    """Raise an error unless there is a statistic of this kind."""
    quantile = QUANTILE.fullmatch(str(kind))
    if kind not in ("max", "mean", "rms") and not (quantile and Fraction(quantile[1]) > 0):
        raise UsageError(
            f"the kind of sensitivity is {kind!r}",
            remedy="use max, mean, rms, or a quantile between 0 and 1 such as q0.99",
        )


class Largest:
    """The largest share of each unit."""

    by_sample = False  # whether each batch must be a single sample

    def __init__(self, size: int) -> None:
        self.best = torch.zeros(size, dtype=torch.float64)
        self.packs: dict[tuple[Slot, int], Packed] = {}

    def add(self, call: GroupCall, units: Tensor, unit_of: Tensor, memory: int) -> None:
        """Add the shares in one layer; `units[unit_of]` is the unit of each of its channels."""
        x, wanted = call.x, units < len(self.best)
        best = torch.full((len(units),), DONE, dtype=x.dtype, device=x.device)
        best[wanted.to(x.device)] = self.best[units[wanted]].to(x)
        raise_shares(call, unit_of, best, memory=memory, packs=self.packs)
        self.best[units[wanted]] = best.cpu().double()[wanted]

    def end_of_batch(self) -> None:
        """Note that the shares added from here on belong to other samples."""

    def share_among_processes(self) -> None:
        """Combine the statistics of all processes."""
        reduce_over_all(self.best, "max")

    def values(self) -> Tensor:
        """Return the statistic of each unit, in float64."""
        return self.best.clamp(max=1)


class Quantile(Largest):
    """A quantile, over the samples, of each unit's largest share at a sample. Keeps one number per sample and unit.

    Of n samples it is the k-th smallest, k = ceil(level (n + 1)). The next sample is equally likely to have each rank,
    so that it exceeds the k-th with probability at most 1 - level. Where n is too small for that, it is the largest.
    """

    by_sample = True

    def __init__(self, size: int, level: Fraction) -> None:
        super().__init__(size)
        self.level = level
        self.samples: list[Tensor] = []

    def end_of_batch(self) -> None:
        """Note the largest shares of a sample."""
        self.samples.append(self.best.clamp(max=1))
        self.best.zero_()

    def share_among_processes(self) -> None:
        """Combine the samples of all processes."""
        own = torch.stack(self.samples) if self.samples else self.best.new_zeros(0, len(self.best))
        self.samples = list(gather_from_all(own))

    def values(self) -> Tensor:
        """Return the quantile of each unit."""
        k = min(len(self.samples), math.ceil(self.level * (len(self.samples) + 1)))
        return torch.stack(self.samples).kthvalue(k, dim=0).values


class Mean:
    """The mean of each unit's shares, or the root of the mean of their squares, over all sites of a layer.

    Of several layers that consume a unit the largest mean counts, so that a layer with few sites counts as much as one
    with many. Calls of one weight are one layer, and outputs that do not depend on the unit are no sites of it.
    """

    by_sample = False

    def __init__(self, size: int, slots: Iterable[Slot], *, squared: bool) -> None:
        self.size = size
        self.squared = squared
        self.packs: dict[tuple[Slot, int], Packed] = {}
        self.rows = {slot: row for row, slot in enumerate(sorted(slots))}  # in the same order in every process
        self.sums, self.counts = (torch.zeros(len(self.rows), size, dtype=torch.float64) for _ in range(2))

    def add(self, call: GroupCall, units: Tensor, unit_of: Tensor, memory: int) -> None:
        """Add the shares in one layer; `units[unit_of]` is the unit of each of its channels."""
        found = sum_shares(call, unit_of, squared=self.squared, memory=memory, packs=self.packs)
        row, wanted = self.rows[call.slot], units < self.size
        self.sums[row, units[wanted]] += found[wanted]
        self.counts[row, units[wanted]] += sites(call)

    def end_of_batch(self) -> None:
        """Do nothing: a mean does not depend on which samples the shares belong to."""

    def share_among_processes(self) -> None:
        """Combine the sums of all processes."""
        reduce_over_all(self.sums, "sum")
        reduce_over_all(self.counts, "sum")

    def values(self) -> Tensor:
        """Return the mean of each unit, in float64."""
        means = (self.sums / self.counts.clamp(min=1)).clamp(max=1)
        most = means.amax(0) if len(means) else torch.zeros(self.size, dtype=torch.float64)
        return most.sqrt() if self.squared else most
