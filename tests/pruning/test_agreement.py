"""Agreement with the original on unused samples: each figure beside a plain loop, and that pruning stays the same."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.certificates import fingerprints
from secateur.embedded import digits, lenet5
from secateur.network.batches import with_labels
from secateur.pruning.agreement import UNUSED, Agreement, measure
from secateur.pruning.job import Job
from secateur.pruning.pool import Pool
from secateur.pruning.prune import carry_out, with_agreement
from secateur.pruning.settings import PruneSettings
from secateur.storage.checkpoint import read_info

torch.manual_seed(0)
ORIGINAL = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5)).train()
OTHER = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5)).train()
with torch.no_grad():
    for theirs, ours in zip(ORIGINAL.parameters(), OTHER.parameters(), strict=True):
        ours.copy_(theirs + 0.15 * torch.randn_like(theirs))
X, Y = torch.randn(150, 6), torch.randint(5, (150,))


def answers(network: nn.Module, x: Tensor) -> list[int]:
    """The class of each sample, one sample at a time."""
    network = deepcopy(network).eval()
    with torch.no_grad():
        return [int(network(one[None])[0].argmax()) for one in x]


def pairs(x: Tensor, y: Tensor | None = None, size: int = 40) -> list[Any]:
    batches = list(x.split(size)) if y is None else list(zip(x.split(size), y.split(size)))
    return list(with_labels(batches))


def words(res: sc.Pruned) -> str:
    return " ".join(res.summary().split())


@pytest.mark.parametrize("labelled", [True, False])
def test_answers_and_accuracies_are_those_of_a_plain_loop(labelled: bool) -> None:
    found = measure(ORIGINAL, OTHER, pairs(X, Y if labelled else None))
    assert ORIGINAL.training and OTHER.training  # as they were, though dropout did not run
    old, new = answers(ORIGINAL, X), answers(OTHER, X)
    same = sum(a == b for a, b in zip(old, new))
    assert 0 < same < 150 and (found.samples, found.same, found.share) == (150, same, same / 150)
    interval = stats.binomtest(same, 150).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    if labelled:
        right = [sum(a == int(y) for a, y in zip(each, Y)) / 150 for each in (old, new)]
        assert [found.original_accuracy, found.accuracy] == right
    else:
        assert found.original_accuracy is None and found.accuracy is None


def test_the_divergence_is_the_mean_over_samples() -> None:
    found = measure(ORIGINAL, OTHER, pairs(X))
    with torch.no_grad():
        ours, theirs = (deepcopy(one).eval()(X).softmax(1) for one in (ORIGINAL, OTHER))
    each = [sum(float(p * (p / q).log()) for p, q in zip(old, new)) for old, new in zip(ours, theirs)]
    assert found.divergence == pytest.approx(sum(each) / 150, rel=1e-4)
    assert not any(p.grad is not None for p in OTHER.parameters())


@pytest.mark.parametrize("same", [0, 1, 150])
def test_the_interval_is_exact_at_the_ends(same: int) -> None:
    """A network that gives the first class always, against one that gives it for the first samples alone."""
    constant = nn.Linear(1, 2)
    threshold = nn.Linear(1, 2)
    with torch.no_grad():
        constant.weight.zero_()
        constant.bias.copy_(torch.tensor([1.0, 0.0]))
        threshold.weight.copy_(torch.tensor([[-1.0], [1.0]]))
        threshold.bias.zero_()
    x = torch.cat([-torch.ones(same, 1), torch.ones(150 - same, 1)]) * torch.arange(1, 151)[:, None]
    found = measure(constant, threshold, pairs(x))
    interval = stats.binomtest(same, 150).proportion_ci(0.95, method="exact")
    assert found.same == same
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


@pytest.mark.parametrize("outputs", [1, 3])
def test_other_outputs_have_a_divergence_only(outputs: int) -> None:
    """One number for each sample, and a sequence of vectors for each sample."""
    one, two = nn.Linear(6, outputs), nn.Linear(6, outputs)
    x = X if outputs == 1 else X[:, None].expand(-1, 4, -1).contiguous()
    found = measure(one, two, pairs(x, Y, size=60))
    parts = x.split(60)
    with torch.no_grad():
        gaps = [float((two(p) - one(p)).square().sum() / one(p).square().sum()) for p in parts]
    assert found.divergence == pytest.approx(sum(g * len(p) for g, p in zip(gaps, parts)) / 150, rel=1e-4)
    assert (found.same, found.share, found.low, found.high, found.accuracy) == (None,) * 5
    assert str(found) == (
        "Expect: on 150 samples that pruning has not used, output divergence " + f"{found.divergence:.2g}."
    )
    assert found.notes(repaired=True) == ()


def test_labels_that_are_not_classes_give_no_accuracy() -> None:
    for labels in (Y + 3, Y.float(), torch.stack([Y, Y], 1), Y - 1):
        found = measure(ORIGINAL, OTHER, pairs(X, labels))
        assert found.accuracy is None and found.original_accuracy is None and found.same is not None


class NaNBelow(nn.Module):
    """A network whose output is NaN where the first input is below a limit."""

    def __init__(self, network: nn.Module, limit: float) -> None:
        super().__init__()
        self.network, self.limit = network, limit

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).masked_fill((x[:, :1] < self.limit), math.nan)


def test_samples_without_an_answer_of_the_original_are_left_out_and_noted() -> None:
    found = measure(NaNBelow(ORIGINAL, 0.0), OTHER, pairs(X, Y))
    fine = X[:, 0] >= 0
    assert replace(found, left_out=0) == up_to_rounding(
        measure(ORIGINAL, OTHER, pairs(X[fine], Y[fine], size=150)), found
    )
    assert found.left_out == int((~fine).sum()) and f"{found.left_out} unused samples" in found.notes(repaired=True)[-1]
    nothing = measure(NaNBelow(ORIGINAL, math.inf), OTHER, pairs(X))
    assert (nothing.samples, nothing.left_out, nothing.share) == (0, 150, None)
    assert "the original's own output is NaN for each unused sample" in str(nothing)


def up_to_rounding(wanted: Agreement, found: Agreement) -> Agreement:
    """The wanted one, with the divergence of the other where they differ by rounding alone."""
    assert found.divergence == pytest.approx(wanted.divergence, rel=1e-5)
    return replace(wanted, divergence=found.divergence)


def test_nan_of_the_smaller_network_is_another_answer() -> None:
    found = measure(ORIGINAL, NaNBelow(ORIGINAL, 0.0), pairs(X, Y))
    assert found.samples == 150 and found.same == int((X[:, 0] >= 0).sum()) and found.divergence == math.inf
    assert found.accuracy is not None and found.original_accuracy is not None
    assert found.accuracy < found.original_accuracy


def test_samples_that_pruning_has_used_are_left_out() -> None:
    found = measure(ORIGINAL, OTHER, pairs(X, Y), used=fingerprints.of(X[:90]))
    assert found.samples == 60
    assert found.same == measure(ORIGINAL, OTHER, pairs(X[90:], Y[90:])).same
    assert measure(ORIGINAL, OTHER, pairs(X), used=fingerprints.of(X)).samples == 0


def test_the_sentence() -> None:
    found = Agreement(samples=256, divergence=0.1234, same=239, low=0.8961, high=0.9609)
    assert str(found) == (
        "Expect: on 256 samples that pruning has not used, the smaller network gives the original's answer for 93.4% "
        "(95% interval 89.6 to 96.1); output divergence 0.12."
    )
    labelled = replace(found, original_accuracy=0.91, accuracy=0.876)
    assert str(labelled).endswith("; output divergence 0.12, accuracy 87.6%, of the original 91.0%.")


def test_low_agreement_is_a_warning_with_what_helps() -> None:
    enough = Agreement(samples=100, divergence=0.1, same=90, low=0.8, high=0.95)
    assert enough.notes(repaired=True) == ()
    low = replace(enough, same=89)
    assert (
        "for only 89.0% of unused samples; a milder budget, more calibration samples (samples=), recovery"
        in low.notes(repaired=True)[0]
    )
    assert "sc.recover" in low.notes(repaired=True)[0] and "repair=True" not in low.notes(repaired=True)[0]
    assert "repair=True" in low.notes(repaired=False)[0]
    assert "the repair, which failed, a milder budget" in low.notes(repaired=False, failed=True)[0]


def test_a_collapse_is_reported_as_such() -> None:
    half = Agreement(samples=100, divergence=2.0, same=50, low=0.4, high=0.6)
    assert half.notes(repaired=True)[0].startswith("low agreement")
    (note,) = replace(half, same=49).notes(repaired=True)
    assert note.startswith(
        "the network has collapsed: the smaller network gives the original's answer for only 49.0% of unused samples"
    )
    assert "this budget is out of reach without training the network further: choose a milder one, or try" in note
    assert all(setting in note for setting in ("samples=", "sc.recover", 'effort="thorough"'))
    assert "without a repair (repair=True) or without training" in replace(half, same=49).notes(repaired=False)[0]
    (failed,) = replace(half, same=49).notes(repaired=False, failed=True)
    assert "without the repair, which failed, or without training" in failed and "repair=True" not in failed


IMAGES, LABELS = digits("calibration")


def pruned(data: Any, budget: str = "30%", **settings: Any) -> sc.Pruned:
    return sc.prune(lenet5(), data, {"params": budget}, **{"samples": 48, "memory": 2**30, **settings})


@pytest.fixture(scope="module")
def res() -> sc.Pruned:
    return pruned((IMAGES[:200], LABELS[:200]))


def test_prune_measures_on_the_samples_left_over(res: sc.Pruned) -> None:
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))[48:]
    found = res.agreement
    assert found is not None and found.samples == 152
    old, new = answers(lenet5(), IMAGES[order]), answers(res.model, IMAGES[order])
    assert found.same == sum(a == b for a, b in zip(old, new))
    assert found.accuracy == sum(a == int(y) for a, y in zip(new, LABELS[order])) / 152
    assert str(found) in words(res)


def test_it_is_in_the_info_and_in_the_file(res: sc.Pruned, tmp_path: Path) -> None:
    assert res.agreement is not None
    shown = json.loads(json.dumps(res.info, allow_nan=False))["agreement"]
    assert (shown["samples"], shown["same"], shown["share"]) == (152, res.agreement.same, res.agreement.share)
    sc.save(tmp_path / "small.safetensors", res)
    assert read_info(tmp_path / "small.safetensors")["agreement"] == shown


@pytest.mark.parametrize(
    "data",
    [
        lambda count: DataLoader(TensorDataset(IMAGES[:count], LABELS[:count]), batch_size=20, shuffle=True),
        lambda count: iter(list(zip(IMAGES[:count].split(20), LABELS[:count].split(20)))),
        lambda count: IMAGES[:count],
    ],
    ids=["loader", "iterator", "tensor"],
)
def test_the_pruned_weights_are_the_same_bit_for_bit(data: Callable[[int], Any]) -> None:
    """Once with samples set aside, once as without them: the job asks for none."""
    torch.manual_seed(5)
    with_unused = pruned(data(100))
    after = torch.get_rng_state()
    torch.manual_seed(5)
    job = Job.of(lenet5(), data(100), {"params": "30%"}, PruneSettings(samples=48, memory=2**30))
    without = carry_out(job, job.draft())
    assert torch.equal(after, torch.get_rng_state())
    assert with_unused.agreement is not None and with_unused.agreement.samples == 52 and without.agreement is None
    assert not job.unused and with_unused.fingerprints == without.fingerprints and with_unused.samples == 48
    ours, theirs = with_unused.model.state_dict(), without.model.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_at_most_256_samples_are_set_aside() -> None:
    data = torch.arange(UNUSED + 50.0)[:, None]
    for given in (data, list(data.split(7)), DataLoader(TensorDataset(data), batch_size=7), iter(data.split(7))):
        pool = Pool.of(given, 10, seed=0, unused=UNUSED)
        used = [int(x) for call in pool.calls for x in call[0][0]]
        unused = [int(x) for (args, _), _ in pool.unused for x in args[0]]
        assert len(used) == 10 and len(unused) == len(set(unused)) == UNUSED and not set(used) & set(unused)
        in_order = isinstance(given, type(iter(())))
        order = range(306) if in_order else torch.randperm(306, generator=torch.Generator().manual_seed(0)).tolist()
        assert [*used, *unused] == list(order)[: 10 + UNUSED]
        assert bool(pool.notes) == in_order


def test_of_an_iterator_the_next_samples_are_set_aside_with_their_labels() -> None:
    numbers = torch.arange(20)
    batches = list(zip(numbers.float()[:, None].split(6), (10 * numbers).split(6)))
    pool = Pool.of(iter(batches), 8, seed=0, unused=9)
    assert [len(call[0][0]) for call in pool.calls] == [6, 2]
    found = [(int(x), int(y)) for (args, _), labels in pool.unused for x, y in zip(args[0], labels)]  # type: ignore[arg-type]
    assert found == [(n, 10 * n) for n in range(8, 17)]
    assert "the first 8 samples of the data were used" in pool.notes[0]
    few = Pool.of(iter(batches), 30, seed=0, unused=9)
    assert len(few) == 20 and few.unused == [] and few.notes == ()


@pytest.mark.parametrize("data", [IMAGES[:48], iter(IMAGES[:40].split(8))], ids=["tensor", "iterator"])
def test_without_samples_left_over_the_summary_says_how_to_get_the_figure(data: Any) -> None:
    res = pruned(data, method="ft")
    assert res.agreement is not None and res.agreement.samples == 0 and res.agreement.share is None
    assert "Expect: unknown, since no unused samples were left; pass more data or a smaller samples=" in words(res)
    assert res.info["agreement"]["divergence"] is None


def test_a_budget_that_ruins_the_network_is_reported() -> None:
    res = pruned(IMAGES[:200], budget="1%", method="ft")
    assert res.agreement is not None and res.agreement.share is not None and res.agreement.share < 0.9
    answers = "the smaller network gives the original's answer for only"
    collapsed = f"Warning: the network has collapsed: {answers}" in words(res)
    assert collapsed == (res.agreement.share < 0.5)
    assert collapsed or f"Warning: low agreement: {answers}" in words(res)


def test_a_network_that_was_not_cut_is_not_measured() -> None:
    res = pruned(IMAGES[:60], budget="100%", method="ft")
    assert res.agreement is None and res.info["agreement"] is None and "Expect" not in words(res)


def test_a_network_that_fails_on_unused_samples_is_kept_with_a_note(res: sc.Pruned) -> None:
    found = with_agreement(replace(res, agreement=None), lenet5(), pairs(torch.randn(4, 1, 5, 5)))
    assert found.model is res.model and found.agreement is None
    assert "agreement with the original was not measured: " in found.notes[-1]


def test_a_budget_in_drop_has_it_too() -> None:
    x, y = digits("test")
    res = sc.prune(
        lenet5(), IMAGES[:120], {"drop": "60%"}, heldout=[(x[:100], y[:100])], samples=32, method="ft",
        certificate_delta=0.05,
    )  # fmt: skip
    assert res.plan.kept and res.agreement is not None and res.agreement.samples == 88


def test_compare_does_not_pay_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "secateur.pruning.prune.measure", lambda *args, **more: pytest.fail("compare measured agreement")
    )
    found = sc.compare(lenet5(), IMAGES[:100], {"params": ["50%"]}, methods=["ft"], samples=16, repeats=1)
    assert found.finished and found.cells[0].value is not None
