"""Run a network on one batch, with an error that says on what it failed."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.batches import Call, on_device_of
from secateur.errors import SecateurError
from secateur.program import first_line


def forward(network: nn.Module, call: Call) -> Any:
    """What the network gives for a batch; where it fails, an error that says on what.

    >>> forward(model, ((images,), {}))
    """
    args, kwargs = on_device_of(network, call)
    try:
        return network(*args, **kwargs)
    except SecateurError:
        raise
    except Exception as error:
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]
        raise SecateurError(
            f"the network could not run on a batch of shape {shapes}: {first_line(error)}",
            layer=type(network).__name__,
            remedy="give batches of inputs as forward takes them; to_inputs= can turn yours into such",
        ) from error
