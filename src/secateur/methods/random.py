"""Random: channels go by chance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from secateur.methods.base import Evidence, Method
from secateur.select import generator


@dataclass(frozen=True)
class Random(Method):
    """A random number for every unit, from the seed and the name of its group; the same in every step.

    >>> sc.prune(model, images, {"params": "50%"}, method="random", seed=3)
    """

    def scores(self, evidence: Evidence) -> dict[str, Tensor]:
        """Numbers between 0 and 1, for every group that may be cut."""
        return {
            group.name: torch.from_numpy(generator(evidence.seed, group.name).random(group.size))[
                list(evidence.kept[group.name])
            ]
            for group in evidence.graph.prunable
        }
