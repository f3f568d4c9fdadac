"""Progress of a training run: a bar on the screen, a log file, and curves in TensorBoard."""

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
from secateur.optional import require
from secateur.progress import NotebookBar, in_notebook

INTERVAL = 0.25  # seconds between two updates of the bar


class Journal:
    """A log with one JSON line per epoch; with `tensorboard`, curves in the same folder."""

    def __init__(self, log: Path | None, tensorboard: bool = False) -> None:
        if tensorboard and log is None:
            raise UsageError("tensorboard has no folder", remedy="pass the folder for its files as log=")
        self._file: Path | None = log
        self._writer: Any = None
        if tensorboard and log is not None:
            writer = require("torch.utils.tensorboard", install="tensorboard").SummaryWriter
            log.mkdir(parents=True, exist_ok=True)
            self._writer = writer(str(log))
        if log is not None and (tensorboard or log.is_dir()):
            self._file = log / "log.jsonl"
        if self._file is not None and not self._file.parent.is_dir():
            raise UsageError(f"log: there is no folder {self._file.parent}", remedy="create it first")

    def catch_up(self, records: list[dict[str, Any]]) -> None:
        """Add lines that a killed run did not write, and remove an incomplete one."""
        if self._file is None or not records:
            return
        text = self._file.read_bytes() if self._file.exists() else b""
        complete = text[: text.rfind(b"\n") + 1]
        if complete != text:
            self._file.write_bytes(complete)
        try:
            last = int(json.loads(complete.splitlines()[-1])["epoch"]) if complete else 0
        except (ValueError, KeyError, TypeError) as error:
            raise SecateurError(f"{self._file} is not the log of a training run", remedy="use another log") from error
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
        """Close the files."""
        if self._writer is not None:
            self._writer.close()


class Bar:
    """A progress bar with epoch, loss, images per second and remaining time; in a notebook, in the cell's output."""

    def __init__(self, shown: bool, epochs: int, done: int, batches: int | None) -> None:
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  {task.fields[speed]:,.0f} images/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown or in_notebook(),
        )
        total = epochs * batches if batches else None
        self._in_cell = NotebookBar(f"{epochs} epochs", total) if shown and in_notebook() else None
        self._batches = batches or 0
        self._task: TaskID = self._progress.add_task(
            "", total=total, completed=done * self._batches, epoch=done, epochs=epochs, loss=math.nan, speed=0.0
        )
        self._updated = time.perf_counter()

    def __enter__(self) -> Bar:
        self._progress.start()
        if self._in_cell:
            self._in_cell.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()
        if self._in_cell:
            self._in_cell.__exit__(kind, error, at)

    def due(self) -> bool:
        """Return whether the bar should be updated."""
        now = time.perf_counter()
        if now - self._updated < INTERVAL:
            return False
        self._updated = now
        return True

    def show(self, epoch: int, batches: int, loss: float, speed: float) -> None:
        """Show the number of finished batches in an epoch, counted from 0."""
        done = epoch * self._batches + batches
        self._progress.update(self._task, completed=done, epoch=epoch + 1, loss=loss, speed=speed)
        if self._in_cell:
            self._in_cell.show(done, f"epoch {epoch + 1}, loss {loss:.4f}, {speed:,.0f} images/s")


def _curves(record: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Return every number of a record by name; those of the validation as validation/NAME."""
    curves: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            curves |= _curves(value, f"{name}/")
        elif value is not None and name not in ("epoch", "samples"):
            curves[prefix + name] = value
    return curves


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: NaN and infinity become null."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
