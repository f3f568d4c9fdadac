"""Free memory: as the system reports it, or a guess."""

from __future__ import annotations

import os

import pytest
import torch

from secateur.network.memory import UNKNOWN, free_memory


def test_some_memory_is_free_and_no_more_than_there_is() -> None:
    assert 0 < free_memory(torch.device("cpu")) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_system_that_does_not_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuse)
    assert free_memory(torch.device("cpu")) == UNKNOWN
