"""Names of ops."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from secateur.channels.rules import rule_for
from secateur.channels.rules.simple import unknown
from secateur.network.operations import argument_names, channel_axis_of, is_pointwise, op_name

aten = torch.ops.aten


def call(target) -> fx.Node:
    return fx.Graph().call_function(target)


@pytest.mark.parametrize(
    ("target", "name"),
    [(aten.relu_.default, "relu"), (aten._unsafe_view.default, "unsafe_view"), (aten.add.Tensor, "add")],
)
def test_a_name_has_no_underscores_around(target, name: str) -> None:
    assert op_name(call(target)) == name


@pytest.mark.parametrize("name", ["relu", "conv2d", "max_pool2d", "cat"])
def test_an_op_of_another_library_is_not_taken_for_the_one_of_torch(name: str) -> None:
    library = torch.library.Library("other_library", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor")
    node = call(getattr(torch.ops.other_library, name).default)
    assert op_name(node) == f"other_library::{name}"
    assert rule_for(node) is unknown


@pytest.mark.parametrize("target", [aten.relu_.default, aten.mul.Tensor, aten.dropout.default, aten.hardswish_.default])
def test_pointwise_ops(target) -> None:
    assert is_pointwise(call(target))


@pytest.mark.parametrize("target", [aten.softmax.int, aten.conv2d.default, aten.view.default, operator.getitem])
def test_other_ops(target) -> None:
    assert not is_pointwise(call(target))


@pytest.mark.parametrize(
    ("target", "axis"),
    [
        (aten.conv2d.default, 1),
        (aten.conv_transpose1d.default, 2),
        (aten.max_pool2d.default, 1),
        (aten.linear.default, 3),
        (aten.batch_norm.default, 1),
        (aten.relu.default, None),
        (operator.getitem, None),
        (aten.view.default, -1),
    ],
)
def test_the_axis_that_an_op_takes_for_channels_of_four(target, axis: int | None) -> None:
    assert channel_axis_of(call(target), 4) == axis


def test_argument_names_come_from_the_schema() -> None:
    assert argument_names(call(aten.conv2d.default))[-1] == "groups"
