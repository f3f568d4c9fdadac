"""A network with its optimizer, memory format, precision, parallel wrapper and compilation."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from secateur.errors import SecateurError, UsageError
from secateur.network.modules import device_of
from secateur.network.processes import parallel
from secateur.training import resume
from secateur.training.averages import Average
from secateur.training.distillation import Teacher
from secateur.training.evaluation import Step, batch_loss, inputs_of, is_unlabelled, size_of, to_device
from secateur.training.layout import channels_last, lay_out, suits_channels_last
from secateur.training.learning_rates import learning_rate
from secateur.training.settings import Training

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Learner:
    """A network that is trained batch by batch.

    >>> learner = Learner(model, settings, step=None, teacher=None, first=[batch], state=None)
    >>> learner.set_rate(epoch=0, through=1.0)
    >>> samples, loss, correct = learner.learn(batch)

    Args:
        first: at most one batch, to try channels_last on.
        state: of an interrupted run.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Training,
        step: Step | None,
        teacher: Teacher | None,
        first: list[Any],
        state: resume.State | None,
    ) -> None:
        self.settings, self.step, self.teacher = settings, step, teacher
        self.device = device = device_of(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.half = half_precision(settings, device)
        self.network = model
        self.channels_last = settings.memory_format == "channels_last"
        if settings.memory_format == "auto" and step is None and first:
            with self._autocast():
                self.channels_last = suits_channels_last(model, to_device(first[0], device))
        if self.channels_last:
            lay_out(model)
        if teacher and self.channels_last and first:
            teacher.channels_last = suits_channels_last(teacher.model, to_device(first[0], device_of(teacher.model)))
            if teacher.channels_last:
                lay_out(teacher.model)
        self.optimizer = optimizer_for(self.parameters, settings)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half == torch.float16)
        if state:
            state.fill_optimizer(model, self.optimizer, self.scaler)
        self.average: Average | None = None
        if settings.ema is not None:
            self.average = state.average(model, settings.ema) if state else Average(model, settings.ema)
        self.network = parallel(model, device)
        if settings.compile:
            self.network = cast(nn.Module, torch.compile(self.network))
        self.rate = settings.lr

    def set_rate(self, epoch: int, through: float) -> None:
        """Set the learning rate for this moment of an epoch."""
        self.rate = learning_rate(self.settings, epoch, through)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate

    def learn(self, batch: Any) -> tuple[int, Tensor, list[Tensor]]:
        """Take one step; return the number of samples, the loss, and how many were correct."""
        samples = size_of(batch)
        if not samples:
            raise SecateurError("a batch is empty", layer="data", remedy="leave out empty batches")
        with self._autocast():
            loss, correct = self._loss(self._laid_out(batch))
        if not loss.requires_grad:
            raise UsageError(
                "the loss does not depend on the trained parameters", remedy="do not detach it in the step"
            )
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average:
            self.average.update()
        return samples, loss, correct

    def run(self, batch: Any) -> None:
        """Run the network on a batch, without a step."""
        with self._autocast():
            batch = self._laid_out(batch)
            if self.step is not None:
                self.step(self.network, batch)
            else:
                self.network(inputs_of(batch))

    def _loss(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        if self.teacher is None:
            return self._label_loss(batch)
        with self.teacher.watch(self.network) as seen:
            if self.step is None and is_unlabelled(batch):
                self.network(inputs_of(batch))
                labels: Tensor | None = None
                correct: list[Tensor] = []
            else:
                labels, correct = self._label_loss(batch)
        return self.teacher.loss(seen, labels), correct

    def _label_loss(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        smoothing = self.settings.label_smoothing
        return batch_loss(self.network, batch, self.settings.loss, step=self.step, smoothing=smoothing)

    def _laid_out(self, batch: Any) -> Any:
        batch = to_device(batch, self.device)
        return channels_last(batch) if self.channels_last and self.step is None else batch

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.half, enabled=self.half is not None)


def optimizer_for(parameters: list[nn.Parameter], settings: Training) -> torch.optim.Optimizer:
    """Return the optimizer of the settings."""
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.lr, weight_decay=settings.weight_decay)
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )


def half_precision(settings: Training, device: torch.device) -> torch.dtype | None:
    """Return the type for autocast; by default none on the CPU, where it is slow."""
    if settings.amp != "auto":
        return DTYPES.get(settings.amp)
    if device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
