"""A recipe and data so small that a whole sweep takes seconds: real digits, few of them."""

from __future__ import annotations

import struct
from pathlib import Path

import torch
from torch import Tensor

from secateur.embedded import digits

RECIPE = """
name: small
network: zoo:lenet5-classic
data: mnist
batch: 32
train: {epochs: 2, lr: 0.05}
retrain: {epochs: 2, lr: 0.01}
prune: {points: 32, delta: 1.0e-12}
targets: [0.4, 0.7]
networks: 1
"""


def write_recipe(folder: Path, changes: str = "") -> Path:
    path = folder / "small.yaml"
    path.write_text(RECIPE)
    if changes:
        other = folder / "changed.yaml"
        other.write_text(f"extends: small\ndiffers: for a test\n{changes}")
        return other
    return path


def write_digits(root: Path) -> Path:
    """The embedded digits, as MNIST lies on the disk: 256 to train on, 128 to test on."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, part, count in (("train", "calibration", 256), ("t10k", "test", 128)):
        images, labels = digits(part)  # type: ignore[arg-type]
        _write(raw / f"{name}-images-idx3-ubyte", (images[:count, 0] * 255).round().to(torch.uint8))
        _write(raw / f"{name}-labels-idx1-ubyte", labels[:count].to(torch.uint8))
    return root


def _write(path: Path, values: Tensor) -> None:
    header = struct.pack(f">{1 + values.dim()}I", 0x800 + values.dim(), *values.shape)
    path.write_bytes(header + values.numpy().tobytes())
