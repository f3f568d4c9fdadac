"""SoftNet: the filters with the smallest euclidean norms go (He et al. 2018), without their regrowth in training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.filters import checked, filters


@dataclass(frozen=True)
class SoftNet(Method):
    """The l2 norm of the unit's filter: of several layers that make it, the root of the sum of all squares.

    >>> sc.prune(model, images, {"params": "50%"}, method="softnet")
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """The l2 norm of every unit; a group that no convolution or linear layer makes is left out."""
        found = {group.name: filters(evidence, group) for group in evidence.graph.prunable}
        return checked({name: rows.norm(dim=1) for name, rows in found.items() if rows is not None})
