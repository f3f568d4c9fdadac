"""The features of a network are the inputs of its last layers, found in a forward pass."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.network.modules import Slot
from secateur.training.features import FeatureObserver, kept_channels
from support.training_cases import network


class TwoHeads(nn.Module):
    """A map, pooled by a mean, and two last layers; one is followed by another op."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.angle, self.speed = nn.Conv2d(1, 4, 3), nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.conv(x).relu().mean((2, 3))
        return {"angle": self.angle(x), "speed": self.speed(x)}


class Map(nn.Module):
    """A dense output from a 1 x 1 convolution, squashed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(x))).sigmoid()


def found(model: nn.Module, names: list[str] | None = None) -> list[tuple[str, tuple[int, ...], int, bool]]:
    x = torch.randn(2, 1, 6, 6)
    with FeatureObserver(model, names) as seen:
        out = model(x)
    features = seen.features(list(out.values()) if isinstance(out, dict) else [out])
    return [(f.slot.parameter, tuple(f.values.shape), f.axis, f.pooled is not None) for f in features]


def test_the_last_layers_are_found() -> None:
    assert found(network()) == [("5.weight", (2, 64), 1, False)]
    assert found(TwoHeads()) == [("angle.weight", (2, 4), 1, True), ("speed.weight", (2, 4), 1, True)]
    assert found(Map()) == [("head.weight", (2, 4, 4, 4), 1, False)]
    assert found(TwoHeads(), ["speed.weight"]) == [("speed.weight", (2, 4), 1, True)]
    assert found(nn.ReLU()) == []


def test_the_values_are_those_of_the_network() -> None:
    model, x = network().eval(), torch.randn(2, 1, 6, 6)
    with FeatureObserver(model) as seen:
        out = model(x)
    (feature,) = seen.features([out])
    assert torch.equal(feature.values, model[:5](x)) and torch.equal(model[5](feature.values), out)


def test_grouped_last_layers_have_no_features() -> None:
    assert found(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4))) == []


@pytest.mark.parametrize("transposed", [False, True])
def test_channels_that_were_cut_are_known_from_the_plan(transposed: bool) -> None:
    last = nn.ConvTranspose2d(4, 2, 3) if transposed else nn.Conv2d(4, 2, 3)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), last)
    graph = sc.trace(model, torch.zeros(1, 1, 6, 6))
    plan = sc.Plan.keeping(graph, {"0": [1, 3]})
    small = sc.cut(model, plan)
    x = torch.randn(2, 1, 6, 6)
    with FeatureObserver(small) as seen:
        out = small(x)
    (feature,) = seen.features([out])
    assert feature.slot == Slot("2.weight", 0 if transposed else 1) and feature.channels == 2
    assert kept_channels(feature, 4, plan) == (1, 3)
    assert kept_channels(feature, 4, None) is None and list(kept_channels(feature, 2, None) or ()) == [0, 1]
    assert torch.equal(feature.values, model[:2](x)[:, [1, 3]])
