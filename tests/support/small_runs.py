"""A recipe and data so small that a sweep takes seconds: a few real digits."""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from secateur.embedded import digits
from secateur.experiments import recipe as recipes
from secateur.experiments.recipe import Recipe
from secateur.experiments.sweep import Task

RECIPE = """
name: small
network: zoo:lenet5-classic
data: mnist
batch: 32
train: {epochs: 2, lr: 0.05}
retrain: {epochs: 2, lr: 0.01}
prune: {samples: 32, delta: 1.0e-12}
targets: [0.4, 0.7]
networks: 1
"""

HOLD = """
import sys, time
from pathlib import Path
from secateur.experiments.lock import only_run
with only_run(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def write_recipe(folder: Path, changes: str = "") -> Path:
    path = folder / "small.yaml"
    path.write_text(RECIPE)
    if changes:
        other = folder / "changed.yaml"
        other.write_text(f"extends: small\ndiffers: for a test\n{changes}")
        return other
    return path


def write_digits(root: Path, train: int = 256, test: int = 128) -> Path:
    """Write embedded digits in the layout of MNIST."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, part, count in (("train", "calibration", train), ("t10k", "test", test)):
        images, labels = digits(part)  # type: ignore[arg-type]
        _write(raw / f"{name}-images-idx3-ubyte", (images[:count, 0] * 255).round().to(torch.uint8))
        _write(raw / f"{name}-labels-idx1-ubyte", labels[:count].to(torch.uint8))
    return root


def small(folder: Path, changes: str = "") -> Recipe:
    folder.mkdir(exist_ok=True, parents=True)
    return recipes.read(write_recipe(folder, "train: {epochs: 1}\nretrain: {epochs: 1}\nnetworks: 2\n" + changes))


def fingerprints(folder: Path) -> dict[str, str]:
    """Return a hash of every result file; logs contain times and differ."""
    files = [path for path in (folder / "network-0").rglob("*") if path.suffix in (".json", ".safetensors")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Fragile(Task):
    """A task whose worker dies at the first attempt."""

    def run(self, threads: int, progress: bool = False) -> str:
        mark = self.folder / f"died-{self.network}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().run(threads, progress)


def _write(path: Path, values: Tensor) -> None:
    header = struct.pack(f">{1 + values.dim()}I", 0x800 + values.dim(), *values.shape)
    path.write_bytes(header + values.numpy().tobytes())


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process that holds the lock of a folder."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()
