"""Certificates of real networks: counts by hand, refused arguments, and the choice among networks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.certificates import fingerprints
from secateur.certificates.bounds import clopper_pearson, drop_bound, order_statistic
from secateur.certificates.certify import drop_certified, fixed_sequence
from secateur.embedded import digits, lenet5
from secateur.errors import UsageError


@pytest.fixture(scope="module")
def pruned() -> sc.Pruned:
    return sc.prune(lenet5(), digits("calibration")[0][:64], budget={"params": "20%"})


@pytest.fixture(scope="module")
def heldout() -> tuple[Tensor, Tensor]:
    images, labels = digits("test")
    return images[:600], labels[:600]


class Shift(nn.Module):
    """A network that adds a number to its input."""

    def __init__(self, by: float = 0.0, outputs: int = 1) -> None:
        super().__init__()
        self.by, self.outputs = nn.Parameter(torch.tensor(float(by))), outputs

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.by).expand(-1, self.outputs)


def test_the_counts_are_those_of_the_two_networks(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    model, (x, y) = lenet5(), heldout
    batches = list(zip(x.split(128), y.split(128)))
    before = copy.deepcopy(model.state_dict())
    cert = sc.certify(model, pruned.model, batches, delta=0.01, eps=[0.3, 0.6])
    with torch.no_grad():
        f, fhat = model(x), pruned.model.eval()(x)
    old, new = f.argmax(1), fhat.argmax(1)
    lost, gained = int(((old == y) & (new != y)).sum()), int(((old != y) & (new == y)).sum())
    assert lost > gained
    assert cert["disagreement"].bound == clopper_pearson(int((old != new).sum()), 600, 0.01)
    assert cert["drop"].bound == drop_bound(lost, gained, 600, 0.01)
    relative = ((fhat - f).double().norm(dim=1) / f.double().norm(dim=1)).numpy()
    for statement, eps in zip([s for s in cert.statements if s.kind == "error above"], (0.3, 0.6), strict=True):
        assert statement.observed == pytest.approx((relative > eps).mean()) and statement.eps == eps
    assert cert["error"].observed == pytest.approx(np.median(relative), rel=1e-5)
    rank = order_statistic(600, 0.05, 0.01)
    assert rank is not None and cert["error"].bound == pytest.approx(np.sort(relative)[rank - 1], rel=1e-5)
    assert cert.samples == 600 and not cert.notes
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True))


def test_labels_are_used_ignored_or_required(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    model, (x, y) = lenet5(), heldout
    asked: list[tuple[Any, bool | None]] = [([(x, y)], None), ((x, y), True), ([(x, y)], False), (x, None)]
    kinds = [[s.kind for s in sc.certify(model, pruned.model, data, labels=use).statements] for data, use in asked]
    assert kinds[0] == kinds[1] == ["disagreement", "drop", "error"]
    assert kinds[2] == kinds[3] == ["disagreement", "error"]
    by_name = sc.certify(model, pruned.model, [{"x": x, "y": y}], example={"x": x[:1]}, labels=True)
    assert by_name == sc.certify(model, pruned.model, [(x, y)])
    turned = sc.certify(model, pruned.model, [{"image": x, "labels": y}], to_inputs=lambda b: b["image"])
    assert turned == by_name


def test_the_layers_share_one_delta(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    x, y = heldout
    cert = sc.certify(lenet5(), pruned.model, [(x[:300], y[:300])], delta=0.01, layers=True, plan=pruned.plan)
    plain = sc.certify(lenet5(), pruned.model, [(x[:300], y[:300])], delta=0.01)
    found = [s for s in cert.statements if s.kind == "layer"]
    assert [s.layer for s in found] == list(dict.fromkeys(s.parameter.split(".")[0] for s in pruned.plan.consumes))
    assert all(s.spent == pytest.approx(0.01 / len(found)) and s.bound is not None and s.bound > 0 for s in found)
    assert cert["drop"] == plain["drop"] and cert["disagreement"] == plain["disagreement"]
    assert cert["error"].bound == pytest.approx(plain["error"].bound, rel=1e-4)


def test_an_identical_network_has_no_error() -> None:
    images, labels = digits("test")
    cert = sc.certify(lenet5(), lenet5(), [(images, labels)], eps=[0.0])
    assert cert["error"].bound == 0
    assert cert["disagreement"].bound == cert["error above"].bound == clopper_pearson(0, 2000, 1e-3)
    assert cert["drop"].bound == drop_bound(0, 0, 2000, 1e-3)


def test_regression_bounds_means_only_with_a_range() -> None:
    x = torch.randn(1000, 1, generator=torch.Generator().manual_seed(0))
    cert = sc.certify(Shift(), Shift(0.1), x)
    assert [s.kind for s in cert.statements] == ["error", "change"]
    assert cert["change"].bound == pytest.approx(0.1, rel=1e-5)
    assert any("range=" in note for note in cert.notes)
    ranged = sc.certify(Shift(), Shift(0.1), x, range=1.0)
    assert not ranged.notes
    assert 0.1 <= ranged["mean change"].bound < 0.12
    assert 0.01 <= ranged["mean squared change"].bound < 0.02
    with pytest.raises(UsageError, match=r"changed by 0\.1, more than range=0\.05"):
        sc.certify(Shift(), Shift(0.1), x, range=0.05)


def test_two_outputs_can_be_a_regression() -> None:
    x = torch.randn(100, 1)
    assert sc.certify(Shift(0, 2), Shift(0.1, 2), x, delta=0.1).statements[0].kind == "disagreement"
    assert sc.certify(Shift(0, 2), Shift(0.1, 2), x, delta=0.1, task="regression").statements[0].kind == "error"
    with pytest.raises(UsageError, match="expected class scores"):
        sc.certify(Shift(), Shift(), x, task="classification")


def test_samples_that_were_used_are_refused(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    x, _ = heldout
    calibration = digits("calibration")[0]
    for used in (fingerprints.pack(fingerprints.of(calibration)), fingerprints.of(calibration)):
        assert sc.certify(lenet5(), pruned.model, x, used=used).samples == 600
        with pytest.raises(sc.SecateurError, match="3 of the 103 samples") as caught:
            sc.certify(lenet5(), pruned.model, torch.cat([x[:100], calibration[:3]]), used=used)
        assert "nothing has used" in str(caught.value)


def test_duplicate_samples_are_noted(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    x, _ = heldout
    cert = sc.certify(lenet5(), pruned.model, torch.cat([x[:100], x[:2]]))
    assert cert.samples == 102 and "2 of 102 samples are copies" in cert.notes[0]
    assert not sc.certify(lenet5(), pruned.model, torch.cat([x[:200], x[:1]])).notes


def test_a_choice_from_several_networks(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    one, many = (sc.certify(lenet5(), pruned.model, [heldout], chosen_from=r, delta=0.01) for r in (1, 10))
    assert one["drop"].bound < many["drop"].bound
    assert many["disagreement"].spent == pytest.approx(0.001)
    assert "best of 10 networks" in str(many)


def test_a_drop_is_certified_up_to_its_bound(pruned: sc.Pruned, heldout: tuple[Tensor, Tensor]) -> None:
    bound = sc.certify(lenet5(), pruned.model, [heldout], delta=0.01)["drop"].bound
    assert bound is not None
    assert drop_certified(lenet5(), pruned.model, [heldout], drop=bound, delta=0.01)
    assert not drop_certified(lenet5(), pruned.model, [heldout], drop=bound - 1e-6, delta=0.01)
    with pytest.raises(UsageError, match="drop is 5"):
        drop_certified(lenet5(), pruned.model, [heldout], drop=5, delta=0.01)
    with pytest.raises(UsageError, match="no labels"):
        drop_certified(lenet5(), pruned.model, heldout[0], drop=0.1, delta=0.01)


def test_a_fixed_sequence_stops_at_the_first_failure() -> None:
    asked = []

    def test(candidate: int) -> bool:
        asked.append(candidate)
        return candidate != 3

    assert fixed_sequence([1, 2, 3, 4], test) == 2
    assert asked == [1, 2, 3]
    assert fixed_sequence([3, 1], test) is None and fixed_sequence([], test) is None
    assert fixed_sequence([1, 2], test) == 2


class Broken(Shift):
    def forward(self, x: Tensor) -> Any:
        return (super().forward(x), x) if self.outputs == 3 else super().forward(x) / 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: sc.certify(Shift(), Shift(), x, delta=0), "delta is 0"),
        (lambda x: sc.certify(Shift(), Shift(), x, beta=1.0), "beta is 1.0"),
        (lambda x: sc.certify(Shift(), Shift(), x, eps=[-1.0]), "eps is"),
        (lambda x: sc.certify(Shift(), Shift(), x, eps=[float("nan")]), "eps is"),
        (lambda x: sc.certify(Shift(), Shift(), x, task="ranking"), "task is 'ranking'"),
        (lambda x: sc.certify(Shift(), Shift(), x, range=-1.0), "range is -1.0"),
        (lambda x: sc.certify(Shift(), Shift(), x, chosen_from=0), "chosen_from is 0"),
        (lambda x: sc.certify(Shift(), Shift(), x, layers=True), "needs the plan"),
        (lambda x: sc.certify(Shift(), Shift(), []), "no held-out samples"),
        (
            lambda x: sc.certify(Shift(), Shift(), 3),
            "expected a tensor or an iterable of batches, got a value of type int",
        ),
        (lambda x: sc.certify(Shift(), Shift(0, 2), x), r"shape \(8, 1\), those of the small network \(8, 2\)"),
        (lambda x: sc.certify(Shift(), Broken(outputs=3), x), "got 2 outputs"),
        (lambda x: sc.certify(Shift(), Broken(), x), "NaN or infinite"),
        (lambda x: sc.certify(Shift(), Shift(), x[:, None]), "could not run"),
        (lambda x: sc.certify(Shift(0, 2), Shift(), [(x, torch.zeros(8).long()), (x, "")]), "shape"),
        (lambda x: sc.certify(Shift(0, 2), Shift(0, 2), [(x, torch.zeros(8).long()), (x, "")]), "only some batches"),
        (lambda x: sc.certify(Shift(0, 2), Shift(0, 2), [(x, torch.zeros(8))]), "expected 8 class numbers"),
        (lambda x: sc.certify(Shift(0, 2), Shift(0, 2), [(x, torch.full((8,), 2))]), "labels run from 2 to 2"),
        (lambda x: sc.certify(Shift(0, 2), Shift(0, 2), [x], labels=True), "has no labels"),
        (lambda x: sc.certify(Shift(), Shift(), x, used="???"), "fingerprints cannot be read"),
    ],
)
def test_invalid_arguments_are_refused(call: Any, words: str) -> None:
    with pytest.raises(sc.SecateurError, match=words) as caught:
        call(torch.randn(8, 1))
    assert caught.value.remedy
