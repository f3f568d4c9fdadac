"""Modules: names of their tensors, modes, copies, and a check of what the user passes."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from itertools import chain
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from secateur._torch import is_exported, uncompiled
from secateur.errors import SecateurError, UsageError, first_line
from secateur.network.precision import check_all_finite

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, order=True)
class Slot:
    """One axis of one parameter or buffer.

    Attributes:
        parameter: the name of the tensor, as in `named_parameters` or `named_buffers`.
        axis: the axis, counted from 0.
    """

    parameter: str
    axis: int


def unwrap(model: nn.Module) -> nn.Module:
    """Return the user's network inside `torch.compile` or `DataParallel` wrappers; raise an error if it is none."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif (inner := uncompiled(model)) is not None:
            model = inner
        else:
            check_network(model)
            return model


def check_network(model: Any) -> None:
    """Raise an error for an object that is no network, or one that can be neither traced nor cut."""
    found, remedy = "", ""
    if is_exported(model):
        found, remedy = "an exported program", "pass the module that it was exported from"
    elif isinstance(model, torch.jit.ScriptModule):
        found, remedy = "a TorchScript module", "pass the module that it was compiled from"
    elif isinstance(model, nn.Module):
        lazy = [name for name, parameter in model.named_parameters() if nn.parameter.is_lazy(parameter)]
        if lazy:
            raise UsageError("the parameter has no shape yet", layer=lazy[0], remedy="run one forward pass first")
    elif isinstance(model, Mapping):
        found, remedy = "a state dict", "build the network and load it: model.load_state_dict(state)"
    elif isinstance(model, str | os.PathLike):
        found, remedy = f"the path {str(model)!r}", "load the network first: sc.load(path), or torch.load"
    elif callable(model):
        found, remedy = f"{getattr(model, '__name__', model)}, a class or function", "call it to build the network"
    else:
        found, remedy = f"an object of type {type(model).__name__}", "pass the network itself"
    if found:
        raise UsageError(f"expected a torch.nn.Module, found {found}", remedy=remedy)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer under its first name; a tied tensor appears once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the parameters and buffers; the CPU if there are none."""
    return next((tensor.device for tensor in chain(model.parameters(), model.buffers())), torch.device("cpu"))


def owner(name: str) -> str:
    """Return the module that a tensor belongs to: `conv1` for `conv1.weight` and for its parametrized parts."""
    return name.split(".parametrizations.")[0] if ".parametrizations." in name else name.rpartition(".")[0]


def check_finite(model: nn.Module) -> None:
    """Raise an error if a weight is NaN or infinite: no cut of such a network can be verified."""
    for name, tensor in named_tensors(model).items():
        if tensor.is_floating_point() and not tensor.is_meta:
            remedy = "load the weights of a training run that has not diverged"
            check_all_finite(tensor.detach(), name, layer=owner(name) or type(model).__name__, remedy=remedy)


@contextlib.contextmanager
def mode(model: nn.Module, train: bool) -> Iterator[None]:
    """Put every module into training or evaluation mode within a `with` block."""
    before = {module: module.training for module in model.modules()}
    model.train(train)
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


_lock = threading.RLock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # a thread that holds the lock does not exist in the child
    os.register_at_fork(after_in_child=_renew_lock)


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Let one thread at a time into a `with` block, and restore the states of the random generators at its end.

    torch.export patches torch itself while it runs, and warnings, logging and stderr belong to the whole process.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with _lock, torch.random.fork_rng(devices):
        python, numpy = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def one_at_a_time(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function for one thread at a time, also beside traces of other threads.

    torch.export switches oneDNN off for the whole process while it runs. A forward pass of another thread has other
    rounding then.
    """

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> R:
        with _lock:
            return function(*args, **kwargs)

    return alone


def stand_in(model: nn.Module) -> nn.Module:
    """Return a copy with the same parameters and buffers: whatever is done to it in tracing leaves the model alone.

    torch.export leaves fake tensors in every attribute that forward assigns, and another thread may run the model.
    """
    return duplicate(model, {id(tensor): tensor for tensor in named_tensors(model).values()})


def meta_copy(model: nn.Module) -> nn.Module:
    """Return a copy of the model on the meta device: shapes without storage."""
    memo: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return duplicate(model, memo)


def duplicate(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of the model.

    Args:
        memo: objects to use in the copy, by the id of what they replace.
    """
    # A computed tensor, such as the weight of an old weight_norm, has a gradient function and cannot be copied.
    computed = {id(t): t.detach().clone() for module in model.modules() for t in _attributes(module) if t.grad_fn}
    try:
        return copy.deepcopy(model, computed | (memo or {}))
    except Exception as error:
        raise SecateurError(
            f"the model cannot be copied: {first_line(error)}",
            layer=type(model).__name__,
            remedy="remove attributes that deepcopy refuses, such as open files and locks",
        ) from error


def _attributes(module: nn.Module) -> Iterator[Tensor]:
    """Return the tensors that are plain attributes of a module, or elements of its lists, tuples, dicts and sets."""
    for value in vars(module).values():
        if isinstance(value, dict):
            value = value.values()
        found = value if isinstance(value, list | tuple | set | ValuesView) else [value]
        yield from (one for one in found if isinstance(one, Tensor))
