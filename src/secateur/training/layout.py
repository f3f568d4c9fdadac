"""The memory format of a network: channels_last during training, then its own again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import BatchNorm
from secateur.network.modules import named_tensors


def lay_out(model: nn.Module) -> None:
    """Use channels_last for the filters, which CPUs and GPUs convolve faster."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def channels_last(batch: Any) -> Any:
    """Return the batch x, (x,) or (x, y) with its images in channels_last."""
    if isinstance(batch, Tensor):
        return batch.contiguous(memory_format=torch.channels_last) if batch.dim() == 4 else batch
    x, *rest = batch
    return (channels_last(x), *rest)


def suits_channels_last(model: nn.Module, batch: Any) -> bool:
    """Return whether a network has convolutions and accepts channels_last; a `view` in its forward may refuse it.

    Args:
        model: the network; its buffers and the random state are restored.
        batch: to try.
    """
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(x, Tensor) or x.dim() != 4 or not any(isinstance(m, nn.Conv2d) for m in model.modules()):
        return False
    before = [buffer.clone() for buffer in model.buffers()]
    gpus = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(gpus), torch.no_grad(), own_layout(model):
        lay_out(model)
        try:
            model(channels_last(x))
        except RuntimeError:
            return False
        finally:
            for buffer, old in zip(model.buffers(), before, strict=True):
                buffer.copy_(old)
    return True


@contextlib.contextmanager
def own_layout(model: nn.Module) -> Iterator[None]:
    """Restore the memory format of all tensors at the end."""
    before = {name: tensor.stride() for name, tensor in named_tensors(model).items()}
    try:
        yield
    finally:
        for name, tensor in named_tensors(model).items():
            if tensor.stride() != before[name]:
                values = tensor.detach()
                tensor.data = values.new_empty_strided(values.shape, before[name]).copy_(values)


@contextlib.contextmanager
def synchronised_norms(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Replace batch norms by synchronised ones with the same tensors, and restore them at the end."""
    found = dict(model.named_modules(remove_duplicate=False)) if wanted else {}
    own = {name: module for name, module in found.items() if isinstance(module, BatchNorm) and name}
    if wanted:
        nn.SyncBatchNorm.convert_sync_batchnorm(model)
    try:
        yield
    finally:
        for name, module in own.items():
            model.set_submodule(name, module)
