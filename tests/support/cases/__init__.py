"""Small networks, one for each way in which channels can be wired, with the groups that tracing must find."""

from __future__ import annotations

from support.cases import attention, families, layers, wirings
from support.cases.base import CASES, IMAGE, Net, build

__all__ = ["CASES", "IMAGE", "Net", "attention", "build", "families", "layers", "wirings"]
