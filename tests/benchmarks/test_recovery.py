"""The rows of the retraining benchmark: their names, and epochs divided into parts."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

import recovery
from secateur.data import Batches, Data


def test_rows_have_names_and_files_of_their_own() -> None:
    assert len({cell.name for cell in recovery.WORK}) == len(recovery.WORK)
    assert len({recovery._file_name(cell) for cell in recovery.WORK}) == len(recovery.WORK)
    assert all(recovery._cell(asdict(cell) | {"accuracy": 1.0}) == cell for cell in recovery.WORK)


@pytest.mark.parametrize("count", [16, 18])
def test_the_parts_of_an_epoch_are_the_whole(count: int) -> None:
    pixels = torch.randint(0, 256, (8 * count, 1, 16, 16), dtype=torch.uint8)
    data = Data(pixels, torch.arange(8 * count), mean=(0.5,), std=(0.3,), augment="pad-crop-flip")
    whole = Batches(data, 8, shuffle=True, augment=True, seed=0)
    parts = recovery.InParts(whole, recovery.PARTS)
    for epoch in range(2):
        found = [pair for part in range(4) for pair in parts.epoch(4 * epoch + part)]
        wanted = list(whole.epoch(epoch))
        assert len(found) == len(wanted) == count
        assert all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(found, wanted, strict=True))
