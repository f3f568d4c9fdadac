"""Layers whose units are kept, with the reason: recurrent layers, and the heads of nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc

WORDS = torch.randn(3, 5, 6)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.first, self.rnn, self.last = nn.Linear(6, 8), kind(8, 10, batch_first=True), nn.Linear(10, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.last(self.rnn(self.first(x).relu())[0][:, -1]).relu())


@pytest.mark.parametrize("output", ["module", "graph"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_are_kept_with_the_op_as_the_reason(kind: Any, output: Any) -> None:
    graph = sc.trace(Recurrent(kind).eval(), WORDS, output=output)
    assert [group.name for group in graph.prunable] == ["last"]
    (reason,) = graph["first"].reasons
    assert "an op that secateur has no rule for" in str(reason) and f"aten.{kind.__name__.lower()}" in str(reason)


class WithAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(6, 8), nn.MultiheadAttention(8, 4, batch_first=True)
        self.last, self.head = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return self.head(self.last(y).relu().mean(1))


@pytest.mark.parametrize(("output", "prunable"), [("module", ["last"]), ("graph", ["first", "last"])])
def test_multihead_attention_keeps_its_heads_with_a_reason(output: Any, prunable: list[str]) -> None:
    graph = sc.trace(WithAttention().eval(), WORDS, output=output)
    assert [group.name for group in graph.prunable] == prunable
    text = " ".join(map(str, graph["attention"].reasons))
    assert ("hard-coded" if output == "module" else "merged with one of dynamic size") in text
