"""Tables of ONNX Runtime: layers are built and timed on their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import secateur as sc
from secateur.profiling.runtime import _layer_calls, _session

NETWORK = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2, padding=(1, 2)),
    nn.ReLU(),
    nn.Conv2d(8, 8, 3, groups=8),
    nn.Conv2d(8, 12, 1, dilation=1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(12, 5),
).eval()


def test_every_layer_runs_in_any_size() -> None:
    pytest.importorskip("onnxruntime")
    x = torch.rand(2, 3, 12, 10)
    calls = _layer_calls(NETWORK, x)
    assert list(calls) == ["0.weight", "2.weight", "3.weight", "6.weight"]
    outputs = {}
    with torch.no_grad():
        for name, layer in zip(calls, (NETWORK[0], NETWORK[2], NETWORK[3], NETWORK[6])):
            outputs[name] = layer(calls[name].input).shape
    for name, call in calls.items():
        full = (call.weight.shape[0], call.weight.shape[1])
        (found,) = _session(call, full)()
        assert found.shape == tuple(outputs[name]) and np.isfinite(found).all()
        smaller = (full[0] // 2, full[1] if call.groups > 1 else max(1, full[1] // 2))
        (found,) = _session(call, smaller)()
        assert found.shape[1] == smaller[0]


def test_a_table_of_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    torch.set_num_threads(1)
    table = sc.latency_table(NETWORK, torch.rand(1, 3, 12, 10), engine="onnxruntime")
    assert table.engine == "onnxruntime" and len(table.segments) == 4 and table.original_ms > 0
    assert table.machine is not None and table.machine["onnxruntime"]
