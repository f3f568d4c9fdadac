"""Pruning methods, one per file."""

from __future__ import annotations

from secateur.methods.base import Evidence, GroupRow, Method
from secateur.methods.fpgm import FPGM
from secateur.methods.ft import FT
from secateur.methods.pfp.method import PFP
from secateur.methods.random import Random
from secateur.methods.residual import Residual
from secateur.methods.softnet import SoftNet
from secateur.methods.taylor import Taylor
from secateur.methods.thinet import ThiNet

METHODS: dict[str, type[Method]] = {
    "residual": Residual,
    "pfp": PFP,
    "ft": FT,
    "softnet": SoftNet,
    "thinet": ThiNet,
    "fpgm": FPGM,
    "taylor": Taylor,
    "random": Random,
}

__all__ = ["METHODS", "PFP", "Evidence", "GroupRow", "Method"]
