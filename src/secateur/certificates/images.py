"""Compare two networks image by image: label maps of segmentation, and boxes of detection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.certificates.certificate import Statement
from secateur.certificates.statements import Sample
from secateur.errors import SecateurError, UsageError

IOU = 0.5  # intersection over union from which two boxes are the same object
BOX_KEYS = {"boxes", "labels", "scores"}


@dataclass
class LabelMaps:
    """The label maps of two segmentation networks: for each image, how far they are apart."""

    disagreement: list[float] = field(default_factory=list)  # share of pixels with another class
    overlap: list[float] = field(default_factory=list)  # mean IoU over the classes of either map
    before: list[float] = field(default_factory=list)  # pixel accuracy of the original
    after: list[float] = field(default_factory=list)

    def add(self, found: Any, wanted: Any, y: Any, layer: str) -> None:
        """Compare the outputs for one batch; y are label maps or None."""
        classes = _scores(wanted, layer)
        old, new = label_map(classes), label_map(_scores(found, layer))
        if old.shape != new.shape:
            raise SecateurError(
                f"the label maps of the original have shape {tuple(old.shape)}, those of the small network "
                f"{tuple(new.shape)}",
                layer=layer,
                remedy="compare networks with equal output shapes",
            )
        self.disagreement += (old != new).flatten(1).double().mean(1).tolist()
        self.overlap += [mean_iou(one, two) for one, two in zip(old, new, strict=True)]
        if y is not None:
            most = max(2, classes.shape[1])
            for one, two, true in zip(old, new, _true_maps(y, old), strict=True):
                valid = (true >= 0) & (true < most)  # others, such as 255, are not evaluated
                for maps, where in ((one, self.before), (two, self.after)):
                    where.append(float((maps == true)[valid].double().mean()) if bool(valid.any()) else 1.0)

    def statements(self, sample: Sample) -> Iterator[Statement]:
        """Yield the statements about all images."""
        yield sample.pixel_disagreement(self.disagreement)
        yield sample.at_least("map overlap", self.overlap, "the mean IoU of the two label maps of an image")
        if self.before:
            yield sample.pixel_drop(self.before, self.after)


@dataclass
class Boxes:
    """The detections of two networks: for each image, how many of the original's are found again, and how many extra.

    Attributes:
        threshold: detections with a smaller score are not counted.
        recall: share of the original's detections that the small network has, too; 1 if the original has none.
        precision: share of the small network's detections that the original has, too; 1 if it has none.
    """

    threshold: float
    recall: list[float] = field(default_factory=list)
    precision: list[float] = field(default_factory=list)

    def add(self, found: Any, wanted: Any, y: Any, layer: str) -> None:
        """Compare the outputs for one batch of images."""
        pairs = [_detections(outputs, layer) for outputs in (wanted, found)]
        if len(pairs[0]) != len(pairs[1]):
            raise SecateurError(
                f"{len(pairs[0])} and {len(pairs[1])} results for the same images", layer=layer, remedy="check forward"
            )
        for old, new in zip(*pairs, strict=True):
            old, new = (self._above(one) for one in (old, new))
            same = matches(old, new)
            self.recall.append(same / len(old["boxes"]) if len(old["boxes"]) else 1.0)
            self.precision.append(same / len(new["boxes"]) if len(new["boxes"]) else 1.0)

    def _above(self, one: dict[str, Tensor]) -> dict[str, Tensor]:
        chosen = one["scores"] >= self.threshold
        return {key: one[key][chosen] for key in BOX_KEYS}

    def statements(self, sample: Sample) -> Iterator[Statement]:
        """Yield the statements about all images."""
        which = f"(score from {self.threshold:g} on; same class and IoU from {IOU:g} on)"
        words = f"the share of the original's detections in an image that the small network has too {which}"
        yield sample.at_least("recall", self.recall, words)
        words = f"the share of the small network's detections in an image that the original has too {which}"
        yield sample.at_least("precision", self.precision, words)


def label_map(scores: Tensor) -> Tensor:
    """Return the class of every pixel; one channel of scores is that of class 1 against class 0."""
    return (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(1)


def mean_iou(one: Tensor, two: Tensor) -> float:
    """Return the intersection over union of two label maps, averaged over the classes of either.

    >>> mean_iou(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 1, 1]))
    0.5833333333333333
    """
    classes = int(torch.maximum(one.max(), two.max())) + 1
    both = torch.bincount(one[one == two].flatten(), minlength=classes).double()
    sizes = [torch.bincount(maps.flatten(), minlength=classes).double() for maps in (one, two)]
    union = sizes[0] + sizes[1] - both
    return float((both[union > 0] / union[union > 0]).mean())


def matches(old: dict[str, Tensor], new: dict[str, Tensor]) -> int:
    """Return how many detections of the original the other network has: each takes its nearest free box of its class.

    The original's detections choose in the order of their scores.
    """
    if not len(old["boxes"]) or not len(new["boxes"]):
        return 0
    overlap = box_iou(old["boxes"].double(), new["boxes"].double())
    overlap[old["labels"][:, None] != new["labels"][None]] = 0
    count = 0
    for row in old["scores"].argsort(descending=True, stable=True).tolist():
        best = int(overlap[row].argmax())
        if overlap[row, best] >= IOU:
            overlap[:, best] = 0
            count += 1
    return count


def box_iou(one: Tensor, two: Tensor) -> Tensor:
    """Return the intersection over union of each pair of boxes (left, top, right, bottom)."""
    corner = torch.minimum(one[:, None, 2:], two[None, :, 2:]) - torch.maximum(one[:, None, :2], two[None, :, :2])
    both = corner.clamp_min(0).prod(2)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp_min(0).prod(1) for boxes in (one, two)]
    union = areas[0][:, None] + areas[1][None] - both
    return torch.where(union > 0, both / union.clamp_min(1e-300), torch.zeros_like(union))


def _scores(output: Any, layer: str) -> Tensor:
    """Return the scores in the output of a segmentation network: the first tensor [images, classes, ...]."""
    maps = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    first = next((leaf for leaf in maps if leaf.dim() >= 3), None)
    if first is None:
        shapes = [tuple(leaf.shape) for leaf in maps]
        raise UsageError(
            f"expected a map of scores [images, classes, height, width], got outputs of shape {shapes}",
            layer=layer,
            remedy="leave task out, or use task='classification' or 'regression'",
        )
    _check_finite(first, layer)
    return first.detach().cpu()


def _true_maps(y: Any, maps: Tensor) -> Tensor:
    if not isinstance(y, Tensor) or y.is_floating_point():
        raise UsageError(
            f"expected label maps of shape {tuple(maps.shape)}, got a {type(y).__name__}",
            layer="data",
            remedy="pass integers, one class for each pixel, or labels=False",
        )
    true = y[:, 0] if y.dim() == maps.dim() + 1 and y.shape[1] == 1 else y
    if true.shape != maps.shape:
        raise UsageError(
            f"expected label maps of shape {tuple(maps.shape)}, got labels of shape {tuple(y.shape)}",
            layer="data",
            remedy="bring them to the size of the output, or pass labels=False",
        )
    return true.cpu().long()


def _detections(output: Any, layer: str) -> list[dict[str, Tensor]]:
    """Return the detections in an output: a dict with boxes, labels and scores for each image."""
    if not isinstance(output, Sequence) or not all(isinstance(one, dict) and one.keys() >= BOX_KEYS for one in output):
        raise UsageError(
            f"expected a list of dicts with boxes, labels and scores, one for each image, got {type(output).__name__}",
            layer=layer,
            remedy="wrap the network so that it returns its detections after post-processing",
        )
    found = [{key: one[key].detach().cpu() for key in BOX_KEYS} for one in output]
    for one in found:
        _check_finite(one["boxes"], layer)
        _check_finite(one["scores"], layer)
    return found


def _check_finite(values: Tensor, layer: str) -> None:
    if not bool(torch.isfinite(values).all()):
        raise SecateurError(
            "the output for a held-out sample is NaN or infinite", layer=layer, remedy="check weights and inputs"
        )
