"""The parts of a model that can be exported where the whole cannot."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.errors import SecateurError
from secateur.tracing.parts import exportable_parts, in_parts
from support.detectors import detector, pictures


class Choosing(nn.Module):
    """A block that branches on values around one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = Branching()
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.outer(x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.large(x) if x.sum() > 0 else self.large(-x)


def test_the_largest_parts_are_found_below_what_cannot_be_exported() -> None:
    parts = exportable_parts(detector(), ((pictures(1)[0][0],), {}))
    assert list(parts) == ["backbone", "head"] and parts["backbone"] > 0.8
    assert list(exportable_parts(Choosing(), ((torch.ones(2, 8),), {}))) == ["outer.large"]


def test_the_error_of_a_whole_model_names_them() -> None:
    with pytest.raises(SecateurError, match=r"branches on the values") as caught:
        sc.trace(Choosing(), torch.ones(1, 8))
    assert "scope='outer.large' (97% of the parameters)" in str(caught.value)
    for run in (sc.prune, sc.plan):
        with pytest.raises(SecateurError, match="takes a list of images") as refused:
            run(detector(), pictures(4), {"macs": "50%"})
        assert "scope='backbone'" in str(refused.value)


def test_a_model_that_does_not_run_keeps_its_own_error() -> None:
    error = SecateurError("cause")
    assert in_parts(error, detector(), ((torch.zeros(1),), {})) is error
