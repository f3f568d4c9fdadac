"""The outside of a safetensors file: its header, checked before anything in it is believed, and its checksums.

A file is eight bytes that count the header, the header (JSON), and the tensors' bytes without a gap. What a header
claims is held against the size of the file before memory is given to it, and no tensor is read before the caller has
seen the header. docs/files.md says what a reader must check.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from secateur.errors import SecateurError, UsageError
from secateur.program import first_line

HEADER_LIMIT = 2**25  # bytes; that of a DenseNet201 with its sensitivities has 3.4 million
DEPTH_LIMIT = 32  # brackets within brackets
PARTS_LIMIT = 10**6  # lists, objects and keys
MARKS_LIMIT = 4 * 10**6  # commas; quotes
NAME_LIMIT, AXES_LIMIT = 1000, 64
TENSORS, METADATA = "tensor_checksum", "metadata_checksum"
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NO_BRACKET = re.compile(r"[^\[\]{}]++")


@dataclass(frozen=True)
class Entry:
    """What the header says of one tensor."""

    kind: str
    shape: tuple[int, ...]
    begin: int  # bytes from the end of the header
    end: int

    @property
    def dtype(self) -> torch.dtype:
        return TYPES[self.kind]


@dataclass(frozen=True)
class Header:
    """A header that has been checked against the size of its file."""

    metadata: dict[str, str]
    entries: dict[str, Entry]
    raw: bytes  # with the eight bytes before it


def read_header(path: Path) -> Header:
    """Read and check the header of a file; the tensors stay unread.

    >>> read_header(Path("small.safetensors")).entries["conv1.weight"].shape
    (20, 3, 3, 3)
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy="give the path of a file that save wrote")
    try:
        with path.open("rb") as file:
            return _header(file, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise _not_whole(path, error) from error


def read_tensors(path: Path, header: Header, *, sealed: bool = True) -> dict[str, Tensor]:
    """Read the tensors that a header announces.

    >>> read_tensors(path, read_header(path))

    sealed: demand that their checksum is the one in the metadata.
    """
    size = len(header.raw) + max((entry.end for entry in header.entries.values()), default=0)
    try:
        with path.open("rb") as file:
            data = file.read(size + 1)
        if len(data) != size or not data.startswith(header.raw):
            raise ValueError("it has changed while it was read")
        body = memoryview(data)[len(header.raw) :]
        if sealed and header.metadata.get(TENSORS) != tensor_checksum(header.entries, body):
            raise SecateurError(
                f"{path} is damaged: its tensors do not have the checksum in its {TENSORS}",
                remedy="copy it again, or save it again",
            )
        for name, entry in header.entries.items():
            if entry.kind == "BOOL" and any(value > 1 for value in body[entry.begin : entry.end]):
                raise ValueError(f"{name} holds truth values other than 0 and 1")
        return safetensors.torch.load(data)
    except SecateurError:
        raise
    except Exception as error:
        raise _not_whole(path, error) from error


def check_metadata(path: Path, header: Header) -> None:
    """Refuse a file whose metadata do not have the checksum in them."""
    if header.metadata.get(METADATA) != metadata_checksum(header.metadata):
        raise SecateurError(
            f"{path} is damaged: its metadata do not have the checksum in its {METADATA}",
            remedy="copy it again, or save it again",
        )


def pack(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file with its checksums, the same for the same content.

    >>> write_whole(Path("small.safetensors"), pack(small.state_dict(), {"secateur": "2"}))
    """
    data = memoryview(safetensors.torch.save(tensors))
    end = 8 + int.from_bytes(data[:8], "little")
    entries = json.loads(bytes(data[8:end]))
    if wrong := [entry["dtype"] for entry in entries.values() if entry["dtype"] not in TYPES]:
        raise ValueError(f"tensors of type {wrong[0]} are not stored")
    made = seal({"__metadata__": dict(metadata), **entries}, data[end:])
    _header(io.BytesIO(made), len(made))  # what is written can be read
    return made


def seal(header: Mapping[str, Any], body: bytes | memoryview) -> bytes:
    """Put a header and the tensors' bytes together, the checksums made anew."""
    entries = {name: _entry(value) for name, value in header.items() if name != "__metadata__"}
    metadata = {**header["__metadata__"], TENSORS: tensor_checksum(entries, memoryview(body))}
    metadata[METADATA] = metadata_checksum(metadata)
    text = json.dumps({**header, "__metadata__": dict(sorted(metadata.items()))}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    return b"".join([len(text).to_bytes(8, "little"), text, body])


def tensor_checksum(entries: Mapping[str, Entry], body: memoryview) -> str:
    """blake2b over every tensor in order of name: a line of JSON with name, type and shape, then its bytes."""
    found = hashlib.blake2b(digest_size=32)
    for name, entry in sorted(entries.items()):
        found.update(json.dumps([name, entry.kind, list(entry.shape)], separators=(",", ":")).encode() + b"\n")
        found.update(body[entry.begin : entry.end])
    return found.hexdigest()


def metadata_checksum(metadata: Mapping[str, str]) -> str:
    """blake2b over the metadata without this checksum, as JSON in ASCII, in order of key, without spaces."""
    rest = {key: value for key, value in metadata.items() if key != METADATA}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def parse(text: str) -> Any:
    """Read JSON that may be hostile: its depth and its parts are bounded, keys are unique, numbers are finite.

    >>> parse('{"a": 1, "a": 2}')
    ValueError: the key 'a' stands twice
    """
    if text.count('"') > MARKS_LIMIT:
        raise ValueError(f"more than {MARKS_LIMIT} quotes")
    bare = _STRING.sub("", text)
    if bare.count("[") + bare.count("{") + bare.count(":") > PARTS_LIMIT or bare.count(",") > MARKS_LIMIT:
        raise ValueError(f"more than {PARTS_LIMIT} lists, objects and keys, or {MARKS_LIMIT} commas")
    brackets = _NO_BRACKET.sub("", bare)
    codes = np.frombuffer(brackets.encode(), dtype=np.uint8)
    if len(codes) and np.where((codes == ord("[")) | (codes == ord("{")), 1, -1).cumsum().max() > DEPTH_LIMIT:
        raise ValueError(f"lists and objects are nested more than {DEPTH_LIMIT} deep")
    return json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)


def shown(name: object) -> str:
    """Something from a file, fit to be shown in an error: short, and without control characters."""
    text = str(name)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _header(file: BinaryIO, size: int) -> Header:
    count = file.read(8)
    length = int.from_bytes(count, "little")
    if len(count) < 8 or length > size - 8:
        raise ValueError(f"it has {size} bytes, its header alone should have {length}")
    if length > HEADER_LIMIT:
        raise ValueError(f"its header has {length} bytes, {HEADER_LIMIT} are allowed")
    raw = file.read(length)
    header = parse(raw.decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata are not texts by name")
    entries = {name: _entry(value) for name, value in header.items()}
    place = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if not name.isprintable() or len(name) > NAME_LIMIT:
            raise ValueError(f"a tensor has the name {shown(name)}")
        if entry.begin != place:
            raise ValueError(f"{shown(name)} begins at byte {entry.begin}, the tensor before it ends at {place}")
        place = entry.end
    if place != size - 8 - length:
        raise ValueError(f"its tensors should have {place} bytes, there are {size - 8 - length}")
    return Header(metadata, entries, count + raw)


def _entry(value: Any) -> Entry:
    """What the header says of a tensor, if its place in the file is as long as its type and shape ask for."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"a tensor is described by {shown(value)}")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise ValueError(f"a tensor has the type {shown(kind)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise ValueError(f"a tensor lies at {shown(offsets)}")
    begin, end = offsets
    if not isinstance(shape, list) or len(shape) > AXES_LIMIT or not all(map(_is_count, shape)):
        raise ValueError(f"a tensor has the shape {shown(shape)}")
    if math.prod(shape) * TYPES[kind].itemsize != end - begin:
        raise ValueError(f"a tensor of shape {shown(shape)} and type {kind} lies at {shown(offsets)}")
    return Entry(kind, tuple(shape), begin, end)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)!r} stands twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _not_whole(path: Path, error: Exception) -> SecateurError:
    cause = str(error) if isinstance(error, ValueError) else first_line(error)
    return SecateurError(
        f"{path} is not a whole safetensors file: {cause}",
        remedy="copy it again, or give a file that save wrote",
    )
