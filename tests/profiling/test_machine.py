"""What identifies a machine."""

from __future__ import annotations

import torch

from secateur.profiling.machine import machine


def test_the_processor_and_the_version() -> None:
    found = machine("torch")
    assert found["cpu"] and found["torch"] == torch.__version__
