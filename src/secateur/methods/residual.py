"""Least residual: remove the channels whose consumers, once refitted, are left with the least error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from secateur.methods.base import Evidence, GroupRow, Method
from secateur.methods.selection import Selection
from secateur.refit.curves import Curve


@dataclass(frozen=True)
class Residual(Method):
    """Eliminate units one by one by the error that their consumers have left after a refit (refit/curves.py).

    It counts on a repair after the cut, which `sc.prune` does by default.
    """

    allocation: ClassVar[str] = "residual"
    repairs: ClassVar[bool] = True

    def scores(self, evidence: Evidence) -> dict[str, Curve]:
        """Return the divergence curve of each group, with its elimination order."""
        return evidence.curves()

    def choose(self, name: str, scores: Curve, count: int) -> Selection:
        """Return the units that are eliminated last."""
        return Selection(tuple(sorted(scores.removed[len(scores.removed) - count :])), (1.0,) * count)

    def numbers(self, scores: Curve) -> Tensor:
        """Return the divergence once each unit has been removed; the last one repeats the value before it."""
        found = torch.empty(len(scores.removed), dtype=torch.float64)
        found[list(scores.removed)] = torch.cat([scores.divergence[1:], scores.divergence[-1:]])
        return found

    def row(self, row: GroupRow, scores: Curve, count: int, chosen: Selection) -> GroupRow:
        """Add the estimated divergence of cutting this group alone."""
        before = 0.0 if row.divergence != row.divergence else row.divergence
        gone = len(scores.removed) - len(chosen.kept)
        return replace(row, after=len(chosen.kept), divergence=before + float(scores.divergence[gone]))

    def notes(self, rows: Sequence[GroupRow], samples: int) -> list[str]:
        """Return that there is no guarantee before the cut."""
        return ["no guarantee before the cut: measure or certify the network on held-out data"]
