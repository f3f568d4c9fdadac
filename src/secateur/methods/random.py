"""Random: remove random channels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.methods.pfp.sampling import generator


@dataclass(frozen=True)
class Random(Method):
    """Score each unit by a random number, from the seed and the name of its group; the same in every step.

    >>> sc.prune(model, images, {"params": "50%"}, method="random", seed=3)
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Return numbers between 0 and 1 for every prunable group."""
        return {
            group.name: torch.from_numpy(generator(evidence.seed, group.name).random(group.size))[
                list(evidence.kept[group.name])
            ]
            for group in evidence.graph.prunable
        }
