"""The memory that a network takes per sample, and batches that fit."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.network.batches import BATCH, Call, batch_size, on_device_of, split, take
from secateur.network.layer_calls import FunctionCall
from secateur.network.memory import room
from secateur.network.modules import device_of, mode
from secateur.network.observer import Observer


@dataclass
class Footprint:
    """Bytes per sample of the results of a forward pass.

    Attributes:
        forward: the most that exist at a time.
        backward: all of them, about what a backward pass needs.
    """

    forward: float = 0.0
    backward: float = 0.0


def footprint(network: nn.Module, call: Call) -> Footprint:
    """Return the memory that a forward pass takes per sample, measured on two of them.

    >>> footprint(model, ((images,), {})).backward / 2**20
    85.3

    Views, and results in place of an argument, do not count.
    """
    args, kwargs = two = on_device_of(network, take(call, slice(2)))
    samples, found, alive = batch_size(two), Footprint(), 0.0

    def act(function: FunctionCall) -> Any:
        result = function.run()
        if isinstance(result, Tensor) and not _shares_storage(result, (function.args, function.kwargs)):
            count(result, result.nbytes / samples)
        return result

    def count(result: Tensor, size: float) -> None:
        nonlocal alive
        alive += size
        found.backward += size
        found.forward = max(found.forward, alive)
        weakref.finalize(result, release, size)

    def release(size: float) -> None:
        nonlocal alive
        alive -= size

    with mode(network, False), torch.no_grad(), Observer(act):
        network(*args, **kwargs)
    return found


def batch_that_fits(
    network: nn.Module, call: Call, memory: int | None = None, *, most: int = BATCH, backward: bool = False
) -> int:
    """Return how many samples to run together: `most` if they fit, else a power of two.

    >>> batch_that_fits(model, ((images,), {}), memory=1 << 30)
    32

    Args:
        memory: bytes for temporary arrays; if not given, half of the free memory, and no more than 1.5 GB.
        most: more samples than this are not wanted.
        backward: whether a backward pass follows.

    If the network does not run on the batch, `most`: the run itself reports what is wrong.
    """
    try:
        found = footprint(network, call)
    except Exception:
        return most
    each = found.backward if backward else found.forward
    count = int(room(memory, device_of(network)) / max(each, 1.0))
    return most if count >= most else 1 << max(0, count.bit_length() - 1)


def split_to_fit(network: nn.Module, batches: Iterable[Call], memory: int | None = None) -> Iterator[Call]:
    """Return the same samples in batches on which the network can run; batches that fit stay as they are.

    >>> for part in split_to_fit(model, [((images,), {})]):
    ...     forward(model, part)
    """
    size: int | None = None
    for batch in batches:
        if size is None:
            size = batch_that_fits(network, batch, memory, most=max(BATCH, batch_size(batch)))
        yield from split([batch], size)


def _shares_storage(result: Tensor, given: Any) -> bool:
    tensors = [leaf for leaf in (result, *pytree.tree_leaves(given)) if isinstance(leaf, Tensor)]
    places = [one.untyped_storage().data_ptr() if one.layout == torch.strided else id(one) for one in tensors]
    return places[0] in places[1:]
