"""MNIST and Fashion-MNIST are read from idx files, compressed or not; damaged ones are refused."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest
import torch
from torch import Tensor

from secateur.data import dataset
from secateur.data.idx import read_idx
from secateur.errors import SecateurError


def packed(values: Tensor) -> bytes:
    return struct.pack(f">HBB{values.dim()}I", 0, 8, values.dim(), *values.shape) + values.numpy().tobytes()


def make(root: Path, folder: str = "MNIST/raw", zipped: bool = True) -> dict[str, tuple[Tensor, Tensor]]:
    made = {}
    (root / folder).mkdir(parents=True)
    for kind, count in (("train", 57), ("t10k", 11)):
        images = torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8)
        labels = torch.arange(count, dtype=torch.uint8) % 10
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            content, path = packed(values), root / folder / f"{kind}-{name}-ubyte"
            if zipped:
                path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(content))
            else:
                path.write_bytes(content)
        made[kind] = images, labels
    return made


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist(tmp_path: Path, zipped: bool) -> None:
    images, labels = make(tmp_path, zipped=zipped)["t10k"]
    data = dataset("mnist", "test", tmp_path)
    assert torch.equal(data.images, images.unsqueeze(1)) and torch.equal(data.targets, labels.long())
    assert data.task == "classification" and len(data.classes) == 10 and data.augment == "none"
    wanted = (images[3].float()[None, None] / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(data.inputs(torch.tensor([3])), wanted)


def test_fashion_mnist_has_its_own_folder(tmp_path: Path) -> None:
    make(tmp_path, "FashionMNIST/raw")
    assert dataset("fashion-mnist", "test", tmp_path).classes[-1] == "ankle boot"


def test_the_split(tmp_path: Path) -> None:
    images, _ = make(tmp_path)["train"]
    train, validation, both = (
        dataset("mnist", part, tmp_path, seed=3) for part in ("train", "validation", "train+validation")
    )
    order = torch.randperm(57, generator=torch.Generator().manual_seed(3))
    assert torch.equal(validation.images[:, 0], images[order[:5]])
    assert torch.equal(train.images[:, 0], images[order[5:]])
    assert torch.equal(both.images[:, 0], images)
    assert not torch.equal(dataset("mnist", "validation", tmp_path, seed=4).images, validation.images)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-100], "cannot be read"),
        (lambda content: b"", "cannot be read"),
        (lambda content: gzip.compress(gzip.decompress(content)[:-5]), "has 8619 values, its header says 8624"),
        (lambda content: gzip.compress(gzip.decompress(content)[:6]), "cannot be read"),
        (lambda content: gzip.compress(b"<html>" * 100), "does not begin like an idx file"),
        (lambda content: gzip.compress(packed(torch.zeros(11, 28, dtype=torch.uint8))), "has images (11, 28)"),
        (lambda content: gzip.compress(packed(torch.zeros(12, 28, 28, dtype=torch.uint8))), "labels (11,)"),
    ],
)
def test_damaged_files(tmp_path: Path, damage: object, words: str) -> None:
    make(tmp_path)
    path = tmp_path / "MNIST/raw/t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SecateurError) as caught:
        dataset("mnist", "test", tmp_path)
    assert words in str(caught.value) and "downloaded again" in str(caught.value)


def test_labels_above_nine_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    labels = torch.full((11,), 10, dtype=torch.uint8)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(packed(labels)))
    with pytest.raises(SecateurError):
        dataset("mnist", "test", tmp_path)


def test_read_idx(tmp_path: Path) -> None:
    values = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    (tmp_path / "x").write_bytes(packed(values))
    assert torch.equal(read_idx(tmp_path / "x"), values)
