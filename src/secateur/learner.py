"""A network ready to learn: laid out in memory, with its optimizer, in parallel, compiled, in half precision or not."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from secateur import resume
from secateur.errors import SecateurError, UsageError
from secateur.evaluate import Step, device_of, judge, size_of, to_device
from secateur.layout import channels_last, lay_out, suits_channels_last
from secateur.processes import parallel
from secateur.training import Training, learning_rate

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Learner:
    """A network that learns batch by batch.

    >>> learner = Learner(model, settings, step=None, first=[batch], state=None)
    >>> learner.set_rate(epoch=0, through=1.0)
    >>> points, loss, right = learner.learn(batch)

    first: a batch to try channels_last on; none if there is none.
    state: where a run before this one stopped.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Training,
        step: Step | None,
        first: list[Any],
        state: resume.State | None,
    ) -> None:
        self.settings, self.step = settings, step
        self.device = device = device_of(model)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.half = half_precision(settings, device)
        self.network = model
        self.relaid = settings.memory_format == "channels_last"
        if settings.memory_format == "auto" and step is None and first:
            self.relaid = suits_channels_last(model, to_device(first[0], device), self._loss)
        if self.relaid:
            lay_out(model)
        self.optimizer = optimizer_for(self.parameters, settings)
        self.scaler = torch.amp.GradScaler(device.type, enabled=self.half == torch.float16)
        if state:
            state.fill_optimizer(model, self.optimizer, self.scaler)
        self.network = parallel(model, device)
        if settings.compile:
            self.network = cast(nn.Module, torch.compile(self.network))
        self.rate = settings.lr

    def set_rate(self, epoch: int, through: float) -> None:
        """Use the learning rate of this moment."""
        self.rate = learning_rate(self.settings, epoch, through)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate

    def learn(self, batch: Any) -> tuple[int, Tensor, list[Tensor]]:
        """One step; gives the number of points, the loss, and how many were right."""
        points = size_of(batch)
        if not points:
            raise SecateurError("a batch is empty", layer="data", remedy="leave empty batches out")
        batch = to_device(batch, self.device)
        loss, right = self._loss(channels_last(batch) if self.relaid and self.step is None else batch)
        if not loss.requires_grad:
            raise UsageError("the loss does not depend on what is trained", remedy="do not detach it in the step")
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return points, loss, right

    def _loss(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast(self.device.type, self.half, enabled=self.half is not None):
            smoothing = self.settings.label_smoothing
            return judge(self.network, batch, self.settings.loss, step=self.step, smoothing=smoothing)


def optimizer_for(parameters: list[nn.Parameter], settings: Training) -> torch.optim.Optimizer:
    """The optimizer that the settings name."""
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
    """The type that autocast uses: never one that is not asked for on the CPU, where it would be slow."""
    if settings.amp != "auto":
        return DTYPES.get(settings.amp)
    if device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
