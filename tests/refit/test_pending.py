"""Parts that wait to be added."""

from __future__ import annotations

import torch

from secateur.refit.pending import Pending


def test_few_rows_wait_and_are_copied_and_many_are_added_at_once() -> None:
    pending, x = Pending(), torch.ones(2, 3)
    assert not pending.put(2, 10, x, x + 1)
    x.zero_()  # as a network would, after its layer has run
    assert pending.put(78, 10, torch.full((78, 3), 2.0), torch.zeros(78, 3))
    first, second = pending.take(dim=0)
    assert first.shape == second.shape == (80, 3) and first[:2].eq(1).all() and second[:2].eq(2).all()
    assert not pending.parts and not pending.rows
    assert pending.put(80, 10, x) and pending.take(dim=0)[0].data_ptr() == x.data_ptr()


def test_large_parts_do_not_wait_for_more_rows() -> None:
    assert Pending(most=100).put(1, 1000, torch.zeros(30))
