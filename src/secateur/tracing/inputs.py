"""Input pruning: the network's own inputs as channels that can be cut."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from secateur.channels.graph import ChannelGraph, Group, last_unit
from secateur.errors import UsageError
from secateur.network.modules import owner
from secateur.surgery.selected import can_select

CONSUMES_INPUT = "it consumes the network's input"


def free_inputs(model: nn.Module, graph: ChannelGraph) -> ChannelGraph:
    """Return the graph in which inputs of the network can be cut: the layers that consume them select the kept ones.

    >>> free_inputs(model, graph)["fc1:input"].prunable
    True

    Inputs that a plain linear layer or convolution consumes can be cut; a note says which stay.
    """
    if graph.output != "module":
        raise UsageError("inputs can be pruned with output='module' only", remedy="leave prune_inputs or output out")
    groups, stay = [], []
    for group in graph.groups:
        of_inputs = any(reason.text.startswith(CONSUMES_INPUT) for reason in group.reasons)
        if of_inputs and _can_be_selected(model, group):
            reasons = (last_unit(group.name),) if group.size == 1 else ()
            group = replace(group, reasons=reasons, from_input=True)
        elif of_inputs:
            stay.append(group.name)
        groups.append(group)
    notes = list(graph.notes)
    if stay:
        notes.append(
            f"the inputs of {', '.join(stay)} are not pruned: the layer is no plain linear layer or convolution"
        )
    if not any(group.from_input for group in groups):
        notes.append("prune_inputs has no effect: no layer of the network takes several channels of its input")
    return replace(graph, groups=tuple(groups), notes=tuple(notes))


def _can_be_selected(model: nn.Module, group: Group) -> bool:
    """Return whether one layer consumes a group, calls its own forward, and shares its weight with no other."""
    (slot, *rest) = group.slots
    name = owner(slot.parameter)
    calls_itself = all(reason.text.startswith(CONSUMES_INPUT) and reason.module == name for reason in group.reasons)
    if rest or slot not in group.consumes or not calls_itself or not can_select(model.get_submodule(name)):
        return False
    weight = model.get_parameter(slot.parameter)
    owners = [one for one in model.modules() for own in one.parameters(recurse=False) if own is weight]
    return len(owners) == 1
