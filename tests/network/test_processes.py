"""One process by itself, and several that reduce, gather, agree and copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import secateur as sc
from secateur.network.processes import (
    check_agreement,
    copy_from_first,
    distributed,
    gather_from_all,
    in_use,
    reduce_over_all,
    sum_over_all,
)
from support.training_cases import in_two_processes

CPU = torch.device("cpu")


def test_alone() -> None:
    with distributed() as process:
        assert (process.rank, process.world, process.first) == (0, 1, True) and not in_use()
        assert sum_over_all([1.5], CPU) == [1.5]
        check_agreement({"epochs": 1}, CPU, "")
        tensor = torch.ones(1)
        copy_from_first([tensor])
        reduce_over_all(tensor, "sum")
        assert tensor.item() == 1
        assert gather_from_all(tensor) is tensor


def _meet() -> dict[str, Any]:
    found: dict[str, Any] = {}
    with distributed() as process:
        with distributed() as same:
            found["who"] = (process.rank, same.world, process.first)
        assert dist.is_initialized()
        found["sums"] = sum_over_all([1.0 + process.rank, 0.5], CPU)
        tensor = torch.full((2,), float(process.rank))
        copy_from_first([tensor])
        found["copied"] = tensor.tolist()
        for how in ("sum", "max"):
            reduced = torch.tensor([1, 2 * process.rank])
            reduce_over_all(reduced, how)
            found[how] = reduced.tolist()
        found["gathered"] = gather_from_all(torch.full((1 + process.rank, 2), process.rank)).tolist()
        check_agreement({"epochs": 3}, CPU, "")
        try:
            check_agreement({"epochs": 3, "batches": process.rank}, CPU, "share them")
        except sc.SecateurError as error:
            found["error"] = str(error)
    found["left"] = not dist.is_initialized()
    return found


def test_two_processes(tmp_path: Path) -> None:
    both = in_two_processes(_meet, tmp_path)
    assert [found["who"] for found in both] == [(0, 2, True), (1, 2, False)]
    for found in both:
        assert found["sum"] == [2, 2] and found["max"] == [1, 2] and found["gathered"] == [[0, 0], [1, 1], [1, 1]]
        assert found["sums"] == [3.0, 1.0] and found["copied"] == [0.0, 0.0] and found["left"]
        assert "differ in batches: [0, 1]" in found["error"]
