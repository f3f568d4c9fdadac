"""Two networks compared image by image: label maps and boxes, and the statements about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import secateur as sc
from secateur.certificates.images import Boxes, LabelMaps, box_iou, label_map, matches, mean_iou
from secateur.certificates.statements import Sample
from secateur.errors import SecateurError, UsageError
from support.detectors import detector, pictures


def iou_by_sets(one: Tensor, two: Tensor) -> float:
    """The obvious way: sets of pixels for each class."""
    found = []
    for number in sorted({*one.flatten().tolist(), *two.flatten().tolist()}):
        a = {i for i, value in enumerate(one.flatten().tolist()) if value == number}
        b = {i for i, value in enumerate(two.flatten().tolist()) if value == number}
        found.append(len(a & b) / len(a | b))
    return sum(found) / len(found)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5))
def test_mean_iou_is_that_of_sets_of_pixels(seed: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, two = (torch.randint(classes, (3, 4), generator=generator) for _ in range(2))
    assert mean_iou(one, two) == pytest.approx(iou_by_sets(one, two))


def test_box_iou_is_that_of_areas() -> None:
    one = torch.tensor([[0.0, 0, 4, 4], [0, 0, 0, 0]])
    two = torch.tensor([[2.0, 2, 6, 6], [0, 0, 4, 4], [9, 9, 10, 10], [0, 0, 0, 0]])
    assert box_iou(one, two).flatten().tolist() == pytest.approx([4 / 28, 1, 0, 0, 0, 0, 0, 0])


def boxes(*rows: tuple[float, float, float, float, int, float]) -> dict[str, Tensor]:
    table = torch.tensor(rows).reshape(-1, 6)
    return {"boxes": table[:, :4], "labels": table[:, 4].long(), "scores": table[:, 5]}


def test_a_detection_is_matched_once_and_by_its_class() -> None:
    old = boxes((0, 0, 4, 4, 1, 0.9), (0, 0, 4, 4, 1, 0.8), (8, 8, 9, 9, 2, 0.7))
    assert matches(old, old) == 3
    assert matches(old, boxes((0, 0, 4, 3, 1, 0.9))) == 1, "one box cannot stand for two"
    assert matches(old, boxes((0, 0, 4, 4, 2, 0.9))) == 0, "another class"
    assert matches(old, boxes((0, 0, 4, 1, 1, 0.9))) == 0, "an overlap of a quarter"
    assert matches(old, boxes()) == matches(boxes(), old) == 0


def test_recall_and_precision_of_images_with_and_without_detections() -> None:
    found = Boxes(threshold=0.5)
    old = [
        boxes((0, 0, 4, 4, 1, 0.9), (8, 8, 9, 9, 1, 0.9), (5, 5, 6, 6, 1, 0.1)),
        boxes(),
        boxes((0, 0, 1, 1, 0, 0.9)),
    ]
    new = [boxes((0, 0, 4, 4, 1, 0.9), (20, 20, 29, 29, 1, 0.9)), boxes((0, 0, 1, 1, 0, 0.9)), boxes()]
    found.add(new, old, None, "Net")
    assert found.recall == [0.5, 1.0, 0.0] and found.precision == [0.5, 0.0, 1.0]


def test_label_maps_disagreement_overlap_and_accuracy() -> None:
    old, new = torch.zeros(2, 3, 2, 2), torch.zeros(2, 3, 2, 2)
    old[:, 1], new[:, 1] = 1.0, 1.0  # class 1 everywhere
    new[0, 2, 0, 0] = 2.0  # but for one pixel
    y = torch.ones(2, 2, 2, dtype=torch.long)
    y[1, 0] = 255  # not evaluated
    maps = LabelMaps()
    maps.add({"out": new}, {"out": old}, y, "Net")
    assert maps.disagreement == [0.25, 0.0] and maps.overlap == [pytest.approx((0.75 + 0) / 2), 1.0]
    assert maps.before == [1.0, 1.0] and maps.after == [0.75, 1.0]
    assert label_map(torch.tensor([[[-1.0, 2.0]]])).tolist() == [[0, 1]], "one channel is that of class 1"


def test_bounds_of_means_hold_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    delta, runs, failures = 0.1, 400, 0
    for _ in range(runs):
        shares = generator.beta(1, 9, size=60)  # mean 0.1
        below = Sample(60, delta).pixel_disagreement(shares.tolist()).bound
        above = Sample(60, delta).at_least("recall", (1 - shares).tolist(), "x").bound
        assert below is not None and above is not None and above == pytest.approx(1 - below)
        failures += below < 0.1
    assert failures <= 56  # P(Bin(400, 0.1) > 56) < 0.005


def test_a_drop_in_pixel_accuracy_can_be_negative() -> None:
    better = Sample(2000, 0.01).pixel_drop([0.5] * 2000, [0.9] * 2000)
    assert better.bound is not None and -0.4 < better.bound < -0.35 and "rises by at least" in better.claim
    few = Sample(3, 1e-6).at_least("recall", [1.0] * 3, "the share")
    assert few.bound is None and "there is no bound on the share" in few.claim


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(1, 16, 3, 1, 1), nn.Conv2d(16, 16, 3, 1, 1), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.last(self.second(self.first(x).relu()).relu())}


def test_certificate_of_a_segmenter() -> None:
    torch.manual_seed(0)
    model, x = Segmenter().eval(), torch.randn(64, 1, 8, 8)
    res = sc.prune(model, x, {"macs": "70%"}, samples=64)
    fresh = torch.randn(100, 1, 8, 8)
    y = torch.randint(4, (100, 8, 8))
    cert = sc.certify(model, res.model, [(fresh, y)], task="segmentation", delta=0.05)
    kinds = [one.kind for one in cert.statements]
    assert kinds == ["pixel disagreement", "map overlap", "pixel drop"] and cert.samples == 100
    old, new = (network(fresh)["out"].argmax(1) for network in (model, res.model))
    assert cert["pixel disagreement"].observed == pytest.approx(float((old != new).double().mean()))
    assert cert["pixel disagreement"].bound > cert["pixel disagreement"].observed
    assert sc.Certificate.from_json(cert.to_json()) == cert
    without = sc.certify(model, res.model, [(fresh, y)], task="segmentation", labels=False)
    assert len(without.statements) == 2
    with pytest.raises(SecateurError, match="were used before"):
        sc.certify(model, res.model, x, task="segmentation", used=res.fingerprints)


def test_certificate_of_a_detector() -> None:
    model = detector()
    res = sc.prune(model, pictures(20), {"macs": "80%"}, scope="backbone", samples=48)
    cert = sc.certify(model, res.model, pictures(30, seed=5), task="detection", threshold=0.3, delta=0.05)
    assert [one.kind for one in cert.statements] == ["recall", "precision"] and cert.samples == 120
    for statement in cert.statements:
        assert statement.bound is not None and 0 < statement.bound < statement.observed <= 1
    same = sc.certify(model, model, pictures(30, seed=5), task="detection", threshold=0.3)
    assert same["recall"].observed == same["precision"].observed == 1
    with pytest.raises(SecateurError, match="were used before"):
        sc.certify(model, res.model, pictures(20), task="detection", used=res.fingerprints)


@pytest.mark.parametrize(
    ("task", "more", "message"),
    [
        ("segmentation", {"y": torch.zeros(4, 3, 3, dtype=torch.long)}, "label maps of shape"),
        ("segmentation", {"y": torch.zeros(4, 8, 8)}, "label maps of shape"),
        ("segmentation", {"eps": [0.1]}, "not for segmentation"),
        ("detection", {}, "list of dicts with boxes"),
    ],
)
def test_wrong_outputs_and_labels_are_refused(task: Any, more: dict[str, Any], message: str) -> None:
    model, x = Segmenter(), torch.randn(4, 1, 8, 8)
    data = [(x, more.pop("y"))] if "y" in more else x
    with pytest.raises(UsageError, match=message):
        sc.certify(model, model, data, task=task, **more)


def test_scores_that_are_no_map_are_refused() -> None:
    with pytest.raises(UsageError, match="expected a map of scores"):
        sc.certify(nn.Linear(3, 2), nn.Linear(3, 2), torch.zeros(4, 3), task="segmentation")
