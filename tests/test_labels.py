"""Labels under data movement: an oracle that moves real channels about."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from secateur.labels import Follower, Value, source_line
from secateur.program import Program
from secateur.ties import Slot, Ties


def follower() -> Follower:
    graph = fx.Graph()
    spec = pytree.tree_structure(())
    f = Follower(Ties(), Program(graph, {}, frozenset(), {}, spec, spec, dynamic=False), literal=False)
    f.node = graph.placeholder("x")
    return f


def labelled(f: Follower, shape: tuple[int, ...], axis: int) -> tuple[Value, Tensor]:
    labels = f.ties.atoms(Slot("w", 0), shape[axis])
    fields = tuple((labels,) if a == axis else () for a in range(len(shape)))
    return Value(shape, fields, activation=True), labels


@given(st.permutations([0, 1, 2, 3]), st.integers(0, 3))
def test_a_permutation_takes_the_labels_along(order: list[int], axis: int) -> None:
    f = follower()
    value, labels = labelled(f, (2, 3, 4, 5), axis)
    (moved,) = f.move(value, lambda t: t.permute(order))
    assert moved.shape == tuple((2, 3, 4, 5)[a] for a in order)
    assert torch.equal(moved.fields[order.index(axis)][0], labels)
    assert sum(len(vectors) for vectors in moved.fields) == 1


def test_flatten_repeats_each_label_over_its_places() -> None:
    f = follower()
    value, labels = labelled(f, (2, 3, 4, 5), 1)
    (moved,) = f.move(value, lambda t: t.flatten(1))
    assert torch.equal(moved.fields[1][0], labels.repeat_interleave(20))


def test_a_split_axis_ties_the_parts() -> None:
    f = follower()
    value, _ = labelled(f, (2, 12), 1)
    (moved,) = f.move(value, lambda t: t.reshape(2, 3, 4))
    unit = f.ties.components()
    assert len(moved.fields[2]) == 1 and not moved.fields[1]
    assert [len({unit[label + 4 * part] for part in range(3)}) for label in range(4)] == [1, 1, 1, 1]
    assert len(set(unit.tolist())) == 4


def test_two_labelled_axes_may_end_on_one() -> None:
    f = follower()
    rows, columns = f.ties.atoms(Slot("w", 0), 2), f.ties.atoms(Slot("w", 1), 3)
    (moved,) = f.move(Value((2, 3), ((rows,), (columns,)), activation=False), lambda t: t.reshape(-1))
    assert [vector.tolist() for vector in moved.fields[0]] == [[0, 0, 0, 1, 1, 1], [2, 3, 4, 2, 3, 4]]


def test_one_channel_picked_out_is_kept() -> None:
    f = follower()
    value, _ = labelled(f, (2, 5), 1)
    (moved,) = f.move(value, lambda t: t.select(1, 3))
    assert moved.fields == ((),)
    assert [labels.tolist() for labels, _ in f.ties.kept] == [[3]]


def test_mixing_an_axis_keeps_what_runs_along_it() -> None:
    f = follower()
    value, labels = labelled(f, (2, 5), 1)
    mixed = f.mix(value, [1], "it is mixed")
    assert mixed.fields == ((), ())
    assert torch.equal(f.ties.kept[0][0], labels) and f.ties.kept[0][1].text == "it is mixed"


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        ("", ""),
        ('  File "/home/me/net.py", line 12, in forward\n    x = x + 1', "net.py:12"),
        (f'  File "/home/me/net.py", line 12, in forward\n  File "{torch.__file__}", line 3, in f', "net.py:12"),
    ],
)
def test_the_source_line_is_the_users(trace: str, line: str) -> None:
    node = fx.Graph().placeholder("x")
    node.meta["stack_trace"] = trace
    assert source_line(node) == line
