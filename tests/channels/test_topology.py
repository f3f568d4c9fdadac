"""The layers of a network and how they are connected."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from secateur.channels.program import export
from secateur.channels.topology import Layer, layers_of
from secateur.zoo.names import build


class Branches(nn.Module):
    """A residual path, a concatenation, a gate and a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.gate, self.last = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        y = self.second(x) + x
        y = y * torch.sigmoid(self.gate(y))
        return self.last(torch.cat([y, x], 1).mean((2, 3)))


def test_joins_and_layers() -> None:
    found = layers_of(export(Branches().eval(), torch.zeros(1, 3, 8, 8)))
    assert found == (
        Layer("x", "input", 3),
        Layer("first", "conv2d", 8, (0,), "first.weight"),
        Layer("second", "conv2d", 8, (1,), "second.weight"),
        Layer("add", "add", 8, (2, 1)),
        Layer("gate", "conv2d", 8, (3,), "gate.weight"),
        Layer("mul", "mul", 8, (3, 4)),
        Layer("cat", "cat", 16, (5, 1)),
        Layer("last", "linear", 5, (6,), "last.weight"),
        Layer("output", "output", 0, (7,)),
    )


def test_a_layer_that_is_called_twice_is_there_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(torch.relu(self.layer(x)))

    found = layers_of(export(Twice().eval(), torch.zeros(1, 4)))
    assert [one.name for one in found] == ["x", "layer", "layer", "output"]


@pytest.mark.parametrize(("name", "weighted", "joins"), [("zoo:resnet20", 20, {"add": 9}), ("zoo:lenet5", 4, {})])
def test_every_weight_is_a_layer_and_every_block_a_join(name: str, weighted: int, joins: dict[str, int]) -> None:
    model = build(name).eval()
    found = layers_of(export(model, torch.zeros(1, *model.input_shape)))  # type: ignore[arg-type]
    assert sum(bool(one.parameter) for one in found) == weighted
    kinds = [one.kind for one in found if not one.parameter and one.kind not in ("input", "output")]
    assert {kind: kinds.count(kind) for kind in kinds} == joins
    assert all(source < place for place, one in enumerate(found) for source in one.inputs)
