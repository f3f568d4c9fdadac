"""The memory that is free, and errors that say when it ran out."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from secateur.errors import SecateurError

USUAL = 3 << 29  # bytes, 1.5 GB
UNKNOWN = 2 << 30  # bytes, where the system does not say
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
GROUP_FILES = (  # of control groups, versions 2 and 1: the limit, what is used, and the cache among it
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)
SHORT = 4 << 30  # bytes
M_ARENA_MAX, M_MMAP_THRESHOLD = -8, -3  # of malloc.h
SIGNS = ("can't allocate memory", "can't start new thread", "bad_alloc")  # of a plain RuntimeError
ONEDNN = re.compile(r"could not (create|execute|initialize) a")  # of a plain RuntimeError that does not say why
SCARCE = 256 << 20  # bytes, below which errors without a reason are taken for a lack of memory
LESS_MEMORY = (
    "lower memory= (bytes; on the command line --memory, MB), use fewer samples or smaller inputs, or a method "
    "without second moments (pfp, ft)"
)


def free_memory(device: torch.device) -> int:
    """Return the bytes that this process can still use on a device, under the limits set for it.

    >>> free_memory(torch.device("cpu")) // 2**20
    6071
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return max(0, min([_available(), *_below_limits(), *_in_control_group()]))


def room(memory: int | None, device: torch.device | None = None) -> int:
    """Return the bytes for temporary arrays: as asked for, else half of the free memory, and no more than USUAL."""
    return min(USUAL, free_memory(device or torch.device("cpu")) // 2) if memory is None else memory


def out_of_memory(error: BaseException | None) -> SecateurError | None:
    """Return an error with a remedy if memory ran out in this one or in one that it was raised from, else None.

    >>> raise out_of_memory(error) or SecateurError(...) from error
    """
    seen = set[int]()
    while error is not None and id(error) not in seen:  # errors can come from each other in a circle
        seen.add(id(error))
        text = str(error)
        full = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if isinstance(error, RuntimeError):
            full = full or any(sign in text for sign in SIGNS)
        if full or (_may_be_memory(error) and free_memory(torch.device("cpu")) < SCARCE):
            asked = re.search(r"allocate (\d+) bytes", text)
            request = f" at a request for {megabytes(int(asked[1]))}" if asked else ""
            left = megabytes(free_memory(torch.device("cpu")))
            return SecateurError(
                f"memory ran out{request}; this process may use {left} more now", layer="memory", remedy=LESS_MEMORY
            )
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def memory_errors() -> Iterator[None]:
    """Use memory sparingly within a `with` block if it is short; where it runs out, raise an error with a remedy."""
    use_heap_sparingly()
    try:
        yield
    except Exception as error:
        if isinstance(error, SecateurError) and error.layer == "memory":
            raise
        clear = out_of_memory(error)
        if clear is None:
            raise
        raise clear from error


def use_heap_sparingly() -> None:
    """Let glibc give memory back, and reserve less of it, where it is short; it stays so in this process.

    Usually glibc keeps freed arrays of up to 32 MB for itself, in pieces that larger arrays do not fit into, and it
    reserves 64 MB of addresses for each of up to eight threads per core. That is faster, and takes more memory.
    """
    if sys.platform == "linux" and free_memory(torch.device("cpu")) < SHORT:
        with contextlib.suppress(OSError, AttributeError):  # another C library
            library = ctypes.CDLL(None)
            library.mallopt(M_ARENA_MAX, 1)
            library.mallopt(M_MMAP_THRESHOLD, 1 << 16)


def megabytes(count: float) -> str:
    """Return a number of bytes as text.

    >>> megabytes(178_257_920)
    '170 MB'
    """
    number = count / 2**20
    return f"{number:,.0f} MB" if number >= 10 else f"{number:.2g} MB"


def _may_be_memory(error: BaseException) -> bool:
    """Return whether an error that gives no reason is one that oneDNN raises where memory is lacking."""
    return isinstance(error, RuntimeError) and ONEDNN.search(str(error)) is not None


def _available() -> int:
    """Return the bytes that the system has left, with caches that it can drop."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = re.search(r"MemAvailable:\s+(\d+) kB", (PROC / "meminfo").read_text())
        if found:
            return int(found[1]) << 10
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return UNKNOWN


def _below_limits() -> Iterator[int]:
    """Return the bytes left below the limits of this process (`ulimit -v` and `-d`)."""
    if sys.platform == "win32":
        return
    import resource

    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = [int(number) for number in (PROC / "self/statm").read_text().split()]
        for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
            most = resource.getrlimit(limit)[0]
            if most != resource.RLIM_INFINITY:
                yield most - used * resource.getpagesize()


def _in_control_group() -> Iterator[int]:
    """Return the bytes left in the control group of this process, as containers have it."""
    for limit, used, cache in GROUP_FILES:
        with contextlib.suppress(OSError, ValueError):  # no such group, or "max"
            path = CGROUPS / limit
            most, now = int(path.read_text()), int((CGROUPS / used).read_text())
            found = re.search(rf"^{cache} (\d+)$", path.with_name("memory.stat").read_text(), re.MULTILINE)
            yield most - now + (int(found[1]) if found else 0)
