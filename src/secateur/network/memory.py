"""The memory that is free."""

from __future__ import annotations

import os

import torch

UNKNOWN = 2 << 30  # bytes, where the system does not say


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device.

    >>> free_memory(torch.device("cpu")) // 2**20
    6071
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return UNKNOWN
