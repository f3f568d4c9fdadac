"""The two ways to the largest shares agree with loops that say what a share is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur import native, shares
from secateur.shares import DONE, raise_shares
from secateur.ties import Slot
from secateur.watch import Read

COMPILED = not isinstance(native.library("shares"), str)


def compiled(read: Read, unit_of: Tensor, best: Tensor, memory: int) -> None:
    shares._compiled(read, shares._pack(read.weight, unit_of), best)


WAYS = [pytest.param(compiled, marks=pytest.mark.skipif(not COMPILED, reason="no compiler")), shares._chunked]


def by_loops(read: Read, unit_of: list[int]) -> list[float]:
    """For every unit the largest |c| / (sum of the contributions of its sign), output by output, patch by patch."""
    best = [0.0] * (max(unit_of) + 1)
    kernel = list(itertools.product(*map(range, read.weight.shape[2:])))
    for point, place, out in itertools.product(
        range(len(read.x)), itertools.product(*map(range, read.patches)), range(len(read.weight))
    ):
        c = [0.0] * len(best)
        for channel, unit in enumerate(unit_of):
            for tap in kernel:
                at = [p * s + t * d for p, s, t, d in zip(place, read.stride, tap, read.dilation, strict=True)]
                c[unit] += read.weight[(out, channel, *tap)].item() * read.x[(point, channel, *at)].item()
        totals = math.fsum(v for v in c if v > 0), math.fsum(-v for v in c if v < 0)
        for unit, value in enumerate(c):
            if value:
                best[unit] = max(best[unit], abs(value) / totals[0 if value > 0 else 1])
    return best


@st.composite
def reads(draw: st.DrawFn) -> tuple[Read, list[int]]:
    """A reading of any shape, its channels in units of any size. Few of one sign make shares below one."""
    dims = draw(st.integers(1, 3))
    channels, outputs = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kernel, stride, dilation, patches = (
        tuple(draw(st.integers(1, most)) for _ in range(dims)) for most in (3 if dims < 3 else 2, 2, 2, 3)
    )
    space = [d * (k - 1) + 1 + s * (n - 1) for k, s, d, n in zip(kernel, stride, dilation, patches, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    shift = draw(st.sampled_from([0.0, 1.0, 3.0]))
    x = torch.randn(draw(st.integers(1, 3)), channels, *space, generator=generator, dtype=torch.float64) + shift
    if draw(st.booleans()):
        x = x.relu()
    weight = torch.randn(outputs, channels, *kernel, generator=generator, dtype=torch.float64) + shift
    units = draw(st.integers(1, channels))
    unit_of = [draw(st.integers(0, units - 1)) for _ in range(channels)]
    ranks = {unit: rank for rank, unit in enumerate(sorted(set(unit_of)))}
    return Read(Slot("w", 1), torch.arange(channels), x, weight, stride, dilation), [ranks[unit] for unit in unit_of]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=120)
@given(case=reads())
def test_double_precision_equals_the_loops(way: object, case: tuple[Read, list[int]]) -> None:
    read, unit_of = case
    best = torch.zeros(max(unit_of) + 1, dtype=torch.float64)
    way(read, torch.tensor(unit_of), best, 1 << 20)  # type: ignore[operator]
    assert best.tolist() == pytest.approx(by_loops(read, unit_of), abs=1e-12)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(case=reads())
def test_single_precision_is_near(way: object, case: tuple[Read, list[int]]) -> None:
    read, unit_of = case
    single = Read(read.slot, read.places, read.x.float(), read.weight.float(), read.stride, read.dilation)
    same = Read(read.slot, read.places, single.x.double(), single.weight.double(), read.stride, read.dilation)
    best = torch.zeros(max(unit_of) + 1)
    way(single, torch.tensor(unit_of), best, 1 << 20)  # type: ignore[operator]
    # A contribution that nearly cancels within its window is uncertain to a part of the window's own size.
    assert best.tolist() == pytest.approx(by_loops(same, unit_of), abs=2e-3)


def wide(kernel: int, *, even: bool = True) -> tuple[Read, Tensor]:
    """A layer of real size: more channels, outputs and patches than a panel or a block holds, in no round number.

    even: contributions of about one size, so that no share comes near one; otherwise anything.
    """
    generator = torch.Generator().manual_seed(kernel)
    x = torch.randn(3, 37, 13, 11, generator=generator, dtype=torch.float64)
    weight = torch.randn(23, 37, kernel, kernel, generator=generator, dtype=torch.float64)
    if even:
        signs = torch.randn(23, 19, generator=generator, dtype=torch.float64).sign().repeat_interleave(2, 1)[:, :37]
        x, weight = 1 + x.tanh() / 2, (1 + weight.tanh() / 2) * signs[:, :, None, None]
    return Read(Slot("w", 1), torch.arange(37), x, weight, (1, 1), (1, 1)), torch.arange(37) // 2


@pytest.mark.skipif(not COMPILED, reason="no compiler")
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("single_channels", [True, False])
def test_both_ways_agree_on_wide_layers(kernel: int, even: bool, single_channels: bool) -> None:
    read, unit_of = wide(kernel, even=even)
    unit_of = torch.arange(37) if single_channels else unit_of
    one, other = (torch.zeros(int(unit_of.max()) + 1, dtype=torch.float64) for _ in range(2))
    compiled(read, unit_of, one, 1 << 24)
    shares._chunked(read, unit_of, other, 1 << 20)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    assert not even or 0 < one.min() < one.max() < 0.9  # a test in which all are 1 would show nothing


@pytest.mark.parametrize("memory", [1, 1 << 12, 1 << 24])
def test_the_memory_given_changes_nothing(memory: int) -> None:
    read, unit_of = wide(3)
    best, wanted = torch.zeros(19, dtype=torch.float64), torch.zeros(19, dtype=torch.float64)
    raise_shares(read, unit_of, best, memory=memory)
    shares._chunked(read, unit_of, wanted, 1 << 24)
    torch.testing.assert_close(best, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_share_only_ever_rises(way: object) -> None:
    read, unit_of = wide(3)
    known = torch.full((19,), 0.9, dtype=torch.float64)
    way(read, unit_of, known, 1 << 24)  # type: ignore[operator]
    assert (known == 0.9).all()  # no share of this layer is as large


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_that_is_not_asked_for_counts_in_the_sums(way: object) -> None:
    read, unit_of = wide(3)
    full, part = torch.zeros(19, dtype=torch.float64), torch.zeros(19, dtype=torch.float64)
    part[5:] = DONE
    for best in (full, part):
        way(read, unit_of, best, 1 << 24)  # type: ignore[operator]
    assert torch.equal(full[:5], part[:5]) and (part[5:] == DONE).all()


@pytest.mark.parametrize("way", WAYS)
def test_silence_has_no_share(way: object) -> None:
    read, unit_of = wide(3)
    read.x[:, :2] = 0
    read.weight[:, 2:4] = 0
    best = torch.zeros(19, dtype=torch.float64)
    way(read, unit_of, best, 1 << 24)  # type: ignore[operator]
    assert best[0] == 0 and best[1] == 0 and (best[2:] > 0).all()


def test_threads_change_nothing() -> None:
    read, unit_of = wide(3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(torch.zeros(19, dtype=torch.float64))
            raise_shares(read, unit_of, results[-1], memory=1 << 24)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.skipif(not COMPILED, reason="no compiler")
def test_a_packed_weight_is_used_again_only_if_it_is_the_same() -> None:
    packs: dict[tuple[Slot, int], shares.Packed] = {}
    read, unit_of = wide(3)
    results = []
    for weight in (read.weight, read.weight, read.weight * 2, read.weight[:, :, :1].contiguous()):
        best, alone = torch.zeros(19, dtype=torch.float64), torch.zeros(19, dtype=torch.float64)
        raise_shares(replace(read, weight=weight), unit_of, best, memory=1 << 24, packs=packs)
        raise_shares(replace(read, weight=weight), unit_of, alone, memory=1 << 24)
        assert torch.equal(best, alone)
        results.append(next(iter(packs.values())))
    assert results[0] is results[1] is not results[2] and len(packs) == 1
