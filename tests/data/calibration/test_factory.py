"""Calibration data from a factory in a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from secateur.data.calibration import read_batches
from secateur.errors import SecateurError, UsageError
from support.calibration_cases import SHAPE, joined, refusal

FILE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

X, Y = torch.arange(10.).view(10, 1, 1, 1).expand(10, 3, 4, 5), torch.arange(10)

def loader(): return DataLoader(TensorDataset(X, Y), batch_size=4)
def shuffled(): return DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
def plain(): return list(X.split(4))
def tensor(): return X
def endless():
    while True:
        yield X[:4], Y[:4]
def dicts(): return [{"pixels": X, "labels": Y, "note": "kept"}]
ready = [X]

def nothing(): return []
def empty(): return [X[:0]]
def number(): return 3
def words(): return ["ab"]
def shape(): return [X, X[:, :2]]
def invalid(): return [X[:4], X[4:] / (X[4:] - 6)]
def fails():
    yield X[:4]
    raise ValueError("the disk is gone")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(FILE)
    return tmp_path / "data.py"


@pytest.mark.parametrize(
    ("factory", "sizes", "labelled"),
    [
        ("loader", [4, 3], True),
        ("plain", [4, 3], False),
        ("tensor", [7], False),
        ("endless", [4, 3], True),
        ("ready", [7], False),
    ],
)
def test_factories(file: Path, factory: str, sizes: list[int], labelled: bool) -> None:
    data = read_batches(f"{file}:{factory}", shape=SHAPE, samples=7)
    assert [len(batch[0] if labelled else batch) for batch in data] == sizes
    assert (data.samples, data.labelled, data.origin) == (7, labelled, f"{file}:{factory}")
    if labelled:
        assert [tuple(y.shape) for _, y in data] == [(size,) for size in sizes]
        assert all(type(batch) is tuple for batch in data)


def test_a_factory_with_fewer_samples(file: Path) -> None:
    data = read_batches(f"{file}:loader", shape=SHAPE)
    assert data.samples == 10
    assert joined(data)[:, 0, 0, 0].tolist() == list(range(10))


def test_dicts_are_truncated_too(file: Path) -> None:
    (batch,) = read_batches(f"{file}:dicts", shape=SHAPE, samples=7)
    assert (len(batch["pixels"]), len(batch["labels"]), batch["note"]) == (7, 7, "kept")


def test_a_loader_shuffles_with_the_seed(file: Path) -> None:
    before = torch.random.get_rng_state()
    orders = [
        joined(read_batches(f"{file}:shuffled", shape=SHAPE, seed=seed))[:, 0, 0, 0].tolist() for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("factory", "kind", "part"),
    [
        ("nothing", SecateurError, "returned no batch"),
        ("empty", SecateurError, "batch 0 of "),
        ("number", SecateurError, "returned a int"),
        ("words", SecateurError, "is a str without samples"),
        ("shape", SecateurError, "has shape (2, 4, 5), the network's input has (3, 4, 5)"),
        ("invalid", SecateurError, "NaN or infinite values in sample 6\n"),
        ("fails", SecateurError, "ValueError: the disk is gone at "),
        ("loder", UsageError, "did you mean loader?"),
    ],
)
def test_invalid_factories_are_refused(file: Path, factory: str, kind: type[SecateurError], part: str) -> None:
    assert part in refusal(f"{file}:{factory}", kind)


def test_invalid_files_of_factories_are_refused(file: Path) -> None:
    assert "expected the name of an iterable of batches after" in refusal(file, UsageError)
    assert "folder of images" in refusal(f"{file.parent}/nowhere/zzz.py:make", UsageError)
    assert "a factory scales its own data" in refusal(f"{file}:loader", UsageError, mean=0, std=1)


@pytest.mark.parametrize("factory", ["loader", "plain", "tensor"])
def test_the_next_samples_are_set_aside(file: Path, factory: str) -> None:
    data = read_batches(f"{file}:{factory}", shape=SHAPE, samples=6, unused=3)
    plain = read_batches(f"{file}:{factory}", shape=SHAPE, samples=6)
    assert torch.equal(joined(data), joined(plain)) and data.samples == plain.samples == 6 and plain.unused == []
    numbers = [int(x[0, 0, 0]) for batch in data.unused for x in (batch[0] if data.labelled else batch)]
    assert numbers == [6, 7, 8]
    if data.labelled:
        assert [int(y) for _, labels in data.unused for y in labels] == [6, 7, 8]
    assert read_batches(f"{file}:{factory}", shape=SHAPE, samples=10, unused=3).unused == []
