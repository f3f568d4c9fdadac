"""The one exception users meet: what failed, where, why, and what to do about it."""

from __future__ import annotations


class SecateurError(Exception):
    """A refusal that names the layer, the cause and the remedy.

    >>> raise SecateurError("index 70 is out of range (64 filters)", layer="conv1", remedy="use 0..63")
    """

    def __init__(self, cause: str, *, layer: str | None = None, remedy: str | None = None) -> None:
        self.cause = cause
        self.layer = layer
        self.remedy = remedy
        text = f"{layer}: {cause}" if layer else cause
        super().__init__(f"{text}\n  remedy: {remedy}" if remedy else text)


class UsageError(SecateurError):
    """A request that cannot mean anything: an unknown name, a shape that is none. The command line exits with 2.

    >>> raise UsageError("'1xx3' is not a shape", remedy="write it like 1x3x224x224")
    """
