"""Groups from ties between labels."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from secateur.channels.gather import gather
from secateur.channels.ties import Reason, Ties
from secateur.network.modules import Slot


def two_layers() -> tuple[Ties, torch.Tensor, torch.Tensor]:
    """Return ties with the output axis of one layer and the input axis of the next, not tied yet."""
    ties = Ties()
    produced, consumed = ties.labels_of(Slot("a.weight", 0), 6), ties.labels_of(Slot("b.weight", 1), 6)
    ties.note(ties.outputs, produced)
    ties.note(ties.inputs, consumed)
    return ties, produced, consumed


def test_units_on_the_same_slots_are_a_group() -> None:
    ties, produced, consumed = two_layers()
    ties.tie(produced, consumed.flip(0), Reason("met"))
    (group,) = gather(ties)
    assert group.name == "a" and group.size == 6
    assert group.indices == (((0,), (1,), (2,), (3,), (4,), (5,)), ((5,), (4,), (3,), (2,), (1,), (0,)))
    assert group.produces == (Slot("a.weight", 0),) and group.consumes == (Slot("b.weight", 1),)


def test_kept_units_are_a_group_of_their_own() -> None:
    ties, produced, consumed = two_layers()
    ties.tie(produced, consumed, Reason("met"))
    ties.keep(produced[:2], Reason("because"))
    kept, free = gather(ties)
    assert [str(reason) for reason in kept.reasons] == ["because"] and kept.size == 2
    assert free.prunable and free.size == 4 and free.name == "a#2"


def test_a_group_of_a_single_unit_is_kept() -> None:
    ties, produced, consumed = two_layers()
    ties.tie(produced, consumed, Reason("met"))
    ties.tie_rows(produced.view(1, 6), Reason("all"))
    (group,) = gather(ties)
    assert group.size == 1 and "nothing would be left" in str(group.reasons[0])


def test_pieces_that_must_not_be_empty_divide_a_group() -> None:
    ties, produced, consumed = two_layers()
    ties.tie(produced, consumed, Reason("met"))
    ties.pieces += [produced[:2], produced[2:]]
    assert [group.size for group in gather(ties)] == [2, 4]


def test_axes_without_channels_are_left_out() -> None:
    ties, produced, consumed = two_layers()
    ties.labels_of(Slot("a.weight", 2), 3)  # the height of a kernel
    ties.tie(produced, consumed, Reason("met"))
    assert len(gather(ties)) == 1


@given(st.data())
def test_units_and_groups_equal_those_found_label_by_label(data: st.DataObject) -> None:
    ties = Ties()
    slots = [Slot(f"{name}.weight", axis) for name in "abc" for axis in (0, 1)]
    blocks = [ties.labels_of(slot, data.draw(st.integers(1, 5))) for slot in slots]
    for block, slot in zip(blocks, slots, strict=True):
        ties.note(ties.outputs if slot.axis == 0 else ties.inputs, block)
    label = st.integers(0, ties.count - 1)
    for one, other in data.draw(st.lists(st.tuples(label, label), max_size=12)):
        ties.tie(torch.tensor([one]), torch.tensor([other]), Reason("met"))
    for one in data.draw(st.lists(label, max_size=2)):
        ties.keep(torch.tensor([one]), Reason("because"))

    unit_of, expected = ties.components(), {}
    kept = {int(unit_of[one]) for labels, _ in ties.kept for one in labels.tolist()}
    for unit in set(unit_of.tolist()):
        places = {
            slot: tuple(i for i, one in enumerate(block.tolist()) if unit_of[one] == unit)
            for slot, block in zip(slots, blocks, strict=True)
        }
        places = {slot: indices for slot, indices in places.items() if indices}
        expected.setdefault((frozenset(places), unit in kept), set()).add(frozenset(places.items()))
    found = {}
    for group in gather(ties):
        units = {frozenset(zip(group.slots, unit, strict=True)) for unit in zip(*group.indices, strict=True)}
        because = any("because" in reason.text for reason in group.reasons)
        found[(frozenset(group.slots), because)] = units
    assert found == expected
