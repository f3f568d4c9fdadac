"""FPGM: the filters nearest to all others go, since those can stand in for them (He et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.filters import checked, filters


@dataclass(frozen=True)
class FPGM(Method):
    """The sum of the euclidean distances from the unit's filter to those of all other units that are left.

    The sum is least near the geometric median of the filters. Of several layers that make a unit, its filter is all
    their weights side by side.

    >>> sc.prune(model, images, {"params": "50%"}, method="fpgm")
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """The summed distances of every unit; a group that no convolution or linear layer makes is left out."""
        found = {group.name: filters(evidence, group) for group in evidence.graph.prunable}
        return checked({name: _distances(rows) for name, rows in found.items() if rows is not None})


def _distances(rows: Tensor) -> Tensor:
    """By way of a matrix product, which loses digits where two rows are close for their length.

    Around their mean that is harmless: n distances from x sum to at least n |x|, and each is right to about 3e-8 |x|.
    """
    centred = rows - rows.mean(0)
    return torch.cdist(centred, centred, compute_mode="use_mm_for_euclid_dist").fill_diagonal_(0).sum(1)
