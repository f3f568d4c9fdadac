"""What a training run tells while it runs: a bar on the screen, lines in a file, curves in TensorBoard."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from secateur.errors import SecateurError, UsageError

BETWEEN = 0.25  # seconds between two looks at the losses


class Journal:
    """One JSON line per epoch, appended whole; with `tensorboard`, curves in the same folder."""

    def __init__(self, log: Path | None, tensorboard: bool = False) -> None:
        if tensorboard and log is None:
            raise UsageError("tensorboard has no folder", remedy="give log= the folder it should write to")
        self._file: Path | None = log
        self._writer: Any = None
        if tensorboard and log is not None:
            self._writer = _tensorboard(log)
        if log is not None and (tensorboard or log.is_dir()):
            self._file = log / "log.jsonl"
        if self._file is not None and not self._file.parent.is_dir():
            raise UsageError(f"log: there is no folder {self._file.parent}", remedy="make it first")

    def catch_up(self, records: list[dict[str, Any]]) -> None:
        """Add the lines that a killed run had no time to write, and drop half a line."""
        if self._file is None or not records:
            return
        text = self._file.read_bytes() if self._file.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        if whole != text:
            self._file.write_bytes(whole)
        try:
            last = int(json.loads(whole.splitlines()[-1])["epoch"]) if whole else 0
        except (ValueError, KeyError, TypeError) as error:
            raise SecateurError(f"{self._file} is no log of a training run", remedy="give another log") from error
        for record in records[last:]:
            self.write(record)

    def write(self, record: dict[str, Any]) -> None:
        """Add an epoch."""
        if self._file is not None:
            with self._file.open("ab", buffering=0) as file:
                file.write(json.dumps(_plain(record), allow_nan=False).encode() + b"\n")
        if self._writer is not None:
            for name, value in _curves(record).items():
                self._writer.add_scalar(name, value, record["epoch"])
            self._writer.flush()

    def close(self) -> None:
        """Let go of the files."""
        if self._writer is not None:
            self._writer.close()


class Bar:
    """Epoch, loss, images per second and the time left, on the standard error stream."""

    def __init__(self, shown: bool, epochs: int, done: int, batches: int | None) -> None:
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        total = epochs * batches if batches else None
        self._batches = batches or 0
        self._task: TaskID = self._progress.add_task(
            "", total=total, completed=done * self._batches, epoch=done, epochs=epochs, loss=math.nan, speed=0.0
        )
        self._looked = time.perf_counter()

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def due(self) -> bool:
        """Whether it is time to look again."""
        now = time.perf_counter()
        if now - self._looked < BETWEEN:
            return False
        self._looked = now
        return True

    def show(self, epoch: int, batches: int, loss: float, speed: float) -> None:
        """Move to so many batches of an epoch, counted from 0."""
        done = epoch * self._batches + batches
        self._progress.update(self._task, completed=done, epoch=epoch + 1, loss=loss, speed=speed)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise SecateurError("TensorBoard is not installed", remedy="pip install tensorboard") from error
    folder.mkdir(parents=True, exist_ok=True)
    return SummaryWriter(str(folder))


def _curves(record: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number of a record under its name; those of the validation under validation/."""
    curves: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            curves |= _curves(value, f"{name}/")
        elif value is not None and name not in ("epoch", "points"):
            curves[prefix + name] = value
    return curves


def _plain(value: Any) -> Any:
    """What JSON can hold."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
