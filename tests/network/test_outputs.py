"""Outputs by name, and networks that return only some of them."""

from __future__ import annotations

import copy
import itertools
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from secateur.errors import UsageError
from secateur.network.divergence import output_divergence
from secateur.network.outputs import (
    DropOutputs,
    compared_outputs,
    output_names,
    selectors,
    with_all_outputs,
    with_score_rows,
    without_outputs,
)


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


def test_maps_of_scores_become_rows_and_are_compared_pixel_by_pixel() -> None:
    torch.manual_seed(0)
    old, new = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    rows = [with_score_rows(Several({"out": maps, "scale": X}).eval())(X) for maps in (old, new)]
    assert rows[0]["out"].shape == (40, 3) and torch.equal(rows[0]["scale"], X)
    total = 0.0
    for image, row, column in itertools.product(range(2), range(4), range(5)):
        p, q = (maps[image, :, row, column].softmax(0) for maps in (old, new))
        total += float((p * (p / q).log()).sum()) / 40
    assert output_divergence([rows[1]["out"]], [rows[0]["out"]]) == pytest.approx(total, rel=1e-4)
    binary = with_score_rows(Several(torch.tensor([[[1.5, -2.0]]])).eval())(X)
    assert torch.allclose(binary.softmax(1)[:, 1], torch.tensor([1.5, -2.0]).sigmoid())


def test_outputs_without_a_map_are_refused_and_hooks_go_away() -> None:
    with pytest.raises(UsageError, match="expected maps of scores"):
        with_score_rows(Several(torch.zeros(2, 3)).eval())(X)
    network = Several((torch.zeros(2, 3, 4, 4), X)).eval()
    both = compared_outputs(network, ["1"], "segmentation")
    assert both(X)[0].shape == (32, 3) and both(X)[1] is None
    assert with_all_outputs(both)(X)[0].shape == (2, 3, 4, 4) and with_all_outputs(both)(X)[1] is not None
    assert compared_outputs(network, [], None) is network
