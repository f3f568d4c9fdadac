"""Outputs by name, and networks that return only some of them."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from secateur.errors import UsageError
from secateur.network.outputs import DropOutputs, output_names, selectors, with_all_outputs, without_outputs


class Pair(NamedTuple):
    scores: Any
    maps: Any


class Several(nn.Module):
    """Returns what it is told to return in each mode."""

    def __init__(self, evaluation: Any, training: Any = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.evaluation, self.other = evaluation, evaluation if training is None else training

    def forward(self, x: Tensor) -> Any:
        return self.other if self.training else self.evaluation


X = torch.zeros(1)


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (X, [""]),
        ((X, X), ["0", "1"]),
        ({"a": X, "b": [X, {"c": X}]}, ["a", "b.0", "b.1.c"]),
        (Pair(X, (X, X)), ["scores", "maps.0", "maps.1"]),
        ((X, None, 3), ["0", "1", "2"]),
    ],
)
def test_outputs_are_named_by_keys_and_positions(tree: Any, names: list[str]) -> None:
    assert output_names(tree) == names


@pytest.mark.parametrize(
    ("free", "left"), [(["1"], ["0"]), (["1.f"], ["0", "1.g"]), (["1.f.1"], ["0", "1.f.0", "1.g"]), (["*.f.*"], None)]
)
def test_selected_outputs_are_dropped_and_the_nesting_stays(free: list[str], left: list[str] | None) -> None:
    network = Several((X, {"f": [X, X], "g": X})).eval()
    found = without_outputs(network, free)(X)
    kept = [name for name in ("0", "1.f.0", "1.f.1", "1.g") if _at(found, name) is not None]
    assert kept == (left or ["0", "1.g"])
    assert network(X) is network.evaluation, "the model itself is left alone"


def _at(tree: Any, name: str) -> Any:
    for key in name.split("."):
        tree = tree[int(key) if key.isdecimal() else key]
    return tree


def test_the_parameters_are_shared_and_the_hook_can_be_removed() -> None:
    network = Several((X, X)).eval()
    dropped = without_outputs(network, ["1"])
    assert dropped.scale is network.scale
    again = copy.deepcopy(dropped)
    assert again(X)[1] is None
    assert with_all_outputs(again)(X)[1] is not None
    assert without_outputs(network, ()) is network


def test_an_index_does_not_count_in_a_mode_that_returns_something_else() -> None:
    network = without_outputs(Several((X, {"feats": X}), {"boxes": X, "feats": X}), ["1", "feats"])
    assert network.eval()(X)[1] == {"feats": None}
    assert network.train()(X) == {"boxes": X, "feats": None}
    as_list = without_outputs(Several((X, X), [X, X, X]), ["1"])
    as_list.eval()(X)
    assert all(one is not None for one in as_list.train()(X))


def test_wrong_selectors_are_refused() -> None:
    with pytest.raises(UsageError, match=r"pass a list: free_outputs=\['aux'\]"):
        selectors("aux")
    assert selectors([1, "aux"]) == ("1", "aux")
    hook = DropOutputs(("aux", "nothing"))
    hook(nn.Module().eval(), (), {"y": X, "aux": X})
    with pytest.raises(UsageError, match=r"there is no output 'nothing'") as caught:
        hook.check()
    assert "returns y, aux" in str(caught.value)
    every = DropOutputs(("*",))
    every(nn.Module().eval(), (), (X, X))
    with pytest.raises(UsageError, match="every output is free"):
        every.check()
