"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from secateur.errors import SecateurError

LEFTOVER_SECONDS = 3600.0


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside the file, flush it to the disk, then rename: a reader sees the old file or the new one.

    >>> write_whole(Path("record.json"), '{"step": 3}')

    What a killed writer left beside the file is removed by a later one, an hour after.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _remove_leftovers(path)
        try:
            with beside.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise SecateurError(
            f"{path} cannot be written: {type(error).__name__}: {error}",
            remedy="check the folder, the free space and the permissions there",
        ) from error
    with contextlib.suppress(OSError):  # not every system can flush a folder; the file is whole in any case
        _flush_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()


def _flush_folder(folder: Path) -> None:
    """Make a renaming last through a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, the same text for the same data."""
    write_whole(path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SecateurError(f"{path} cannot be read: {error}", remedy="remove the file to have it made anew") from error
