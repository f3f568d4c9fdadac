"""An exponential moving average of the weights, and the statistics of batch norms estimated again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import BatchNorm
from secateur.network.modules import mode, named_tensors


class Average:
    """A moving average of all floating-point tensors of a network, which follows closely in the first steps.

    >>> average = Average(model, decay=0.999)
    >>> average.update()  # after every step of the optimizer
    >>> with average.in_place():
    ...     evaluate(model, batches)
    """

    def __init__(self, model: nn.Module, decay: float, values: Mapping[str, Tensor] | None = None, steps: int = 0):
        self.model, self.decay, self.steps = model, decay, steps
        own = {name: tensor for name, tensor in named_tensors(model).items() if tensor.is_floating_point()}
        self.values = {name: tensor.detach().clone() for name, tensor in own.items()}
        for name, value in (values or {}).items():
            self.values[name].copy_(value)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the present weights."""
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self.steps += 1
        tensors = named_tensors(self.model)
        for name, value in self.values.items():
            value.lerp_(tensors[name].detach(), 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the network have the average within a `with` block."""
        before = copies(self.model)
        put(self.model, self.values)
        try:
            yield
        finally:
            put(self.model, before)


def copies(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every parameter and buffer."""
    return {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}


@torch.no_grad()
def put(model: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copy values into the parameters and buffers of these names."""
    tensors = named_tensors(model)
    for name, value in values.items():
        tensors[name].copy_(value)


@torch.no_grad()
def estimate_norms(model: nn.Module, batches: Iterable[Any], run: Callable[[Any], object]) -> None:
    """Replace the statistics of batch norms by plain means over these batches; everything else is in evaluation mode.

    Args:
        run: runs the network on a batch.
    """
    norms = [m for m in model.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    with mode(model, False):
        for norm in norms:
            norm.reset_running_stats()
            norm.train()
            norm.momentum = None
        try:
            for batch in batches:
                run(batch)
        finally:
            for norm, momentum in zip(norms, momenta, strict=True):
                norm.momentum = momentum
