"""FPGM: remove the filters nearest to all others, which can replace them (He et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.filters import filter_scores


@dataclass(frozen=True)
class FPGM(Method):
    """Score each unit by the sum of the Euclidean distances from its filter to those of all other units that are left.

    The sum is smallest near the geometric median of the filters. The filters of several layers that produce a unit are
    concatenated.

    >>> sc.prune(model, images, {"params": "50%"}, method="fpgm")
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Return the summed distances of every unit, without groups that no convolution or linear layer produces."""
        return filter_scores(evidence, _distances)


def _distances(filters: Tensor) -> Tensor:
    """Return the summed distances by a matrix product, which loses digits where two rows are close for their length.

    Around their mean that is harmless: n distances from x sum to at least n |x|, and each is right to about 3e-8 |x|.
    """
    centred = filters - filters.mean(0)
    return torch.cdist(centred, centred, compute_mode="use_mm_for_euclid_dist").fill_diagonal_(0).sum(1)
