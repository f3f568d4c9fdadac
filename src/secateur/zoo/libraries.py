"""Import torchvision and timm, also where torchvision comes without its compiled operators."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from typing import Any

import torch

from secateur.errors import SecateurError
from secateur.optional import require

INSTALL = "'secateur[zoo]'"
MISSING = re.compile(r"operator torchvision::(\w+) does not exist")
SCHEMAS = {name: "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor" for name in ("nms", "qnms")}

_declared: dict[str, torch.library.Library] = {}  # a declaration lasts as long as its library object


def library(name: str) -> Any:
    """Import torchvision or timm, or raise an error that says how to install it.

    >>> library("torchvision").models.resnet18()

    A torchvision that does not match torch has no compiled operators, and its import asks for two of them. Both
    suppress overlapping boxes, which only detection networks do. So they are declared without code; torchvision refuses
    to call them then.
    """
    try:
        return _imported(name)
    except SecateurError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) or "torchvision" not in error.cause:
            raise
        raise SecateurError(error.cause, remedy=f"install a matching pair: {matching_pair()}") from error.__cause__


def missing_operators() -> str:
    """Return a note on the operators that torchvision lacks; an empty text if it has them, or is not imported."""
    if not _declared:
        return ""
    version = importlib.metadata.version("torchvision")
    here = f"torchvision {version} has no compiled operators for torch {torch.__version__}"
    return f"{here}; only detection networks need them"


def matching_pair(version: str = torch.__version__) -> str:
    """Return the command that installs a torch and a torchvision that match.

    >>> matching_pair("2.13.0+cpu")
    "pip install --force-reinstall 'torch==2.13.*' 'torchvision==0.28.*'"
    """
    major, minor = (int(part) for part in version.split(".")[:2])
    # torchvision 0.15 came with torch 2.0, and both count on together.
    vision = f"torchvision==0.{minor + 15}.*" if major == 2 else "torchvision"
    return f"pip install --force-reinstall 'torch=={major}.{minor}.*' '{vision}'"


def _imported(name: str) -> Any:
    """Import a package; declare the operators that torchvision's import asks for, one after the other."""
    while True:
        try:
            return require(name, install=INSTALL)
        except SecateurError as error:
            found = MISSING.search(str(error.__cause__))
            if not found or found[1] not in SCHEMAS or found[1] in _declared:
                raise
            _declare(found[1])
            for module in [one for one in sys.modules if one.split(".")[0] in ("torchvision", name)]:
                del sys.modules[module]  # an import that failed halfway


def _declare(name: str) -> None:
    made = torch.library.Library("torchvision", "FRAGMENT")
    made.define(f"{name}{SCHEMAS[name]}")
    _declared[name] = made
