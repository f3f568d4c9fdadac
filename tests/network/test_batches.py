"""Data of every shape becomes calls of the network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import secateur as sc
from secateur.network.batches import (
    EVERY,
    batch_size,
    calls,
    eval_outputs,
    example_of,
    fitted_samples,
    held_out_samples,
    hold_out,
    on_device_of,
    split,
    take,
    with_labels,
)

X, Y = torch.arange(10.0).view(10, 1), torch.arange(10)


class Pairs(Dataset[Any]):
    """A data set of single samples: a numpy array and a number."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        if index >= 10:
            raise IndexError
        return X[index].numpy(), index


class Stream(IterableDataset[Any]):
    """A data set without a length."""

    def __iter__(self) -> Iterator[Any]:
        return zip(X, Y)


def inputs(data: Any, **options: Any) -> list[list[float]]:
    return [args[0].flatten().tolist() for args, _ in calls(data, **options)]


@pytest.mark.parametrize(
    "data",
    [
        *(X.numpy(), (X.numpy(), Y.numpy()), [X.numpy()], [(X.numpy(), Y)], TensorDataset(X, Y), Pairs(), Stream()),
        *[
            X,
            (X, Y),
            [X],
            [(X, Y)],
            [[X, Y]],
            (batch for batch in [(X, Y)]),
            DataLoader(TensorDataset(X, Y), batch_size=10),
        ],
    ],
)
def test_labels_fall_away(data: Any) -> None:
    assert inputs(data) == [X.flatten().tolist()]


def test_several_batches_and_a_number_of_samples() -> None:
    batches = [(X[:4], Y[:4]), (X[4:8], Y[4:8]), (X[8:], Y[8:])]
    assert [len(one) for one in inputs(batches)] == [4, 4, 2]
    assert [len(one) for one in inputs(batches, samples=6)] == [4, 2]
    assert [len(one) for one in inputs(batches, samples=4)] == [4]
    assert [len(one) for one in inputs(batches, samples=99)] == [4, 4, 2]


def test_no_more_is_read_than_wanted() -> None:
    endless = (X for _ in iter(int, 1))
    assert len(inputs(endless, samples=25)) == 3


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


def test_samples_of_a_batch() -> None:
    call = ((X, 3), {"y": Y})
    assert batch_size(call) == 10
    (x, three), kwargs = take(call, slice(2, 4))
    assert x.flatten().tolist() == [2, 3] and three == 3 and kwargs["y"].tolist() == [2, 3]
    (x, three), kwargs = take(call, torch.tensor([5, 0]))
    assert x.flatten().tolist() == [5, 0] and three == 3 and kwargs["y"].tolist() == [5, 0]


def test_the_example_is_one_sample() -> None:
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
def test_labels_are_the_first_tensor_beside_the_inputs_with_one_for_each_sample(data: Any) -> None:
    assert labels(data) == [Y.tolist()]


@pytest.mark.parametrize("data", [X, [X], [(X,)], [(X, 3)], [(X, Y[:3])], [(X, torch.tensor(1))], [{"x": X, "y": Y}]])
def test_without_such_a_tensor_there_are_no_labels(data: Any) -> None:
    assert labels(data) == [None]


def test_labels_follow_their_samples() -> None:
    batches = [(X[:4], Y[:4]), (X[4:4], Y[4:4]), X[4:8], (X[8:], Y[8:])]
    assert labels(batches) == [[0, 1, 2, 3], None, [8, 9]]
    assert labels(batches, samples=9) == [[0, 1, 2, 3], None, [8]]
    assert [call[0][0].flatten().tolist() for call, _ in with_labels((X, Y), samples=3)] == [[0, 1, 2]]
    assert labels((X, Y), samples=3) == [[0, 1, 2]]


def test_labels_behind_several_arguments_or_a_function() -> None:
    assert labels((X, X * 2, Y), example=(X[:1], X[:1])) == [Y.tolist()]
    assert labels((X, X * 2), example=(X[:1], X[:1])) == [None]
    assert labels([(X, Y)], to_inputs=lambda batch: batch[0] + 1) == [Y.tolist()]
    assert labels([{"image": X, "label": Y}], to_inputs=lambda batch: batch["image"]) == [None]


def test_every_fourth_sample_is_held_out_across_batches() -> None:
    x = torch.arange(11)
    parts = hold_out([((x[:2],), {"k": 3}), ((x[2:9],), {"k": 3}), ((x[9:],), {"k": 3})])
    assert [(part.batch[0][0].tolist(), part.fitted) for part in parts] == [
        ([0, 1], 2), ([2, 4, 5, 6, 8, 3, 7], 5), ([9, 10], 2),
    ]  # fmt: skip
    assert [args[0].tolist() for args, _ in fitted_samples(parts)] == [[0, 1], [2, 4, 5, 6, 8], [9, 10]]
    (((held,), options),) = held_out_samples(parts)
    assert held.tolist() == [3, 7] and options == {"k": 3}
    assert not held_out_samples(hold_out([((x[:3],), {})]))
    assert fitted_samples(hold_out([((x[i : i + 1],), {}) for i in range(4)]))[-1][0][0].tolist() == [2]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 40])
def test_folds_are_disjoint_and_of_equal_size(size: int) -> None:
    parts = hold_out([((part,), {}) for part in torch.arange(40.0).split(size)])
    folds = [torch.cat([part.batch[0][0][part.folds[i]] for part in parts]).tolist() for i in range(EVERY)]
    assert sorted(number for fold in folds for number in fold) == list(range(40))
    assert all(len(fold) == 10 for fold in folds)
    assert folds[-1] == torch.cat([args[0] for args, _ in held_out_samples(parts)]).tolist()


def test_a_split_holds_all_samples_in_order() -> None:
    x = torch.arange(150.0)[:, None]
    found = list(split([((x[:100],), {"k": 3}), ((x[100:],), {"k": 3})], 64))
    assert [batch_size(part) for part in found] == [64, 36, 50] and all(kwargs == {"k": 3} for _, kwargs in found)
    assert torch.equal(torch.cat([args[0] for args, _ in found]), x)
    assert [batch_size(part) for part in split([((x[:2],), {}), ((x[:0],), {})], 1)] == [1, 1]


def test_outputs_are_evaluated_without_gradients_and_the_mode_stays() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(1, 2), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Any:
            y = self.drop(self.layer(x))
            return {"scores": y, "best": y.argmax(1), "more": (y.double(), "text")}

    network = Many().train()
    network.drop.eval()
    one, other = eval_outputs(network, ((X,), {}))
    assert torch.equal(one, network.layer(X)) and not one.requires_grad and other.dtype == torch.float64
    assert network.training and not network.drop.training


@pytest.mark.parametrize("data", [(X.numpy(), Y.numpy()), TensorDataset(X, Y), Pairs(), Stream()])
def test_labels_of_numpy_arrays_and_data_sets(data: Any) -> None:
    ((call, labels),) = with_labels(data)
    assert torch.equal(call[0][0], X) and labels is not None and torch.equal(labels, Y)


def test_samples_that_do_not_make_batches_are_refused() -> None:
    class Uneven(Pairs):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(index + 1)

    class Odd(Pairs):
        def __getitem__(self, index: int) -> Any:
            return object()

    for data in (Uneven(), Odd()):
        with pytest.raises(sc.SecateurError, match="cannot be collected into batches") as caught:
            list(calls(data))
        assert "ToTensor" in str(caught.value.remedy)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("keywords", [False, True])
def test_values_that_are_not_finite_are_reported_by_batch_and_sample(value: float, keywords: bool) -> None:
    x = torch.zeros(9, 2, 3)
    x[7, 1, 2] = value
    parts = [{"x": part} if keywords else part for part in x.split(4)]
    with pytest.raises(sc.SecateurError, match="data: NaN or infinite values in sample 3 of batch 1, counted from 0"):
        list(calls(parts))
    assert len(list(calls(parts, samples=7))) == 2  # it is not read
    x[:] = value
    with pytest.raises(sc.SecateurError, match="in samples 0, 1, 2, 3, 4 and 4 more of batch 0"):
        list(calls(x))


def test_samples_without_values_are_refused() -> None:
    with pytest.raises(sc.SecateurError, match="data: the samples are on the meta device"):
        list(calls([X, X.to("meta")]))
    with pytest.raises(sc.SecateurError, match="data: the samples are on the meta device"):
        sc.prune(torch.nn.Linear(4, 4), torch.zeros(8, 4, device="meta"), {"macs": "50%"})


def test_labels_masks_and_integers_are_not_checked() -> None:
    mask = torch.full((10, 4), -torch.inf)
    assert len(list(calls((X, mask), example=(X, mask)))) == 1
    assert len(list(calls([(X, X * torch.nan)]))) == 1
    assert len(list(calls([Y]))) == 1
