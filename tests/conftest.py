"""One thread per test process, reproducible examples, and a torchvision that can be imported."""

from __future__ import annotations

import hypothesis
import pytest
import torch

from torchvision_ops import declare_missing_ops

torch.set_num_threads(1)
declare_missing_ops()

hypothesis.settings.register_profile("secateur", deadline=None, derandomize=True)
hypothesis.settings.load_profile("secateur")


@pytest.fixture(autouse=True)
def seed() -> None:
    """Give every test the same random numbers, whatever ran before it."""
    torch.manual_seed(0)
