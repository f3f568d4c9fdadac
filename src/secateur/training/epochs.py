"""The epochs of a training run: their batches, the learner, and the weights that are the result."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from secateur.errors import SecateurError
from secateur.network.processes import Process, copy_from_first
from secateur.training import resume
from secateur.training.averages import copies, estimate_norms, put
from secateur.training.distillation import Teacher
from secateur.training.evaluation import Step, batches_of
from secateur.training.learner import Learner
from secateur.training.settings import Training


class Diverged(SecateurError):
    """The loss is NaN or infinite, or on its way there."""


class Epochs:
    """The epochs of a run: their batches, the learner, and the weights that are the result.

    Args:
        state: of an interrupted run.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Any,
        settings: Training,
        step: Step | None,
        teacher: Teacher | None,
        state: resume.State | None,
        process: Process,
    ) -> None:
        self.model, self.batches, self.settings, self.process = model, batches, settings, process
        self.step, self.teacher, self.state = step, teacher, state
        self.learner: Learner | None = None

    def begin(self, epoch: int) -> tuple[Learner, Iterator[Any]]:
        """Return the learner, which the first batch makes, and the batches of an epoch."""
        _seed(self.settings.seed, epoch, self.process, self.batches)
        stream = iter(batches_of(self.batches, epoch))
        if self.learner is None:
            first = list(islice(stream, 1))
            self.learner = Learner(self.model, self.settings, self.step, self.teacher, first, self.state)
            stream = chain(first, stream)
        return self.learner, stream

    @contextmanager
    def result_in_place(self) -> Iterator[None]:
        """Let the network have the averaged weights within a `with` block, if there are any."""
        average = self.learner.average if self.learner else None
        with average.in_place() if average else nullcontext():
            yield

    @contextmanager
    def keeping_good_weights(self) -> Iterator[None]:
        """Put back the present weights, or their average, if the loss in a `with` block is not finite."""
        with self.result_in_place():
            good = copies(self.model)
        try:
            yield
        except Diverged:
            put(self.model, good)
            raise

    def buffers(self) -> list[Tensor]:
        """Return the buffers of the network, and their averages."""
        average = self.learner.average if self.learner else None
        names = [name for name, _ in self.model.named_buffers()]
        return [*self.model.buffers()] + [average.values[name] for name in names if average and name in average.values]

    def finish(self, done: int) -> None:
        """Turn the weights into the result: averaged, with new statistics of batch norms, as the settings say."""
        if not done or (self.settings.ema is None and not self.settings.norm_batches):
            return
        learner, stream = self.begin(done)
        if learner.average:
            put(self.model, learner.average.values)
        if self.settings.norm_batches:
            estimate_norms(self.model, islice(stream, self.settings.norm_batches), learner.run)
            copy_from_first([*self.model.buffers()])

    def close(self) -> None:
        """Remove the gradients."""
        if self.learner:
            self.learner.optimizer.zero_grad()


def _seed(seed: int, epoch: int, process: Process, batches: Any) -> None:
    """Seed all random numbers, so that an epoch does not depend on earlier ones."""
    digest = hashlib.sha256(f"{seed}/{epoch}/{process.rank}".encode()).digest()
    number = int.from_bytes(digest[:4], "big")
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
    for owner in (batches, getattr(batches, "sampler", None)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(number)
