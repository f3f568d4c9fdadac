"""Labels under data movement, compared with the same movement of real channels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx

from secateur._torch import pytree
from secateur.channels.labels import Propagation, Value, source_line
from secateur.channels.program import Program
from secateur.channels.ties import Ties
from secateur.network.modules import Slot


def propagation() -> Propagation:
    graph = fx.Graph()
    spec = pytree.tree_structure(())
    run = Propagation(Ties(), Program(graph, {}, frozenset(), {}, spec, spec, dynamic=False), hard_coded=False)
    run.node = graph.placeholder("x")
    return run


def labelled(p: Propagation, shape: tuple[int, ...], axis: int) -> tuple[Value, Tensor]:
    labels = p.ties.labels_of(Slot("w", 0), shape[axis])
    along = tuple((labels,) if a == axis else () for a in range(len(shape)))
    return Value(shape, along, activation=True), labels


@given(st.permutations([0, 1, 2, 3]), st.integers(0, 3))
def test_a_permutation_moves_the_labels(order: list[int], axis: int) -> None:
    p = propagation()
    value, labels = labelled(p, (2, 3, 4, 5), axis)
    (moved,) = p.move(value, lambda t: t.permute(order))
    assert moved.shape == tuple((2, 3, 4, 5)[a] for a in order)
    assert torch.equal(moved.labels[order.index(axis)][0], labels)
    assert sum(len(vectors) for vectors in moved.labels) == 1


def test_flatten_repeats_each_label_over_its_positions() -> None:
    p = propagation()
    value, labels = labelled(p, (2, 3, 4, 5), 1)
    (moved,) = p.move(value, lambda t: t.flatten(1))
    assert torch.equal(moved.labels[1][0], labels.repeat_interleave(20))


def test_a_split_axis_ties_the_parts() -> None:
    p = propagation()
    value, _ = labelled(p, (2, 12), 1)
    (moved,) = p.move(value, lambda t: t.reshape(2, 3, 4))
    unit = p.ties.components()
    assert len(moved.labels[2]) == 1 and not moved.labels[1]
    assert [len({unit[label + 4 * part] for part in range(3)}) for label in range(4)] == [1, 1, 1, 1]
    assert len(set(unit.tolist())) == 4


def test_two_labelled_axes_can_be_merged_into_one() -> None:
    p = propagation()
    rows, columns = p.ties.labels_of(Slot("w", 0), 2), p.ties.labels_of(Slot("w", 1), 3)
    (moved,) = p.move(Value((2, 3), ((rows,), (columns,)), activation=False), lambda t: t.reshape(-1))
    assert [vector.tolist() for vector in moved.labels[0]] == [[0, 0, 0, 1, 1, 1], [2, 3, 4, 2, 3, 4]]


def test_a_selected_channel_is_kept() -> None:
    p = propagation()
    value, _ = labelled(p, (2, 5), 1)
    (moved,) = p.move(value, lambda t: t.select(1, 3))
    assert moved.labels == ((),)
    assert [labels.tolist() for labels, _ in p.ties.kept] == [[3]]


def test_mixing_an_axis_keeps_its_channels() -> None:
    p = propagation()
    value, labels = labelled(p, (2, 5), 1)
    mixed = p.mix(value, [1], "it is mixed")
    assert mixed.labels == ((), ())
    assert torch.equal(p.ties.kept[0][0], labels) and p.ties.kept[0][1].text == "it is mixed"


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
