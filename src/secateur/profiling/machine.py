"""What identifies the machine of a measurement."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from secateur.optional import require
from secateur.profiling.table import Engine


def machine(engine: Engine) -> dict[str, str]:
    """Return the processor and the version of what was timed.

    >>> machine("torch")
    {'cpu': 'AMD EPYC', 'torch': '2.13.0+cpu'}
    """
    version = torch.__version__ if engine == "torch" else require(engine, install="'secateur[onnx]'").__version__
    return {"cpu": _cpu(), engine: str(version)}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
