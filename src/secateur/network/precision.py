"""Numeric precision of sums, and values that are not finite."""

from __future__ import annotations

import torch
from torch import Tensor

from secateur.errors import SecateurError

CHECK = "check the inputs and the weights; half precision may have too small a range for this network"


def at_least_float32(x: Tensor) -> Tensor:
    """Return half precision as single precision, anything else unchanged: sums of squares overflow in half."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_all_finite(x: Tensor, what: str, *, layer: str, remedy: str = CHECK) -> None:
    """Raise an error if a tensor has NaN or infinite values.

    >>> check_all_finite(x, "its input", layer="conv1")
    SecateurError: conv1: 3 of 96 values of its input are NaN or infinite
    """
    if x.numel() and not all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(x)):  # NaN is both extremes
        bad = int((~torch.isfinite(x)).sum())
        raise SecateurError(f"{bad} of {x.numel()} values of {what} are NaN or infinite", layer=layer, remedy=remedy)
