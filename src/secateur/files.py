"""Files that are written whole or not at all."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from secateur.errors import SecateurError


def write_whole(path: Path, content: bytes | str) -> None:
    """Write beside the file, flush it to the disk, then rename: a reader sees the old file or the new one.

    >>> write_whole(Path("record.json"), '{"step": 3}')
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
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


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, the same text for the same data."""
    write_whole(path, json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SecateurError(f"{path} cannot be read: {error}", remedy="remove the file to have it made anew") from error


def tensor_file(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a safetensors file, the same for the same content: the library itself shuffles the metadata."""
    data = safetensors.torch.save(tensors, dict(metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + data[end:]
