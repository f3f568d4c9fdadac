"""Slow, obvious implementations that the fast ones are compared with."""

from __future__ import annotations

import torch

import secateur as sc


def naive_cut(tensor: torch.Tensor, name: str, plan: sc.Plan) -> torch.Tensor:
    """Return the kept rows and columns of a tensor, one index after the other."""
    for axis in range(tensor.dim()):
        rows = plan.kept.get(sc.Slot(name, axis))
        if rows is not None:
            tensor = torch.stack([tensor.select(axis, row) for row in rows], axis)
    return tensor
