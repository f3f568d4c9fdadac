"""FT: the filters with the smallest sums of absolute weights go (Li et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.filters import checked, filters


@dataclass(frozen=True)
class FT(Method):
    """The l1 norm of the unit's filter: of several layers that make it, the sum of their norms.

    >>> sc.prune(model, images, {"params": "50%"}, method="ft")
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """The l1 norm of every unit; a group that no convolution or linear layer makes is left out."""
        found = {group.name: filters(evidence, group) for group in evidence.graph.prunable}
        return checked({name: rows.abs().sum(1) for name, rows in found.items() if rows is not None})
