"""One number for each unit from all its shares: the largest, a mean, a root mean square, or a quantile over points."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from secateur.errors import UsageError
from secateur.processes import in_use
from secateur.shares import DONE, Packed, raise_shares, sites, sum_shares
from secateur.ties import Slot
from secateur.watch import Read

QUANTILE = re.compile(r"q(0?\.[0-9]+)")


class Statistic(Protocol):
    """What is kept of the shares while the data goes by. Units from `size` on are not asked for."""

    by_point: bool  # whether each batch must be a single point

    def see(self, read: Read, units: Tensor, unit_of: Tensor, memory: int) -> None:
        """Take one layer's reading into account; `units[unit_of]` is the unit of each of its channels."""

    def end_of_batch(self) -> None:
        """The network has run; what follows belongs to other points."""

    def share_among_processes(self) -> None:
        """Give every process what all have seen."""

    def values(self) -> Tensor:
        """The statistic of each unit, in float64."""


def statistic(kind: str, size: int, unit_at: Mapping[Slot, Tensor]) -> Statistic:
    """The statistic of that name, for `size` units.

    >>> statistic("q0.99", 64, {})

    unit_at: for every slot that will be read, the units along it.
    """
    check_kind(kind)
    if kind == "max":
        return Largest(size)
    if kind in ("mean", "rms"):
        return Mean(size, unit_at, squared=kind == "rms")
    return Quantile(size, _level(kind))


def check_kind(kind: str) -> None:
    """Refuse what is no statistic."""
    if kind not in ("max", "mean", "rms") and not (QUANTILE.fullmatch(str(kind)) and _level(kind) > 0):
        raise UsageError(
            f"the kind of sensitivity is {kind!r}",
            remedy="use max, mean, rms, or a quantile between 0 and 1 such as q0.99",
        )


def _level(kind: str) -> Fraction:
    return Fraction(kind[1:])  # exact, as it was written


class Largest:
    """The largest share of each unit."""

    by_point = False

    def __init__(self, size: int) -> None:
        self.best = torch.zeros(size, dtype=torch.float64)
        self.packs: dict[tuple[Slot, int], Packed] = {}

    def see(self, read: Read, units: Tensor, unit_of: Tensor, memory: int) -> None:
        x, asked = read.x, units < len(self.best)
        best = torch.full((len(units),), DONE, dtype=x.dtype, device=x.device)
        best[asked.to(x.device)] = self.best[units[asked]].to(x)
        raise_shares(read, unit_of, best, memory=memory, packs=self.packs)
        self.best[units[asked]] = best.cpu().double()[asked]

    def end_of_batch(self) -> None:
        pass

    def share_among_processes(self) -> None:
        reduce_over_all(self.best, dist.ReduceOp.MAX)

    def values(self) -> Tensor:
        return self.best.clamp(max=1)


class Quantile(Largest):
    """A quantile over the points of each unit's largest share at a point. Keeps one number for each point and unit.

    Of n points it is the k-th smallest, k = ceil(level (n + 1)). The next point is as likely as any other to be the one
    at each rank, so that it exceeds the k-th with probability 1 - level at most. Where n is too small for that, it is
    the largest.
    """

    by_point = True

    def __init__(self, size: int, level: Fraction) -> None:
        super().__init__(size)
        self.level = level
        self.seen: list[Tensor] = []

    def end_of_batch(self) -> None:
        self.seen.append(self.best.clamp(max=1))
        self.best.zero_()

    def share_among_processes(self) -> None:
        self.seen = list(
            gather_from_all(torch.stack(self.seen) if self.seen else self.best.new_zeros(0, len(self.best)))
        )

    def values(self) -> Tensor:
        k = min(len(self.seen), math.ceil(self.level * (len(self.seen) + 1)))
        return torch.stack(self.seen).kthvalue(k, dim=0).values


class Mean:
    """The mean of each unit's shares, or of their squares and then the root, over all sites of a layer.

    Of several layers that read a unit the largest mean counts, so that the few sites of one are not drowned in the many
    of another. Calls of one weight are one layer, and outputs that do not read the unit at all are no sites of it.
    """

    by_point = False

    def __init__(self, size: int, unit_at: Mapping[Slot, Tensor], *, squared: bool) -> None:
        self.size = size
        self.squared = squared
        self.packs: dict[tuple[Slot, int], Packed] = {}
        self.units, starts, end = {}, {}, 0
        for slot in sorted(unit_at):  # in the same order in every process
            units = unit_at[slot].unique()
            self.units[slot] = units[units < size]
            starts[slot] = end
            end += len(self.units[slot])
        self.starts: dict[Slot, int] = starts
        self.sums, self.counts = (torch.zeros(end, dtype=torch.float64) for _ in range(2))

    def see(self, read: Read, units: Tensor, unit_of: Tensor, memory: int) -> None:
        found = sum_shares(read, unit_of, squared=self.squared, memory=memory, packs=self.packs)
        asked = units < self.size
        at = self.starts[read.slot] + torch.searchsorted(self.units[read.slot], units[asked])
        self.sums[at] += found[asked]
        self.counts[at] += sites(read)

    def end_of_batch(self) -> None:
        pass

    def share_among_processes(self) -> None:
        reduce_over_all(self.sums, dist.ReduceOp.SUM)
        reduce_over_all(self.counts, dist.ReduceOp.SUM)

    def values(self) -> Tensor:
        means = (self.sums / self.counts.clamp(min=1)).clamp(max=1)
        units = torch.cat([*self.units.values(), torch.zeros(0, dtype=torch.int64)])
        most = torch.zeros(self.size, dtype=torch.float64).scatter_reduce_(0, units, means, "amax")
        return most.sqrt() if self.squared else most


def reduce_over_all(tensor: Tensor, how: dist.ReduceOp.RedOpType) -> None:
    """Put the sum or the largest over all processes into the tensor."""
    moved = tensor.to("cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(moved, how)
    tensor.copy_(moved)


def gather_from_all(rows: Tensor) -> Tensor:
    """The rows of all processes, one below the other; each may have another number of them."""
    if not in_use():
        return rows
    rank = dist.get_rank()
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    counts[rank] = len(rows)
    reduce_over_all(counts, dist.ReduceOp.SUM)
    whole = rows.new_zeros(int(counts.sum()), *rows.shape[1:])
    first = int(counts[:rank].sum())
    whole[first : first + len(rows)] = rows
    reduce_over_all(whole, dist.ReduceOp.SUM)
    return whole
