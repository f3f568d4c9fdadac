"""The base of all methods: the evidence that they measure on, and what they return."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph
from secateur.methods.pfp.sensitivity import Sensitivity, measure
from secateur.methods.selection import Selection
from secateur.network.batches import Call
from secateur.refit.curves import Curve, curves
from secateur.refit.trials import CHECKS


@dataclass(frozen=True)
class Evidence:
    """The network as it stands, its channels and the calibration data.

    Of a group that has been cut before, only the units in `kept` count; the others are zeroed in the network.
    """

    network: nn.Module
    graph: ChannelGraph
    batches: Sequence[Call]
    labels: Sequence[Tensor] | None  # one tensor for each batch, if the data has any
    kept: Mapping[str, Sequence[int]]
    seed: int = 0
    memory: int | None = None
    checks: int = CHECKS  # cuts that are tried by running the network with them, for divergence curves
    progress: bool = False
    _known: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def sensitivities(self, kind: str = "max") -> dict[str, Sensitivity]:
        """Return the sensitivity of every remaining unit, by group; measured once. Unconsumed groups are left out.

        >>> evidence.sensitivities("mean")["conv1"].values
        """

        def found() -> dict[str, Sensitivity]:
            every = measure(
                self.network, self.graph, self.batches, kind=kind, memory=self.memory, progress=self.progress
            )
            return {name: replace(one, values=one.values[list(self.kept[name])]) for name, one in every.items()}

        return dict(self.once(kind, found))

    def curves(self) -> dict[str, Curve]:
        """Return the divergence curve of each group, measured once. A group that no known layer consumes is left out.

        >>> evidence.curves()["conv1"].divergence
        """

        def found() -> dict[str, Curve]:
            return curves(
                self.network,
                self.graph,
                self.batches,
                self.kept,
                seed=self.seed,
                memory=self.memory,
                checks=self.checks,
                progress=self.progress,
            )

        return dict(self.once("curves", found))

    def scores(self, method: Method) -> Mapping[str, Any]:
        """Return the scores of a method, computed once."""
        return self.once(f"scores {id(method)}", lambda: (method, method.scores(self)))[1]  # held, so that the id stays

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        """Return a measurement by its name; it is made when it is first asked for.

        >>> evidence.once("rms", lambda: measure(evidence.network, evidence.graph, evidence.batches, kind="rms"))
        """
        if what not in self._known:
            self._known[what] = measure()
        return self._known[what]


@dataclass(frozen=True)
class GroupRow:
    """The figures of one group. Those that the method does not have are NaN."""

    name: str
    before: int
    after: int
    mass: float = math.nan  # sum of the sensitivities before any cut
    eps: float = math.nan  # relative error that sampling this many guarantees, with probability 1 - delta per step
    dropped: float = math.nan  # sum of the removed sensitivities, times C: bounds the error of keeping the largest
    divergence: float = math.nan  # estimated output divergence if this group alone were cut, its consumers refitted
    params: float = math.nan  # parameters in the group's channels before the cut; a weight between two counts in both
    macs: float = math.nan  # MACs, in the same way
    params_saved: float = math.nan  # parameters that the network loses if this group alone is cut
    macs_saved: float = math.nan  # MACs, in the same way


class Method(ABC):
    """A way to rank channels. A method of your own returns a score for every unit; units with larger scores stay.

    >>> class Mine(Method):
    ...     def scores(self, evidence):
    ...         weights = dict(evidence.network.named_parameters())
    ...         return {g.name: weights[g.slots[0].parameter].flatten(1).norm(dim=1) for g in evidence.graph.prunable}
    """

    allocation: ClassVar[str] = "uniform"  # how the budget is allocated to the groups by default
    repairs: ClassVar[bool] = False  # whether it counts on a repair after the cut

    @property
    def name(self) -> str:
        """The name in summaries and files."""
        return type(self).__name__.lower()

    @property
    def random_size(self) -> bool:
        """Whether `choose` may return another number of units than it is asked for."""
        return False

    @abstractmethod
    def scores(self, evidence: Evidence) -> Mapping[str, Any]:
        """Return a score for every remaining unit, by group. A group that is left out stays whole."""

    def choose(self, name: str, scores: Any, count: int) -> Selection:
        """Return the units of a group that stay, as indices among the remaining ones; of equal scores the first."""
        order = np.argsort(-torch.as_tensor(scores).double().numpy(), kind="stable")[:count]
        return Selection(tuple(sorted(order.tolist())), (1.0,) * len(order))

    def numbers(self, scores: Any) -> Tensor:
        """Return the scores of a group as plain numbers, one for each unit, for saved files."""
        return torch.as_tensor(scores)

    def settings(self) -> dict[str, Any]:
        """Return the method's own settings, as plain data."""
        return {}

    def row(self, row: GroupRow, scores: Any, count: int, chosen: Selection) -> GroupRow:
        """Return the figures of a group after one more step."""
        return replace(row, after=len(chosen.kept))

    def notes(self, rows: Sequence[GroupRow], samples: int) -> list[str]:
        """Return remarks on the result."""
        return []
