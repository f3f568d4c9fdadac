"""Atomic writes: a file is replaced completely or not at all."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from secateur.errors import SecateurError, UsageError, explained

LEFTOVER_SECONDS = 3600.0


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a path; raise an error for another object, such as a model in its place."""
    if not isinstance(path, str | os.PathLike):
        raise UsageError(
            f"expected the path of a file, got an object of type {type(path).__name__}",
            remedy="pass the path first: save(path, result), load(path, model)",
        )
    return Path(path)


def writable_file(path: str | Path) -> Path:
    """Return the file that a path names: a regular file or a new name, with symbolic links followed.

    >>> writable_file("link-to-small.safetensors")
    PosixPath('/home/me/small.safetensors')

    A device, pipe, socket or folder is refused: a rename would replace it by a file.
    """
    path = as_path(path)
    with explained(f"{path} cannot be written", remedy="check the links and permissions on the way to it"):
        file = path.resolve()
        if not file.parent.is_dir():
            raise SecateurError(f"there is no folder {file.parent}", remedy="create it first, or save somewhere else")
        if file.exists() and not file.is_file():
            kind = "a folder" if file.is_dir() else "a device, pipe or socket"
            raise SecateurError(
                f"{path} is {kind}, and would be replaced by a file", remedy="name a regular file, or a new one"
            )
    return file


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader finds the old content or the new one, even after a kill or a power failure.

    >>> write_atomic(Path("record.json"), '{"step": 3}')

    The content goes to a temporary file in the same folder, is flushed to the disk and renamed. A temporary file that
    a killed process left behind is removed by the next write that comes at least an hour later. A symbolic link stays:
    the file that it points to is replaced. Only regular files are, see `writable_file`.
    """
    path = writable_file(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explained(f"{path} cannot be written", remedy="check the folder, its permissions and the free space"):
        _remove_leftovers(path)
        try:
            with temporary.open("xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not every system can flush a folder; the file is complete in any case
        _flush_folder(path.parent)


def _remove_leftovers(path: Path) -> None:
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 32}.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > LEFTOVER_SECONDS:
                leftover.unlink()


def _flush_folder(folder: Path) -> None:
    """Make a renaming survive a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON; equal data gives equal bytes."""
    write_atomic(path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the data that `write_json` wrote."""
    with explained(f"{path} cannot be read", remedy="remove the file; it will be written again"):
        return json.loads(path.read_text())
