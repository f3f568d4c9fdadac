"""Channel labels: which exist, which are tied together, which are kept and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from secateur.network.modules import Slot

FIXED = -1  # the label of an element that belongs to no channel and is never removed


@dataclass(frozen=True)
class Reason:
    """Why a channel is kept, and where in the network the reason arises.

    Attributes:
        text: the reason as a clause: "its axis is normalised as a whole".
        op: the ATen op, "" if unknown.
        module: the name of the module that calls the op, "" if unknown.
        source: the line of the user's code, such as `net.py:12`, "" if unknown.
    """

    text: str
    op: str = ""
    module: str = ""
    source: str = ""

    @property
    def location(self) -> str:
        """The op, the module and the source line, as far as they are known."""
        return ", ".join(filter(None, (self.op, self.module, self.source)))

    def __str__(self) -> str:
        return f"{self.text} ({self.location})" if self.location else self.text


@dataclass
class Ties:
    """Integer labels of channels and the relations between them.

    Every parameter axis owns a block of consecutive labels, one for each index.

    >>> ties = Ties()
    >>> a, b = ties.labels_of(Slot("conv.weight", 0), 8), ties.labels_of(Slot("bn.weight", 0), 8)
    >>> ties.tie(a, b, Reason("they meet in batch_norm"))

    Attributes:
        count: number of labels so far.
        blocks, sizes: for each slot its first label, and how many it has.
        outputs: slots that produce channels, in order of appearance.
        inputs: slots that consume channels: zeros in them mask a channel.
        per_channel: slots of per-channel parameters such as norms and biases.
        pieces: sets of labels of which at least one must stay.
        kept: labels that are never removed, with the reason.
        hard_coded: labels of axes whose size may be hard-coded in the program.
        ambiguous: whether an axis was split and nothing determines which part shrinks.
    """

    count: int = 0
    blocks: dict[Slot, int] = field(default_factory=dict)
    sizes: dict[Slot, int] = field(default_factory=dict)
    outputs: dict[Slot, int] = field(default_factory=dict)
    inputs: dict[Slot, int] = field(default_factory=dict)
    per_channel: dict[Slot, int] = field(default_factory=dict)
    pieces: list[Tensor] = field(default_factory=list)
    kept: list[tuple[Tensor, Reason]] = field(default_factory=list)
    hard_coded: list[Tensor] = field(default_factory=list)
    ambiguous: bool = False
    _pairs: list[Tensor] = field(default_factory=list)

    def new_labels(self, count: int) -> Tensor:
        """Return labels that were not used before."""
        self.count += count
        return torch.arange(self.count - count, self.count)

    def labels_of(self, slot: Slot, size: int) -> Tensor:
        """Return the labels of a parameter axis, the same at every call."""
        if slot not in self.blocks:
            self.blocks[slot], self.sizes[slot] = self.count, size
            self.count += size
        return torch.arange(self.blocks[slot], self.blocks[slot] + size)

    def tie(self, a: Tensor, b: Tensor, reason: Reason) -> None:
        """Tie labels element by element; a label opposite a fixed element is kept for the given reason."""
        pairs = torch.stack(torch.broadcast_tensors(a, b)).flatten(1)
        free = (pairs != FIXED).all(0)
        self._pairs.append(pairs[:, free])
        self.keep(pairs[:, ~free].flatten(), reason)

    def tie_rows(self, labels: Tensor, reason: Reason) -> None:
        """Tie all labels in each row of a matrix."""
        self.tie(labels[:, :1], labels, reason)

    def keep(self, labels: Tensor, reason: Reason) -> None:
        """Record that these labels are never removed."""
        labels = labels[labels != FIXED]
        if labels.numel():
            self.kept.append((labels, reason))

    def note(self, role: dict[Slot, int], labels: Tensor) -> None:
        """Record that the slots which own these labels play a role (`outputs`, `inputs`, `per_channel`)."""
        for slot in self.slots_of(labels):
            role.setdefault(slot, len(role))

    def slots_of(self, labels: Tensor) -> list[Slot]:
        """Return the slots that own these labels."""
        labels = labels[labels != FIXED]
        slots, starts = list(self.blocks), torch.tensor(list(self.blocks.values()))
        ends = starts + torch.tensor(list(self.sizes.values()))
        nearest = torch.searchsorted(starts, labels, right=True) - 1
        return [slots[i] for i in nearest[labels < ends[nearest]].unique().tolist()]

    def components(self) -> NDArray[np.int64]:
        """Return for every label the number of its unit: the connected component of tied labels."""
        left, right = torch.cat([*self._pairs, torch.empty(2, 0, dtype=torch.long)], 1).numpy()
        links = coo_matrix((np.ones(len(left), np.int8), (left, right)), shape=(self.count, self.count))
        return connected_components(links, directed=False)[1].astype(np.int64)
