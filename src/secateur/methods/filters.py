"""The filters of a group: for every unit the weights that make its channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from secateur.errors import SecateurError
from secateur.graph import Group
from secateur.methods.base import Evidence
from secateur.program import named_tensors
from secateur.ties import Slot

COMPUTED = ".parametrizations."


def making_weights(network: nn.Module, group: Group) -> dict[Slot, Tensor]:
    """The weights of convolutions and linear layers that make a group's channels, as the layers use them.

    >>> making_weights(network, graph["conv1"])
    {Slot(parameter='conv1.weight', axis=0): Parameter containing: ...}

    A weight that `torch.nn.utils.parametrize` computes, as weight norm does, is the computed one; where the network
    does not give it, as an exported program does not, it is left out.
    """
    tensors = named_tensors(network)
    makers = [slot for slot, makes in zip(group.slots, group.makes, strict=True) if makes and slot.parameter in tensors]
    found = {slot: _as_used(network, slot.parameter, tensors[slot.parameter]) for slot in makers}
    return {slot: weight for slot, weight in found.items() if weight is not None and weight.dim() >= 2}


def filters(evidence: Evidence, group: Group) -> Tensor | None:
    """All weights of each unit that is left, layer after layer, [units, weights] in float64; None where there are none.

    >>> filters(evidence, graph["conv1"]).norm(dim=1)

    A unit of fewer channels than the others is filled up with zeros.
    """
    parts = []
    for slot, weight in making_weights(evidence.network, group).items():
        rows = weight.detach().cpu().double().movedim(slot.axis, 0).flatten(1)
        where = group.indices[group.slots.index(slot)]
        each = [rows[list(where[unit])].flatten() for unit in evidence.kept[group.name]]
        parts.append(pad_sequence(each, batch_first=True))
    return torch.cat(parts, 1) if parts else None


def units_along(group: Group, slot: Slot, length: int, kept: Sequence[int]) -> Tensor:
    """For each index along a slot its unit, counted among those left; `len(kept)` where there is none.

    >>> units_along(graph["conv1"], Slot("conv2.weight", 1), 4, kept=[0, 2, 3])
    tensor([0, 3, 1, 2])
    """
    where = group.indices[group.slots.index(slot)]
    unit_of = torch.full((length,), len(kept))
    for number, unit in enumerate(kept):
        unit_of[list(where[unit])] = number
    return unit_of


def checked(scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The scores, if all are numbers."""
    for name, values in scores.items():
        if not torch.isfinite(values).all():
            bad = int((~torch.isfinite(values)).sum())
            raise SecateurError(
                f"{bad} of {values.numel()} of its scores are NaN or infinite",
                layer=name,
                remedy="check the weights and the data for such values, and that the network evaluates soundly on them",
            )
    return dict(scores)


def _as_used(network: nn.Module, name: str, stored: Tensor) -> Tensor | None:
    if COMPUTED not in name:
        return stored
    layer, _, rest = name.partition(COMPUTED)
    weight = getattr(network.get_submodule(layer), rest.partition(".")[0], None)
    return weight if isinstance(weight, Tensor) and weight.shape == stored.shape else None
