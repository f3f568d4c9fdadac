"""Examples: the inputs that a network is traced and measured with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.errors import SecateurError, users_line

Example = Any  # a tensor, a tuple of arguments, or a dict of keyword arguments


def call_arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments that an example stands for."""
    if isinstance(example, dict):
        return (), example
    if isinstance(example, tuple | list):
        return tuple(example), {}
    return (example,), {}


def doubled(example: Example) -> Example:
    """Return the example with at least two samples, which norms in training mode and a dynamic batch size need."""

    def double(leaf: Any) -> Any:
        single = isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == 1
        return torch.cat([leaf, leaf]) if single else leaf

    return pytree.tree_map(double, example)


def free_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return dynamic shapes for torch.export: the first axis of every input tensor may have any size."""
    shapes = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, Tensor) and leaf.dim():
            shapes[leaf] = {0: torch.export.Dim.DYNAMIC}
    return shapes


def named_arguments(model: nn.Module, kwargs: dict[str, Any]) -> nn.Module:
    """Return the model, whose `forward(**kwargs)` now names these: torch.export wants names for dynamic shapes."""
    signature = inspect.signature(model.forward)
    fixed = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in kwargs if name not in signature.parameters
    ]
    if more and len(fixed) < len(signature.parameters):
        inner = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        forward.__signature__ = signature.replace(parameters=[*fixed, *more])  # type: ignore[attr-defined]
        model.forward = forward
    return model


def clone(leaf: Any) -> Any:
    """Return a copy of a tensor, anything else unchanged."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def describe(example: Example) -> Any:
    """Return an example without its values, as plain data."""
    if isinstance(example, Tensor):
        return {"shape": list(example.shape), "dtype": str(example.dtype).removeprefix("torch.")}
    if isinstance(example, tuple | list):
        return [describe(part) for part in example]
    if isinstance(example, dict):
        return {"arguments": {name: describe(part) for name, part in example.items()}}
    return example


def revive(description: Any, *, like: nn.Module | None = None) -> Example:
    """Return an example of zeros from its description, in the precision and on the device of a given model."""
    if isinstance(description, dict) and "shape" in description:
        zeros = torch.zeros(description["shape"], dtype=getattr(torch, description["dtype"]))
        return zeros if like is None else _adapted(zeros, like)
    if isinstance(description, dict):
        return {name: revive(part, like=like) for name, part in description["arguments"].items()}
    if isinstance(description, list):
        return tuple(revive(part, like=like) for part in description)
    return description


def _adapted(tensor: Tensor, model: nn.Module) -> Tensor:
    own = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return tensor.to(own.device, own.dtype if tensor.is_floating_point() else None)


@contextmanager
def explain_errors(example: Example) -> Iterator[None]:
    """Turn an error of the model's own forward pass into one that shows the example and the line of the user's code."""
    try:
        yield
    except SecateurError:
        raise
    except Exception as error:
        where, line = users_line(error)
        found = pytree.tree_map_only(Tensor, lambda leaf: (*leaf.shape,), example)
        types = {
            str(leaf.dtype).removeprefix("torch.") for leaf in pytree.tree_leaves(example) if torch.is_tensor(leaf)
        }
        raise SecateurError(
            f"the model fails on an example of shape {found} ({', '.join(sorted(types))})"
            f"{where and f' at {where}: {line}'}: {type(error).__name__}: {error}",
            remedy="pass an example that the model's forward accepts: with a batch axis, as many channels as the first "
            "layer expects, and of the type and on the device of the weights",
        ) from error
