"""Several processes that prune one network: the same samples, the same weights, and memory that all of them have."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace

import torch
from torch import nn

from secateur.certificates import fingerprints
from secateur.network.memory import room
from secateur.network.modules import device_of, named_tensors
from secateur.network.processes import check_agreement, in_use, reduce_over_all, this_process
from secateur.pruning.pool import Pool
from secateur.pruning.settings import PruneSettings

REMEDY = (
    "under torchrun, pass the same network and the same data to every process: each works on its own share of the "
    "samples (load the weights, or set the seed before they are made; no DistributedSampler)"
)


def with_shared_memory(model: nn.Module, pool: Pool, settings: PruneSettings) -> PruneSettings:
    """Return the settings with the memory that every process has, if there are several; else as they are.

    An error is raised if the processes have different samples or different weights.
    """
    if not in_use():
        return settings
    device = device_of(model)
    samples = zlib.crc32("".join(one for call in pool.calls for one in fingerprints.of(call)).encode())
    weights = 0
    for tensor in named_tensors(model).values():
        plain = tensor.detach().cpu().contiguous()
        weights = zlib.crc32(plain.reshape(-1).view(torch.uint8).numpy().tobytes(), weights)
    numbers = {"the number of samples": len(pool), "the samples (checksum)": samples, "the weights (checksum)": weights}
    check_agreement(numbers, this_process().device, REMEDY)
    if settings.memory is not None:
        return settings
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # processes on this machine
    least = torch.tensor([room(None, device) // (here if device.type == "cpu" else 1)])
    reduce_over_all(least, "min")
    return replace(settings, memory=int(least))
