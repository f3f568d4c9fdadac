"""Examples: how they are called, doubled, described and made again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from secateur._torch import pytree
from secateur.network.examples import call_arguments, clone, describe, doubled, free_batch, revive

X = torch.ones(1, 3)


@pytest.mark.parametrize(
    ("example", "args", "kwargs"), [(X, (X,), {}), ((X, 2), (X, 2), {}), ([X], (X,), {}), ({"x": X}, (), {"x": X})]
)
def test_an_example_is_called_as_forward_takes_it(example: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert call_arguments(example) == (args, kwargs)


def test_single_samples_are_doubled() -> None:
    several, scalar = torch.ones(4, 2), torch.tensor(3.0)
    found = doubled({"x": X, "more": [several, scalar, "text"]})
    assert found["x"].shape == (2, 3)
    assert found["more"][0] is several and found["more"][1] is scalar and found["more"][2] == "text"


def test_a_free_batch_can_be_called_with_any_size() -> None:
    args = (torch.ones(2, 3),)
    program = torch.export.export(nn.Linear(3, 1), args, dynamic_shapes=free_batch(args, {}))
    assert program.module()(torch.ones(7, 3)).shape == (7, 1)


def test_a_clone_shares_nothing() -> None:
    copy = clone(X)
    assert torch.equal(copy, X) and copy.data_ptr() != X.data_ptr()
    assert clone("text") == "text"


@pytest.mark.parametrize("example", [X, (X, torch.ones(2, dtype=torch.int64), None, 1.5), {"x": X, "deep": [X, True]}])
def test_a_description_is_plain_and_can_be_made_an_example_again(example: Any) -> None:
    made = revive(describe(example))
    wanted = tuple(example) if isinstance(example, list) else example
    assert describe(made) == describe(wanted)
    for leaf in pytree.tree_leaves(made):
        assert not isinstance(leaf, torch.Tensor) or not leaf.any()


def test_floats_follow_the_model_and_integers_do_not() -> None:
    model = nn.Linear(3, 1).double()
    made = revive(describe((X, torch.ones(2, dtype=torch.int32))), like=model)
    assert [leaf.dtype for leaf in made] == [torch.float64, torch.int32]
