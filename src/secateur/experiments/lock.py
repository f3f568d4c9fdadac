"""One process at a time in the folder of a run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from secateur.errors import SecateurError, explained

try:
    import fcntl
except ImportError:  # Windows has other locks
    fcntl = None  # type: ignore[assignment]

NAME = "run.lock"


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder within a `with` block; raise an error if another process holds it.

    >>> with only_run(Path("runs/lenet5-quick")):
    ...     ...

    The file `run.lock` names the owner: process, host and time. The kernel ends the lock of a process that dies, so a
    file that a killed run left behind on this machine is taken over. One of another machine, whose processes are not
    known here, is not. On Windows, which has no such locks, nothing is checked.
    """
    if fcntl is None:
        yield
        return
    path = folder / NAME
    with explained(f"{path} cannot be written", remedy="check the folder, its permissions and the free space"):
        folder.mkdir(parents=True, exist_ok=True)
        file = _acquire(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()  # which ends the lock


def _acquire(path: Path) -> IO[str]:
    """Return the lock file, open, locked, and with this process as its owner."""
    file = path.open("a+")
    try:
        while not _locked(path, file):
            file.close()
            file = path.open("a+")
        owner, host = _owner(file), socket.gethostname()
        if owner.get("host", host) != host:
            raise _in_use(path, owner, f"if no run is left on that machine, remove {path}")
        file.truncate(0)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.write(json.dumps({"pid": os.getpid(), "host": host, "started": now}) + "\n")
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def _locked(path: Path, file: IO[str]) -> bool:
    """Lock the file; return False if its owner removed it before that, since others now lock another one."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except BlockingIOError:
        raise _in_use(path, _owner(file), "wait for it, stop it, or use another folder") from None
    except FileNotFoundError:
        return False


def _owner(file: IO[str]) -> dict[str, Any]:
    """Return what the file says about its owner; nothing if it is not complete."""
    file.seek(0)
    try:
        found = json.loads(file.read(10_000))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(path: Path, owner: dict[str, Any], remedy: str) -> SecateurError:
    by = f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('started')}" if owner else "a process"
    return SecateurError(f"the run in {path.parent} is in use by {by}", remedy=remedy)
