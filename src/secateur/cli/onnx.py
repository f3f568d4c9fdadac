"""ONNX files, run in onnxruntime beside networks of torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.errors import SecateurError, explained
from secateur.network.batches import Call
from secateur.optional import require
from secateur.storage.onnx_network import INSTALL, load_onnx

TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(int64)": torch.int64,
    "tensor(int32)": torch.int32,
    "tensor(uint8)": torch.uint8,
    "tensor(bool)": torch.bool,
}


def open_onnx(path: str) -> Any:
    """Return a session of onnxruntime for a file, with torch's number of threads."""
    return load_onnx(path).session


def onnx_example(path: str, session: Any) -> tuple[Tensor, ...]:
    """Return an input of zeros in the shapes that the file names, with 1 where a size is free."""
    inputs = session.get_inputs()
    for one in inputs:
        if one.type not in TYPES:
            raise SecateurError(
                f"{path} takes a {one.type}", layer=one.name, remedy="time it beside its original in torch"
            )
    return tuple(
        torch.zeros([size if isinstance(size, int) else 1 for size in one.shape], dtype=TYPES[one.type])
        for one in inputs
    )


def onnx_layers(path: str) -> list[dict[str, Any]]:
    """Return the nodes of a file that have weights: the name and shape of the largest, and the number of all values."""
    onnx = require("onnx", install=INSTALL)
    with explained(f"{path} cannot be read as ONNX", remedy="write it again with secateur export"):
        graph = onnx.load(path, load_external_data=False).graph
    sizes = {one.name: tuple(one.dims) for one in graph.initializer if one.data_type != onnx.TensorProto.INT64}
    layers = []
    for node in graph.node:
        weights = [name for name in node.input if name in sizes]
        if weights:
            largest = max(weights, key=lambda name: math.prod(sizes[name]))
            values = sum(math.prod(sizes.pop(name)) for name in {*weights} - {largest}) + math.prod(sizes[largest])
            layers.append(
                {"weight": largest, "operator": node.op_type, "shape": sizes.pop(largest), "parameters": values}
            )
    return layers


def onnx_sizes(inputs_or_outputs: Any) -> dict[str, list[int | str]]:
    """Return the shapes of the inputs or outputs of a session by name; a size that is free has a name."""
    return {one.name: [size if isinstance(size, int) else str(size) for size in one.shape] for one in inputs_or_outputs}


def onnx_pass(path: str, session: Any, call: Call) -> Callable[[], Any]:
    """Return a function that runs one forward pass of a file on the tensors of a call, in the order of its inputs."""
    tensors = [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]
    names = [one.name for one in session.get_inputs()]
    if len(names) != len(tensors):
        raise SecateurError(
            f"{path} takes {len(names)} inputs, and there are {len(tensors)}", remedy="use one --input for each input"
        )
    fed = {name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors)}

    def run() -> Any:
        return session.run(None, fed)

    sizes = ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
    with explained(f"{path} fails on an input of shape {sizes}", remedy="use --input and --batch as it was exported"):
        run()
    return run
