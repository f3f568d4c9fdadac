"""Packages that not every user has."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from secateur.errors import SecateurError, first_line


def require(package: str, *, install: str) -> Any:
    """Import an optional package, or raise an error that says how to install it.

    >>> require("timm", install="'secateur[zoo]'").create_model("resnet18")
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise SecateurError(f"{error.name} is not installed", remedy=f"pip install {install}") from error
    except Exception as error:  # a torchvision built for another torch fails with a RuntimeError
        raise SecateurError(
            f"{package} is installed but cannot be imported: {first_line(error)}",
            remedy=f"install a build of it for torch {torch.__version__}: pip install --force-reinstall {install}",
        ) from error
