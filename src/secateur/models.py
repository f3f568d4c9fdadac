"""Make a model from its name on the command line."""

from __future__ import annotations

import difflib
import importlib
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
from torch import nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from secateur.errors import SecateurError, UsageError
from secateur.zoo import NETWORKS

FORMS = "name a model as zoo:lenet5, torchvision:resnet18, timm:resnet18 or path/to/file.py:factory"
WRAPPER = "module."


def build(name: str, weights: str | Path | None = None) -> nn.Module:
    """Make the model that `name` stands for, with random weights or with those in the file `weights`.

    >>> build("zoo:lenet5")
    >>> build("torchvision:resnet18")
    >>> build("timm:resnet18", weights="resnet18.safetensors")
    >>> build("my/network.py:make_network")

    In a file of your own, the factory is a function without arguments, a class, or a ready `nn.Module`. Nothing is
    downloaded. A weights file is a state dict, as safetensors or as `torch.save` wrote it; it may lie in a training
    checkpoint under "state_dict", and its names may all begin with "module." as those of a parallel wrapper do.
    """
    source, _, rest = name.partition(":")
    path = name.rpartition(":")[0]
    if source == "torchvision":
        model = _torchvision(rest)
    elif source == "timm":
        model = _timm(rest)
    elif source == "zoo":
        model = _zoo(rest)
    elif path.endswith(".py") or name.endswith(".py"):
        model = from_file(name, nn.Module, "an nn.Module", forms=FORMS)
    else:
        raise UsageError(f"{name!r} is not the name of a model", remedy=FORMS)
    if weights is not None:
        _load(model, Path(weights))
    return model


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a shape as the command line writes it.

    >>> parse_shape("1x3x224x224")
    (1, 3, 224, 224)
    """
    sizes = text.lower().split("x")
    if not all(size.isascii() and size.isdigit() and int(size) > 0 for size in sizes):
        raise UsageError(f"{text!r} is not a shape", remedy="write the sizes like 1x3x224x224, each at least 1")
    return tuple(int(size) for size in sizes)


def _zoo(name: str) -> nn.Module:
    if name not in NETWORKS:
        raise _unknown("zoo", name, list(NETWORKS))
    return NETWORKS[name]()


def _torchvision(name: str) -> nn.Module:
    models = _optional("torchvision").models
    names = models.list_models()
    if name not in names:
        raise _unknown("torchvision", name, names)
    # A segmentation or detection network fetches trained weights for its backbone unless told not to.
    options = inspect.signature(models.get_model_builder(name)).parameters
    absent = {option: None for option in ("weights", "weights_backbone") if option in options}
    with warnings.catch_warnings():
        # GoogLeNet and Inception announce another initialisation to come.
        warnings.simplefilter("ignore", FutureWarning)
        return _made(name, lambda: models.get_model(name, **absent), nn.Module, "an nn.Module")


def _timm(name: str) -> nn.Module:
    timm = _optional("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    return _made(name, lambda: timm.create_model(name, pretrained=False), nn.Module, "an nn.Module")


def from_file(name: str, kind: type, gives: str, *, forms: str) -> Any:
    """What `path/to/file.py:name` stands for: a ready object of that kind, or what the factory of that name returns.

    >>> from_file("my/network.py:make_network", nn.Module, "an nn.Module", forms=FORMS)

    gives: how to call an object of that kind in an error. forms: what to write instead if there is no such file.
    """
    if name.endswith(".py"):
        found = _factories(import_file(Path(name), forms=forms), kind)
        raise UsageError(
            f"{name} does not say what in it makes {gives}", remedy=f"write {name}:NAME; {_listed(found, gives)}"
        )
    path, factory = Path(name.rpartition(":")[0]), name.rpartition(":")[2]
    module = import_file(path, forms=forms)
    found = _factories(module, kind)
    if not hasattr(module, factory):
        close = difflib.get_close_matches(factory, found, n=3)
        hint = f"did you mean {' or '.join(close)}?" if close else _listed(found, gives)
        raise UsageError(f"{path} has no {factory!r}", remedy=hint)
    value = getattr(module, factory)
    if isinstance(value, kind):
        return value
    if not callable(value):
        raise UsageError(
            f"{name} is a {type(value).__name__}, neither a factory nor {gives}", remedy=_listed(found, gives)
        )
    return _made(name, value, kind, gives, path)


def import_file(path: Path, *, forms: str) -> ModuleType:
    """Import one file under a name of its own, with its folder on `sys.path` so that it finds its neighbours.

    >>> import_file(Path("my/network.py"), forms=FORMS).make_network()
    """
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=3)
        raise UsageError(f"there is no file {path}", remedy=f"did you mean {' or '.join(near)}?" if near else forms)
    path = path.resolve()
    # The name is made of the whole path: two files called model.py are two modules.
    spec = importlib.util.spec_from_file_location(f"secateur_model_{path.as_posix()}".replace(".", "_"), path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and torch.export look their module up there
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


def _made(name: str, factory: Callable[[], Any], kind: type, gives: str, path: Path | None = None) -> Any:
    """Call a factory; what it raises, or a result of another kind, becomes an error that says so."""
    try:
        made = factory()
    except Exception as error:
        raise SecateurError(
            f"{name} could not be made: {type(error).__name__}: {error}{_line(error, path)}",
            remedy=f"a factory takes no arguments and returns {gives}" if path else None,
        ) from error
    if not isinstance(made, kind):
        raise SecateurError(f"{name} gave a {type(made).__name__}", remedy=f"return {gives} from the factory")
    return made


def _optional(package: str) -> Any:
    """Import a package that only some users have."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise SecateurError(f"{error.name} is not installed", remedy="pip install 'secateur[zoo]'") from error
    except Exception as error:  # a torchvision built for another torch fails with a RuntimeError
        raise SecateurError(
            f"{package} is installed but cannot be imported: {type(error).__name__}: {error}",
            remedy=f"install a build of torchvision that belongs to torch {torch.__version__}",
        ) from error


def _load(model: nn.Module, path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"there is no weights file {path}", remedy="give the path of a .safetensors or .pt file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise _unread(path, error) from error
    if isinstance(state, Mapping) and isinstance(state.get("state_dict"), Mapping):
        state = state["state_dict"]  # a training checkpoint: the weights among other things
    if isinstance(state, dict) and _wrapped(state) and not _wrapped(model.state_dict()):
        consume_prefix_in_state_dict_if_present(state, WRAPPER)
    try:
        model.load_state_dict(state)  # which also casts, for instance from half precision
    except (RuntimeError, TypeError, AttributeError) as error:
        raise SecateurError(
            f"{path} does not fit the model: {error}", remedy="give the weights of this model"
        ) from error


def _wrapped(state: Mapping[str, Any]) -> bool:
    """Whether all names begin as nn.DataParallel and DistributedDataParallel write them."""
    return bool(state) and all(str(name).startswith(WRAPPER) for name in state)


def _unread(path: Path, error: Exception) -> SecateurError:
    """Say why a weights file cannot be read; one that holds Python objects is never opened."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if isinstance(error, pickle.UnpicklingError) and named:
        return SecateurError(
            f"{path} holds more than tensors ({named[1]}); opening it could run code of its maker's",
            remedy="where you trust it, load it with weights_only=False and torch.save its state dict alone",
        )
    return SecateurError(
        f"{path} cannot be read as weights: {type(error).__name__}: {error}",
        remedy="save them as safetensors, or with torch.save(model.state_dict(), path)",
    )


def _factories(module: ModuleType, kind: type) -> list[str]:
    """The names in a module that may be meant: its own functions and classes, and any ready object of the kind."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, kind) or (callable(value) and getattr(value, "__module__", "") == module.__name__))
    ]


def _listed(names: list[str], gives: str) -> str:
    return f"there is: {', '.join(names)}" if names else f"define a function there that returns {gives}"


def _unknown(source: str, name: str, names: list[str]) -> UsageError:
    close = difflib.get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(f'{source}:{match}' for match in close)}?" if close else FORMS
    return UsageError(f"{source} has no model {name!r}", remedy=hint)


def _line(error: BaseException, path: Path | None) -> str:
    """Where in the user's own file an error arose."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if path is not None and Path(frame.filename) == path.resolve():
            return f" (line {frame.lineno})"
    return ""
