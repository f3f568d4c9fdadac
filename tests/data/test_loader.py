"""Batches are repeatable, augmentation equals a slow loop, and shards together are the batches of one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from secateur.data import Batches, Data
from secateur.data.loader import crop_and_flip, draw_moves
from secateur.errors import UsageError


def make(count: int = 50, size: int = 8) -> Data:
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    return Data(images, torch.arange(count), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), augment="pad-crop-flip")


def slow_crop_and_flip(images: Tensor, moves: Tensor) -> Tensor:
    """Crop and flip one image after the other, pixel by pixel: the oracle."""
    made = torch.zeros_like(images)
    _, _, height, width = images.shape
    for image, into, (down, right, flip) in zip(images, made, moves.T):
        for row in range(height):
            for column in range(width):
                from_row, from_column = row + int(down) - 4, column + int(right) - 4
                if 0 <= from_row < height and 0 <= from_column < width:
                    into[:, row, width - 1 - column if flip else column] = image[:, from_row, from_column]
    return made


def together(batches: Batches, epoch: int = 0, start: int = 0) -> tuple[Tensor, Tensor]:
    x, y = zip(*batches.epoch(epoch, start))
    return torch.cat(x), torch.cat(y)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 6, 9)])
def test_augmentation_equals_the_slow_loop(shape: tuple[int, ...]) -> None:
    images = torch.randint(1, 256, (30, *shape), dtype=torch.uint8)
    moves = draw_moves(30, torch.Generator().manual_seed(1))
    assert torch.equal(crop_and_flip(images, moves), slow_crop_and_flip(images, moves))


def test_crops_and_flips_are_uniform_and_independent() -> None:
    moves = draw_moves(20_000, torch.Generator().manual_seed(0))
    for offsets in moves[:2]:
        assert offsets.bincount(minlength=9).float().div(20_000).sub(1 / 9).abs().max() < 0.01
    assert abs(moves[2].float().mean() - 0.5) < 0.02
    assert abs(torch.corrcoef(moves.float()) - torch.eye(3)).max() < 0.03


def test_batches_in_order_are_normalised() -> None:
    data = make()
    x, y = together(Batches(data, 16, shuffle=False, augment=False, seed=0))
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    expected = (data.images.float() / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert torch.equal(y, data.targets)
    torch.testing.assert_close(x, expected)


def test_an_epoch_is_the_same_after_other_epochs() -> None:
    data = make()
    batches = Batches(data, 16, shuffle=True, augment=True, seed=5)
    for epoch in (0, 1):
        list(batches.epoch(epoch))
    torch.rand(7)
    again = Batches(data, 16, shuffle=True, augment=True, seed=5)
    for left, right in zip(together(batches, 2), together(again, 2)):
        assert torch.equal(left, right)
    for left, right in zip(together(batches, 2, start=2), together(again, 2)):
        assert torch.equal(left, right[32:])
    assert all(torch.equal(a, b) for one, two in zip(batches, again.epoch(0)) for a, b in zip(one, two))


def test_epochs_and_seeds_differ_and_each_sees_every_image_once() -> None:
    data = make()
    orders = []
    for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1)):
        _, y = together(Batches(data, 16, shuffle=True, augment=True, seed=seed), epoch)
        assert torch.equal(y.sort().values, data.targets)
        orders.append(tuple(y.tolist()))
    assert len(set(orders)) == 4


def test_the_global_random_state_is_not_changed() -> None:
    data, before = make(), torch.get_rng_state()
    together(Batches(data, 16, shuffle=True, augment=True, seed=0))
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_is_used_only_where_it_is_usual() -> None:
    data = make()
    plain, moved = (together(Batches(data, 16, shuffle=False, augment=a, seed=0))[0] for a in (False, True))
    assert not torch.equal(plain, moved)
    digits = replace(data, augment="none")
    assert torch.equal(plain, together(Batches(digits, 16, shuffle=False, augment=True, seed=0))[0])


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shards_make_up_the_batches_of_one_process(world: int, drop_last: bool) -> None:
    data = make(50)
    one = Batches(data, 4 * world, shuffle=True, augment=True, seed=2, drop_last=drop_last)
    several = [
        Batches(data, 4, shuffle=True, augment=True, seed=2, drop_last=drop_last, shard=(rank, world))
        for rank in range(world)
    ]
    assert {len(batches) for batches in several} == {len(one)}
    for joint, *parts in zip(one.epoch(3), *(batches.epoch(3) for batches in several), strict=True):
        if drop_last:
            assert {len(y) for _, y in parts} == {4}
        for item in range(2):
            assert torch.equal(joint[item], torch.cat([part[item] for part in parts]))


def test_lengths() -> None:
    for drop_last, count, size in ((False, 4, 2), (True, 3, 16)):
        batches = Batches(make(50), 16, shuffle=True, augment=False, seed=0, drop_last=drop_last)
        sizes = [len(y) for _, y in batches]
        assert len(sizes) == len(batches) == count and sizes[-1] == size


def test_invalid_batches_are_refused() -> None:
    data = make(5)
    for size, options in ((0, {}), (4, {"seed": -1}), (4, {"shard": (2, 2)}), (6, {"drop_last": True})):
        with pytest.raises(UsageError):
            Batches(data, size, **{"shuffle": True, "augment": False, "seed": 0, **options})
    with pytest.raises(UsageError, match="0 images"):
        Batches(data.take(torch.arange(0)), 4, shuffle=True, augment=False, seed=0)
