"""ONNX files in int8: integer weights with a scale for each channel, near to the network, calibrated on the samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import secateur as sc
from secateur.certificates import fingerprints
from secateur.embedded import digits, lenet5
from secateur.errors import UsageError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, sc.Export]:
    images, model = digits("calibration")[0], lenet5()
    path = tmp_path_factory.mktemp("int8") / "small.onnx"
    return model, sc.export(model, path, images[:1], data=list(images[:96].split(32)), int8=True, runs=20)


def test_the_file_is_small_and_near_to_the_network(quantized: tuple[nn.Module, sc.Export]) -> None:
    model, made = quantized
    assert made.int8 and made.bytes_after < 0.3 * made.bytes_before
    assert 0 < made.difference < 0.1 and "the error of int8" in str(made)
    images, _ = digits("test")
    network = sc.load_onnx(made.path)
    old, new = model(images).argmax(1), network(images).argmax(1)
    assert int((old != new).sum()) <= 10  # of 2,000
    cert = sc.certify(model, network, images, delta=1e-3)
    assert cert["disagreement"].bound is not None and cert["disagreement"].bound < 0.02


def test_weights_are_integers_of_seven_bits_with_a_scale_for_each_channel(
    quantized: tuple[nn.Module, sc.Export],
) -> None:
    model, made = quantized
    graph = onnx.load(made.path).graph
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    weights = model.state_dict()["conv2.weight"].numpy()
    (integers,) = (a for a in arrays.values() if a.dtype == np.int8 and a.shape == weights.shape)
    assert np.abs(integers.astype(int)).max() <= 64
    dequantize = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    scales = next(arrays[n.input[1]] for n in dequantize if n.input[0] in arrays and arrays[n.input[0]] is integers)
    assert scales.shape == (50,)
    assert np.abs(integers * scales[:, None, None, None] - weights).max() <= scales.max() / 2 + 1e-7


def test_a_file_remembers_its_calibration_samples(quantized: tuple[nn.Module, sc.Export]) -> None:
    used = set(fingerprints.remembered(sc.load_onnx(quantized[1].path)))
    assert used == set(fingerprints.of(digits("calibration")[0][:96]))


@pytest.mark.parametrize("more", [{"data": None}, {"to": "torch-export"}])
def test_int8_needs_samples_and_onnx(more: dict[str, Any], tmp_path: Path) -> None:
    given = {"data": torch.zeros(4, 1, 28, 28), "to": "onnx"} | more
    with pytest.raises(UsageError, match="int8 needs to='onnx' and calibration samples"):
        sc.export(lenet5(), tmp_path / "x", torch.zeros(1, 1, 28, 28), int8=True, **given)
    assert not list(tmp_path.iterdir())
