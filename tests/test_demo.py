"""The demonstration runs, and its figures are the ones the package measures."""

from __future__ import annotations

import io
import re

import torch
from rich.console import Console

from secateur import demo
from secateur.cost import cost


def test_demo() -> None:
    console = Console(file=io.StringIO(), width=80)
    difference = demo.run(console, runs=3)
    text = console.file.getvalue()
    assert 0 <= difference < 1e-5
    assert f"{difference:.1e}" in text
    assert f"{cost(demo.network(), torch.zeros(demo.SHAPE)).params:,}" in text
    # Half of the channels on both sides of a convolution leave a quarter of its weights.
    left = [int(percent) for percent in re.findall(r"(?:parameters|MACs) +[\d,]+ +[\d,]+ +(\d+)%", text)]
    assert len(left) == 2
    assert all(20 <= percent <= 35 for percent in left)
    assert max(map(len, text.splitlines())) <= 80


def test_the_network_is_the_same_every_time_and_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, other = demo.network().state_dict(), demo.network().state_dict()
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[name], other[name]) for name in one)
