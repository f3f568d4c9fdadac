"""How a budget is allocated to the groups: the level at which each of them reaches 1, 2, ..., n units.

All groups grow together as the level falls, until the budget is spent (growth.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from secateur.errors import UsageError
from secateur.methods.base import Evidence
from secateur.methods.pfp.method import PFP

Array = npt.NDArray[np.float64]
NAMES = ("uniform", "pfp", "residual")


@dataclass(frozen=True)
class Allocation:
    """One way to allocate a budget.

    >>> Allocation("uniform").levels(evidence, costs)["conv1"]
    array([0.9, 0.7, 0.5, 0.3, 0.1])

    Attributes:
        name: `uniform`: every group keeps the same part. `pfp`: every layer gets the same relative error by the paper's
            sample complexity. `residual`: units are removed where the estimated output divergence per cost is least.
    """

    name: str
    pfp: PFP = field(default_factory=PFP)

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UsageError(f"allocation is {self.name!r}", remedy=f"use one of {', '.join(NAMES)}")

    @property
    def uses_costs(self) -> bool:
        """Whether the levels depend on the cost of a unit, and so on the sizes of the other groups."""
        return self.name == "residual"

    def levels(self, evidence: Evidence, costs: Mapping[str, float], *, whole: bool = False) -> dict[str, Array]:
        """Return for each group the levels at which it grows, in falling order. A group that is left out stays whole.

        Args:
            costs: the cost of one unit of each group, as a part of the original.
            whole: the levels of pfp are errors that whole numbers of draws guarantee.
        """
        if self.name == "uniform":
            return {name: uniform(len(units)) for name, units in evidence.kept.items()}
        if self.name == "pfp":
            found = evidence.sensitivities(self.pfp.sensitivity)
            levels = self.pfp.whole_levels if whole else self.pfp.levels
            return {name: levels(one) for name, one in found.items()}
        return {name: slopes(curve.divergence.numpy(), costs[name]) for name, curve in evidence.curves().items()}


def uniform(units: int) -> Array:
    """Return the levels at which every group keeps the same part: k units of n from 1 - (k - 1/2) / n on.

    >>> uniform(2)
    array([0.75, 0.25])
    """
    return 1 - (np.arange(units) + 0.5) / units


def slopes(divergence: Any, cost: float) -> Array:
    """Return the divergence that the k-th unit prevents per cost, on the lower convex envelope of the curve.

    >>> slopes(np.array([0.0, 1.0, 1.5]), cost=0.5)  # three units: 0, 1, 2 removed
    array([inf, 1.5, 1.5])
    """
    corners = [0]
    for gone in range(1, len(divergence)):
        while len(corners) > 1:
            a, b = corners[-2:]
            if (divergence[b] - divergence[a]) * (gone - a) < (divergence[gone] - divergence[a]) * (b - a):
                break
            corners.pop()
        corners.append(gone)
    steps = np.diff(np.interp(np.arange(len(divergence)), corners, np.asarray(divergence)[corners]))
    return np.concatenate([[np.inf], np.maximum.accumulate(steps)[::-1] / max(cost, 1e-30)])
