"""Sums over all patches of feature maps, without collecting the patches (im2col).

Two taps of a kernel see the same map, one shifted against the other. So the second moments of all patches consist of
the correlations of the map with itself at every relative shift of two taps: 13 products instead of 81 for a 3 x 3
kernel. A tap at the edge of the kernel does not see the opposite edge of the map, which is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product

import torch
import torch.nn.functional as F
from torch import Tensor

from secateur.network.layer_calls import LayerCall, count_positions

CALL = 3 * 10**6  # multiply-accumulates that take as long as a call of a torch function on small tensors

Place = tuple[int, ...]  # along each axis of space
Cell = tuple[slice, ...]


@dataclass(frozen=True)
class Windows:
    """A convolution with stride 1 over maps of one size: which part of the map each tap of its kernel sees."""

    space: Place  # the size of a map, without padding
    kernel: Place
    dilation: Place
    before: Place  # zeros in front of the map along each axis
    positions: Place  # of the output

    @classmethod
    def of(cls, call: LayerCall) -> Windows | None:
        """Return the windows of a layer; None if it is not of this kind, or has a kernel of one."""
        plain = not (call.linear or call.transposed) and call.groups == 1 and set(call.stride) == {1}
        if not plain or math.prod(call.kernel) == 1:
            return None
        space = tuple(call.input.shape[2:])
        sides = [(call.padding[2 * i], call.padding[2 * i + 1]) for i in range(len(call.padding) // 2)][::-1]
        sides = sides or [(0, 0)] * len(space)
        if any(side < 0 for pair in sides for side in pair):
            return None
        padded = tuple(n + a + b for n, (a, b) in zip(space, sides, strict=True))
        positions = count_positions(padded, call.kernel, call.stride, call.dilation)
        return _windows(space, call.kernel, call.dilation, tuple(a for a, _ in sides), positions)

    @cached_property
    def taps(self) -> list[Place]:
        """The taps of the kernel, as places in the map relative to those of the output."""
        axes = zip(self.kernel, self.dilation, self.before, strict=True)
        return list(product(*(range(-before, k * d - before, d) for k, d, before in axes)))

    @property
    def margin(self) -> Place:
        """The zeros behind each line of a grid that keep one line from another."""
        reach = (d * (k - 1) for k, d in zip(self.kernel, self.dilation, strict=True))
        return tuple(max(r, p - n) for r, p, n in zip(reach, self.positions, self.space, strict=True))

    @property
    def work(self) -> float:
        """The products of whole grids that the second moments take, in those of as many rows as there are positions."""
        grid = math.prod(n + m for n, m in zip(self.space, self.margin, strict=True))
        return len(self._shifts) * grid / math.prod(self.positions)

    def saves(self, maps: int, rows: int, channels: int, calls: int) -> bool:
        """Return whether the second moments of all patches of these maps take less work than those of some rows.

        Args:
            calls: of `squares`, with a part of the maps each.
        """
        own = maps * math.prod(self.positions) * self.work * channels**2
        return own + calls * len(self._shifts) * len(self._cells) * CALL < rows * (len(self.taps) * channels) ** 2

    def grid(self, x: Tensor) -> Tensor:
        """Return maps [samples, channels, *space] as rows of channels, with zeros between the lines."""
        sizes = [n + m for n, m in zip(self.space, self.margin, strict=True)]
        pads = [side for n, size in zip(reversed(x.shape[2:]), reversed(sizes), strict=True) for side in (0, size - n)]
        return F.pad(x, pads).movedim(1, -1).flatten(0, -2).contiguous()

    def offset(self, shift: Place) -> int:
        """Return a shift as a number of rows of a grid."""
        found = 0
        for n, m, d in zip(self.space, self.margin, shift, strict=True):
            found = found * (n + m) + d
        return found

    @cached_property
    def _shifts(self) -> dict[Place, list[tuple[int, int]]]:
        """The relative shifts of two taps that do not point backwards, each with the pairs of taps that have it."""
        found: dict[Place, list[tuple[int, int]]] = {}
        for (i, u), (j, v) in product(enumerate(self.taps), repeat=2):
            shift = tuple(b - a for a, b in zip(u, v, strict=True))
            if shift >= (0,) * len(shift):
                found.setdefault(shift, []).append((i, j))
        return found

    @cached_property
    def _cells(self) -> list[tuple[Cell, list[int]]]:
        """The map in parts that each tap sees as a whole or not at all, the largest first; with the taps that do."""
        lines = []
        for axis, (n, p) in enumerate(zip(self.space, self.positions, strict=True)):
            starts = {tap[axis] for tap in self.taps}
            edges = sorted({min(max(edge, 0), n) for start in starts for edge in (0, n, start, start + p)})
            lines.append([slice(a, b) for a, b in pairwise(edges)])
        cells = sorted(product(*lines), key=lambda cell: -math.prod(part.stop - part.start for part in cell))
        return [(cell, [i for i, tap in enumerate(self.taps) if self._sees(tap, cell)]) for cell in cells]

    def _sees(self, tap: Place, cell: Cell) -> bool:
        axes = zip(tap, self.positions, cell, strict=True)
        return all(start <= part.start and part.stop <= start + p for start, p, part in axes)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the output of the convolution for maps [samples, channels, *space]."""
        after = (
            p + d * (k - 1) - before - n
            for n, k, d, before, p in zip(
                self.space, self.kernel, self.dilation, self.before, self.positions, strict=True
            )
        )
        sides = [side for pair in reversed(list(zip(self.before, after, strict=True))) for side in pair]
        function = (F.conv1d, F.conv2d, F.conv3d)[len(self.space) - 1]
        found: Tensor = function(F.pad(x, sides), weight, bias, 1, 0, self.dilation)
        return found

    def squares(self, x: Tensor) -> Tensor:
        """Return the sums of the products of all patches with themselves, [channels x kernel, channels x kernel]."""
        rows, channels, taps = self.grid(x), x.shape[1], len(self.taps)
        lines = x.movedim(1, -1)
        found = x.new_zeros(channels, taps, channels, taps)
        for shift, pairs in self._shifts.items():
            step = self.offset(shift)
            whole = rows[: len(rows) - step].T @ rows[step:]
            parts = [(_correlation(lines, cell, shift), seen) for cell, seen in self._cells[1:]]
            core = whole - sum(part for part, _ in parts if part is not None)
            for i, j in pairs:
                block = core.clone() if i in self._cells[0][1] else torch.zeros_like(core)
                for part, seen in parts:
                    if part is not None and i in seen:
                        block += part
                found[:, i, :, j] = block
                found[:, j, :, i] = block.T
        return found.flatten(2).flatten(0, 1)

    def products(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the sums of t [samples, outputs, *positions] times all patches of x, [outputs, channels x kernel]."""
        rows, others = self.grid(x), self.grid(t)
        parts = []
        for tap in self.taps:
            step = self.offset(tap)
            ahead = slice(max(0, step), len(rows) + min(0, step))
            behind = slice(max(0, -step), len(rows) - max(0, step))
            parts.append(others[behind].T @ rows[ahead])
        return torch.stack(parts, 2).flatten(1)

    def sums(self, x: Tensor) -> Tensor:
        """Return the sums of all patches, [channels x kernel]."""
        lines = x.movedim(1, -1)
        parts = [(lines[:, *cell].flatten(0, -2).sum(0), seen) for cell, seen in self._cells]
        found = x.new_zeros(x.shape[1], len(self.taps))
        for part, seen in parts:
            found[:, seen] += part[:, None]
        return found.flatten()


@lru_cache(maxsize=64)
def _windows(space: Place, kernel: Place, dilation: Place, before: Place, positions: Place) -> Windows:
    """Return the same object for the same sizes, so that its tables are computed once."""
    return Windows(space, kernel, dilation, before, positions)


def _correlation(lines: Tensor, cell: Sequence[slice], shift: Place) -> Tensor | None:
    """Return the sum over a cell of [samples, *space, channels] of x x' with the second one shifted; None if empty."""
    here = list[slice]()
    for part, n, d in zip(cell, lines.shape[1:-1], shift, strict=True):
        here.append(slice(max(part.start, -d), min(part.stop, n - d)))
    if any(part.stop <= part.start for part in here):
        return None
    there = [slice(part.start + d, part.stop + d) for part, d in zip(here, shift, strict=True)]
    first, second = (lines[:, *cut].flatten(0, -2) for cut in (here, there))
    return first.T @ second
