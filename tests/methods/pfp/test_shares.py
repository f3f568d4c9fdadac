"""All ways to compute the largest shares, and their sums, agree with loops over the definition of a share."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur.methods.pfp import native, shares
from secateur.methods.pfp.shares import DONE, raise_shares, sites, sum_shares
from secateur.network.layer_calls import GroupCall
from secateur.network.modules import Slot

COMPILED = not isinstance(native.library("shares"), str)


def compiled(call: GroupCall, unit_of: Tensor, best: Tensor, memory: int) -> None:
    shares._compiled(call, shares._pack(call.weight, unit_of), best)


WAYS = [pytest.param(compiled, marks=pytest.mark.skipif(not COMPILED, reason="no compiler")), shares._chunked]


def compiled_sums(call: GroupCall, unit_of: Tensor, squared: bool, memory: int) -> Tensor:
    return shares._compiled_sums(call, shares._pack(call.weight, unit_of), squared)


SUMS = [
    pytest.param(compiled_sums, marks=pytest.mark.skipif(not COMPILED, reason="no compiler")),
    shares._chunked_sums,
    lambda call, unit_of, squared, memory: sum_shares(call, unit_of, squared=squared, memory=memory),
]


def all_shares(call: GroupCall, unit_of: list[int]) -> list[list[float]]:
    """For every unit |c| / (sum of the contributions of its sign), output by output, position by position."""
    found: list[list[float]] = [[] for _ in range(max(unit_of) + 1)]
    kernel = list(itertools.product(*map(range, call.weight.shape[2:])))
    for sample, position, out in itertools.product(
        range(len(call.x)), itertools.product(*map(range, call.positions)), range(len(call.weight))
    ):
        c = [0.0] * len(found)
        for channel, unit in enumerate(unit_of):
            for tap in kernel:
                at = [p * s + t * d for p, s, t, d in zip(position, call.stride, tap, call.dilation, strict=True)]
                c[unit] += call.weight[(out, channel, *tap)].item() * call.x[(sample, channel, *at)].item()
        totals = math.fsum(v for v in c if v > 0), math.fsum(-v for v in c if v < 0)
        for unit, value in enumerate(c):
            found[unit].append(abs(value) / totals[0 if value > 0 else 1] if value else 0.0)
    return found


def by_loops(call: GroupCall, unit_of: list[int]) -> list[float]:
    return [max(each) for each in all_shares(call, unit_of)]


@st.composite
def calls(draw: st.DrawFn, *, single: bool = False) -> tuple[GroupCall, list[int]]:
    """A call of any shape, its channels in units of any size. Few of one sign give shares below one.

    single: each unit is one channel, and one number at a position.
    """
    dims = draw(st.integers(1, 3))
    channels, outputs = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kernel, stride, dilation, positions = (
        tuple(draw(st.integers(1, most)) for _ in range(dims)) for most in (3 if dims < 3 else 2, 2, 2, 3)
    )
    kernel = (1,) * dims if single else kernel
    space = [d * (k - 1) + 1 + s * (n - 1) for k, s, d, n in zip(kernel, stride, dilation, positions, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    shift = draw(st.sampled_from([0.0, 1.0, 3.0]))
    x = torch.randn(draw(st.integers(1, 3)), channels, *space, generator=generator, dtype=torch.float64) + shift
    if draw(st.booleans()):
        x = x.relu()
    weight = torch.randn(outputs, channels, *kernel, generator=generator, dtype=torch.float64) + shift
    if single:
        unit_of = draw(st.permutations(range(channels)))
        return GroupCall(Slot("w", 1), torch.arange(channels), x, weight, stride, dilation), unit_of
    units = draw(st.integers(1, channels))
    unit_of = [draw(st.integers(0, units - 1)) for _ in range(channels)]
    ranks = {unit: rank for rank, unit in enumerate(sorted(set(unit_of)))}
    return GroupCall(Slot("w", 1), torch.arange(channels), x, weight, stride, dilation), [
        ranks[unit] for unit in unit_of
    ]


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=120)
@given(case=calls())
def test_double_precision_equals_the_loops(way: object, case: tuple[GroupCall, list[int]]) -> None:
    call, unit_of = case
    best = torch.zeros(max(unit_of) + 1, dtype=torch.float64)
    way(call, torch.tensor(unit_of), best, 1 << 20)  # type: ignore[operator]
    assert best.tolist() == pytest.approx(by_loops(call, unit_of), abs=1e-12)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40)
@given(case=calls())
def test_single_precision_is_near(way: object, case: tuple[GroupCall, list[int]]) -> None:
    call, unit_of = case
    single = replace(call, x=call.x.float(), weight=call.weight.float())
    same = replace(call, x=single.x.double(), weight=single.weight.double())
    best = torch.zeros(max(unit_of) + 1)
    way(single, torch.tensor(unit_of), best, 1 << 20)  # type: ignore[operator]
    # A contribution that nearly cancels within its window is uncertain to a part of the window's own size.
    assert best.tolist() == pytest.approx(by_loops(same, unit_of), abs=2e-3)


def large_layer(kernel: int, *, even: bool = True) -> tuple[GroupCall, Tensor]:
    """A layer of real size: more channels, outputs and positions than a panel or a block holds, in no round number.

    even: contributions of about one size, so that no share comes near one; otherwise anything.
    """
    generator = torch.Generator().manual_seed(kernel)
    x = torch.randn(3, 37, 13, 11, generator=generator, dtype=torch.float64)
    weight = torch.randn(23, 37, kernel, kernel, generator=generator, dtype=torch.float64)
    if even:
        signs = torch.randn(23, 19, generator=generator, dtype=torch.float64).sign().repeat_interleave(2, 1)[:, :37]
        x, weight = 1 + x.tanh() / 2, (1 + weight.tanh() / 2) * signs[:, :, None, None]
    return GroupCall(Slot("w", 1), torch.arange(37), x, weight, (1, 1), (1, 1)), torch.arange(37) // 2


@pytest.mark.skipif(not COMPILED, reason="no compiler")
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("single_channels", [True, False])
def test_both_ways_agree_on_wide_layers(kernel: int, even: bool, single_channels: bool) -> None:
    call, unit_of = large_layer(kernel, even=even)
    unit_of = torch.arange(37) if single_channels else unit_of
    one, other = (torch.zeros(int(unit_of.max()) + 1, dtype=torch.float64) for _ in range(2))
    compiled(call, unit_of, one, 1 << 24)
    shares._chunked(call, unit_of, other, 1 << 20)
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
    assert not even or 0 < one.min() < one.max() < 0.9  # a test in which all are 1 would show nothing


@pytest.mark.parametrize("memory", [1, 1 << 12, 1 << 24])
def test_the_memory_given_changes_nothing(memory: int) -> None:
    call, unit_of = large_layer(3)
    best, wanted = torch.zeros(19, dtype=torch.float64), torch.zeros(19, dtype=torch.float64)
    raise_shares(call, unit_of, best, memory=memory)
    shares._chunked(call, unit_of, wanted, 1 << 24)
    torch.testing.assert_close(best, wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("way", WAYS)
def test_a_share_only_ever_rises(way: object) -> None:
    call, unit_of = large_layer(3)
    known = torch.full((19,), 0.9, dtype=torch.float64)
    way(call, unit_of, known, 1 << 24)  # type: ignore[operator]
    assert (known == 0.9).all()  # no share of this layer is as large


@pytest.mark.parametrize("way", WAYS)
def test_a_unit_that_is_not_wanted_counts_in_the_sums(way: object) -> None:
    call, unit_of = large_layer(3)
    full, part = torch.zeros(19, dtype=torch.float64), torch.zeros(19, dtype=torch.float64)
    part[5:] = DONE
    for best in (full, part):
        way(call, unit_of, best, 1 << 24)  # type: ignore[operator]
    assert torch.equal(full[:5], part[:5]) and (part[5:] == DONE).all()


@pytest.mark.parametrize("way", WAYS)
def test_channels_of_zeros_have_no_share(way: object) -> None:
    call, unit_of = large_layer(3)
    call.x[:, :2] = 0
    call.weight[:, 2:4] = 0
    best = torch.zeros(19, dtype=torch.float64)
    way(call, unit_of, best, 1 << 24)  # type: ignore[operator]
    assert best[0] == 0 and best[1] == 0 and (best[2:] > 0).all()


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WORK", 1)
    call, unit_of = large_layer(3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(torch.zeros(19, dtype=torch.float64))
            raise_shares(call, unit_of, results[-1], memory=1 << 24)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.skipif(not COMPILED, reason="no compiler")
def test_a_packed_weight_is_used_again_only_if_it_is_the_same() -> None:
    packs: dict[tuple[Slot, int], shares.Packed] = {}
    call, unit_of = large_layer(3)
    results = []
    for weight in (call.weight, call.weight, call.weight * 2, call.weight[:, :, :1].contiguous()):
        best, alone = torch.zeros(19, dtype=torch.float64), torch.zeros(19, dtype=torch.float64)
        raise_shares(replace(call, weight=weight), unit_of, best, memory=1 << 24, packs=packs)
        raise_shares(replace(call, weight=weight), unit_of, alone, memory=1 << 24)
        assert torch.equal(best, alone)
        results.append(next(iter(packs.values())))
    assert results[0] is results[1] is not results[2] and len(packs) == 1


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("way", SUMS)
@settings(max_examples=60)
@given(case=calls() | calls(single=True))
def test_sums_equal_the_loops(way: object, squared: bool, case: tuple[GroupCall, list[int]]) -> None:
    call, unit_of = case
    found = way(call, torch.tensor(unit_of), squared, 1 << 20)  # type: ignore[operator]
    each = all_shares(call, unit_of)
    assert {len(one) for one in each} == {sites(call)}
    assert found.tolist() == pytest.approx([math.fsum(v**2 if squared else v for v in one) for one in each], rel=1e-11)


@settings(max_examples=60)
@given(case=calls(single=True), squared=st.booleans())
def test_products_equal_the_loops(case: tuple[GroupCall, list[int]], squared: bool) -> None:
    call, unit_of = case
    found = shares._products(call, torch.tensor(unit_of), squared)
    wanted = [math.fsum(v**2 if squared else v for v in one) for one in all_shares(call, unit_of)]
    assert found is not None and found.tolist() == pytest.approx(wanted, rel=1e-11)


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("way", SUMS)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("single_channels", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_on_wide_layers(
    way: object, squared: bool, kernel: int, single_channels: bool, dtype: torch.dtype
) -> None:
    call, unit_of = large_layer(kernel)
    unit_of = torch.arange(37) if single_channels else unit_of
    wanted = shares._chunked_sums(call, unit_of, squared, 1 << 24)
    call = replace(call, x=call.x.to(dtype), weight=call.weight.to(dtype))
    found = way(call, unit_of, squared, 1 << 18)  # type: ignore[operator]
    close = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(found.double(), wanted, rtol=close, atol=0)


@pytest.mark.parametrize("way", SUMS)
def test_all_shares_of_a_sign_sum_to_one(way: object) -> None:
    call, unit_of = large_layer(3)
    found = way(call, unit_of, False, 1 << 24)  # type: ignore[operator]
    assert float(found.sum()) == pytest.approx(2 * sites(call))  # both signs occur at every site of this layer


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("x, weight", [(1e-25, 1.0), (1e25, 1.0), (1.0, 1e-30), (1.0, 1e25), (1e-15, 1e-15)])
def test_sums_in_single_precision_work_at_any_scale(x: float, weight: float, squared: bool) -> None:
    call, _ = large_layer(1)
    wanted = sum_shares(call, torch.arange(37), squared=squared, memory=1 << 24)
    scaled = replace(call, x=(call.x * x).float(), weight=(call.weight * weight).float())
    found = sum_shares(scaled, torch.arange(37), squared=squared, memory=1 << 24)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("way", SUMS)
def test_channels_of_zeros_add_nothing(way: object) -> None:
    call, unit_of = large_layer(3)
    call.x[:, :2] = 0
    call.weight[:, 2:4] = 0
    found = way(call, unit_of, False, 1 << 24)  # type: ignore[operator]
    assert found[0] == 0 and found[1] == 0 and (found[2:] > 0).all()
    call.x[:] = 0
    assert not way(call, unit_of, False, 1 << 24).any()  # type: ignore[operator]


def test_threads_change_no_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "WORK", 1)
    call, unit_of = large_layer(3)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(sum_shares(call, unit_of, squared=False, memory=1 << 24))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-13, atol=0)


@pytest.mark.parametrize("kernel", [1, 3])
def test_an_output_too_small_for_its_precision_has_no_shares(kernel: int) -> None:
    """Weights that decay brought below the smallest normal number, as dead filters of trained networks have."""
    call, unit_of = large_layer(kernel)
    call = replace(call, x=call.x.float(), weight=call.weight.float())
    dead = replace(call, weight=torch.cat([call.weight, call.weight[:1] * 1e-42]))
    for units in (unit_of, torch.arange(37)):
        size = int(units.max()) + 1
        for way in (compiled, shares._chunked) if COMPILED else (shares._chunked,):
            with_it, without = torch.zeros(size), torch.zeros(size)
            way(dead, units, with_it, 1 << 24)
            way(call, units, without, 1 << 24)
            assert 0 < without.max() < 0.9
            torch.testing.assert_close(with_it, without)
        for squared in (False, True):
            sums = [sum_shares(one, units, squared=squared, memory=1 << 24) for one in (dead, call)]
            torch.testing.assert_close(*sums, rtol=1e-5, atol=0)
            torch.testing.assert_close(
                shares._chunked_sums(dead, units, squared, 1 << 24).double(), sums[1], rtol=1e-5, atol=0
            )
