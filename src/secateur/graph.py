"""What tracing finds: groups of channels that can be cut, and those that are kept with the reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from secateur.errors import SecateurError
from secateur.program import owner
from secateur.ties import Reason, Slot

Output = Literal["module", "graph"]


@dataclass(frozen=True)
class Group:
    """Units that sit on the same parameter axes; one unit is what must be cut together."""

    name: str
    slots: tuple[Slot, ...]
    indices: tuple[tuple[tuple[int, ...], ...], ...]  # indices[s][u]: where unit u sits along slot s
    reasons: tuple[Reason, ...] = ()  # why it is kept; empty when it may be cut
    makes: tuple[bool, ...] = ()  # for each slot: it is the output axis of a layer
    reads: tuple[bool, ...] = ()  # for each slot: it is the input axis of a layer

    @property
    def size(self) -> int:
        """How many units the group has."""
        return len(self.indices[0])

    @property
    def prunable(self) -> bool:
        return not self.reasons

    @property
    def producers(self) -> tuple[str, ...]:
        """The layers whose filters these channels are."""
        return _owners(slot for slot, make in zip(self.slots, self.makes, strict=True) if make)

    @property
    def consumers(self) -> tuple[str, ...]:
        """The layers that read these channels."""
        return _owners(slot for slot, read in zip(self.slots, self.reads, strict=True) if read)


@dataclass(frozen=True)
class ChannelGraph:
    """Every group of a network: prunable, or kept with the reason. `print(graph)` is a table."""

    groups: tuple[Group, ...]
    shapes: dict[str, tuple[int, ...]]
    example: Any  # what the network was traced with, without the values
    output: Output = "module"
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def prunable(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if group.prunable)

    def check_prunable(self) -> None:
        """Refuse a network of which nothing can be cut."""
        if not self.prunable:
            reasons = {str(reason) for group in self.groups for reason in group.reasons}
            raise SecateurError(
                "no group of this network can be cut: " + "; ".join(sorted(reasons)[:5]),
                remedy="try trace(..., output='graph')" if self.output == "module" else "see print(graph)",
            )

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise SecateurError(f"there is no group {name!r}", remedy=f"one of {', '.join(g.name for g in self.groups)}")

    def __str__(self) -> str:
        width = max([len(group.name) for group in self.groups], default=5)
        lines = [f"{'group':{width}}  {'units':>6}  status"]
        for group in self.groups:
            status = "prunable" if group.prunable else f"kept: {group.reasons[0]}"
            more = f" (and {len(group.reasons) - 1} more)" if len(group.reasons) > 1 else ""
            lines.append(f"{group.name:{width}}  {group.size:6}  {status}{more}")
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)


def _owners(slots: Iterable[Slot]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(owner(slot.parameter) for slot in slots))
