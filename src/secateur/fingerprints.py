"""Which points a job has seen: a short hash of each, so that held-out data can be told from used data."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from secateur.batches import batch_size
from secateur.errors import SecateurError

BYTES = 8  # two different points of a million are taken for one with probability 3e-8


def of(inputs: Any) -> list[str]:
    """A hash for each point of a tensor or of a call of the network, from its type, shape and bytes.

    >>> of(torch.zeros(2, 3))
    ['c2be91fa776487fb', 'c2be91fa776487fb']
    """
    size = batch_size(((inputs,), {}))
    hashes = [hashlib.blake2b(digest_size=BYTES) for _ in range(size)]
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size:
            points = leaf.detach().cpu().contiguous()
            head = f"{points.dtype}{tuple(points.shape[1:])}".encode()
            rows = points.reshape(size, -1).view(torch.uint8).numpy() if points[0].numel() else [b""] * size
            for one, row in zip(hashes, rows, strict=True):
                one.update(head)
                one.update(row)
    return [one.hexdigest() for one in hashes]


def pack(fingerprints: Iterable[str]) -> str:
    """Fingerprints as one short text, each once and in order.

    >>> pack(["c2be91fa776487fb"])
    'wr6R+ndkh/s='
    """
    try:
        raw = b"".join(bytes.fromhex(one) for one in sorted(set(fingerprints)))
    except (TypeError, ValueError) as error:
        raise SecateurError(f"this is no list of fingerprints: {error}", remedy="give what of() made") from error
    return base64.b64encode(raw).decode()


def unpack(text: str) -> list[str]:
    """What `pack` wrote down.

    >>> unpack("wr6R+ndkh/s=")
    ['c2be91fa776487fb']
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise SecateurError(f"the fingerprints cannot be read: {error}", remedy="give what pack() made") from error
    if len(raw) % BYTES:
        raise SecateurError("the fingerprints end in the middle of one", remedy="give what pack() made")
    return [raw[i : i + BYTES].hex() for i in range(0, len(raw), BYTES)]
