"""The book of labels: which indices of which tensors exist, which go together, which must stay and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

FIXED = -1  # an element of an axis that belongs to no channel and always stays


@dataclass(frozen=True, order=True)
class Slot:
    """One axis of one parameter or buffer."""

    parameter: str
    axis: int


@dataclass(frozen=True)
class Reason:
    """Why a channel stays: what happens to it, in which op, module and source line."""

    text: str
    op: str = ""
    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.op, self.module and f"in {self.module}", self.source) if part)
        return f"{self.text} ({place})" if place else self.text


@dataclass
class Ties:
    """Labels are whole numbers; each parameter axis owns a block of them (its atoms), literals own some too.

    >>> ties = Ties()
    >>> a, b = ties.atoms(Slot("conv.weight", 0), 8), ties.atoms(Slot("bn.weight", 0), 8)
    >>> ties.tie(a, b, Reason("meet in batch_norm"))
    """

    count: int = 0
    blocks: dict[Slot, int] = field(default_factory=dict)  # slot -> its first label
    sizes: dict[Slot, int] = field(default_factory=dict)
    outputs: dict[Slot, int] = field(default_factory=dict)  # slots that make channels, numbered as they appear
    inputs: dict[Slot, int] = field(default_factory=dict)  # slots whose zeros silence a channel
    carriers: dict[Slot, int] = field(default_factory=dict)  # per-channel parameters: norms, biases
    pieces: list[Tensor] = field(default_factory=list)  # label sets that a cut must not empty
    kept: list[tuple[Tensor, Reason]] = field(default_factory=list)
    literals: list[Tensor] = field(default_factory=list)  # labels that met a size written into the program
    ambiguous: bool = False  # an axis was split, and nothing says which part shrinks
    _left: list[Tensor] = field(default_factory=list)
    _right: list[Tensor] = field(default_factory=list)

    def fresh(self, n: int) -> Tensor:
        """n new labels."""
        self.count += n
        return torch.arange(self.count - n, self.count)

    def atoms(self, slot: Slot, size: int) -> Tensor:
        """The labels of one parameter axis, the same at every call."""
        if slot not in self.blocks:
            self.blocks[slot] = int(self.fresh(size)[0])
            self.sizes[slot] = size
        return torch.arange(self.blocks[slot], self.blocks[slot] + size)

    def tie(self, a: Tensor, b: Tensor, reason: Reason) -> None:
        """Labels at the same place go together; one that meets a fixed element stays, for that reason."""
        a, b = (t.reshape(-1) for t in torch.broadcast_tensors(a, b))
        both = (a != FIXED) & (b != FIXED)
        self._left.append(a[both])
        self._right.append(b[both])
        self.keep(torch.cat([a[~both], b[~both]]), reason)

    def tie_rows(self, labels: Tensor, reason: Reason) -> None:
        """Every row of the matrix is one unit."""
        self.tie(labels[:, :1], labels, reason)

    def keep(self, labels: Tensor, reason: Reason) -> None:
        labels = labels[labels != FIXED]
        if labels.numel():
            self.kept.append((labels, reason))

    def note(self, role: dict[Slot, int], labels: Tensor) -> None:
        """Record that the owners of these labels play a role."""
        for slot in self.slots_of(labels):
            role.setdefault(slot, len(role))

    def slots_of(self, labels: Tensor) -> list[Slot]:
        """The slots that these labels are atoms of."""
        slots, starts = list(self.blocks), torch.tensor(list(self.blocks.values()))
        nearest = torch.searchsorted(starts, labels[labels != FIXED], right=True) - 1
        ends = starts + torch.tensor(list(self.sizes.values()))
        owned = labels[labels != FIXED] < ends[nearest]
        return [slots[i] for i in nearest[owned].unique().tolist()]

    def components(self) -> NDArray[np.int64]:
        """For every label the number of the unit it belongs to."""
        left = torch.cat(self._left).numpy() if self._left else np.empty(0, np.int64)
        right = torch.cat(self._right).numpy() if self._right else np.empty(0, np.int64)
        links = coo_matrix((np.ones(len(left), np.int8), (left, right)), shape=(self.count, self.count))
        return connected_components(links, directed=False)[1].astype(np.int64)
