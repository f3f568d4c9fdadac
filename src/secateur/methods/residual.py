"""Least residual: the channels go that the layers reading them can do without most easily, once fitted anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from secateur.curves import Curve
from secateur.methods.base import Evidence, GroupRow, Method
from secateur.select import Selection


@dataclass(frozen=True)
class Residual(Method):
    """Eliminate units one by one by the error that their readers have left after a refit (curves.py).

    It counts on a repair after the cut, which `sc.prune` does unless it is told not to.
    """

    allocation: ClassVar[str] = "residual"

    def scores(self, evidence: Evidence) -> dict[str, Curve]:
        """The order in which the units of each group go."""
        return evidence.curves()

    def choose(self, name: str, scores: Curve, count: int) -> Selection:
        """Those that go last."""
        return Selection(tuple(sorted(scores.removed[len(scores.removed) - count :])), (1.0,) * count)

    def numbers(self, scores: Curve) -> Tensor:
        """The harm done once a unit has gone; the last never goes, and has the harm of the last but one."""
        found = torch.empty(len(scores.removed), dtype=torch.float64)
        found[list(scores.removed)] = torch.cat([scores.harm[1:], scores.harm[-1:]])
        return found

    def row(self, row: GroupRow, scores: Curve, count: int, chosen: Selection) -> GroupRow:
        """Tell the harm that cutting this group alone would do."""
        before = 0.0 if row.harm != row.harm else row.harm
        gone = len(scores.removed) - len(chosen.kept)
        return replace(row, after=len(chosen.kept), harm=before + float(scores.harm[gone]))

    def notes(self, rows: Sequence[GroupRow], points: int) -> list[str]:
        """It promises nothing beforehand."""
        return ["nothing is promised beforehand: measure or certify the network on held-out data"]
