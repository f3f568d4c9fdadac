"""Fingerprints: a short hash of each sample that a job used, so that held-out data can be checked against them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.errors import SecateurError, explained
from secateur.network.batches import batch_size, listed
from secateur.network.modules import unwrap

USED = "_secateur_samples"  # attribute of a pruned network
BYTES = 8  # among a million samples, two different ones share a fingerprint with probability 3e-8


def of(inputs: Any) -> list[str]:
    """Return the hash of each sample of a tensor or of a call of the network, from its type, shape and bytes.

    >>> of(torch.zeros(2, 3))
    ['c2be91fa776487fb', 'c2be91fa776487fb']
    """
    images = listed(inputs) if isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], dict) else None
    if images is not None:  # a call with a list of images: each is a sample
        return [one for image in images for one in of(image[None])]
    size = batch_size(((inputs,), {}))
    hashes = [hashlib.blake2b(digest_size=BYTES) for _ in range(size)]
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size:
            samples = leaf.detach().cpu().contiguous()
            head = f"{samples.dtype}{tuple(samples.shape[1:])}".encode()
            rows = samples.reshape(size, -1).view(torch.uint8).numpy() if samples[0].numel() else [b""] * size
            for one, row in zip(hashes, rows, strict=True):
                one.update(head)
                one.update(row)
    return [one.hexdigest() for one in hashes]


def remember(model: nn.Module, used: str) -> None:
    """Let a network remember the samples that made it, packed; copies and a further pruning keep them.

    >>> remember(small, res.fingerprints)
    """
    setattr(unwrap(model), USED, used)


def remembered(model: nn.Module) -> list[str]:
    """Return the fingerprints of all samples that a network remembers."""
    return unpack(getattr(unwrap(model), USED, ""))


def pack(fingerprints: Iterable[str]) -> str:
    """Return fingerprints as one short text, sorted and without repetitions.

    >>> pack(["c2be91fa776487fb"])
    'wr6R+ndkh/s='
    """
    with explained("expected a list of fingerprints", remedy="pass what fingerprints.of returned"):
        return base64.b64encode(b"".join(bytes.fromhex(one) for one in sorted(set(fingerprints)))).decode()


def unpack(text: str) -> list[str]:
    """Return the fingerprints in a text that `pack` returned.

    >>> unpack("wr6R+ndkh/s=")
    ['c2be91fa776487fb']
    """
    with explained("the fingerprints cannot be read", remedy="pass what fingerprints.pack returned"):
        raw = base64.b64decode(text, validate=True)
    if len(raw) % BYTES:
        raise SecateurError(
            f"expected a multiple of {BYTES} bytes of fingerprints, found {len(raw)}",
            remedy="pass what fingerprints.pack returned",
        )
    return [raw[i : i + BYTES].hex() for i in range(0, len(raw), BYTES)]
