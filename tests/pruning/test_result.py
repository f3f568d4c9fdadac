"""The report of a pruned network: what it says, and that it fits 80 columns."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn

import secateur as sc
from secateur.costs.timing import Latency
from secateur.methods.base import GroupRow
from secateur.pruning.result import Pruned


def shown(part: object) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(part)
    return console.file.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}


@pytest.fixture(scope="module")
def pruned() -> Callable[..., Pruned]:
    """Prune the same network to any budget."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 3)).eval()
    data = torch.randn(32, 6)
    return lambda params, **more: sc.prune(model, data, {"params": params}, **{"method": "pfp", **more})


def test_it_tells_each_group_the_cost_and_the_proof(pruned: Callable[..., Pruned]) -> None:
    res = pruned("50%")
    text = shown(res.table())
    second = next(row for row in res.rows if row.name == "2")
    assert rows(text)["2"] == [
        "40", str(second.after), f"{second.mass:.3g}", f"{second.eps:.3g}", f"{second.dropped:.3g}"
    ]  # fmt: skip
    gone = 1 - res.after.params / res.before.params
    assert rows(text)["parameters"] == [str(res.before.params), str(res.after.params), "PR", f"{100 * gone:.1f}%"]
    assert rows(text)["MACs"][2] == "FR"
    assert f"to {res.verification:.0e} (relative)" in " ".join(text.split())
    assert all(f"Note: {note}" in " ".join(text.split()) for note in res.notes)


def test_a_group_that_stays_whole_has_no_error(pruned: Callable[..., Pruned]) -> None:
    rows_ = (GroupRow("whole", 8, 8, 3.0, 0.5, 0.0), GroupRow("unread", 6, 6, math.nan, 0.0, 0.0))
    text = shown(replace(pruned("50%"), rows=rows_).group_table())
    assert rows(text)["whole"] == ["8", "8", "3", "-", "-"]
    assert rows(text)["unread"] == ["6", "6", "-", "-", "-"]


def test_it_tells_the_repair(pruned: Callable[..., Pruned]) -> None:
    res = pruned("50%", method="residual")
    assert res.repair is not None
    text = shown(res.table())
    second = next(row for row in res.rows if row.name == "2")
    assert rows(text)["2"] == ["40", str(second.after), f"{second.divergence:.3g}"]
    words = " ".join(text.split())
    figures = f"output divergence {res.repair.after:.2g}, without repair {res.repair.before:.2g}"
    assert f"{figures}, on samples that took part in the fits." in words
    assert "Verified: the cut network, before the repair, equals" in words


def test_nothing_to_remove(pruned: Callable[..., Pruned]) -> None:
    res = pruned("100%")
    assert res.verified() == "No channel was removed: the original is within the budget."
    assert rows(shown(res.cost_table()))["parameters"][2:] == ["PR", "0.0%"]


def test_sampled_channels_are_rescaled(pruned: Callable[..., Pruned]) -> None:
    assert "zeroed and the others rescaled" in pruned("50%", select="pivotal").verified()
    assert "rescaled" not in pruned("50%").verified()


def test_long_names_and_large_numbers_fit(pruned: Callable[..., Pruned]) -> None:
    name = "a_rather_long_name_for_the_trunk_of_a_network" * 3
    res = replace(pruned("50%"), rows=(GroupRow(name, 10**6, 10**5, 123456.0, math.inf, 98765.4),))
    text = shown(res.table())
    assert max(map(len, text.splitlines())) <= 80
    assert all(number in text for number in ("1,000,000", "123,456", "inf", "98,765"))


def test_of_many_groups_those_that_lost_most_are_shown(pruned: Callable[..., Pruned]) -> None:
    many = tuple(GroupRow(f"g{i}", 50, 50 - i, 1.0, 1.0, 1.0) for i in range(50))
    res = replace(pruned("50%"), rows=many)
    few, every = shown(res.group_table(rows=3)), shown(res.group_table(rows=None))
    assert [name for name in rows(few) if name[0] == "g" and name != "group"] == ["g47", "g48", "g49"]
    assert "47 groups that lost fewer channels are not shown; --all lists them." in few
    assert "not shown" not in every


def test_times(pruned: Callable[..., Pruned]) -> None:
    slow, fast = (Latency(ms, ms, ms, runs=3, threads=1) for ms in (8.0, 2.0))
    text = shown(pruned("50%").cost_table(times=(slow, fast)))
    assert rows(text)["latency,"] == ["median", "8", "ms", "2", "ms", "75.0%"]
