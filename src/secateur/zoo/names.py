"""Build a model from its name on the command line."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import pickle
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from secateur.errors import SecateurError, UsageError, first_line
from secateur.zoo import NETWORKS
from secateur.zoo.libraries import library

FORMS = "name a model as zoo:lenet5, torchvision:resnet18, timm:resnet18 or path/to/file.py:factory"
WRAPPER = "module."
SHOWN = 5  # tensors that an error names


def build(name: str, weights: str | Path | None = None) -> nn.Module:
    """Return the model of a name, with random weights or with those in a file; nothing is downloaded.

    >>> build("zoo:lenet5")
    >>> build("torchvision:resnet18")
    >>> build("timm:resnet18", weights="resnet18.safetensors")
    >>> build("my/network.py:make_network")

    Args:
        name: `zoo:NAME`, `torchvision:NAME`, `timm:NAME` or `path/to/file.py:NAME`. In a file of your own, NAME is a
            function without arguments, a class, or an `nn.Module`.
        weights: a state dict, as safetensors or from `torch.save`. It may be the "state_dict" of a training checkpoint,
            and its names may begin with "module.", as those of a parallel wrapper do.
    """
    source, _, rest = name.partition(":")
    if source in BUILDERS:
        model = BUILDERS[source](rest)
    elif name.endswith(".py") or name.rpartition(":")[0].endswith(".py"):
        model = from_file(name, nn.Module, "an nn.Module", forms=FORMS)
    else:
        raise UsageError(f"{name!r} is not the name of a model", remedy=FORMS)
    if weights is not None:
        _load(model, Path(weights))
    return model


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the shape that a text of the command line describes.

    >>> parse_shape("1x3x224x224")
    (1, 3, 224, 224)
    """
    sizes = text.lower().split("x")
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
        raise UsageError(f"{text!r} is not a shape", remedy="write the sizes like 1x3x224x224, each at least 1")
    return tuple(int(size) for size in sizes)


def _zoo(name: str) -> nn.Module:
    _check_known("zoo", name, list(NETWORKS))
    return NETWORKS[name]()


def _torchvision(name: str) -> nn.Module:
    models = library("torchvision").models
    _check_known("torchvision", name, models.list_models())
    # A segmentation or detection network downloads trained weights for its backbone by default.
    options = inspect.signature(models.get_model_builder(name)).parameters
    absent = {option: None for option in ("weights", "weights_backbone") if option in options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # GoogLeNet and Inception announce another initialisation
        return _call(name, lambda: models.get_model(name, **absent), nn.Module, "an nn.Module")


def _timm(name: str) -> nn.Module:
    timm = library("timm")
    if not timm.is_model(name):  # a name may have a tag, which the list does not
        _check_known("timm", name, timm.list_models())
    return _call(name, lambda: timm.create_model(name, pretrained=False), nn.Module, "an nn.Module")


BUILDERS: dict[str, Callable[[str], nn.Module]] = {"zoo": _zoo, "torchvision": _torchvision, "timm": _timm}


def from_file(name: str, kind: type, gives: str, *, forms: str) -> Any:
    """Return the object that `path/to/file.py:NAME` names, or the result of the factory of that name.

    >>> from_file("my/network.py:make_network", nn.Module, "an nn.Module", forms=FORMS)

    Args:
        name: path and name.
        kind: type of the object.
        gives: that type in the words of an error.
        forms: remedy if there is no such file.
    """
    path, factory = (Path(name), None) if name.endswith(".py") else (Path(name.rpartition(":")[0]), name.split(":")[-1])
    module = import_file(path, forms=forms)
    found = _factories(module, kind)
    known = f"use one of {', '.join(found)}" if found else f"define a function there that returns {gives}"
    if factory is None:
        raise UsageError(f"expected the name of {gives} after {name}", remedy=f"write {name}:NAME; {known}")
    if not hasattr(module, factory):
        close = difflib.get_close_matches(factory, found, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else known
        raise UsageError(f"{path} has no {factory!r}", remedy=hint)
    value = getattr(module, factory)
    if isinstance(value, kind):
        return value
    if not callable(value):
        raise UsageError(f"expected a factory or {gives}, {name} is a {type(value).__name__}", remedy=known)
    return _call(name, value, kind, gives, path)


def import_file(path: Path, *, forms: str) -> ModuleType:
    """Import one file under a name of its own, with its folder on `sys.path` so that it can import its neighbours."""
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=3)
        raise UsageError(f"there is no file {path}", remedy=f"did you mean {' or '.join(near)}?" if near else forms)
    path = path.resolve()
    # The name contains the whole path: two files called model.py are two modules.
    spec = importlib.util.spec_from_file_location(f"secateur_model_{path.as_posix()}".replace(".", "_"), path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and torch.export look up their module there
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise SecateurError(
            f"{path.name} cannot be imported: {type(error).__name__}: {error}{_line(error, path)}",
            remedy="make it importable by itself; its own folder is on sys.path",
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _call(name: str, factory: Callable[[], Any], kind: type, gives: str, path: Path | None = None) -> Any:
    """Return the result of a factory; an exception or a result of another kind becomes an error that explains it."""
    try:
        made = factory()
    except Exception as error:
        raise SecateurError(
            f"{name} could not be built: {type(error).__name__}: {error}{_line(error, path)}",
            remedy=f"use a factory without arguments that returns {gives}" if path else None,
        ) from error
    if not isinstance(made, kind):
        raise SecateurError(f"{name} returned a {type(made).__name__}", remedy=f"return {gives} from the factory")
    return made


def _load(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"there is no weights file {path}", remedy="pass the path of a .safetensors or .pt file")
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unreadable(path, error) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]  # of a training checkpoint
    if isinstance(state, dict) and _is_wrapped(state) and not _is_wrapped(model.state_dict()):
        consume_prefix_in_state_dict_if_present(state, WRAPPER)
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise SecateurError(
            f"{path} does not fit the model: it is not a state dict, a mapping from names to tensors",
            remedy="save one with torch.save(model.state_dict(), path)",
        )
    try:
        model.load_state_dict(state)  # which also casts, for instance from half precision
    except RuntimeError as error:
        raise SecateurError(
            f"{path} does not fit the model: {_misfit(model, state) or first_line(error)}",
            remedy="pass the weights of this model; a file that prune saved is itself a network and needs no --weights",
        ) from error


def _misfit(model: nn.Module, state: Mapping[str, Tensor]) -> str:
    """Return how many tensors do not fit, and up to five of them with the nearest name in the file."""
    own = model.state_dict()
    shapes = [name for name in own if name in state and state[name].shape != own[name].shape]
    # Modules may do without some tensors, or rename them: they decide what is missing.
    fitting = {name: tensor for name, tensor in state.items() if name not in shapes}
    found = model.load_state_dict(fitting, strict=False)
    missing, unknown = [name for name in found.missing_keys if name not in shapes], found.unexpected_keys
    counts = [
        f"{len(names):,} {text}"
        for names, text in (
            (missing, f"of the model's {len(own):,} tensors are not in the file"),
            (unknown, f"of the file's {len(state):,} are not in the model"),
            (shapes, "have another shape"),
        )
        if names
    ]
    examples = [
        f"{name} is {'x'.join(map(str, state[name].shape))} in the file, {'x'.join(map(str, own[name].shape))} here"
        for name in shapes
    ]
    for name in missing[:SHOWN]:
        near = difflib.get_close_matches(name, unknown, n=1, cutoff=0)
        examples.append(f"{name} is not in the file" + (f", the nearest is {near[0]}" if near else ""))
    examples += [f"{name} is not in the model" for name in unknown if not missing]
    return "\n    ".join([", ".join(counts), *examples[:SHOWN]])


def _is_wrapped(state: Mapping[str, Any]) -> bool:
    """Return whether all names begin like those of nn.DataParallel and DistributedDataParallel."""
    return bool(state) and all(str(name).startswith(WRAPPER) for name in state)


def _unreadable(path: Path, error: Exception) -> SecateurError:
    """Return the error for a weights file that cannot be read; one with Python objects is never opened."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if isinstance(error, pickle.UnpicklingError) and named:
        return SecateurError(
            f"{path} has more than tensors ({named[1]}); opening it could run foreign code",
            remedy="if you trust it, load it with weights_only=False and torch.save its state dict alone",
        )
    return SecateurError(
        f"{path} cannot be read as weights: {first_line(error)}",
        remedy="save them as safetensors, or with torch.save(model.state_dict(), path)",
    )


def _factories(module: ModuleType, kind: type) -> list[str]:
    """Return the names in a module that may be meant: its own functions and classes, and objects of the kind."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, kind) or (callable(value) and getattr(value, "__module__", "") == module.__name__))
    ]


def _check_known(source: str, name: str, names: list[str]) -> None:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=3)
        hint = f"did you mean {' or '.join(f'{source}:{match}' for match in close)}?" if close else FORMS
        raise UsageError(f"{source} has no model {name!r}", remedy=hint)


def _line(error: BaseException, path: Path | None) -> str:
    """Return the line in the user's own file where an error arose."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if path is not None and Path(frame.filename) == path.resolve():
            return f" (line {frame.lineno})"
    return ""
