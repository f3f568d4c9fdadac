"""Quantize an ONNX file to int8 with onnxruntime: static, per channel, calibrated on the user's samples."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from secateur._torch import pytree
from secateur.errors import explained
from secateur.network.batches import Call
from secateur.optional import require
from secateur.storage.onnx_network import INSTALL


def int8_content(content: bytes, names: Sequence[str], calls: Sequence[Call]) -> bytes:
    """Return the bytes of an ONNX file with int8 weights and activations.

    Weights have a scale for each channel and seven bits, since processors without VNNI instructions add pairs of
    eight-bit products with saturation. Activations have eight bits, in the range that the calls show.

    Args:
        content: the file in single precision.
        names: of its inputs.
        calls: the calibration samples, in batches that the file accepts.
    """
    quantization = require("onnxruntime.quantization", install=INSTALL)

    base: Any = quantization.CalibrationDataReader

    class Reader(base):
        def __init__(self) -> None:
            self.left = iter(calls)

        def get_next(self) -> dict[str, Any] | None:
            call = next(self.left, None)
            if call is None:
                return None
            tensors = [leaf for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]
            return {name: leaf.detach().cpu().numpy() for name, leaf in zip(names, tensors, strict=True)}

    remedy = "nothing was written; export without int8, or to another runtime that quantizes"
    with explained("onnxruntime cannot quantize it", remedy=remedy), _quiet(), tempfile.TemporaryDirectory() as folder:
        given, prepared, small = (Path(folder) / f"{name}.onnx" for name in ("given", "prepared", "int8"))
        given.write_bytes(content)
        quantization.quant_pre_process(given, prepared, skip_symbolic_shape=True)
        quantization.quantize_static(
            prepared,
            small,
            Reader(),
            per_channel=True,
            reduce_range=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )
        return small.read_bytes()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the hints that the quantizer logs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
