"""Output divergence: how far apart the outputs of two networks are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from secateur.network.precision import at_least_float32


def output_divergence(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """Return the mean over outputs: the KL divergence for class scores, the relative squared error for others."""
    return mean_divergence(divergence_sums(found, wanted))


def divergence_sums(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor:
    """Return for each output the sum of its divergence and what it is divided by; those of batches can be added.

    [outputs, 2], in double precision: for class scores the sum of the KL divergence and the number of samples, for
    others the squared error and the squared outputs.
    """
    sums = torch.zeros(len(wanted), 2, dtype=torch.float64)
    for row, new, old in zip(sums, map(at_least_float32, found), map(at_least_float32, wanted), strict=True):
        if are_class_scores(old):
            row[0] = F.kl_div(new.log_softmax(1), old.log_softmax(1), log_target=True, reduction="sum")
            row[1] = len(old)
        else:
            row[0], row[1] = (new - old).square().sum(), old.square().sum()
    return sums


def mean_divergence(sums: Tensor) -> float:
    """Return the mean over outputs of what `divergence_sums` has found; infinite if one is not finite."""
    gaps = (sums[:, 0] / sums[:, 1].clamp_min(1e-24)).clamp_min(0)
    return float(gaps.where(gaps.isfinite(), torch.inf).sum()) / max(1, len(sums))


def are_class_scores(output: Tensor) -> bool:
    """Return whether an output is a matrix of scores, one for each sample and class."""
    return output.dim() == 2 and output.shape[1] > 1
