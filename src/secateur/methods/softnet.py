"""SoftNet: remove the filters with the smallest l2 norms (He et al. 2018), without their regrowth in training."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.filters import filter_scores


@dataclass(frozen=True)
class SoftNet(Method):
    """Score each unit by the l2 norm of its filter, over all weights of the layers that produce it.

    >>> sc.prune(model, images, {"params": "50%"}, method="softnet")
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Return the l2 norm of every unit, without groups that no convolution or linear layer produces."""
        return filter_scores(evidence, lambda filters: filters.norm(dim=1))
