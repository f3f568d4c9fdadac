"""Data as users have it becomes calls of the network: batches, with or without labels, of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.errors import SecateurError
from secateur.program import Example, call_arguments

Call = tuple[tuple[Any, ...], dict[str, Any]]
HELD = 4  # of every so many points the last is held out


@dataclass(frozen=True)
class Part:
    """A batch of which the first `seen` points are fitted, the others held out."""

    batch: Call
    seen: int


def calls(
    data: Any,
    *,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    points: int | None = None,
) -> Iterator[Call]:
    """The arguments of the network, batch by batch.

    >>> for args, kwargs in calls(loader, points=256):
    ...     model(*args, **kwargs)

    data: a tensor, tuple or dict is one batch; anything else is an iterable of batches. Of a tuple the first element
        is the input and the rest are labels, unless `example` has more arguments.
    to_inputs: turns a batch into what the network takes: a tensor, a tuple of arguments or a dict of keywords.
    points: stop after so many points.
    """
    for call, _ in with_labels(data, example=example, to_inputs=to_inputs, points=points):
        yield call


def with_labels(
    data: Any,
    *,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    points: int | None = None,
) -> Iterator[tuple[Call, Tensor | None]]:
    """As `calls`, each with the tensor beside the inputs that has a label for every point, if there is one.

    >>> for call, labels in with_labels(loader):
    ...     ...
    """
    if example is None and to_inputs is None:
        _check_one_batch(data)
    wanted = len(call_arguments(example)[0]) if example is not None else 1
    left = points
    for batch in _batches(data):
        args, kwargs = call_arguments(to_inputs(batch) if to_inputs else batch)
        beside = batch[1:] if to_inputs and isinstance(batch, tuple | list) else args[wanted:]
        if not to_inputs:
            args = args[:wanted]
        size = batch_size((args, kwargs))
        if size == 0:
            continue
        labels = next((leaf for leaf in beside if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size), None)
        if left is not None and size > left:
            args, kwargs = take((args, kwargs), slice(left))
            labels = None if labels is None else labels[:left]
        yield (args, kwargs), labels
        if left is not None:
            left -= min(size, left)
            if not left:
                return


def batch_size(call: Call) -> int:
    """How many points a call has."""
    sizes = {len(leaf) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor) and leaf.dim()}
    if not sizes:
        raise SecateurError(
            "a batch holds no tensor",
            layer="data",
            remedy="give tensors (x), pairs (x, y), or dicts together with to_inputs=",
        )
    return max(sizes)


def take(call: Call, which: slice | Tensor) -> Call:
    """Some points of a batch, by their numbers."""
    size = batch_size(call)

    def pick(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size):
            return leaf
        return leaf[which] if isinstance(which, slice) else leaf[which.to(leaf.device)]

    return pytree.tree_map(pick, call)


def apart(batches: Sequence[Call]) -> list[Part]:
    """The batches, each with the points to hold out behind the others."""
    parts, first = [], 0
    for batch in batches:
        held = torch.arange(first, first + batch_size(batch)) % HELD == HELD - 1
        parts.append(Part(take(batch, held.int().argsort(stable=True)), seen=int((~held).sum())))
        first += len(held)
    return parts


def seen_of(parts: Sequence[Part]) -> list[Call]:
    """The points that are fitted."""
    return [take(part.batch, slice(part.seen)) for part in parts if part.seen]


def held_of(parts: Sequence[Part]) -> list[Call]:
    """The points that are held out."""
    return [take(part.batch, slice(part.seen, None)) for part in parts if part.seen < batch_size(part.batch)]


def example_of(call: Call) -> Example:
    """One point of a batch, as `trace` and `cost` take it."""
    args, kwargs = take(call, slice(1))
    return kwargs if kwargs and not args else args


def on_device_of(model: nn.Module, call: Call) -> Call:
    """The batch where the network is."""
    own = next(iter([*model.parameters(), *model.buffers()]), torch.empty(0))
    return pytree.tree_map(lambda leaf: leaf.to(own.device) if isinstance(leaf, Tensor) else leaf, call)


def _batches(data: Any) -> Iterable[Any]:
    if isinstance(data, Tensor | tuple | dict):
        return [data]
    if not isinstance(data, Iterable):
        raise SecateurError(
            f"the data is a {type(data).__name__}", layer="data", remedy="give a tensor or an iterable of batches"
        )
    return data


def _check_one_batch(data: Any) -> None:
    """A tuple is one batch, input and labels; `images.split(32)` is a tuple too, and is meant otherwise."""
    tensors = [leaf for leaf in data if isinstance(leaf, Tensor)] if isinstance(data, tuple) else []
    if len(tensors) > 1 and len({(leaf.dtype, leaf.shape[1:]) for leaf in tensors}) == 1 and tensors[0].dim() > 1:
        raise SecateurError(
            f"the data is a tuple of {len(tensors)} tensors of one kind: one batch, or several?",
            layer="data",
            remedy="give a list for several batches, [(x, y)] for one with labels, or example= for several arguments",
        )
