"""FT: remove the filters with the smallest l1 norms (Li et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.filters import filter_scores


@dataclass(frozen=True)
class FT(Method):
    """Score each unit by the l1 norm of its filter, summed over the layers that produce it.

    >>> sc.prune(model, images, {"params": "50%"}, method="ft")
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Return the l1 norm of every unit, without groups that no convolution or linear layer produces."""
        return filter_scores(evidence, lambda filters: filters.abs().sum(1))
