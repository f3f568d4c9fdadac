"""Private torch under public names: each does what the package relies on, in the torch that is installed."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, fx, nn

from secateur import _torch

aten = torch.ops.aten


def test_every_name_is_there() -> None:
    assert all(getattr(_torch, name) is not None for name in _torch.__all__)


@pytest.mark.parametrize("layer", [nn.Conv1d(2, 3, 1), nn.Conv2d(2, 3, 1), nn.ConvTranspose3d(2, 3, 1)])
def test_convolutions_share_a_class(layer: nn.Module) -> None:
    assert isinstance(layer, _torch.Convolution)
    assert not isinstance(nn.Linear(2, 3), _torch.Convolution)


def test_norms_share_a_class() -> None:
    assert isinstance(nn.BatchNorm2d(2), _torch.BatchNorm)
    assert isinstance(nn.BatchNorm2d(2), _torch.NormWithStatistics)
    assert isinstance(nn.InstanceNorm2d(2), _torch.NormWithStatistics)
    assert not isinstance(nn.InstanceNorm2d(2), _torch.BatchNorm)
    assert not isinstance(nn.GroupNorm(1, 2), _torch.NormWithStatistics)


def test_gradients_are_switched_and_the_previous_state_comes_back() -> None:
    before = torch.is_grad_enabled()
    try:
        assert _torch.set_grad_enabled(False) is before
        assert not torch.is_grad_enabled()
        assert _torch.set_grad_enabled(True) is False
    finally:
        torch.set_grad_enabled(before)


def test_a_switch_stays_in_a_program_without_users() -> None:
    graph = fx.Graph()
    graph.call_function(_torch.set_grad_enabled, (False,))
    graph.output(graph.placeholder("x"))
    graph.eliminate_dead_code()
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [_torch.set_grad_enabled]


def test_autocast_is_entered_and_left() -> None:
    state = _torch.enter_autocast("cpu", torch.bfloat16, True, True)
    try:
        assert torch.is_autocast_enabled("cpu")
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    finally:
        _torch.exit_autocast(state)
    assert not torch.is_autocast_enabled("cpu")


def test_the_blocks_of_an_exported_program_are_known() -> None:
    class Blocks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = x + 1
            with torch.autocast("cpu", torch.bfloat16):
                return x @ x

    program = torch.export.export(Blocks(), (torch.ones(2, 2),), strict=False)
    targets = {node.target for node in program.graph.nodes}
    assert {_torch.NO_GRAD_BLOCK, _torch.AUTOCAST_BLOCK} <= targets


def test_a_compiled_model_is_unwrapped() -> None:
    model = nn.Linear(2, 2)
    assert _torch.uncompiled(torch.compile(model, backend="eager")) is model
    assert _torch.uncompiled(model) is None


def test_a_symbolic_size_has_the_example_behind_it() -> None:
    free = {"input": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(nn.Linear(3, 2), (torch.ones(5, 3),), dynamic_shapes=free)
    output = next(node for node in program.graph.nodes if node.op == "output").args[0][0]
    batch, features = output.meta["val"].shape
    assert isinstance(batch, torch.SymInt)
    assert (_torch.size_hint(batch), _torch.size_hint(features), _torch.size_hint("text")) == (5, 2, "text")


def test_names_of_ops() -> None:
    assert _torch.op_base_name(aten.relu_.default) == "relu_"
    assert _torch.op_base_name(operator.getitem) is None
    assert _torch.op_schema_arguments(aten.relu.default) == ["self"]
    assert _torch.overload_of(aten.sub, aten.add.Tensor) is aten.sub.Tensor


def test_a_write_in_place_changes_the_version() -> None:
    x = torch.zeros(2)
    before = _torch.version_of(x)
    assert _torch.version_of(x) == before
    x.add_(1)
    assert _torch.version_of(x) != before


def test_forward_hooks_are_cleared_of_one_module() -> None:
    called = []
    model = nn.Sequential(nn.ReLU())
    for module in (model, model[0]):
        module.register_forward_hook(lambda *_: called.append("after"))
        module.register_forward_pre_hook(lambda *_: called.append("before"))
    _torch.clear_forward_hooks(model)
    model(torch.zeros(1))
    assert called == ["before", "after"]  # those of the layer inside


def test_operations_have_a_count() -> None:
    out = torch.zeros(4, 6)
    assert _torch.flop_registry[aten.mm](torch.zeros(4, 5), torch.zeros(5, 6), out_val=out) == 2 * 4 * 5 * 6


def test_a_branch_on_values_is_told_from_other_failures() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    for model, expected in ((Branch(), True), (Broken(), False)):
        with pytest.raises(Exception) as error:  # of whatever class torch.export raises
            torch.export.export(model, (torch.ones(2),), strict=False)
        assert _torch.is_data_dependent(error.value) is expected


def test_the_hooks_of_one_class_are_found_and_removed() -> None:
    class Hook:
        def __call__(self, module: nn.Module, args: object, output: Tensor) -> Tensor:
            return output + 1

    model, own = nn.Identity(), Hook()
    model.register_forward_hook(own)
    model.register_forward_hook(lambda module, args, output: output * 2)
    assert _torch.forward_hooks(model, Hook) == [own]
    _torch.remove_forward_hooks(model, Hook)
    assert _torch.forward_hooks(model, Hook) == [] and model(torch.ones(())) == 2


def test_the_keys_of_nested_values() -> None:
    spec = _torch.pytree.tree_structure({"b": 1, "a": (2, 3)})
    assert _torch.keys_of(spec) == ["b", "a"]
    assert _torch.keys_of(spec.child(1)) == ["0", "1"]
