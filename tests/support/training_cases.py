"""Tiny networks, data to train them on, and processes that train them."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from secateur.network.modules import named_tensors
from secateur.training.loop import Training, train

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["secateur.training.loop", "torch._dynamo"])  # once, not in every process


class Epochs:
    """Batches that depend on the epoch only; a process takes its part of each."""

    def __init__(
        self, count: int = 4, size: int = 8, rank: int = 0, world: int = 1, shape: tuple[int, ...] = (1, 6, 6)
    ):
        self.count, self.size, self.rank, self.world, self.shape = count, size, rank, world, shape

    def __len__(self) -> int:
        return self.count

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        source = torch.Generator().manual_seed(number)
        for _ in range(self.count):
            x = torch.randn(self.size, *self.shape, generator=source)
            y = (x.flatten(1)[:, :3].sum(1) > 0).long()
            yield x.chunk(self.world)[self.rank], y.chunk(self.world)[self.rank]


def network(norm: bool = True, dropout: float = 0.3) -> nn.Sequential:
    """Return a convolution and a linear layer, always with the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(64, 8))


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in named_tensors(model).items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Return whether the weights are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def run_until_killed(state: Path, log: Path, settings: Training) -> None:
    """Train in a process that will be killed."""
    torch.set_num_threads(1)
    train(network(), Epochs(), settings, state_path=state, log=log)


def in_two_processes(target: Callable[..., object], folder: Path, *arguments: Any) -> list[Any]:
    """Run the target in two processes, as torchrun would, and return the result of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = [folder / f"{rank}.pt" for rank in range(2)]
    processes = [
        CONTEXT.Process(target=_as_rank, args=(rank, port, path, target, arguments)) for rank, path in enumerate(paths)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(path) for path in paths]


def _as_rank(rank: int, port: int, path: Path, target: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.save(target(*arguments), path)
