"""One batch through the network: what it gives, or an error that says on what it failed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur.errors import SecateurError, UsageError
from secateur.network.batches import forward


def test_positions_and_keywords_reach_the_network() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            return x * scale

    assert forward(Both(), ((torch.tensor(3.0),), {"scale": torch.tensor(2.0)})) == 6


def test_a_batch_that_does_not_fit_is_named() -> None:
    with pytest.raises(SecateurError, match=r"Linear: the network could not run on a batch of shape \[\(2, 7\)\]"):
        forward(nn.Linear(3, 4), ((torch.randn(2, 7),), {}))


def test_an_error_of_ours_passes() -> None:
    class Refuses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        forward(Refuses(), ((torch.randn(2),), {}))
