"""Data of every shape becomes calls of the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.batches import apart, batch_size, calls, example_of, held_of, on_device_of, seen_of, take, with_labels

X, Y = torch.arange(10.0).view(10, 1), torch.arange(10)


def inputs(data: Any, **options: Any) -> list[list[float]]:
    return [args[0].flatten().tolist() for args, _ in calls(data, **options)]


@pytest.mark.parametrize(
    "data",
    [X, (X, Y), [X], [(X, Y)], [[X, Y]], (batch for batch in [(X, Y)]), DataLoader(TensorDataset(X, Y), batch_size=10)],
)
def test_labels_fall_away(data: Any) -> None:
    assert inputs(data) == [X.flatten().tolist()]


def test_several_batches_and_a_number_of_points() -> None:
    batches = [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])]
    assert [len(one) for one in inputs(batches)] == [4, 4, 2]
    assert [len(one) for one in inputs(batches, points=6)] == [4, 2]
    assert [len(one) for one in inputs(batches, points=4)] == [4]
    assert [len(one) for one in inputs(batches, points=99)] == [4, 4, 2]


def test_no_more_is_read_than_wanted() -> None:
    endless = (X for _ in iter(int, 1))
    assert len(inputs(endless, points=25)) == 3


def test_empty_batches_are_passed_over() -> None:
    assert inputs([X[:0], X]) == [X.flatten().tolist()]
    assert inputs([]) == []


def test_several_arguments_come_from_the_example() -> None:
    ((args, _),) = calls((X, X * 2, Y), example=(X[:1], X[:1]))
    assert len(args) == 2 and torch.equal(args[1], X * 2)


def test_dicts_are_keywords_or_what_to_inputs_makes_of_them() -> None:
    ((args, kwargs),) = calls([{"x": X, "scale": 2}])
    assert args == () and kwargs["scale"] == 2
    ((args, kwargs),) = calls([{"image": X, "label": Y}], to_inputs=lambda batch: batch["image"])
    assert torch.equal(args[0], X) and kwargs == {}


def test_points_of_a_batch() -> None:
    call = ((X, 3), {"y": Y})
    assert batch_size(call) == 10
    (x, three), kwargs = take(call, slice(2, 4))
    assert x.flatten().tolist() == [2, 3] and three == 3 and kwargs["y"].tolist() == [2, 3]
    (x, three), kwargs = take(call, torch.tensor([5, 0]))
    assert x.flatten().tolist() == [5, 0] and three == 3 and kwargs["y"].tolist() == [5, 0]


def test_the_example_is_one_point() -> None:
    assert [len(part) for part in example_of(((X, X), {}))] == [1, 1]
    assert example_of(((), {"x": X}))["x"].shape == (1, 1)


def test_batches_go_where_the_network_is() -> None:
    network = nn.Linear(1, 1, device="meta")
    (x,), _ = on_device_of(network, ((X,), {}))
    assert x.device.type == "meta"
    assert on_device_of(nn.ReLU(), ((X,), {}))[0][0].device.type == "cpu"


def test_a_tuple_of_batches_is_not_taken_for_one() -> None:
    with pytest.raises(sc.SecateurError, match="a list for several batches"):
        inputs(X.split(5))
    assert len(inputs(list(X.split(5)))) == 2
    assert len(inputs(X.split(5), example=(X, X))) == 1


def labels(data: Any, **options: Any) -> list[list[int] | None]:
    return [None if found is None else found.tolist() for _, found in with_labels(data, **options)]


@pytest.mark.parametrize(
    "data",
    [(X, Y), [(X, Y)], [[X, Y]], [(X, "name", Y)], [(X, Y[:3], Y)], DataLoader(TensorDataset(X, Y), batch_size=10)],
)
def test_labels_are_the_first_tensor_beside_the_inputs_with_one_for_each_point(data: Any) -> None:
    assert labels(data) == [Y.tolist()]


@pytest.mark.parametrize("data", [X, [X], [(X,)], [(X, 3)], [(X, Y[:3])], [(X, torch.tensor(1))], [{"x": X, "y": Y}]])
def test_without_such_a_tensor_there_are_no_labels(data: Any) -> None:
    assert labels(data) == [None]


def test_labels_follow_their_points() -> None:
    batches = [(X[:4], Y[:4]), (X[4:4], Y[4:4]), X[4:8], (X[8:], Y[8:])]
    assert labels(batches) == [[0, 1, 2, 3], None, [8, 9]]
    assert labels(batches, points=9) == [[0, 1, 2, 3], None, [8]]
    assert [call[0][0].flatten().tolist() for call, _ in with_labels((X, Y), points=3)] == [[0, 1, 2]]
    assert labels((X, Y), points=3) == [[0, 1, 2]]


def test_labels_behind_several_arguments_or_a_function() -> None:
    assert labels((X, X * 2, Y), example=(X[:1], X[:1])) == [Y.tolist()]
    assert labels((X, X * 2), example=(X[:1], X[:1])) == [None]
    assert labels([(X, Y)], to_inputs=lambda batch: batch[0] + 1) == [Y.tolist()]
    assert labels([{"image": X, "label": Y}], to_inputs=lambda batch: batch["image"]) == [None]


def test_every_fourth_point_is_held_out_across_batches() -> None:
    x = torch.arange(11)
    parts = apart([((x[:2],), {"k": 3}), ((x[2:9],), {"k": 3}), ((x[9:],), {"k": 3})])
    assert [(part.batch[0][0].tolist(), part.seen) for part in parts] == [
        ([0, 1], 2), ([2, 4, 5, 6, 8, 3, 7], 5), ([9, 10], 2),
    ]  # fmt: skip
    assert [args[0].tolist() for args, _ in seen_of(parts)] == [[0, 1], [2, 4, 5, 6, 8], [9, 10]]
    assert held_of(parts)[0][0][0].tolist() == [3, 7] and held_of(parts)[0][1] == {"k": 3} and len(held_of(parts)) == 1
    assert held_of(apart([((x[:3],), {})])) == []
    assert seen_of(apart([((x[i : i + 1],), {}) for i in range(4)]))[-1][0][0].tolist() == [2]
