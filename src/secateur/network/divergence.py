"""Output divergence: how far apart the outputs of two networks are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from secateur.network.precision import at_least_float32


def output_divergence(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the mean over outputs: the KL divergence for class scores, the relative squared error for others."""
    total = 0.0
    for new, old in zip(map(at_least_float32, found), map(at_least_float32, wanted), strict=True):
        if are_class_scores(old):
            gap = F.kl_div(new.log_softmax(1), old.log_softmax(1), log_target=True, reduction="batchmean")
        else:
            gap = (new - old).square().sum() / old.square().sum().clamp_min(1e-24)
        total += max(0.0, float(gap)) if gap.isfinite() else math.inf
    return total / max(1, len(wanted))


def are_class_scores(output: Tensor) -> bool:
    """Return whether an output is a matrix of scores, one for each sample and class."""
    return output.dim() == 2 and output.shape[1] > 1
