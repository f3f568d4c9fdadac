"""Several processes that work together under torch.distributed: ranks, reductions, agreement."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from secateur.errors import SecateurError

T = TypeVar("T")
STRIDE = 0x9E3779B97F4A7C15  # between the seeds of two batches; that of the first one is the seed itself


@dataclass(frozen=True)
class Process:
    """One of `world` processes, and the device it should use."""

    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and shows progress."""
        return self.rank == 0


@contextlib.contextmanager
def distributed() -> Iterator[Process]:
    """Join the other processes that `torchrun` started, within a `with` block; without torchrun there is only this one.

    >>> with distributed() as process:
    ...     mine = Batches(images, shard=(process.rank, process.world))
    ...     train(network.to(process.device), mine, settings)

    If torch.distributed is initialised already, as within another such block, it is used and left as it is.
    """
    started = _under_torchrun() and not in_use()
    if started:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield this_process()
    finally:
        if started:
            dist.destroy_process_group()


def this_process() -> Process:
    """Return the rank of this process, the number of processes and the device to use."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    if not in_use():
        return Process(0, 1, device)
    return Process(dist.get_rank(), dist.get_world_size(), device)


def in_use() -> bool:
    """Return whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def own_share(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this process works on: every `world`-th, from its rank on; all if it is the only one.

    >>> for number in own_share(range(len(batches))):
    ...     run(batches[number])
    """
    process = this_process()
    return items if process.world == 1 else items[process.rank :: process.world]


def batch_source(seed: int, number: int) -> torch.Generator:
    """Return the random numbers for one batch: the same ones in whichever process it runs."""
    return torch.Generator().manual_seed((seed + STRIDE * number) % (1 << 63))


def sum_over_all(values: list[float], device: torch.device) -> list[float]:
    """Return each value, summed over the processes."""
    if not in_use():
        return values
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return [float(value) for value in total]


def reduce_over_all(tensor: Tensor, how: Literal["sum", "max", "min"]) -> None:
    """Put the sum, the maximum or the minimum over all processes into the tensor."""
    if in_use():
        moved = tensor.to("cuda" if dist.get_backend() == "nccl" else "cpu").contiguous()
        dist.all_reduce(moved, {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}[how])
        tensor.copy_(moved)


def gather_from_all(rows: Tensor) -> Tensor:
    """Return the rows of all processes, one below the other; their number may differ."""
    if not in_use():
        return rows
    rank = dist.get_rank()
    counts = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    counts[rank] = len(rows)
    reduce_over_all(counts, "sum")
    together = rows.new_zeros(int(counts.sum()), *rows.shape[1:])
    first = int(counts[:rank].sum())
    together[first : first + len(rows)] = rows
    reduce_over_all(together, "sum")
    return together


def check_agreement(values: dict[str, int], device: torch.device, remedy: str) -> None:
    """Raise an error if the processes differ in a number that must be the same, or they would wait forever."""
    if not in_use():
        return
    own = torch.tensor(list(values.values()), device=device)
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    for name, each in zip(values, torch.stack(found, 1).tolist(), strict=True):
        if len(set(each)) > 1:
            raise SecateurError(f"the processes differ in {name}: {each}", layer="distributed", remedy=remedy)


def from_first(work: Callable[[], T]) -> T:
    """Return the result of a function that only the first process runs, such as a measurement of time.

    >>> seconds = from_first(lambda: timed(network))
    """
    if not in_use():
        return work()
    found = [work() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, 0)
    return found[0]  # type: ignore[return-value]


def copy_from_first(tensors: list[Tensor]) -> None:
    """Copy the values of the first process to all others."""
    if in_use():
        for tensor in tensors:
            dist.broadcast(tensor, 0)


def wait_for_all(device: torch.device) -> None:
    """Wait until every process has reached this point."""
    sum_over_all([0.0], device)


def parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the network with its gradients averaged over the processes."""
    if not in_use():
        return model
    return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)


def _under_torchrun() -> bool:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return dist.is_available() and all(name in os.environ for name in names)
