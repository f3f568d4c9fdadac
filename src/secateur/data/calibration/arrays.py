"""Calibration data from files of arrays; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from secateur.data.calibration.request import LABELS, Calibration, Request, check_finite, wrong_shape
from secateur.errors import SecateurError, explained

INPUTS = ("x", "images")
ARRAYS = "store one array, or the arrays x and y, as .npy, .npz, .safetensors or with torch.save"


def from_array_file(path: Path, source: str, request: Request) -> Calibration:
    """Return the samples in a file that holds an array, a pair of arrays, or arrays by name."""
    with explained(f"{path} cannot be read", remedy=f"{ARRAYS}; files that run code are not opened"):
        found = READERS[path.suffix.lower()](path)
    where, x, y = str(path), found, None
    if isinstance(found, Mapping):
        name = next((name for name in INPUTS if name in found), next(iter(found), None))
        where = f"{path} (array {name!r})"
        x = found.get(name)
        y = next((found[label] for label in LABELS if label in found and label != name), None)
    elif isinstance(found, tuple | list) and len(found) == 2:
        x, y = found
    labels = None if y is None else _tensor(y, f"{path} (labels)")
    return from_arrays(_tensor(x, where), labels, where, source, request)


def from_arrays(x: Tensor, y: Tensor | None, where: str, source: str, request: Request) -> Calibration:
    """Return samples of inputs, and of labels if there are any."""
    total = len(x) if x.dim() else 0
    if not total:
        raise SecateurError(f"{where} has no samples", remedy="store at least one")
    if y is not None and (not y.dim() or len(y) != total):
        raise SecateurError(
            f"{where} has {total} samples and labels of shape {tuple(y.shape)}", remedy="store a label for each sample"
        )
    if not x.is_floating_point() and x.dtype != torch.uint8:
        raise SecateurError(
            f"{where} holds {x.dtype}, whose scale is not known",
            remedy="store bytes (uint8, 0 to 255) or floats as the network takes them",
        )
    chosen = request.choose(total)
    x = _channels_first(x, request.shape, where)[chosen]
    x = request.normalised(x.float() / 255 if x.dtype == torch.uint8 else x.float())
    check_finite(x, chosen, where)
    return request.batches(x, None if y is None else y[chosen], f"{source}{request.note}")


def _channels_first(x: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    """Return the samples in the layout of the network's input."""
    found = tuple(x.shape[1:])
    if found == shape:
        return x
    if len(shape) == 3 and shape[0] in (1, 3, 4) and found == (*shape[1:], shape[0]):
        return x.permute(0, 3, 1, 2)
    if len(shape) == 3 and shape[0] == 1 and found == shape[1:]:
        return x.unsqueeze(1)
    raise wrong_shape(where, found, shape)


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))  # torch has no byte orders
    except (AttributeError, TypeError):
        kind = getattr(value, "dtype", None) or type(value).__name__
        raise SecateurError(f"expected an array of numbers, {where} holds {kind}", remedy=ARRAYS) from None


def _numpy(path: Path) -> Any:
    with path.open("rb") as file:  # numpy does not close a file that it could not read
        zipped = file.read(2) == b"PK"
        file.seek(0)
        if zipped:
            with np.load(file, allow_pickle=False) as arrays:
                wanted = [name for name in arrays.files if name in (*INPUTS, *LABELS)] or arrays.files[:1]
                return {name: arrays[name] for name in wanted}
    return np.load(path, mmap_mode="c", allow_pickle=False)  # mapped, since only some of its samples are read


READERS: dict[str, Any] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".safetensors": load_file,
    ".pt": partial(torch.load, map_location="cpu", weights_only=True),
    ".pth": partial(torch.load, map_location="cpu", weights_only=True),
}
