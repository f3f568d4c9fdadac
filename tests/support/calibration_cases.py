"""Calibration data in tests: the shape of its samples, refusals, and all inputs of a result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from secateur.data.calibration import Calibration, read_batches
from secateur.errors import SecateurError

SHAPE = (3, 4, 5)


def refusal(source: Any, kind: type[SecateurError] = SecateurError, shape: tuple[int, ...] = SHAPE, **more: Any) -> str:
    """Return the message of the error that this source raises."""
    with pytest.raises(SecateurError) as caught:
        read_batches(str(source), shape=shape, **more)
    assert type(caught.value) is kind
    assert caught.value.remedy
    return str(caught.value)


def joined(data: Calibration) -> Tensor:
    """Return the inputs of all batches."""
    return torch.cat([batch[0] if data.labelled else batch for batch in data])
