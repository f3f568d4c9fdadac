"""What every method looks at, and what it gives."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from secateur.batches import Call
from secateur.curves import Curve, curves
from secateur.graph import ChannelGraph
from secateur.select import Selection
from secateur.sensitivity import Sensitivity, measure


@dataclass(frozen=True)
class Evidence:
    """The network as it stands, its channels and the calibration data.

    Of a group that has been cut already, only the units in `kept` count; the network has the others silenced.
    """

    network: nn.Module
    graph: ChannelGraph
    batches: Sequence[Call]
    labels: Sequence[Tensor] | None  # one tensor for each batch, if the data has any
    kept: Mapping[str, Sequence[int]]
    seed: int = 0
    memory: int | None = None
    progress: bool = False
    _known: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def sensitivities(self, kind: str = "max") -> dict[str, Sensitivity]:
        """The sensitivity of every unit that is left, by group; measured once. A group that no layer reads is left out.

        >>> evidence.sensitivities("mean")["conv1"].values
        """

        def found() -> dict[str, Sensitivity]:
            every = measure(
                self.network, self.graph, self.batches, kind=kind, memory=self.memory, progress=self.progress
            )
            return {name: replace(one, values=one.values[list(self.kept[name])]) for name, one in every.items()}

        return dict(self.once(kind, found))

    def curves(self) -> dict[str, Curve]:
        """How much harm each group's shrinking does; measured once. A group that no known layer reads is left out.

        >>> evidence.curves()["conv1"].harm
        """

        def found() -> dict[str, Curve]:
            return curves(self.network, self.graph, self.batches, self.kept, seed=self.seed, progress=self.progress)

        return dict(self.once("curves", found))

    def scores(self, method: Method) -> Mapping[str, Any]:
        """What a method gives; asked for once."""
        return self.once(f"scores {id(method)}", lambda: (method, method.scores(self)))[1]  # held, so that the id stays

    def once(self, what: str, measure: Callable[[], Any]) -> Any:
        """What is measured under this name, the first time that it is asked for.

        >>> evidence.once("rms", lambda: measure(evidence.network, evidence.graph, evidence.batches, kind="rms"))
        """
        if what not in self._known:
            self._known[what] = measure()
        return self._known[what]


@dataclass(frozen=True)
class GroupRow:
    """What happened to one group. A number that the method does not have is NaN."""

    name: str
    before: int
    after: int
    mass: float = math.nan  # sum of the sensitivities before any cut
    eps: float = math.nan  # relative error that a draw of this size promises, with probability 1 - delta for each step
    dropped: float = math.nan  # sum of the sensitivities that went, times C: bounds the error of keeping the largest
    harm: float = math.nan  # how far the output would move if this group alone were cut so, its readers fitted anew


class Method(ABC):
    """A way to judge channels. A method of your own gives a score to every unit; the larger scores stay.

    >>> class Mine(Method):
    ...     def scores(self, evidence):
    ...         weights = dict(evidence.network.named_parameters())
    ...         return {g.name: weights[g.slots[0].parameter].flatten(1).norm(dim=1) for g in evidence.graph.prunable}
    """

    allocation: ClassVar[str] = "uniform"  # how the budget is shared among the groups unless the user says otherwise

    @property
    def name(self) -> str:
        """What the method is called in summaries and files."""
        return type(self).__name__.lower()

    @abstractmethod
    def scores(self, evidence: Evidence) -> Mapping[str, Any]:
        """A score for every unit that is left, by group. A group that is not given stays whole."""

    def choose(self, name: str, scores: Any, count: int) -> Selection:
        """The units of a group that stay, counted among those left: of equal scores the first."""
        order = np.argsort(-torch.as_tensor(scores).double().numpy(), kind="stable")[:count]
        return Selection(tuple(sorted(order.tolist())), (1.0,) * len(order))

    def numbers(self, scores: Any) -> Tensor:
        """The scores of a group as plain numbers, one for each unit, as files tell them."""
        return torch.as_tensor(scores)

    def settings(self) -> dict[str, Any]:
        """The method's own settings, as plain data."""
        return {}

    def row(self, row: GroupRow, scores: Any, count: int, chosen: Selection) -> GroupRow:
        """What one step adds to what is told of a group."""
        return replace(row, after=len(chosen.kept))

    def notes(self, rows: Sequence[GroupRow], points: int) -> list[str]:
        """What the user should know of the result."""
        return []
