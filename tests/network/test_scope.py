"""Submodules of a model as a network of their own, and the inputs that they get."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.errors import SecateurError, UsageError
from secateur.network.batches import Call
from secateur.network.scope import ScopeNetwork, capture, inputs_of, put_back, scope_paths
from support.detectors import detector, pictures


def test_the_parameters_have_the_names_of_the_model() -> None:
    model = detector()
    part = ScopeNetwork(model, ["backbone", "head.2"])
    own = dict(model.named_parameters())
    assert all(parameter is own[name] for name, parameter in part.named_parameters())
    assert {name.split(".")[0] for name, _ in part.named_parameters()} == {"backbone", "head"}


def test_one_submodule_takes_its_own_arguments_and_several_take_pairs() -> None:
    model, x = detector(), torch.randn(2, 3, 8, 8)
    assert torch.equal(ScopeNetwork(model, ["backbone"])(x), model.backbone(x))
    rows = torch.randn(2, 8)
    both = ScopeNetwork(model, ["backbone", "head"])(((x,), {}), ((), {"input": rows}))
    assert torch.equal(both[0], model.backbone(x)) and torch.equal(both[1], model.head(rows))


def test_captured_inputs_are_those_of_the_submodule() -> None:
    model, (images, _) = detector(), pictures(1)[0]
    ((args, kwargs),) = capture(model, ["backbone"], [((images,), {})])
    assert torch.equal(args[0], torch.stack(images)) and not kwargs
    assert not model.backbone._forward_hooks and not model.backbone[0]._forward_pre_hooks
    heads = capture(model, ["head"], [((images,), {})])
    assert len(heads) == 4, "each run is a batch"
    assert len(capture(model, ["head"], [((images,), {})], most=3)[0][0][0]) == 3
    (inputs,) = inputs_of(model, ["backbone"], [(images, None)])
    assert torch.equal(inputs[0], args[0])


def test_arguments_by_position_and_by_keyword_become_keywords() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor, *, gate: Tensor | None = None, **more: Any) -> Tensor:
            return self.layer(x) if gate is None else self.layer(x) * gate

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Gated()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, gate=x.sigmoid(), extra=1)

    ((args, kwargs),) = capture(Outer(), ["inner"], [((torch.ones(2, 4),), {})])
    assert args == () and kwargs.keys() == {"x", "gate", "extra"}


def test_scopes_are_names_or_patterns_and_parts_of_others_are_left_out() -> None:
    model = detector()
    assert scope_paths(model, "backbone") == ("backbone",)
    assert scope_paths(model, ["head.*", "backbone"]) == ("backbone", "head.0", "head.1", "head.2")
    assert scope_paths(model, ["backbone.3", "backbone"]) == ("backbone",)


@pytest.mark.parametrize(
    ("scope", "message"),
    [("bakcbone", "nearest: backbone"), ([], "the scope is empty"), ("backbone.2", "the scope has no parameters")],
)
def test_wrong_scopes_are_refused(scope: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scope_paths(detector(), scope)


def test_a_scope_that_shares_a_parameter_with_the_rest_is_refused() -> None:
    model = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)})
    model["two"].weight = model["one"].weight
    with pytest.raises(UsageError, match=r"shares weight with two\.weight"):
        scope_paths(model, "one")


class Twice(nn.Module):
    """Runs its part at two sizes; a part without a result; a part of a part on its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.part, self.how = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)), how
        self.silent = Silent()

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "sizes":
            return self.part(x).mean() + self.part(x[..., ::2]).mean()
        if self.how == "none":
            self.silent(x)
        if self.how == "inside":
            x = self.part[0](x)
        return self.part(x) if self.how != "never" else x


class Silent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> None:
        self.layer(x)


@pytest.mark.parametrize(
    ("how", "scope", "message"),
    [
        ("sizes", "part", "runs 2 times in one forward pass, with inputs of different shapes: nx3x4x4 and nx3x4x2"),
        ("never", "part", "never runs on this data"),
        ("none", "silent", "it returns None"),
        ("inside", "part", "also runs outside of the scope"),
    ],
)
def test_submodules_that_cannot_be_a_scope(how: str, scope: str, message: str) -> None:
    model = Twice(how)
    with pytest.raises(SecateurError, match=message):
        capture(model, [scope], [((torch.zeros(1, 3, 4, 4),), {})])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_submodules_that_run_on_different_numbers_of_samples_do_not_go_together() -> None:
    images, _ = pictures(1)[0]
    call: Call = ((images,), {})
    with pytest.raises(SecateurError, match="different numbers of samples: backbone on 4, head on"):
        capture(detector(), ["backbone", "head"], [call])


def test_tensors_are_put_back_by_name() -> None:
    model, other = detector(0), detector(1)
    put_back(model, ScopeNetwork(other, ["backbone"]))
    assert torch.equal(model.backbone[0].weight, other.backbone[0].weight)
    assert not torch.equal(model.head[0].weight, other.head[0].weight)
