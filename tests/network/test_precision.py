"""Precision of sums, and values that are not finite."""

from __future__ import annotations

import pytest
import torch

from secateur.errors import SecateurError
from secateur.network.precision import at_least_float32, check_all_finite


def test_only_halves_are_widened() -> None:
    for kind in (torch.float16, torch.bfloat16):
        assert at_least_float32(torch.ones(2, dtype=kind)).dtype == torch.float32
    for kind in (torch.float32, torch.float64, torch.int64):
        x = torch.ones(2, dtype=kind)
        assert at_least_float32(x) is x


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_counted(value: float, kind: torch.dtype) -> None:
    x = torch.randn(3, 4).to(kind)
    check_all_finite(x, "its input", layer="conv1")
    x[1, 2] = x[2, 0] = value
    with pytest.raises(SecateurError, match=r"conv1: 2 of 12 values of its input are NaN or infinite\n.*look twice"):
        check_all_finite(x, "its input", layer="conv1", remedy="look twice")


def test_nothing_is_finite() -> None:
    check_all_finite(torch.zeros(0, 3), "its input", layer="conv1")
