"""Ridge regression against the raw rows: normal equations, limits, cross-validation, the dual form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secateur.errors import SecateurError
from secateur.network.batches import EVERY
from secateur.network.precision import at_least_float32
from secateur.refit import least_squares as ridge
from secateur.refit.least_squares import RATIOS, Dual, Fitted, Moments, Normal, factor

CPU = torch.device("cpu")


def problem(
    g: int = 2, m: int = 50, n: int = 6, o: int = 3, *, rank: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, targets and old weights; the rows span only `rank` directions if that is given."""
    x = torch.randn(g, m, rank or n).double() @ torch.randn(g, rank or n, n).double() + 1
    return x, x @ torch.randn(g, n, o).double() + torch.randn(g, m, o), torch.randn(g, o, n + 1).double()


def gathered(x: Tensor, t: Tensor) -> Moments:
    sums = Moments.empty(x.shape[0], x.shape[2], t.shape[2], CPU)
    for rows, targets in zip(x.split(7, 1), t.split(7, 1), strict=True):
        sums.add(rows, targets)
    return sums


def solved(x: Tensor, t: Tensor, old: Tensor, ratio: float, constant: bool) -> Tensor:
    """The weights nearest to the old ones: the old ones plus the solution for their errors."""
    gap = t - x @ old[..., :-1].mT - old[..., None, :, -1]
    return old + gathered(x, gap).solve(ratio, constant)


def slow_solution(x: Tensor, t: Tensor, old: Tensor, ratio: float, constant: bool) -> np.ndarray:
    """One output at a time by numpy's least squares on the rows themselves, the ridge as rows of its own."""
    found = old.numpy().copy()
    for g in range(len(x)):
        rows = x[g].numpy()
        weight = np.sqrt(ratio * (rows**2).sum() / rows.shape[1])
        for o in range(t.shape[2]):
            above = np.hstack([rows, np.ones((len(rows), 1))]) if constant else rows
            below = np.hstack([np.eye(rows.shape[1]) * weight, np.zeros((rows.shape[1], int(constant)))])
            goal = t[g, :, o].numpy() - (0 if constant else found[g, o, -1])
            wanted = np.concatenate([goal, weight * found[g, o, :-1]])
            solution = np.linalg.lstsq(np.vstack([above, below]), wanted, rcond=None)[0]
            found[g, o, : len(solution)] = solution
    return found


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 1.0])
def test_the_solution_is_that_of_least_squares_on_the_rows(ratio: float, constant: bool) -> None:
    x, t, old = problem()
    found = solved(x, t, old, ratio, constant)
    np.testing.assert_allclose(found, slow_solution(x, t, old, ratio, constant), rtol=1e-6, atol=1e-7)
    assert constant or torch.equal(found[..., -1], old[..., -1])


@pytest.mark.parametrize("constant", [True, False])
def test_the_limits_of_the_ridge(constant: bool) -> None:
    x, t, old = problem()
    stiff = solved(x, t, old, 1e12, constant)
    torch.testing.assert_close(stiff[..., :-1], old[..., :-1], rtol=0, atol=1e-9)
    if constant:  # all that is left to it is the mean error of the old weights
        missed = (t - x @ old[..., :-1].mT).mean(1)
        torch.testing.assert_close(stiff[..., -1], missed, rtol=1e-6, atol=1e-6)
    free = solved(x, t, old, 1e-12, constant)
    np.testing.assert_allclose(free, slow_solution(x, t, old, 0.0, constant), rtol=1e-5, atol=1e-6)


def test_in_directions_without_rows_the_old_weights_stay() -> None:
    x, t, old = problem(n=6, rank=2)
    found = solved(x, t, old, 1e-6, True)
    change = (found - old)[..., :-1]
    for g in range(len(x)):
        _, sizes, directions = torch.linalg.svd(x[g] - x[g].mean(0), full_matrices=True)
        empty = directions[sizes < 1e-9 * sizes[0]]
        assert len(empty) == 4
        assert (change[g] @ empty.T).abs().max() < 1e-6 * change[g].abs().max()


def test_errors_are_sums_of_squares() -> None:
    x, t, old = problem()
    sums = gathered(x, t)
    wanted = (t - x @ old[..., :-1].mT - old[..., None, :, -1]).square().sum(1)
    torch.testing.assert_close(sums.error(old), wanted)
    both = gathered(x[:, :20], t[:, :20])
    both += gathered(x[:, 20:], t[:, 20:])
    torch.testing.assert_close(both.gram, sums.gram)
    torch.testing.assert_close(both.cross, sums.cross)
    assert both.count == sums.count == 50


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_halves_are_summed_in_single_precision(kind: torch.dtype) -> None:
    x, t, _ = problem(m=2000)
    x, t = (x * 20).to(kind), (t * 20).to(kind)
    sums, wanted = gathered(x, t), gathered(x.double(), t.double())
    for one, other in ((sums.gram, wanted.gram), (sums.cross, wanted.cross), (sums.energy, wanted.energy)):
        assert (one - other).norm() < 1e-6 * other.norm()
    assert at_least_float32(x).dtype == torch.float32 and at_least_float32(x.double()).dtype == torch.float64


def fitted(kind: type[Normal] | type[Dual], x: Tensor, t: Tensor, old: Tensor, constant: bool = True) -> Fitted:
    fit = kind(old)
    for number, (rows, targets) in enumerate(zip(x.split(5, 1), t.split(5, 1), strict=True)):
        fit.add(rows, targets, number % EVERY)
    return fit.fit(constant)


def without(x: Tensor, fold: int) -> tuple[Tensor, Tensor]:
    """The rows of the other folds, and those of this one."""
    several = list(enumerate(x.split(5, 1)))
    own = [part for number, part in several if number % EVERY == fold]
    return torch.cat([part for number, part in several if number % EVERY != fold], 1), torch.cat(own, 1)


def slow_folds(x: Tensor, t: Tensor, old: Tensor, ratio: float, constant: bool) -> tuple[Tensor, Tensor]:
    """The mean of the fits without one fold each, and the sum of their squared errors on those folds."""
    weights, errors = [], torch.zeros(old.shape[:2]).double()
    for fold in range(EVERY):
        (seen, held), (goal, held_goal) = without(x, fold), without(t, fold)
        weight = torch.from_numpy(slow_solution(seen, goal, old, ratio, constant))
        errors += (held_goal - held @ weight[..., :-1].mT - weight[..., None, :, -1]).square().sum(1)
        weights.append(weight)
    return torch.stack(weights).mean(0), errors


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("kind", [Normal, Dual])
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1), m=st.integers(20, 60), n=st.integers(1, 30), noise=st.sampled_from([0.0, 0.1, 10.0])
)
def test_cross_validation_chooses_the_ridge_of_each_output(
    kind: type[Normal] | type[Dual], constant: bool, seed: int, m: int, n: int, noise: float
) -> None:
    torch.manual_seed(seed)
    x, _, old = problem(1, m, n)
    t = x @ torch.randn(1, n, 3).double() + noise * torch.randn(1, m, 3).double()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ridge, "FINE", (1e-9,))  # normal equations of fewer rows than inputs do not resolve 1e-12
        found = fitted(kind, x, t, old, constant)
    before = (t - x @ old[..., :-1].mT - old[..., None, :, -1]).square().mean(1)
    assert (found.after <= found.before).all()
    torch.testing.assert_close(found.before, before)
    torch.testing.assert_close(found.energy, t.square().mean(1))
    best = before
    for r in RATIOS if kind is Dual else (*RATIOS, 1e-9):
        errors = slow_folds(x, t, old, r, constant)[1] / m
        better, best = errors < best, torch.minimum(errors, best)
        if not better.any():
            break
    torch.testing.assert_close(found.after, best, rtol=1e-3, atol=1e-9 * float(found.energy.max()))


@pytest.mark.parametrize("kind", [Normal, Dual])
def test_the_weights_are_the_mean_of_the_fits_without_one_fold_each(kind: type[Normal] | type[Dual]) -> None:
    x, t, old = problem(1)
    found = fitted(kind, x, t, old)
    for output, ratio in enumerate(found.ratio[0].tolist()):
        assert ratio in (*ridge.FINE, *RATIOS)
        wanted, _ = slow_folds(x, t[..., output : output + 1], old[:, output : output + 1], ratio, True)
        torch.testing.assert_close(found.weight[:, output : output + 1], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Normal, Dual])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("mean", [0.0, 3.0, 100.0])
def test_what_is_exact_is_left_bit_for_bit(
    kind: type[Normal] | type[Dual], precision: torch.dtype, mean: float
) -> None:
    n, o = 200, 8
    old = torch.randn(1, o, n + 1).to(precision)
    x = (torch.randn(1, 400, n) + mean).to(precision)
    t = torch.nn.functional.linear(x, old[0, :, :-1], old[0, :, -1])  # rounded otherwise than the fit does it
    found = fitted(kind, x, t, old.double())
    assert torch.equal(found.weight.to(precision), old) and found.ratio.isinf().all()
    wrong = t.clone()
    wrong[..., 3] += x[..., 0] * 0.1
    found = fitted(kind, x, wrong, old.double())
    assert found.ratio.isinf()[0].tolist() == [output != 3 for output in range(o)]
    assert torch.equal(found.weight[0, :3], old.double()[0, :3])
    assert (found.weight[0, 3, 0] - old[0, 3, 0] - 0.1).abs() < 1e-2


def test_an_old_weight_that_no_fit_betters_stays() -> None:
    x, _, old = problem(1, 60, 40)
    t = x @ old[..., :-1].mT + old[..., None, :, -1] + 100 * torch.randn(1, 60, 3)  # nothing to learn but noise
    found = fitted(Normal, x, t, old)
    stays = found.ratio.isinf()[0]
    assert torch.equal(found.weight[0, stays], old[0, stays]) and torch.equal(
        found.after[0, stays], found.before[0, stays]
    )


@pytest.mark.parametrize("constant", [True, False])
def test_the_dual_form_is_the_same_fit(constant: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, t, old = problem(1, 40, 60)
    monkeypatch.setattr(ridge, "FINE", ())
    for r in RATIOS:
        monkeypatch.setattr(ridge, "RATIOS", (r,))
        found, wanted = (fitted(kind, x, t, old, constant) for kind in (Dual, Normal))
        assert torch.equal(found.ratio, wanted.ratio) and (found.ratio == r).any()
        torch.testing.assert_close(found.weight, wanted.weight, rtol=1e-4, atol=1e-5)


def test_the_dual_form_keeps_a_limited_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "DUAL_ROWS", 16)
    x, t, old = problem(1, 100, 30)
    fit = Dual(old)
    for number, (rows, targets) in enumerate(zip(x.split(5, 1), t.split(5, 1), strict=True)):
        fit.add(rows, targets, number % EVERY)
    assert fit.counts == [4, 4, 4, 4]
    found = fit.fit(True)
    kept = torch.cat([t[0, 5 * fold : 5 * fold + 4] for fold in range(EVERY)])
    torch.testing.assert_close(found.energy[0], kept.square().mean(0))


@pytest.mark.parametrize("kind", [Normal, Dual])
def test_inputs_that_are_zero_or_constant(kind: type[Normal] | type[Dual]) -> None:
    x, t, old = torch.zeros(1, 40, 5).double(), torch.ones(1, 40, 2).double() * 3, torch.randn(1, 2, 6).double()
    found = fitted(kind, x, t, old)
    assert torch.equal(found.weight[..., :-1], old[..., :-1])
    torch.testing.assert_close(found.weight[..., -1], torch.full((1, 2), 3.0).double(), rtol=1e-6, atol=0)
    same = fitted(kind, x, t, old, constant=False)
    assert torch.equal(same.weight, old) and same.ratio.isinf().all()
    alike = fitted(kind, x + 2, t, old)  # every row the same
    assert torch.isfinite(alike.weight).all() and (alike.after < 1e-9).all()


@pytest.mark.parametrize("kind", [Normal, Dual])
def test_with_rows_in_a_single_fold_nothing_changes(kind: type[Normal] | type[Dual]) -> None:
    x, t, old = problem(1)
    fit = kind(old)
    fit.add(x, t, 0)
    found = fit.fit(True)
    assert torch.equal(found.weight, old) and found.ratio.isinf().all() and torch.equal(found.after, found.before)


@pytest.mark.parametrize("kind", [Normal, Dual])
def test_a_fold_may_be_empty(kind: type[Normal] | type[Dual]) -> None:
    x, t, old = problem(1)
    fit = kind(old)
    fit.add(x[:, :30], t[:, :30], 1)
    fit.add(x[:, 30:], t[:, 30:], 3)
    found = fit.fit(True)
    halves = [(x[:, 30:], t[:, 30:]), (x[:, :30], t[:, :30])]
    for output, ratio in enumerate(found.ratio[0].tolist()):
        own = slice(output, output + 1)
        wanted = [slow_solution(rows, goal[..., own], old[:, own], ratio, True) for rows, goal in halves]
        np.testing.assert_allclose(found.weight[:, own], np.mean(wanted, 0), rtol=1e-5, atol=1e-6)


def test_the_factor_of_matrices_that_rounding_has_made_indefinite() -> None:
    low = torch.randn(6, 2).double()
    gram = torch.stack([low @ low.T, torch.zeros(6, 6).double(), torch.eye(6).double()])
    gram[0].diagonal().sub_(1e-12)
    lower = factor(gram)
    torch.testing.assert_close(lower @ lower.mT, gram, rtol=1e-6, atol=1e-6)
    whole = torch.randn(6, 20).double()
    assert torch.equal(factor(whole @ whole.T), torch.linalg.cholesky(whole @ whole.T))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_the_factor_of_what_is_not_finite_is_refused(value: float) -> None:
    gram = torch.eye(3).double()
    gram[1, 2] = gram[2, 1] = value
    with pytest.raises(SecateurError, match="NaN or infinite"):
        factor(gram)


@pytest.mark.parametrize("n", [1, 7, 13])
@pytest.mark.parametrize("narrow", [1, 4, 128])
def test_squares_in_blocks_are_plain_products(n: int, narrow: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge, "NARROW", narrow)
    x = torch.randn(2, 9, n).double()
    gram = torch.ones(2, n + 1, n + 1).double()
    ridge.add_squares(gram, x)
    rows = torch.cat([x, torch.ones(2, 9, 1).double()], 2)
    torch.testing.assert_close(gram, 1 + rows.mT @ rows)


def test_of_a_large_layer_one_fold_chooses_the_ridges_that_the_others_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(1, 400, 60, generator=source)
    old = torch.randn(1, 80, 61, generator=source).double()
    t = x @ (old[..., :-1] + 0.1).float().mT + 3 * torch.randn(1, 400, 80, generator=source)
    found, solved = [], list[float]()
    real = Moments.solve

    def counted(moments: Moments, ratio: float, constant: bool) -> torch.Tensor:
        solved.append(ratio)
        return real(moments, ratio, constant)

    monkeypatch.setattr(Moments, "solve", counted)
    counts = []
    for large in (512, 0):
        monkeypatch.setattr(ridge, "LARGE", large)
        sums = Normal(old, torch.float32)
        for fold in range(4):
            sums.add(x[:, fold::4], t[:, fold::4], fold)
        found.append(sums.fit(True))
        counts.append(len(solved))
    assert counts[1] - counts[0] < counts[0]
    same = found[0].ratio == found[1].ratio
    assert same.float().mean() > 0.9
    torch.testing.assert_close(found[0].weight[same], found[1].weight[same], rtol=1e-4, atol=1e-5)
    assert (found[1].after <= 1.01 * found[0].after).all()
