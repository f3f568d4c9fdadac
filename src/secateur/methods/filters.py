"""The filters of a group: for every unit the weights that produce its channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from secateur.channels.graph import Group
from secateur.methods.base import Evidence
from secateur.network.modules import Slot, named_tensors
from secateur.network.precision import check_all_finite

COMPUTED = ".parametrizations."


def producer_weights(network: nn.Module, group: Group) -> dict[Slot, Tensor]:
    """Return the weights of the convolutions and linear layers that produce a group's channels, as the layers use them.

    >>> producer_weights(network, graph["conv1"])
    {Slot(parameter='conv1.weight', axis=0): Parameter containing: ...}

    For a weight that `torch.nn.utils.parametrize` computes, as weight norm does, it is the computed one; if the network
    does not have it, as an exported program does not, the weight is left out.
    """
    tensors = named_tensors(network)
    slots = [slot for slot in group.produces if slot.parameter in tensors]
    found = {slot: _as_used(network, slot.parameter, tensors[slot.parameter]) for slot in slots}
    return {slot: weight for slot, weight in found.items() if weight is not None and weight.dim() >= 2}


def filters(evidence: Evidence, group: Group) -> Tensor | None:
    """Return all weights of each unit that is left, layer by layer, [units, weights] in float64; None if it has none.

    >>> filters(evidence, graph["conv1"]).norm(dim=1)

    Units with fewer channels than others are padded with zeros.
    """
    parts = []
    for slot, weight in producer_weights(evidence.network, group).items():
        rows = weight.detach().cpu().double().movedim(slot.axis, 0).flatten(1)
        indices = group.indices[group.slots.index(slot)]
        each = [rows[list(indices[unit])].flatten() for unit in evidence.kept[group.name]]
        parts.append(pad_sequence(each, batch_first=True))
    return torch.cat(parts, 1) if parts else None


def filter_scores(evidence: Evidence, score: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Return a score of the filters of each group; a group that no convolution or linear layer produces is left out.

    >>> filter_scores(evidence, lambda filters: filters.norm(dim=1))
    """
    found = {group.name: filters(evidence, group) for group in evidence.graph.prunable}
    return checked({name: score(rows) for name, rows in found.items() if rows is not None})


def units_along(group: Group, slot: Slot, length: int, kept: Sequence[int]) -> Tensor:
    """Return for each index along a slot its unit, counted among those left; `len(kept)` where there is none.

    >>> units_along(graph["conv1"], Slot("conv2.weight", 1), 4, kept=[0, 2, 3])
    tensor([0, 3, 1, 2])
    """
    indices = group.indices[group.slots.index(slot)]
    unit_of = torch.full((length,), len(kept))
    for number, unit in enumerate(kept):
        unit_of[list(indices[unit])] = number
    return unit_of


def checked(scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the scores, or raise an error if some are NaN or infinite."""
    for name, values in scores.items():
        check_all_finite(values, "its scores", layer=name)
    return dict(scores)


def _as_used(network: nn.Module, name: str, stored: Tensor) -> Tensor | None:
    if COMPUTED not in name:
        return stored
    layer, _, rest = name.partition(COMPUTED)
    weight = getattr(network.get_submodule(layer), rest.partition(".")[0], None)
    return weight if isinstance(weight, Tensor) and weight.shape == stored.shape else None
