"""The shares that each channel has in what a layer computes: the inner loops of the sensitivity.

A unit of channels j adds c_ijp to output i at patch p. Its share is |c| over the sum of all contributions of the same
sign; in a sum that is not above the smallest normal number nothing has a share. `raise_shares` lifts the best share
seen so far of every unit. There are two ways to the same numbers:

- `_compiled`: a fused loop in C++. One pass over a panel of patches sums z+ and z-, a second finds the shares. In the
  second a unit is looked at only where |w_ij| |a_jp| / z, which no share exceeds, lies above its best so far.
- `_chunked`: plain torch on any device, in pieces that fit the memory given.

A unit whose share has reached one cannot rise, and a unit that is silent has none: where all are such, nothing is done.

`sum_shares` adds up all shares, or their squares. None can be left out there, so it has a plain loop in C++, its twin
in torch and, where each unit is one number at a patch, `_products`: there the sum over patches is a matrix product.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from secateur import native
from secateur.ties import Slot
from secateur.watch import Read

BLOCK = 6  # outputs that the C++ computes together
DONE = 2.0  # above every share: a unit whose share nobody asks for
PANEL = 32  # patches that are worth a thread of their own,
WORK = 2_000_000  # and multiplications
KEPT = 256 << 20  # bytes of packed weights that are kept


def sites(read: Read) -> int:
    """In how many sums a unit can have a share: points times outputs times patches."""
    return len(read.x) * len(read.weight) * math.prod(read.patches)


def raise_shares(
    read: Read, unit_of: Tensor, best: Tensor, *, memory: int, packs: dict[tuple[Slot, int], Packed] | None = None
) -> None:
    """Lift `best[u]` to the largest share of unit u in this reading.

    unit_of: for each channel of the reading its unit, 0, 1, ... without gaps.
    best: the best share so far of each unit, in the reading's precision; `DONE` for a unit that is not asked for.
    memory: bytes that may be used beside the reading itself.
    packs: keeps what is prepared for a layer from one call to the next.
    """
    rising = best[unit_of] < 1
    if not rising.any() or not read.x[:, rising].any():
        return
    library = native.library("shares") if read.x.device.type == "cpu" else "not on a CPU"
    points = max(1, int(memory // max(1, _bytes_per_point(read))))
    packed = _packed(read, unit_of, {} if packs is None else packs) if isinstance(library, ctypes.CDLL) else None
    for first in range(0, len(read.x), points):
        part = replace(read, x=read.x[first : first + points])
        if packed is not None:
            _compiled(part, packed, best)
        else:
            _chunked(part, unit_of, best, memory)


def sum_shares(
    read: Read,
    unit_of: Tensor,
    *,
    squared: bool,
    memory: int,
    packs: dict[tuple[Slot, int], Packed] | None = None,
) -> Tensor:
    """For each unit the sum of its shares over all points, outputs and patches, or of their squares, in float64.

    The arguments are those of `raise_shares`.
    """
    units = int(unit_of.max()) + 1
    total = torch.zeros(units, dtype=torch.float64)
    if not read.x.any():
        return total
    library = native.library("shares") if read.x.device.type == "cpu" else "not on a CPU"
    points = max(1, int(memory // max(1, 3 * _bytes_per_point(read))))
    for first in range(0, len(read.x), points):
        part = replace(read, x=read.x[first : first + points])
        found = _products(part, unit_of, squared) if _single(read, units) else None
        if found is None and isinstance(library, ctypes.CDLL):
            found = _compiled_sums(part, _packed(read, unit_of, {} if packs is None else packs), squared)
        elif found is None:
            found = _chunked_sums(part, unit_of, squared, memory)
        total += found.cpu().double()
    return total


def _single(read: Read, units: int) -> bool:
    """Whether each unit is one channel, and one number at a patch."""
    return units == read.x.shape[1] and math.prod(read.weight.shape[2:]) == 1


def _bytes_per_point(read: Read) -> int:
    """Copies of one point's input, and z+ and z- of its outputs."""
    values = 3 * read.x[0].numel() + 3 * len(read.weight) * math.prod(read.patches)
    return values * read.x.element_size() + 16 * math.prod(read.patches)


@dataclass(frozen=True)
class Packed:
    """A weight as the C++ reads it: the rows (channel, kernel place) of a unit side by side, outputs in blocks."""

    source: int  # the address of the weight
    order: Tensor  # channels, unit by unit
    start: Tensor  # [units + 1], the first row of each unit
    weight: Tensor  # [blocks, rows, BLOCK]
    norms: Tensor  # [blocks, units], the largest norm of a unit's weights in the block


def _packed(read: Read, unit_of: Tensor, packs: dict[tuple[Slot, int], Packed]) -> Packed:
    """The packed weight, from before if it is the same one."""
    key = read.slot, int(read.places[0])  # of the groups of a layer, the first channel tells which
    found = packs.get(key)
    if found is not None and found.source == read.weight.data_ptr():
        return found
    made = _pack(read.weight, unit_of)
    if sum(pack.weight.nbytes for pack in packs.values()) + made.weight.nbytes <= KEPT:
        packs[key] = made
    return made


def _pack(weight: Tensor, unit_of: Tensor) -> Packed:
    order, sizes = unit_of.argsort(stable=True), torch.bincount(unit_of)
    outputs, kernel = len(weight), math.prod(weight.shape[2:])
    blocks = -(-outputs // BLOCK)
    full = F.pad(weight[:, order].flatten(1), (0, 0, 0, blocks * BLOCK - outputs))
    squares = full.new_zeros(len(full), len(sizes))
    squares.index_add_(1, unit_of[order].repeat_interleave(kernel), full.square())
    return Packed(
        source=weight.data_ptr(),
        order=order,
        start=F.pad((sizes * kernel).cumsum(0), (1, 0)),
        weight=full.view(blocks, BLOCK, -1).transpose(1, 2).contiguous(),
        norms=squares.sqrt_().view(blocks, BLOCK, -1).amax(1).contiguous(),
    )


def _compiled(read: Read, packed: Packed, best: Tensor) -> None:
    x, units, outputs = read.x.contiguous(), len(best), len(read.weight)
    rows, patches = _offsets(x, read, packed.order)
    places = math.prod(read.patches)
    sums = where = None
    if _single(read, units):
        sums = _signed_sums(read, x)
        where = (torch.arange(len(x))[:, None] * sums[0].numel() + torch.arange(places)).flatten()
    entry = _entry("shares", x)
    threads = _threads(len(patches), packed)
    bests = [best, *(best.clone() for _ in range(threads - 1))]
    tensors = [_pointer(t) for t in (x, rows, patches, packed.weight, packed.norms, packed.start, sums, where)]

    def run(part: int) -> int:
        first, last = (len(patches) * p // threads for p in (part, part + 1))
        numbers = (ctypes.c_int64(n) for n in (places, outputs * places, units, outputs, first, last))
        return int(entry(*tensors, *numbers, _pointer(bests[part])))

    _in_threads(run, threads)
    for other in bests[1:]:
        torch.maximum(best, other, out=best)


def _compiled_sums(read: Read, packed: Packed, squared: bool) -> Tensor:
    x, units, outputs = read.x.contiguous(), len(packed.start) - 1, len(read.weight)
    rows, patches = _offsets(x, read, packed.order)
    entry = _entry("share_sums", x)
    threads = _threads(len(patches), packed)
    sums = torch.zeros(threads, units, dtype=torch.float64)
    tensors = [_pointer(t) for t in (x, rows, patches, packed.weight, packed.start)]

    def run(part: int) -> int:
        first, last = (len(patches) * p // threads for p in (part, part + 1))
        numbers = (ctypes.c_int64(n) for n in (units, outputs, first, last, int(squared)))
        return int(entry(*tensors, *numbers, _pointer(sums[part])))

    _in_threads(run, threads)
    return sums.sum(0)


def _entry(name: str, x: Tensor) -> Callable[..., int]:
    found: Callable[..., int] = getattr(
        native.library("shares"), f"{name}_f64" if x.dtype == torch.float64 else f"{name}_f32"
    )
    return found


def _threads(patches: int, packed: Packed) -> int:
    return max(1, min(torch.get_num_threads(), patches // PANEL, patches * packed.weight.numel() // WORK))


def _in_threads(run: Callable[[int], int], threads: int) -> None:
    if threads == 1:
        failed = bool(run(0))
    else:
        with ThreadPoolExecutor(threads) as pool:
            failed = any(pool.map(run, range(threads)))
    if failed:
        raise MemoryError("the share kernel found no memory")


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)


def _offsets(x: Tensor, read: Read, order: Tensor) -> tuple[Tensor, Tensor]:
    """Where each row (channel, kernel place) and each patch (point, place) lies in memory, in elements."""
    rows, patches = order * x.stride(1), torch.arange(len(x)) * x.stride(0)
    axes = zip(x.stride()[2:], read.weight.shape[2:], read.dilation, read.stride, read.patches, strict=True)
    for step, kernel, dilation, stride, places in axes:
        rows = (rows[:, None] + torch.arange(kernel) * dilation * step).flatten()
        patches = (patches[:, None] + torch.arange(places) * stride * step).flatten()
    return rows, patches


def _signed_sums(read: Read, x: Tensor) -> Tensor:
    """z+ and z- of a 1x1 layer, one below the other: the sign of a contribution is that of weight times input."""
    plus, minus = read.weight.clamp(min=0), (-read.weight).clamp(min=0)
    weight = torch.cat([plus, minus])
    if x.min() < 0:
        x = torch.cat([x.clamp(min=0), (-x).clamp(min=0)], 1)
        weight = torch.cat([weight, torch.cat([minus, plus])], 1)
    if math.prod(read.patches) == 1:
        return x.flatten(1) @ weight.flatten(1).T
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(read.stride) - 1]
    return convolve(x, weight, None, read.stride).contiguous()


def _products(read: Read, unit_of: Tensor, squared: bool) -> Tensor | None:
    """The sums where every unit is one number a at a patch: sum_ip w a / z = sum_i w (sum_p a / z), by sign.

    Where inputs or sums z are so large or small that their squares could leave the range, nothing is returned.
    """
    x = read.x[(slice(None), slice(None), *(slice(None, None, step) for step in read.stride))].contiguous()
    least = _least(x)
    most = read.weight.flatten(1).abs().amax(1)
    weight = read.weight.flatten(1) / most.where(most > least, math.inf)[:, None]  # changes no share
    plain = replace(read, x=x, weight=weight.view(read.weight.shape), stride=(1,) * len(read.stride))
    z = _signed_sums(plain, x).view(len(x), 2 * len(weight), -1)
    z.masked_fill_(z <= 0, math.inf)
    low, high = x.aminmax()
    if max(-low, high, 1 / z.min()) > least ** (-1 / 3):
        return None
    x = x.flatten(2)
    over = z.reciprocal_()
    if x.shape[2] == 1:  # points are patches
        x, over = x.transpose(0, 2), over.transpose(0, 2)
    signed = torch.cat([weight.clamp(min=0), (-weight).clamp(min=0)])  # [2 outputs, channels]
    if squared:
        over, signed = over.square_(), signed.square_()
    total = x.new_zeros(x.shape[1])
    for part in (x.clamp(min=0), (-x).clamp(min=0)) if low < 0 else (x,):
        part = part.square() if squared else part
        each = torch.addbmm(torch.zeros_like(signed), over, part.transpose(1, 2))  # [2 outputs, channels]
        total += (signed * each).sum(0)
        signed = signed.roll(len(weight), 0)  # to a negative input the weights have the other sign
    return torch.zeros_like(total).index_copy_(0, unit_of, total)


def _chunked(read: Read, unit_of: Tensor, best: Tensor, memory: int) -> None:
    for shares in _pieces(read, unit_of, len(best), memory):
        torch.maximum(best, shares.amax(1), out=best)


def _chunked_sums(read: Read, unit_of: Tensor, squared: bool, memory: int) -> Tensor:
    units = int(unit_of.max()) + 1
    total = read.x.new_zeros(units)
    for shares in _pieces(read, unit_of, units, memory):
        total += (shares.square_() if squared else shares).sum(1)
    return total


def _pieces(read: Read, unit_of: Tensor, units: int, memory: int) -> Iterator[Tensor]:
    """All shares [units, sites], in pieces, from a batched product; first those of one sign, then of the other."""
    kernel = math.prod(read.weight.shape[2:])
    rows = _rows_of_units(unit_of, units)  # [units, widest]; short units are filled up with a channel of zeros
    weight = F.pad(read.weight.flatten(2), (0, 0, 0, 1))[:, rows].transpose(0, 1).flatten(2)
    places = math.prod(read.patches)
    outputs_at_once, places_at_once = _steps(units, len(read.weight), places, 4 * read.x.element_size(), memory)
    for point in read.x:
        columns = F.pad(point, (0, 0) * len(read.stride) + (0, 1))
        for axis, (k, s, d) in enumerate(zip(read.weight.shape[2:], read.stride, read.dilation, strict=True), 1):
            columns = columns.unfold(axis, d * (k - 1) + 1, s)[..., ::d]
        columns = columns.reshape(len(columns), places, kernel)
        for first in range(0, places, places_at_once):
            part = columns[:, first : first + places_at_once][rows].transpose(2, 3).flatten(1, 2)
            for top in range(0, len(read.weight), outputs_at_once):
                c = weight[:, top : top + outputs_at_once] @ part
                for signed in (c.clamp(min=0), (-c).clamp(min=0)):
                    total = signed.sum(0)
                    yield (signed / total.where(total > _least(total), math.inf)).flatten(1)


def _least(x: Tensor) -> float:
    """The smallest normal number. A sum of contributions that is not above it counts as none."""
    return float(torch.finfo(x.dtype).tiny)


def _rows_of_units(unit_of: Tensor, units: int) -> Tensor:
    """The channels of each unit, a row for each; the channel after the last stands for none."""
    sizes = torch.bincount(unit_of, minlength=units)
    order = unit_of.argsort(stable=True)
    rows = torch.full((units, int(sizes.max())), len(unit_of), device=unit_of.device)
    column = torch.arange(len(order), device=unit_of.device) - (sizes.cumsum(0) - sizes)[unit_of[order]]
    rows[unit_of[order], column] = order
    return rows


def _steps(units: int, outputs: int, places: int, size: int, memory: int) -> tuple[int, int]:
    """How many outputs and places at a time keep units x outputs x places within the memory."""
    cells = max(1, memory // (units * size))
    outs = min(outputs, max(1, cells // min(places, 256)))
    return outs, max(1, min(places, cells // outs))
