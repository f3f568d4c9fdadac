"""Calibration data from a factory in a user's file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from secateur._torch import pytree
from secateur.data.calibration.request import FORMS, LABELS, Calibration, Request, check_finite, tensors_of, wrong_shape
from secateur.errors import SecateurError, UsageError, first_line, users_line
from secateur.network.batches import listed
from secateur.network.examples import call_arguments
from secateur.zoo.names import from_file


def from_factory(source: str, request: Request) -> Calibration:
    """Return the first samples that the factory's batches have, and the next ones as unused."""
    if request.scale:
        raise UsageError("a factory scales its own data", remedy="leave mean and std out, or scale in the factory")
    batches, unused, count = list[Any](), list[Any](), 0
    with torch.random.fork_rng(devices=[]):  # a loader that shuffles uses our seed
        torch.manual_seed(request.seed)
        made = from_file(source, Iterable, "an iterable of batches", forms=FORMS)
        for number, batch in enumerate(_yielded([made] if isinstance(made, Tensor) else made, source)):
            batch = tuple(batch) if isinstance(batch, list) else batch
            size = _checked_size(batch, f"batch {number} of {source}", request.shape)
            last = min(size, request.samples + request.unused - count)
            border = min(last, max(0, request.samples - count))
            for first, end, where in ((0, border, batches), (border, last, unused)):
                if first < end:
                    part = _part(batch, size, slice(first, end))
                    check_finite(part, range(count + first, count + end), source)
                    where.append(part)
            count += last
            if count == request.samples + request.unused:
                break
    if not batches:
        raise SecateurError(f"{source} returned no batch", remedy="return at least one batch from the factory")
    head = batches[0]
    labelled = any(name in head for name in LABELS) if isinstance(head, Mapping) else isinstance(head, tuple)
    return Calibration(batches, min(count, request.samples), labelled and len(head) > 1, source, unused)


def _yielded(batches: Iterable[Any], source: str) -> Iterator[Any]:
    """Yield the batches of a loader; an error inside it names the user's line."""
    try:
        yield from batches
    except Exception as error:
        where, line = users_line(error)
        raise SecateurError(
            f"{source} failed while it made batches: {first_line(error)}{where and f' at {where}: {line}'}",
            remedy="make list(factory()) work first",
        ) from error


def _checked_size(batch: Any, where: str, shape: tuple[int, ...]) -> int:
    """Return the number of samples in a batch; a batch without samples or of another shape is refused."""
    if (images := _listed(batch)) is not None:
        return len(images)
    tensors = tensors_of(batch) if isinstance(batch, Tensor | tuple | Mapping) else []
    if not tensors:
        raise SecateurError(
            f"{where} is a {type(batch).__name__} without samples",
            remedy="return tensors x, pairs (x, y), or dicts of them",
        )
    found = tuple(tensors[0].shape[1:])
    if not isinstance(batch, Mapping) and found != shape:
        raise wrong_shape(where, found, shape)
    if not len(tensors[0]):
        raise SecateurError(f"{where} has no samples", remedy="leave empty batches out")
    return len(tensors[0])


def _listed(batch: Any) -> Any:
    """Return the images of a batch whose first element is a list of them, as detectors take it; else None."""
    return listed((call_arguments(batch)[0][:1], {})) if isinstance(batch, tuple) else None


def _part(batch: Any, size: int, which: slice) -> Any:
    """Return some samples of a batch."""
    if which == slice(0, size):
        return batch
    if _listed(batch) is not None:
        return tuple(part[which] if isinstance(part, list | tuple) and len(part) == size else part for part in batch)
    return pytree.tree_map(lambda t: t[which] if isinstance(t, Tensor) and t.dim() and len(t) == size else t, batch)
