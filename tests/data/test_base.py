"""Data sets are found by name, in the right folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secateur.data import DATASETS, Data, data_root, dataset
from secateur.data.base import split
from secateur.errors import UsageError


def make() -> Data:
    images = torch.randint(0, 256, (10, 3, 4, 4), dtype=torch.uint8)
    return Data(images, torch.arange(10), (0.0,) * 3, (1.0,) * 3)


def test_names_and_parts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean cifar10"):
        dataset("cifar-10", "train", tmp_path)
    with pytest.raises(UsageError, match="use one of mnist, fashion-mnist, cifar10, driving or imagefolder:PATH"):
        dataset("imagenet", "train", tmp_path)
    with pytest.raises(UsageError, match="'val' is not a part"):
        dataset("mnist", "val", tmp_path)


def test_a_data_set_of_ones_own_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read(part: str, root: Path, seed: int, download: bool) -> Data:
        asked.append((part, root, seed, download))
        return make()

    monkeypatch.setitem(DATASETS, "mine", read)
    assert len(dataset("mine", "validation", tmp_path, seed=7, download=False)) == 10
    assert asked == [("validation", tmp_path, 7, False)]


def test_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.delenv("SECATEUR_DATA", raising=False)
    assert data_root() == Path("cache/secateur/data")
    monkeypatch.setenv("SECATEUR_DATA", "mine")
    assert data_root() == Path("mine")
    assert data_root("given") == Path("given")


def test_the_split_is_a_partition() -> None:
    train, validation = split(1005, "train", 7), split(1005, "validation", 7)
    assert len(validation) == 100
    assert torch.equal(torch.cat([train, validation]).sort().values, torch.arange(1005))
    assert torch.equal(split(1005, "train+validation", 7), torch.arange(1005))
    assert not torch.equal(validation, split(1005, "validation", 8))


def test_take() -> None:
    data = make()
    few = data.take(torch.tensor([7, 2]))
    assert len(few) == 2 and few.targets.tolist() == [7, 2]
    assert torch.equal(few.images, data.images[[7, 2]])


def test_another_normalisation() -> None:
    data = make()
    scaled = data.scaled((0.5, 0.5, 0.5), (0.5, 0.25, 1.0))
    x = data.images[3].float() / 255
    assert torch.equal(data.inputs(torch.tensor([3]))[0], x)
    assert torch.allclose(scaled.inputs(torch.tensor([3]))[0], (x - 0.5) / torch.tensor([0.5, 0.25, 1.0]).view(3, 1, 1))
    for mean, std in (((0.5,), (0.5,)), ((0.5,) * 3, (0.5,)), ((0.5,) * 3, (0.5, 0.0, 0.5))):
        with pytest.raises(UsageError, match="do not fit"):
            data.scaled(mean, std)


def test_normalising_does_not_change_its_argument() -> None:
    images = torch.full((1, 3, 2, 2), 255.0)
    make().normalise(images)
    assert images.unique().tolist() == [255.0]
