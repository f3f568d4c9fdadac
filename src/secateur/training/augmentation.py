"""Augmentation of images for training without labels: mirrored and shifted where the original allows it, and mixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur.errors import UsageError
from secateur.network.batches import Call, eval_outputs
from secateur.network.divergence import are_class_scores
from secateur.network.precision import at_least_float32

SMALLEST = 16  # pixels along each side of what counts as an image
REACH = 8  # images are shifted by at most an eighth of each side
SAME = 0.8  # share of answers of the original that must stay the same
ERROR = 0.1  # largest relative squared error of other outputs

ALONE = "let to_inputs= return a tensor or a tuple, or use augment='none'"

Change = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Augmentation:
    """Random changes of the images in a batch.

    Attributes:
        changes: functions of images and a random generator, applied one after the other.
        about: what it does, in words.
        repeatable: whether the generator alone decides about the result.
    """

    changes: tuple[Change, ...]
    about: str
    repeatable: bool = True

    def __call__(self, call: Call, source: torch.Generator) -> Call:
        """Return the call with changed images."""
        if self.changes and not call[0]:
            raise UsageError(
                "augment= changes the first positional input, and there is none", layer="data", remedy=ALONE
            )
        for change in self.changes:
            call = with_images(call, change(call[0][0], source))
        return call

    def mixing(self) -> Augmentation:
        """Return the same augmentation with images mixed at the end, for a teacher that answers for mixed images."""
        about = f"{self.about}, and mixed in pairs" if self.changes else "images are mixed in pairs"
        return replace(self, changes=(*self.changes, mix), about=about)


def are_images(call: Call) -> bool:
    """Return whether the only input of a call is a batch of images, [samples, 1 to 4 channels, height, width]."""
    args, kwargs = call
    if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
        return False
    return args[0].dim() == 4 and args[0].shape[1] <= 4 and min(args[0].shape[2:]) >= SMALLEST


def with_images(call: Call, images: Tensor) -> Call:
    """Return a call with other images."""
    return (images, *call[0][1:]), call[1]


def mirror(images: Tensor, source: torch.Generator) -> Tensor:
    """Return the images, each of them mirrored left to right or not."""
    chosen = torch.randint(0, 2, (len(images), 1, 1, 1), generator=source).bool().to(images.device)
    return torch.where(chosen, images.flip(3), images)


def shift(images: Tensor, source: torch.Generator) -> Tensor:
    """Return the images, each shifted by a random number of pixels; the border is filled by reflection."""
    reach = [side // REACH for side in images.shape[2:]]
    padded = F.pad(images, (reach[1], reach[1], reach[0], reach[0]), mode="reflect")
    offsets = [torch.randint(0, 2 * r + 1, (len(images),), generator=source).tolist() for r in reach]
    height, width = images.shape[2:]
    parts = [one[:, y : y + height, x : x + width] for one, y, x in zip(padded, *offsets, strict=True)]
    return torch.stack(parts)


def mix(images: Tensor, source: torch.Generator) -> Tensor:
    """Return weighted means of each image and another one of the batch (mixup), with random weights from 0 to 1."""
    weights = torch.rand(len(images), 1, 1, 1, generator=source).to(images)
    others = torch.randperm(len(images), generator=source).to(images.device)
    return weights * images + (1 - weights) * images[others]


def sound_augmentation(model: nn.Module, calls: Sequence[Call]) -> Augmentation:
    """Return the changes that leave the answers of the original as they are, on these samples.

    A mirrored digit is another one, and a mirrored road bends the other way: the original shows it. A change is used if
    its class stays the same for four of five samples, or if the relative squared error of other outputs is below 0.1.
    """
    if not calls or not all(map(are_images, calls)):
        return Augmentation((), "none: the inputs are not images")
    source = torch.Generator().manual_seed(0)
    known: tuple[tuple[str, Change], ...] = (("mirrored", mirror), ("shifted", shift))
    kept = [(name, change) for name, change in known if _is_sound(model, calls, change, source)]
    words = " and ".join(name for name, _ in kept)
    about = f"images are {words}" if kept else "none: the original answers differently for changed images"
    return Augmentation(tuple(change for _, change in kept), about)


def with_function(augment: Callable[[Tensor], Tensor]) -> Augmentation:
    """Return the user's own augmentation, a function of the first input."""
    return Augmentation((lambda inputs, source: augment(inputs),), "a function of the user", repeatable=False)


def _is_sound(model: nn.Module, calls: Sequence[Call], change: Change, source: torch.Generator) -> bool:
    same = samples = 0
    error = energy = 0.0
    for call in calls:
        images = call[0][0]
        changed = images.flip(3) if change is mirror else change(images, source)
        for old, new in zip(eval_outputs(model, call), eval_outputs(model, with_images(call, changed)), strict=True):
            if old.shape != new.shape:
                return False
            if are_class_scores(old):
                same, samples = same + int((old.argmax(1) == new.argmax(1)).sum()), samples + len(old)
            else:
                gap = at_least_float32(new) - at_least_float32(old)
                error += float(gap.square().sum())
                energy += float(at_least_float32(old).square().sum())
    return same >= SAME * samples and error <= ERROR * energy
