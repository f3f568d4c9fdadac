"""Layers that select some of their input channels: a network whose inputs were pruned still takes all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur._torch import unobserved
from secateur.network.modules import owner
from secateur.surgery.plan import SELECTED, Plan


class SelectsInputs(nn.Module):
    """A layer that uses only the input channels in its buffer `kept_inputs`.

    To an observer of layer calls it looks like the layer itself, on the selected channels.
    """

    kept_inputs: Tensor
    axis: int  # of the input, along which its channels lie

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the layer for the selected channels."""
        with unobserved():
            x = x.index_select(self.axis, self.kept_inputs)
        return super().forward(x)

    def extra_repr(self) -> str:
        """Return the settings of the layer, and what it selects."""
        return f"{super().extra_repr()}, selects its inputs"


class SelectingLinear(SelectsInputs, nn.Linear):
    """A linear layer on some of its input features."""

    axis = -1


class SelectingConv1d(SelectsInputs, nn.Conv1d):
    """A convolution on some of its input channels."""

    axis = -2


class SelectingConv2d(SelectsInputs, nn.Conv2d):
    """A convolution on some of its input channels."""

    axis = -3


class SelectingConv3d(SelectsInputs, nn.Conv3d):
    """A convolution on some of its input channels."""

    axis = -4


SELECTING: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: SelectingLinear,
    nn.Conv1d: SelectingConv1d,
    nn.Conv2d: SelectingConv2d,
    nn.Conv3d: SelectingConv3d,
}


def can_select(layer: nn.Module) -> bool:
    """Return whether the input channels of a layer can be selected: a plain linear layer or convolution."""
    known = type(layer) in SELECTING or isinstance(layer, SelectsInputs)
    return known and getattr(layer, "groups", 1) == 1


def select_inputs(small: nn.Module, plan: Plan) -> None:
    """Let the layers of a cut network select those of the network's inputs that the plan keeps, in place."""
    for slot in plan.selects:
        layer = small.get_submodule(owner(slot.parameter))
        kept = torch.tensor(plan.kept[slot], device=layer.get_parameter("weight").device)
        if isinstance(layer, SelectsInputs):
            layer.kept_inputs = layer.kept_inputs[kept]
        else:
            layer.__class__ = SELECTING[type(layer)]
            layer.register_buffer(SELECTED, kept)
