"""Augmentation: what it does to images, and that only sound changes are used."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur.embedded import digits, lenet5
from secateur.errors import UsageError
from secateur.network.batches import Call
from secateur.training.augmentation import are_images, mirror, mix, shift, sound_augmentation, with_function


def call(*args: Tensor, **kwargs: Tensor) -> Call:
    return args, kwargs


class Mean(nn.Module):
    """Class scores that neither a mirrored nor a slightly shifted image changes much."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean((2, 3)), -x.mean((2, 3))], 1)


class Sides(nn.Module):
    """Class scores that say which side is brighter, or a number of this kind."""

    def __init__(self, classes: bool) -> None:
        super().__init__()
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        left, right = x[..., :10].mean((1, 2, 3)), x[..., 10:].mean((1, 2, 3))
        return torch.stack([left, right], 1) if self.classes else (left - right)[:, None]


def test_images_are_mirrored_or_not() -> None:
    images = torch.randn(64, 3, 16, 16)
    found = mirror(images, torch.Generator().manual_seed(0))
    kinds = [(torch.equal(a, b), torch.equal(a, b.flip(2))) for a, b in zip(found, images, strict=True)]
    assert set(kinds) == {(True, False), (False, True)}


def test_images_are_shifted_by_at_most_an_eighth() -> None:
    """Every result is a window of the image with its reflected border, which a slow search finds."""
    images = torch.randn(5, 2, 16, 24)
    found = shift(images, torch.Generator().manual_seed(0))
    assert found.shape == images.shape
    padded = torch.nn.functional.pad(images, (3, 3, 2, 2), mode="reflect")
    offsets = set()
    for one, whole in zip(found, padded, strict=True):
        hits = [(y, x) for y in range(5) for x in range(7) if torch.equal(one, whole[:, y : y + 16, x : x + 24])]
        assert len(hits) == 1
        offsets.update(hits)
    assert len(offsets) > 1


def test_images_are_mixed_in_pairs() -> None:
    """Each result lies between an image and another one of the batch, which a slow search finds."""
    images = torch.randn(6, 3, 16, 16)
    found = mix(images, torch.Generator().manual_seed(0))
    partners = []
    for own, mixed in zip(images, found, strict=True):
        for number, other in enumerate(images):
            way, gone = (other - own).flatten(), (mixed - own).flatten()
            share = float(gone @ way / (way @ way)) if way.any() else 0.0
            if torch.allclose(gone, share * way, atol=1e-5) and 0 <= share <= 1:
                partners.append(number)
                break
    assert sorted(partners) == list(range(6))


def test_mixing_comes_last_and_is_named() -> None:
    images = torch.zeros(4, 3, 16, 16)
    found = sound_augmentation(Mean(), [call(images)]).mixing()
    assert found.changes == (mirror, shift, mix)
    assert found.about == "images are mirrored and shifted, and mixed in pairs"


def test_only_images_are_images() -> None:
    images = torch.zeros(2, 3, 16, 16)
    assert are_images(call(images))
    for other in (call(images, images), call(x=images), call(images[0]), call(images.long()), call(images[:, :, :8])):
        assert not are_images(other)
    assert not are_images(call(torch.zeros(2, 12, 16, 16)))


@pytest.mark.parametrize(
    ("model", "about"),
    [
        (Mean(), "images are mirrored and shifted"),
        (Sides(classes=True), "images are shifted"),
        (Sides(classes=False), "images are shifted"),
    ],
)
def test_a_change_is_sound_if_the_answers_stay(model: nn.Module, about: str) -> None:
    ramp = torch.linspace(-1, 1, 20).sign() * torch.tensor([1.0, -1.0]).repeat(20)[:, None]  # one side is brighter
    images = ramp[:, None, None, :].expand(40, 1, 20, 20) + 0.1
    assert sound_augmentation(model, [call(images)]).about == about


def test_digits_are_not_mirrored() -> None:
    images, _ = digits("calibration")
    found = sound_augmentation(lenet5(), [call(images[:128])])
    assert mirror not in found.changes


def test_other_inputs_are_left_alone() -> None:
    found = sound_augmentation(nn.Linear(3, 2), [call(torch.zeros(4, 3))])
    x = torch.randn(4, 3)
    assert found.changes == () and "not images" in found.about
    assert found(call(x), torch.Generator())[0][0] is x


def test_a_function_of_the_user() -> None:
    own = with_function(lambda x: 2 * x)
    x, y = torch.randn(4, 3), torch.randn(4)
    args, _ = own(call(x, y), torch.Generator())
    assert torch.equal(args[0], 2 * x) and args[1] is y and not own.repeatable
    with pytest.raises(UsageError, match="first positional input"):
        own(call(x=x), torch.Generator())
