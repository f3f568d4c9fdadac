"""Groups from ties."""

from __future__ import annotations

import torch

from secateur.gather import gather
from secateur.ties import Reason, Slot, Ties


def book() -> tuple[Ties, torch.Tensor, torch.Tensor]:
    ties = Ties()
    made, read = ties.atoms(Slot("a.weight", 0), 6), ties.atoms(Slot("b.weight", 1), 6)
    ties.note(ties.outputs, made)
    ties.note(ties.inputs, read)
    return ties, made, read


def test_units_with_the_same_footprint_are_a_group() -> None:
    ties, made, read = book()
    ties.tie(made, read.flip(0), Reason("met"))
    (group,) = gather(ties)
    assert group.name == "a" and group.size == 6
    assert group.indices == (((0,), (1,), (2,), (3,), (4,), (5,)), ((5,), (4,), (3,), (2,), (1,), (0,)))
    assert (group.makes, group.reads) == ((True, False), (False, True))


def test_kept_units_are_a_group_of_their_own() -> None:
    ties, made, read = book()
    ties.tie(made, read, Reason("met"))
    ties.keep(made[:2], Reason("because"))
    kept, free = gather(ties)
    assert [str(reason) for reason in kept.reasons] == ["because"] and kept.size == 2
    assert free.prunable and free.size == 4 and free.name == "a#2"


def test_what_all_goes_together_is_kept() -> None:
    ties, made, read = book()
    ties.tie(made, read, Reason("met"))
    ties.tie_rows(made.view(1, 6), Reason("all"))
    (group,) = gather(ties)
    assert group.size == 1 and "nothing would be left" in str(group.reasons[0])


def test_pieces_that_must_not_be_empty_divide_a_group() -> None:
    ties, made, read = book()
    ties.tie(made, read, Reason("met"))
    ties.pieces += [made[:2], made[2:]]
    assert [group.size for group in gather(ties)] == [2, 4]


def test_axes_that_play_no_role_are_left_out() -> None:
    ties, made, read = book()
    ties.atoms(Slot("a.weight", 2), 3)  # the height of a kernel
    ties.tie(made, read, Reason("met"))
    assert len(gather(ties)) == 1
