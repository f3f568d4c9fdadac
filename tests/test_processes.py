"""One process is alone; several know each other, sum, agree and copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from training_cases import in_two_processes

import secateur as sc
from secateur.processes import check_agreement, copy_from_first, distributed, in_use, sum_over_all

CPU = torch.device("cpu")


def test_alone() -> None:
    with distributed() as process:
        assert (process.rank, process.world, process.first) == (0, 1, True) and not in_use()
        assert sum_over_all([1.5], CPU) == [1.5]
        check_agreement({"epochs": 1}, CPU, "")
        tensor = torch.ones(1)
        copy_from_first([tensor])
        assert tensor.item() == 1


def _meet() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with distributed() as process:
        with distributed() as same:
            found["who"] = (process.rank, same.world, process.first)
        assert dist.is_initialized()
        found["sum"] = sum_over_all([1.0 + process.rank, 0.5], CPU)
        tensor = torch.full((2,), float(process.rank))
        copy_from_first([tensor])
        found["copied"] = tensor.tolist()
        check_agreement({"epochs": 3}, CPU, "")
        try:
            check_agreement({"epochs": 3, "batches": process.rank}, CPU, "share them")
        except sc.SecateurError as error:
            found["error"] = str(error)
    found["parted"] = not dist.is_initialized()
    return found


def test_two_processes(tmp_path: Path) -> None:
    both = in_two_processes(_meet, tmp_path)
    assert [found["who"] for found in both] == [(0, 2, True), (1, 2, False)]
    for found in both:
        assert found["sum"] == [3.0, 1.0] and found["copied"] == [0.0, 0.0] and found["parted"]
        assert "differ in batches: [0, 1]" in found["error"]
