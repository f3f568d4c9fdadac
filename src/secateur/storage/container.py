"""The safetensors container: its header is checked before anything in it is used, and its checksums.

A file is eight bytes with the length of the header, the header (JSON), and the tensors' bytes without a gap. Whatever
the header claims is compared with the size of the file before memory is allocated for it, and no tensor is read before
the caller has seen the header. docs/files.md lists what a reader must check.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from secateur.errors import SecateurError, UsageError, explained

HEADER_LIMIT = 2**25  # bytes; that of a DenseNet201 with its scores has 3.4 million
DEPTH_LIMIT = 32  # nested brackets
PARTS_LIMIT = 10**6  # lists, objects and keys
MARKS_LIMIT = 4 * 10**6  # commas; quotes
NAME_LIMIT, AXES_LIMIT = 1000, 64
TENSOR_CHECKSUM, METADATA_CHECKSUM = "tensor_checksum", "metadata_checksum"
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
class TensorInfo:
    """Type, shape and position of one tensor, as the header gives them."""

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
    tensors: dict[str, TensorInfo]
    raw: bytes  # with the eight bytes before it


def read_header(path: Path) -> Header:
    """Return the checked header of a file; the tensors are not read."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy="pass the path of a file that sc.save wrote")
    with _invalid(path), path.open("rb") as file:
        return _header(file, path.stat().st_size)


def read_tensors(path: Path, header: Header, *, check: bool = True) -> dict[str, Tensor]:
    """Return the tensors that a header announces.

    Args:
        check: require the tensor checksum of the metadata.
    """
    size = len(header.raw) + max((tensor.end for tensor in header.tensors.values()), default=0)
    with _invalid(path):
        with path.open("rb") as file:
            data = file.read(size + 1)
        if len(data) != size or not data.startswith(header.raw):
            raise ValueError("it has changed while it was read")
        body = memoryview(data)[len(header.raw) :]
        if check and header.metadata.get(TENSOR_CHECKSUM) != tensor_checksum(header.tensors, body):
            raise damaged(path, f"its tensors do not match its {TENSOR_CHECKSUM}")
        for name, tensor in header.tensors.items():
            if tensor.kind == "BOOL" and any(value > 1 for value in body[tensor.begin : tensor.end]):
                raise ValueError(f"{name} has booleans other than 0 and 1")
        return safetensors.torch.load(data)


def check_metadata(path: Path, header: Header) -> None:
    """Refuse a file whose metadata do not match their checksum."""
    if header.metadata.get(METADATA_CHECKSUM) != metadata_checksum(header.metadata):
        raise damaged(path, f"its metadata do not match its {METADATA_CHECKSUM}")


def damaged(path: Path, cause: str) -> SecateurError:
    """Return the error for a file whose content is not what was saved."""
    return SecateurError(f"{path} is damaged: {cause}", remedy="copy the file again, or save it again")


def pack(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a file with checksums; equal content gives equal bytes."""
    data = memoryview(safetensors.torch.save(tensors))
    end = 8 + int.from_bytes(data[:8], "little")
    infos = json.loads(bytes(data[8:end]))
    if unknown := [info["dtype"] for info in infos.values() if info["dtype"] not in TYPES]:
        raise ValueError(f"tensors of type {unknown[0]} cannot be stored")
    packed = assemble({"__metadata__": dict(metadata), **infos}, data[end:])
    _header(io.BytesIO(packed), len(packed))  # whatever is written can be read
    return packed


def assemble(header: Mapping[str, Any], body: bytes | memoryview) -> bytes:
    """Return the bytes of a file from its header and the tensors' bytes, with both checksums computed."""
    tensors = {name: _tensor_info(value) for name, value in header.items() if name != "__metadata__"}
    metadata = {**header["__metadata__"], TENSOR_CHECKSUM: tensor_checksum(tensors, memoryview(body))}
    metadata[METADATA_CHECKSUM] = metadata_checksum(metadata)
    text = json.dumps({**header, "__metadata__": dict(sorted(metadata.items()))}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    return b"".join([len(text).to_bytes(8, "little"), text, body])


def tensor_checksum(tensors: Mapping[str, TensorInfo], body: memoryview) -> str:
    """Return blake2b over the tensors by name: for each a line of JSON with name, type and shape, then its bytes."""
    digest = hashlib.blake2b(digest_size=32)
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, tensor.kind, list(tensor.shape)], separators=(",", ":")).encode() + b"\n")
        digest.update(body[tensor.begin : tensor.end])
    return digest.hexdigest()


def metadata_checksum(metadata: Mapping[str, str]) -> str:
    """Return blake2b over the other metadata, as JSON in ASCII with sorted keys and without spaces."""
    rest = {key: value for key, value in metadata.items() if key != METADATA_CHECKSUM}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def parse(text: str) -> Any:
    """Return the data of JSON that may be hostile: depth and size are bounded, keys are unique, numbers are finite.

    >>> parse('{"a": 1, "a": 2}')
    ValueError: the key 'a' is given twice
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


def shown(value: object) -> str:
    """Return a value from a file as an error may show it: short, and without control characters."""
    text = str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _header(file: BinaryIO, size: int) -> Header:
    count = file.read(8)
    length = int.from_bytes(count, "little")
    if len(count) < 8 or length > size - 8:
        raise ValueError(f"expected a header of {length} bytes, the whole file has {size}")
    if length > HEADER_LIMIT:
        raise ValueError(f"its header has {length} bytes, at most {HEADER_LIMIT} are allowed")
    raw = file.read(length)
    header = parse(raw.decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("expected metadata that map names to strings")
    tensors = {name: _tensor_info(value) for name, value in header.items()}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if not name.isprintable() or len(name) > NAME_LIMIT:
            raise ValueError(f"{shown(name)} is not a valid name of a tensor")
        if tensor.begin != end:
            raise ValueError(f"{shown(name)} begins at byte {tensor.begin}, the tensor before it ends at {end}")
        end = tensor.end
    if end != size - 8 - length:
        raise ValueError(f"expected {end} bytes of tensors, found {size - 8 - length}")
    return Header(metadata, tensors, count + raw)


def _tensor_info(value: Any) -> TensorInfo:
    """Return one tensor's description if its place in the file has the length that type and shape need."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"expected dtype, shape and data_offsets of a tensor, found {shown(value)}")
    kind, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise ValueError(f"unknown tensor type {shown(kind)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise ValueError(f"invalid data_offsets {shown(offsets)}")
    begin, end = offsets
    if not isinstance(shape, list) or len(shape) > AXES_LIMIT or not all(map(_is_count, shape)):
        raise ValueError(f"invalid shape {shown(shape)}")
    if math.prod(shape) * TYPES[kind].itemsize != end - begin:
        raise ValueError(f"a tensor of shape {shown(shape)} and type {kind} has the data_offsets {shown(offsets)}")
    return TensorInfo(kind, tuple(shape), begin, end)


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**63


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict[str, Any]()
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)!r} is given twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number


def _invalid(path: Path) -> AbstractContextManager[None]:
    return explained(
        f"{path} is not a valid safetensors file", remedy="copy the file again, or pass one that sc.save wrote"
    )
