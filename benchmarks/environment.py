"""What every benchmark here needs: a quiet, reproducible torch, versions, and files written whole or not at all."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from torchvision_ops import declare_missing_ops

RESULTS = Path(__file__).resolve().parent.parent / "results"
PARTIAL = RESULTS / "partial"  # what a run has done so far, a line each, so that it can go on


def prepare(threads: int = 1) -> None:
    """Make torch quiet and single-threaded, and torchvision importable."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    declare_missing_ops()


def versions(*packages: str) -> dict[str, str]:
    """Give the version of each package; one that runs from its source tree says its own.

    >>> versions("numpy")
    {'numpy': '2.4.6'}
    """
    return {package: _version(package) for package in packages}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(importlib.import_module(package.replace("-", "_")).__version__)


def peak_mb() -> float:
    """Give the most memory this process ever held, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def progress_bar() -> Progress:
    """Give a bar that says what runs, how much is done, and how long it takes."""
    words = TextColumn("{task.description}")
    return Progress(words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    draft.replace(path)


def append_record(path: Path, record: dict[str, Any]) -> None:
    """Add one JSON line to a file of records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the JSON lines of a file; a line cut short by a stop is passed over."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records
