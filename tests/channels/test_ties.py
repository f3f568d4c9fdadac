"""Labels, and the units that ties make of them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur.channels.ties import FIXED, Reason, Ties
from secateur.network.modules import Slot

PAIRS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12)


def test_an_axis_has_the_same_labels_at_every_call() -> None:
    ties = Ties()
    first = ties.labels_of(Slot("a", 0), 4)
    ties.new_labels(3)
    assert torch.equal(ties.labels_of(Slot("a", 0), 4), first)
    assert not set(ties.labels_of(Slot("a", 1), 4).tolist()) & set(first.tolist())


@given(PAIRS)
def test_components_are_those_of_a_naive_search(pairs: list[tuple[int, int]]) -> None:
    ties = Ties()
    ties.labels_of(Slot("a", 0), 12)
    for a, b in pairs:
        ties.tie(torch.tensor([a]), torch.tensor([b]), Reason("met"))
    reached = {label: {label} for label in range(12)}
    for _ in range(12):
        for a, b in pairs:
            union = reached[a] | reached[b]
            for label in union:
                reached[label] = union
    unit = ties.components()
    for a in range(12):
        for b in range(12):
            assert (unit[a] == unit[b]) == (b in reached[a])


def test_a_label_tied_to_a_fixed_element_is_kept() -> None:
    ties = Ties()
    labels = ties.labels_of(Slot("a", 0), 3)
    ties.tie(labels, torch.tensor([FIXED, 0, FIXED]), Reason("because"))
    assert [(kept.tolist(), reason.text) for kept, reason in ties.kept] == [([0, 2], "because")]


def test_the_slots_of_labels() -> None:
    ties = Ties()
    a, b = ties.labels_of(Slot("a", 0), 3), ties.labels_of(Slot("b", 1), 2)
    pad = ties.new_labels(2)
    assert ties.slots_of(torch.cat([a[:1], pad, torch.tensor([FIXED])])) == [Slot("a", 0)]
    assert ties.slots_of(torch.cat([b, a])) == [Slot("a", 0), Slot("b", 1)]


def test_a_reason_prints_on_one_line() -> None:
    reason = Reason("it is kept", "aten.softmax", "head", "net.py:7")
    assert str(reason) == "it is kept (aten.softmax, head, net.py:7)"
    assert str(Reason("it is kept")) == "it is kept"
