"""Networks with attention, whose units are heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.cases.base import Conv, Net, case

HEADS, WIDTH = 4, 3


class Attention(nn.Module):
    """Attention with one layer for queries, keys and values, and the number of heads as an attribute."""

    def __init__(self, written_out: bool = False, table: bool = False) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.written_out = HEADS, WIDTH, written_out
        self.qkv, self.proj = nn.Linear(8, 3 * HEADS * WIDTH), nn.Linear(HEADS * WIDTH, 8)
        self.table = nn.Parameter(torch.empty(31, HEADS)) if table else None
        self.register_buffer("places", torch.arange(16)[:, None] - torch.arange(16) + 15)

    def forward(self, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        bias = None if self.table is None else self.table[self.places.view(-1)].view(16, 16, -1).permute(2, 0, 1)
        if self.written_out:
            scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
            out = (scores if bias is None else scores + bias).softmax(-1) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, bias)
        return self.proj(out.transpose(1, 2).reshape(n, length, -1))


def _network(attention: nn.Module) -> nn.Module:
    def run(m: Net, x: Tensor) -> Tensor:
        tokens = m.patches(x).flatten(2).transpose(1, 2)
        return m.head(tokens + m.attention(tokens))

    return Net(run, patches=Conv(3, 8, 2, 2), attention=attention, head=nn.Linear(8, 5))


@case({"attention.qkv": HEADS, "patches": 8})
def fused_attention() -> nn.Module:
    return _network(Attention())


@case({"attention.qkv": HEADS, "patches": 8})
def written_out_attention() -> nn.Module:
    return _network(Attention(written_out=True))


@case({"attention.qkv": HEADS, "patches": 8})
def attention_with_a_table_of_positions() -> nn.Module:
    return _network(Attention(table=True))


@case({"attention.qkv": HEADS, "patches": 8})
def written_out_attention_with_a_table() -> nn.Module:
    return _network(Attention(written_out=True, table=True))


def _separate(heads: int, groups: int, **options: Any) -> nn.Module:
    """Return attention with layers for queries, keys and values, whose numbers of heads are literals."""

    def run(m: Net, x: Tensor) -> Tensor:
        n, length, _ = x.shape
        q = m.q(x).view(n, length, heads, WIDTH).transpose(1, 2)
        k, v = (layer(x).view(n, length, groups, WIDTH).transpose(1, 2) for layer in (m.k, m.v))
        out = F.scaled_dot_product_attention(q, k, v, **options)
        return m.proj(out.transpose(1, 2).reshape(n, length, heads * WIDTH))

    layers = {name: nn.Linear(8, width * WIDTH) for name, width in (("q", heads), ("k", groups), ("v", groups))}
    return Net(run, **layers, proj=nn.Linear(heads * WIDTH, 8))


@case({"patches": 8}, {"attention.q": HEADS, "patches": 8})
def separate_queries_keys_and_values() -> nn.Module:
    return _network(_separate(HEADS, HEADS))


@case({"patches": 8}, {"attention.q": 2, "patches": 8})
def grouped_queries() -> nn.Module:
    return _network(_separate(HEADS, 2, enable_gqa=True))
