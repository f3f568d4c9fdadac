"""Errors that name the layer, the cause and the remedy."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

TORCH, PACKAGE = (str(Path(file).parent) + os.sep for file in (torch.__file__, __file__))
ZOO = PACKAGE + "zoo" + os.sep  # its networks count as user code


class SecateurError(Exception):
    """An error with its cause, the layer that it concerns and a remedy.

    >>> raise SecateurError("index 70 is out of range (64 filters)", layer="conv1", remedy="use 0..63")

    Attributes:
        cause: what was expected and what was found.
        layer: the name of the layer, None if it concerns no single layer.
        remedy: what to do about it, None if unknown.
    """

    def __init__(self, cause: str, *, layer: str | None = None, remedy: str | None = None) -> None:
        self.cause = cause
        self.layer = layer
        self.remedy = remedy
        text = f"{layer}: {cause}" if layer else cause
        super().__init__(f"{text}\n  remedy: {remedy}" if remedy else text)


class UsageError(SecateurError, ValueError):
    """A wrong argument, such as an unknown name or a malformed shape. The command line exits with 2.

    >>> raise UsageError("'1xx3' is not a shape", remedy="write it like 1x3x224x224")
    """


@contextmanager
def explained(cause: str, *, remedy: str, layer: str | None = None) -> Iterator[None]:
    """Turn an exception inside the block into a `SecateurError` that starts with `cause`.

    >>> with explained(f"{path} cannot be read", remedy="give the path of a text file"):
    ...     text = path.read_text()
    """
    try:
        yield
    except SecateurError:
        raise
    except Exception as error:
        text = str(error) if type(error) is ValueError else first_line(error)
        raise SecateurError(f"{cause}: {text}", layer=layer, remedy=remedy) from error


def users_line(error: Exception) -> tuple[str, str]:
    """Return the file and line of the user's own code at which an error arose, and the text of that line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_library(f.filename)]
    return (f"{frames[-1].filename}:{frames[-1].lineno}", frames[-1].line or "") if frames else ("", "")


def first_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]


def _is_library(file: str) -> bool:
    return file.startswith(TORCH) or (file.startswith(PACKAGE) and not file.startswith(ZOO))
