"""Samples that do not fit into memory: written to temporary files and mapped, so that the system reads what is used."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Any, TypeVar

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.errors import explained
from secateur.network.batches import count_bytes
from secateur.network.memory import free_memory

PART = 4  # one part in four of the free memory is for samples

T = TypeVar("T")


class Spill:
    """Keeps batches in memory while there is room, and the others on disk.

    >>> spill = Spill()
    >>> batches = [spill.kept(batch) for batch in loader]
    """

    def __init__(self) -> None:
        self.left = free_memory(torch.device("cpu")) // PART

    def kept(self, batch: T) -> T:
        """Return the batch, on disk if it does not fit."""
        size = count_bytes(batch)
        if size <= self.left:
            self.left -= size
            return batch
        found: T = pytree.tree_map(_mapped, batch)
        return found


def _mapped(leaf: Any) -> Any:
    """Return a tensor with the same values that is mapped from a file without a name, which ends with the tensor."""
    if not isinstance(leaf, Tensor) or leaf.device.type != "cpu" or not leaf.numel() or leaf.layout != torch.strided:
        return leaf
    folder = tempfile.gettempdir()
    with explained(
        f"a batch of samples that do not fit into memory cannot be kept in {folder}",
        layer="data",
        remedy="free space there, set TMPDIR to another folder, or use fewer samples (samples=)",
    ):
        file, name = tempfile.mkstemp(prefix="secateur-", dir=folder)
        try:
            with os.fdopen(file, "wb") as out:
                out.write(leaf.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            return torch.from_file(name, shared=False, size=leaf.numel(), dtype=leaf.dtype).view(leaf.shape)
        finally:
            with contextlib.suppress(OSError):  # some systems keep a file that is mapped
                os.unlink(name)
