"""Time the networks of a sweep, so that the page can show accuracy against latency."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from secateur.costs.timing import bench
from secateur.errors import SecateurError
from secateur.network.examples import revive
from secateur.progress import bar
from secateur.report.records import LATENCY, Records
from secateur.storage import checkpoint
from secateur.storage.files import read_json, write_json
from secateur.zoo.names import build

RUNS, THREADS = 30, 1


def measure_latency(records: Records, *, runs: int = RUNS, threads: int = THREADS, progress: bool = False) -> Path:
    """Time every pruned network of a sweep beside its original, and write the times into the folder of the run.

    Networks that are timed already are left out. Times depend on the machine and on what else it does: the file names
    the threads and the runs, and holds an interval for each network.

    Args:
        runs: of each network, interleaved with runs of the original.
        threads: of the CPU.
        progress: show a progress bar on the standard error stream.
    """
    path = records.folder / LATENCY
    known: dict[str, Any] = read_json(path) if path.is_file() else {}
    if (known.get("threads"), known.get("runs")) != (threads, runs):
        known = {"threads": threads, "runs": runs, "torch": str(torch.__version__), "networks": {}}
    left = [one["path"] for one in records.steps if one["path"] not in known["networks"]]
    original = build(str(records.recipe.get("network")))
    with bar("timing networks", len(left), progress) as advance:
        for name in left:
            file = records.folder / f"{name}.safetensors"
            if not file.is_file():
                raise SecateurError(f"there is no {file}", remedy="times need the networks that the sweep stored")
            small = checkpoint.load(file, original)
            found = bench(original, small, revive(checkpoint.read_plan(file).example), runs=runs, threads=threads)
            known["networks"][name] = {
                "kept": 1 / found.speedup,
                "low": 1 / found.high,
                "high": 1 / found.low,
                "ms": found.second.median_ms,
            }
            write_json(path, known)
            advance()
    write_json(path, known)
    return path
