"""Features: what enters the last layers of a network, and the maps that are pooled before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from secateur.network.layer_calls import FunctionCall, LayerCall
from secateur.network.modules import Slot
from secateur.network.observer import LayerObserver
from secateur.network.operations import SPATIAL
from secateur.surgery.plan import Plan


@dataclass(frozen=True)
class Feature:
    """The input of one of the last layers."""

    slot: Slot  # the input axis of the layer's weight
    values: Tensor
    axis: int  # of the channels
    pooled: Tensor | None = None  # the map [samples, channels, ...] that was pooled to these values, if there is one

    @property
    def channels(self) -> int:
        """The number of channels."""
        return self.values.shape[self.axis]


class FeatureObserver(LayerObserver):
    """While it is active, records the features of each forward pass.

    >>> with FeatureObserver(model) as seen:
    ...     scores = model(images)
    >>> [feature.slot.parameter for feature in seen.features([scores])]
    ['fc.weight']

    Args:
        names: the weights of the last layers, if they are known.
    """

    def __init__(self, network: nn.Module, names: Sequence[str] | None = None) -> None:
        super().__init__(network, self._record, names)
        self.known = names is not None
        self._found: list[tuple[LayerCall, Tensor, Tensor | None]] = []
        self._pooled: Tensor | None = None

    def __enter__(self) -> Self:
        self._found, self._pooled = [], None
        return super().__enter__()

    def at(self, call: FunctionCall) -> Any:
        """Run the call; remember the input of the last pooling."""
        if (SPATIAL.search(call.name) and "pool" in call.name) or call.name == "mean":
            self._pooled = call.input if isinstance(call.input, Tensor) else None
        return super().at(call)

    def features(self, outputs: Sequence[Tensor]) -> list[Feature]:
        """Return the features of the layers that return one of these outputs; without such layers, of the last one."""
        last = [entry for entry in self._found if any(entry[1] is output for output in outputs)]
        chosen = self._found if self.known else last or self._found[-1:]
        found = [_feature(layer, pooled) for layer, _, pooled in chosen]
        self._found, self._pooled = [], None
        return [feature for feature in found if feature is not None]

    def _record(self, layer: LayerCall, call: FunctionCall) -> Any:
        result = call.run()
        self._found.append((layer, result, self._pooled))
        return result


def wanted_values(
    feature: Feature, theirs: Feature | None, plan: Plan | None, *, pooled: bool = False
) -> Tensor | None:
    """Return the values of the original that a feature of the smaller network should have; None if that is unknown.

    Args:
        feature: of the smaller network.
        theirs: the same feature of the original, if it has it.
        plan: how the smaller network was cut.
        pooled: prefer the maps before the last pooling.
    """
    if theirs is None:
        return None
    kept = kept_channels(feature, theirs.channels, plan)
    if kept is None:
        return None
    own, values, axis = feature.values, theirs.values, theirs.axis
    if pooled and feature.pooled is not None and theirs.pooled is not None:
        own, values, axis = feature.pooled, theirs.pooled, 1
    values = values.to(own.device)
    if len(kept) < theirs.channels:
        values = values.index_select(axis, torch.tensor(kept, device=values.device))
    return values if values.shape == own.shape else None


def values_like(feature: Feature, wanted: Tensor) -> Tensor:
    """Return the values of a feature that `wanted_values` were returned for: the map, or what enters the layer."""
    is_map = feature.pooled is not None and feature.pooled.shape == wanted.shape
    return feature.pooled if is_map and feature.pooled is not None else feature.values


def kept_channels(feature: Feature, original: int, plan: Plan | None) -> Sequence[int] | None:
    """Return which of the original's channels a feature of the smaller network has; None if that is unknown."""
    if plan is not None and feature.slot in plan.kept:
        return plan.kept[feature.slot] if len(plan.kept[feature.slot]) == feature.channels else None
    return range(original) if feature.channels == original else None


def _feature(layer: LayerCall, pooled: Tensor | None) -> Feature | None:
    """Return the feature of a layer, None if its weight does not show which axis has its channels."""
    if not layer.refittable or layer.groups > 1:
        return None
    axis = layer.input.dim() - 1 if layer.linear else 1
    channels = layer.input.shape[axis]
    if pooled is not None and (pooled.dim() < 3 or pooled.shape[1] != channels):
        pooled = None
    return Feature(Slot(layer.name, int(not layer.transposed)), layer.input, axis, pooled)
