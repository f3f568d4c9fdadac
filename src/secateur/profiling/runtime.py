"""Measure a latency table in ONNX Runtime: each layer is timed on its own, in several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from secateur.channels.graph import ChannelGraph
from secateur.costs.timing import forward_pass, use_threads
from secateur.network.examples import Example, describe
from secateur.network.layer_calls import LayerCall
from secateur.network.modules import unwrap
from secateur.network.observer import LayerObserver
from secateur.optional import require
from secateur.profiling.machine import machine
from secateur.profiling.measure import MULTIPLES, SIZE, TRIED, fastest, free_multiples, most_liked, shapes_of, sides_of
from secateur.profiling.table import LatencyTable, Segment, Sides
from secateur.progress import bar
from secateur.storage.export import onnx_pass
from secateur.storage.onnx_network import INSTALL, onnx_session

PARTS = (1.0, 0.5, 0.25)  # of the channels on each side of a layer
RUNS = 7
WHOLE_RUNS = 10


def measure_onnxruntime(
    model: nn.Module,
    graph: ChannelGraph,
    example: Example,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> LatencyTable:
    """Return the table of a network in ONNX Runtime, on this machine, for inputs like the example.

    A layer is timed with a ReLU behind it, which the runtime fuses as it fuses the norms. What is no convolution or
    linear layer counts as constant.
    """
    model = unwrap(model)
    require("onnx", install=INSTALL)
    prunable = {slot.parameter for group in graph.prunable for slot in group.slots}
    with use_threads(threads) as used:
        run = onnx_pass(model, example)
        run()
        whole = 1e3 * fastest({0: run}, seconds=0.0, least=WHOLE_RUNS)[0]
        calls = _layer_calls(model, example)
        known: dict[tuple[Any, ...], float] = {}

        def ms(call: LayerCall, sides: Sides) -> float:
            key = _identity(call, sides)
            if key not in known:
                known[key] = 1e3 * fastest({0: _session(call, sides)}, seconds=0.0, least=RUNS)[0]
            return known[key]

        full = {name: ms(call, sides_of(tuple(call.weight.shape))) for name, call in calls.items()}
        plain = [name for name, call in calls.items() if call.groups == 1 and call.weight.shape[0] >= SIZE]
        slowest = sorted(plain, key=lambda name: -full[name])[:TRIED]
        sizes = (SIZE, *(SIZE - one + 1 for one in MULTIPLES))
        each = [
            fastest({size: _session(calls[name], (size, calls[name].weight.shape[1])) for size in sizes})
            for name in slowest
        ]
        multiple = most_liked([free_multiples(best) for best in each])
        segments = []
        with bar("timing layers", len(calls), progress) as advance:
            for name, call in calls.items():
                shape = sides_of(tuple(call.weight.shape))
                sides = _sizes(call, shape, multiple) if name in prunable else [shape]
                segments.append(Segment.fit(name, shape, sides, [ms(call, one) for one in sides]))
                advance()
    return LatencyTable(
        segments=tuple(segments),
        original_ms=whole,
        multiple=multiple,
        network=type(model).__name__,
        shapes=shapes_of(model),
        input=describe(example),
        engine="onnxruntime",
        threads=used,
        machine=machine("onnxruntime"),
        networks=len(PARTS) ** 2,
        error=abs(sum(full.values()) / whole - 1),
    )


def _layer_calls(model: nn.Module, example: Example) -> dict[str, LayerCall]:
    """Return the first call of every convolution and linear layer."""
    found: dict[str, LayerCall] = {}

    def act(layer: LayerCall, call: Any) -> Any:
        if layer.refittable and not layer.transposed:
            found.setdefault(layer.name, layer)
        return call.run()

    with forward_pass(model, example) as run, LayerObserver(model, act):
        run()
    return found


def _sizes(call: LayerCall, full: Sides, multiple: int) -> list[Sides]:
    """Return the sizes that a layer is timed in; the groups of a depthwise one follow its outputs."""

    def parts(side: int) -> list[int]:
        return sorted({min(side, max(1, round(side * part / multiple) * multiple)) for part in PARTS}, reverse=True)

    if call.groups == 1:
        return [(o, i) for o in parts(full[0]) for i in parts(full[1])]
    return [(o, full[1]) for o in parts(full[0])] if call.groups == full[0] else [full]


def _identity(call: LayerCall, sides: Sides) -> tuple[Any, ...]:
    shape = tuple(call.input.shape[2:]) if not call.linear else tuple(call.input.shape[:-1])
    return (
        sides,
        shape,
        call.kernel,
        call.stride,
        call.dilation,
        call.padding,
        call.groups,
        call.linear,
        len(call.input),
    )


def _session(call: LayerCall, sides: Sides) -> Callable[[], Any]:
    """Return a function that runs a layer of this size in ONNX Runtime, with a ReLU behind it."""
    onnx = require("onnx", install=INSTALL)
    make, rng = onnx.helper, np.random.default_rng(0)
    outputs, inputs = sides
    groups = outputs if call.groups > 1 and call.groups == call.weight.shape[0] else call.groups
    if call.linear:
        x = rng.standard_normal((*call.input.shape[:-1], inputs), np.float32)
        weight = rng.standard_normal((inputs, outputs), np.float32)
        node = make.make_node("MatMul", ["x", "w"], ["y"])
    else:
        x = rng.standard_normal((call.input.shape[0], inputs * groups, *call.input.shape[2:]), np.float32)
        weight = rng.standard_normal((outputs, inputs, *call.weight.shape[2:]), np.float32)
        before, after = call.padding[-2::-2], call.padding[::-2]  # F.pad begins with the last axis
        options = {"strides": list(call.stride), "dilations": list(call.dilation), "group": groups}
        node = make.make_node("Conv", ["x", "w", "b"], ["y"], pads=[*before, *after], **options)
    constants = [("w", weight), ("b", rng.standard_normal(outputs, np.float32))]
    kind = onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [node, make.make_node("Relu", ["y"], ["z"])],
        "layer",
        [make.make_tensor_value_info("x", kind, x.shape)],
        [make.make_tensor_value_info("z", kind, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants],
    )
    proto = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    session = onnx_session(proto.SerializeToString())

    def run() -> Any:
        return session.run(None, {"x": x})

    run()
    return run
