"""The LeNets have the sizes of the papers, and every hidden layer of them can be cut."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from secateur.surgery.cut import cut
from secateur.surgery.plan import random_plan
from secateur.surgery.verify import verify
from secateur.tracing.trace import trace
from secateur.zoo import LeNet5, LeNet5Classic, LeNet300100

SIZES = {
    LeNet300100: (266_610, {"fc1", "fc2"}),
    LeNet5: (431_080, {"conv1", "conv2", "fc1"}),
    LeNet5Classic: (61_706, {"conv1", "conv2", "fc1", "fc2"}),
}


@pytest.mark.parametrize("kind", SIZES)
def test_parameters_and_output(kind: type[nn.Module]) -> None:
    model = kind()
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[kind][0]
    assert model(torch.zeros(3, *kind.input_shape)).shape == (3, 10)


@pytest.mark.parametrize("kind", SIZES)
def test_hidden_layers_can_be_cut(kind: type[nn.Module]) -> None:
    model, example = kind().eval(), torch.randn(2, *kind.input_shape)
    graph = trace(model, example)
    assert {group.name for group in graph.groups if group.prunable} == SIZES[kind][1]
    plan = random_plan(graph, kept=0.5, seed=0)
    assert type(cut(model, plan)) is kind
    assert verify(model, plan, example) < 1e-5
