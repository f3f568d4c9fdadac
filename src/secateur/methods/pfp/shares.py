"""The shares of each unit in the sums that a layer computes: the inner loops of the sensitivity.

A unit of channels j adds c_ijp to output i at position p. Its share is |c| over the sum of all contributions of the
same sign; in a sum that is not above the smallest normal number nothing has a share. `raise_shares` raises the largest
share so far of every unit, in one of two ways with the same result:

- `_compiled`: a fused loop in C++. One pass over a panel of positions sums z+ and z-, a second finds the shares. The
  second skips a unit where |w_ij| |a_jp| / z, which no share exceeds, is not above its largest share so far.
- `_chunked`: plain torch on any device, in pieces that fit the memory given.

A unit whose share has reached one cannot rise, and a unit whose channels are zero has none: if all are such, nothing is
computed.

`sum_shares` adds up all shares, or their squares. None can be skipped there, so it has a plain loop in C++, the same in
torch and, where each unit is one number at a position, `_products`: there the sum over positions is a matrix product.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from secateur.methods.pfp import native
from secateur.network.layer_calls import GroupCall, convolve
from secateur.network.modules import Slot

BLOCK = 6  # outputs that the C++ computes together
DONE = 2.0  # above every share: for a unit whose share is not wanted
PANEL = 32  # positions that are worth a thread of their own,
WORK = 2_000_000  # and multiplications
KEPT = 256 << 20  # bytes of packed weights that are kept


def sites(call: GroupCall) -> int:
    """Return the number of sums in which a unit can have a share: samples times outputs times positions."""
    return len(call.x) * len(call.weight) * math.prod(call.positions)


def raise_shares(
    call: GroupCall, unit_of: Tensor, best: Tensor, *, memory: int, packs: dict[tuple[Slot, int], Packed] | None = None
) -> None:
    """Raise `best[u]` to the largest share of unit u in this call.

    Args:
        unit_of: for each channel of the call its unit, 0, 1, ... without gaps.
        best: the largest share so far of each unit, in the precision of the call; `DONE` if it is not wanted.
        memory: bytes to use beside the call itself.
        packs: a cache of the weights prepared for the C++, for the next call of a layer.
    """
    rising = best[unit_of] < 1
    if not rising.any() or not call.x[:, rising].any():
        return
    packed = _packed(call, unit_of, packs)
    for part in _samples(call, memory // max(1, _bytes_per_sample(call))):
        if packed is not None:
            _compiled(part, packed, best)
        else:
            _chunked(part, unit_of, best, memory)


def sum_shares(
    call: GroupCall,
    unit_of: Tensor,
    *,
    squared: bool,
    memory: int,
    packs: dict[tuple[Slot, int], Packed] | None = None,
) -> Tensor:
    """Return for each unit the sum of its shares, or of their squares, over samples, outputs and positions, in float64.

    The arguments are those of `raise_shares`.
    """
    units = int(unit_of.max()) + 1
    total = torch.zeros(units, dtype=torch.float64)
    if not call.x.any():
        return total
    for part in _samples(call, memory // max(1, 3 * _bytes_per_sample(call))):
        found = _products(part, unit_of, squared) if _single(call, units) else None
        if found is None:
            packed = _packed(call, unit_of, packs)
            if packed is not None:
                found = _compiled_sums(part, packed, squared)
            else:
                found = _chunked_sums(part, unit_of, squared, memory)
        total += found.cpu().double()
    return total


def _samples(call: GroupCall, size: int) -> Iterator[GroupCall]:
    """Return the call in parts of at most `size` samples, and at least one."""
    for x in call.x.split(max(1, size)):
        yield replace(call, x=x)


def _single(call: GroupCall, units: int) -> bool:
    """Return whether each unit is one channel, and one number at a position."""
    return units == call.x.shape[1] and math.prod(call.weight.shape[2:]) == 1


def _bytes_per_sample(call: GroupCall) -> int:
    """Return the size of copies of one sample's input, and of z+ and z- of its outputs."""
    values = 3 * call.x[0].numel() + 3 * len(call.weight) * math.prod(call.positions)
    return values * call.x.element_size() + 16 * math.prod(call.positions)


@dataclass(frozen=True)
class Packed:
    """A weight as the C++ takes it: the rows (channel, kernel element) unit by unit, the outputs in blocks."""

    source: int  # the address of the weight
    order: Tensor  # channels, unit by unit
    start: Tensor  # [units + 1], the first row of each unit
    weight: Tensor  # [blocks, rows, BLOCK]
    norms: Tensor  # [blocks, units], the largest norm of a unit's weights in the block


def _packed(call: GroupCall, unit_of: Tensor, packs: dict[tuple[Slot, int], Packed] | None) -> Packed | None:
    """Return the packed weight, from the cache if it is the same one; None if the C++ cannot be used."""
    if call.x.device.type != "cpu" or isinstance(native.library("shares"), str):
        return None
    packs = {} if packs is None else packs
    key = call.slot, int(call.channels[0])  # the first channel identifies the group of a layer
    found = packs.get(key)
    if found is not None and found.source == call.weight.data_ptr():
        return found
    fresh = _pack(call.weight, unit_of)
    if sum(pack.weight.nbytes for pack in packs.values()) + fresh.weight.nbytes <= KEPT:
        packs[key] = fresh
    return fresh


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


def _compiled(call: GroupCall, packed: Packed, best: Tensor) -> None:
    x, units, outputs = call.x.contiguous(), len(best), len(call.weight)
    rows, positions = _offsets(x, call, packed.order)
    per_sample = math.prod(call.positions)
    sums = where = None
    if _single(call, units):
        sums = _signed_sums(call, x)
        where = (torch.arange(len(x))[:, None] * sums[0].numel() + torch.arange(per_sample)).flatten()
    bests = [best, *(best.clone() for _ in range(_threads(len(positions), packed) - 1))]
    tensors = (x, rows, positions, packed.weight, packed.norms, packed.start, sums, where)
    _in_threads("shares", len(positions), tensors, (per_sample, outputs * per_sample, units, outputs), bests)
    for other in bests[1:]:
        torch.maximum(best, other, out=best)


def _compiled_sums(call: GroupCall, packed: Packed, squared: bool) -> Tensor:
    x, units = call.x.contiguous(), len(packed.start) - 1
    rows, positions = _offsets(x, call, packed.order)
    sums = torch.zeros(_threads(len(positions), packed), units, dtype=torch.float64)
    tensors = (x, rows, positions, packed.weight, packed.start)
    _in_threads("share_sums", len(positions), tensors, (int(squared), units, len(call.weight)), list(sums))
    return sums.sum(0)


def _threads(positions: int, packed: Packed) -> int:
    return max(1, min(torch.get_num_threads(), positions // PANEL, positions * packed.weight.numel() // WORK))


def _in_threads(
    name: str, positions: int, tensors: Sequence[Tensor | None], numbers: Sequence[int], results: Sequence[Tensor]
) -> None:
    """Run a function of the C++ over all positions, one part of them for each result tensor."""
    library = native.library("shares")
    assert isinstance(library, ctypes.CDLL) and tensors[0] is not None
    entry: Callable[..., int] = getattr(library, f"{name}_f{8 * tensors[0].element_size()}")
    pointers = [ctypes.c_void_p(None if tensor is None else tensor.data_ptr()) for tensor in tensors]
    threads = len(results)

    def run(part: int) -> int:
        limits = (positions * p // threads for p in (part, part + 1))
        return entry(*pointers, *map(ctypes.c_int64, (*numbers, *limits)), ctypes.c_void_p(results[part].data_ptr()))

    if threads == 1:
        failed = bool(run(0))
    else:
        with ThreadPoolExecutor(threads) as pool:
            failed = any(pool.map(run, range(threads)))
    if failed:
        raise MemoryError("not enough memory for the share kernel")


def _offsets(x: Tensor, call: GroupCall, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the memory offset, in elements, of each row (channel, kernel element) and of each (sample, position)."""
    rows, positions = order * x.stride(1), torch.arange(len(x)) * x.stride(0)
    axes = zip(x.stride()[2:], call.weight.shape[2:], call.dilation, call.stride, call.positions, strict=True)
    for step, kernel, dilation, stride, count in axes:
        rows = (rows[:, None] + torch.arange(kernel) * dilation * step).flatten()
        positions = (positions[:, None] + torch.arange(count) * stride * step).flatten()
    return rows, positions


def _signed_sums(call: GroupCall, x: Tensor) -> Tensor:
    """Return z+ and then z- of a 1x1 layer: the sign of a contribution is that of weight times input."""
    plus, minus = call.weight.clamp(min=0), (-call.weight).clamp(min=0)
    weight = torch.cat([plus, minus])
    if x.min() < 0:
        x = torch.cat([x.clamp(min=0), (-x).clamp(min=0)], 1)
        weight = torch.cat([weight, torch.cat([minus, plus])], 1)
    if math.prod(call.positions) == 1:
        return x.flatten(1) @ weight.flatten(1).T
    return convolve(x, weight, call.stride).contiguous()


def _products(call: GroupCall, unit_of: Tensor, squared: bool) -> Tensor | None:
    """Return the sums where every unit is one number a at a position: sum_ip w a / z = sum_i w (sum_p a / z), by sign.

    Where inputs or sums z are so large or small that their squares could leave the range, return None.
    """
    x = call.x[(slice(None), slice(None), *(slice(None, None, step) for step in call.stride))].contiguous()
    least = _least(x)
    most = call.weight.flatten(1).abs().amax(1)
    weight = call.weight.flatten(1) / most.where(most > least, math.inf)[:, None]  # changes no share
    plain = replace(call, x=x, weight=weight.view(call.weight.shape), stride=(1,) * len(call.stride))
    z = _signed_sums(plain, x).view(len(x), 2 * len(weight), -1)
    z.masked_fill_(z <= 0, math.inf)
    low, high = x.aminmax()
    if max(-low, high, 1 / z.min()) > least ** (-1 / 3):
        return None
    x = x.flatten(2)
    over = z.reciprocal_()
    if x.shape[2] == 1:  # samples are positions
        x, over = x.transpose(0, 2), over.transpose(0, 2)
    signed = torch.cat([weight.clamp(min=0), (-weight).clamp(min=0)])  # [2 outputs, channels]
    if squared:
        over, signed = over.square_(), signed.square_()
    total = x.new_zeros(x.shape[1])
    for part in (x.clamp(min=0), (-x).clamp(min=0)) if low < 0 else (x,):
        part = part.square() if squared else part
        each = torch.addbmm(torch.zeros_like(signed), over, part.transpose(1, 2))  # [2 outputs, channels]
        total += (signed * each).sum(0)
        signed = signed.roll(len(weight), 0)  # for a negative input the weights have the other sign
    return torch.zeros_like(total).index_copy_(0, unit_of, total)


def _chunked(call: GroupCall, unit_of: Tensor, best: Tensor, memory: int) -> None:
    for shares in _all_shares(call, unit_of, len(best), memory):
        torch.maximum(best, shares.amax(1), out=best)


def _chunked_sums(call: GroupCall, unit_of: Tensor, squared: bool, memory: int) -> Tensor:
    units = int(unit_of.max()) + 1
    total = call.x.new_zeros(units)
    for shares in _all_shares(call, unit_of, units, memory):
        total += (shares.square_() if squared else shares).sum(1)
    return total


def _all_shares(call: GroupCall, unit_of: Tensor, units: int, memory: int) -> Iterator[Tensor]:
    """Return all shares [units, sites], in pieces, by batched products; first those of one sign, then of the other."""
    rows = _channels_of_units(unit_of, units)
    weight = F.pad(call.weight.flatten(2), (0, 0, 0, 1))[:, rows].transpose(0, 1).flatten(2)
    positions = math.prod(call.positions)
    # As many outputs and positions at a time as keep units x outputs x positions within the memory.
    cells = max(1, memory // (units * 4 * call.x.element_size()))
    outputs_at_once = min(len(call.weight), max(1, cells // min(positions, 256)))
    positions_at_once = max(1, min(positions, cells // outputs_at_once))
    for sample in call.x:
        columns = call.windows(F.pad(sample, (0, 0) * len(call.stride) + (0, 1)))
        columns = columns.reshape(len(columns), positions, -1)
        for first in range(0, positions, positions_at_once):
            part = columns[:, first : first + positions_at_once][rows].transpose(2, 3).flatten(1, 2)
            for top in range(0, len(call.weight), outputs_at_once):
                c = weight[:, top : top + outputs_at_once] @ part
                for signed in (c.clamp(min=0), (-c).clamp(min=0)):
                    total = signed.sum(0)
                    yield (signed / total.where(total > _least(total), math.inf)).flatten(1)


def _least(x: Tensor) -> float:
    """Return the smallest normal number: a sum of contributions that is not above it counts as zero."""
    return float(torch.finfo(x.dtype).tiny)


def _channels_of_units(unit_of: Tensor, units: int) -> Tensor:
    """Return the channels of each unit, [units, widest], filled up with the index behind the last channel."""
    sizes = torch.bincount(unit_of, minlength=units)
    order = unit_of.argsort(stable=True)
    rows = torch.full((units, int(sizes.max())), len(unit_of), device=unit_of.device)
    column = torch.arange(len(order), device=unit_of.device) - (sizes.cumsum(0) - sizes)[unit_of[order]]
    rows[unit_of[order], column] = order
    return rows
