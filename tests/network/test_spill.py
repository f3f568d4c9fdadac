"""Samples on disk: the same values, the same result, nothing left behind, and a full disk."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.network import spill
from secateur.network.modules import named_tensors
from secateur.network.spill import Spill
from secateur.pruning.pool import Pool


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(spill, "free_memory", lambda device: 4 * 100_000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64])
def test_values_stay_the_same_and_no_file_is_left(kind: torch.dtype, no_room: Path) -> None:
    keeper = Spill()
    keeper.left = 0
    batch = (torch.randn(5, 3, 4) * 3).to(kind)[:, ::2]
    found, rest = keeper.kept((batch, {"labels": torch.arange(5), "name": "a", "empty": torch.empty(0)}))
    assert torch.equal(found, batch) and found.dtype == kind and rest["name"] == "a" and rest["empty"].numel() == 0
    assert found.data_ptr() != batch.data_ptr()
    assert list(no_room.iterdir()) == []


def test_a_calibration_set_larger_than_the_room_gives_the_same_network(no_room: Path) -> None:
    images, labels = digits("calibration")
    loader = DataLoader(TensorDataset(images, labels), batch_size=32)
    pool = Pool.of(loader, 256, seed=0)
    assert len(pool) == 256 and list(no_room.iterdir()) == []
    plain = Pool.of(list(zip(images.split(32), labels.split(32), strict=True)), 256, seed=0)
    for ((one,), _), ((other,), _) in zip(pool.calls, plain.calls, strict=True):
        assert torch.equal(one, other)
    small, other = (
        sc.prune(lenet5(), data, {"params": "30%"}, effort="quick")
        for data in (loader, list(zip(images.split(32), labels.split(32), strict=True)))
    )
    assert small.plan.kept == other.plan.kept
    for name, tensor in named_tensors(small.model).items():
        assert torch.equal(tensor, named_tensors(other.model)[name])


def test_a_full_disk_is_named_with_the_folder(no_room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.fdopen

    def full(*args: Any) -> Any:
        opened(*args).close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spill.os, "fdopen", full)
    loader = DataLoader(TensorDataset(digits("calibration")[0]), batch_size=64)
    with pytest.raises(sc.SecateurError, match="No space left on device") as caught:
        sc.prune(lenet5(), loader, {"params": "30%"})
    assert str(no_room) in str(caught.value) and "TMPDIR" in str(caught.value.remedy)
    assert list(no_room.iterdir()) == []
