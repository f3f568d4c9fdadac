"""The tasks of benchmarks/tasks.py: a U-Net that finds digits on canvases, and a vision transformer, trained here.

Training takes three to four minutes on one core for the U-Net, two for the transformer. The task and the training of
the U-Net were chosen on canvases of training digits that a trial held out, after earlier versions with clutter had been
weak on test canvases; the transformer was not changed after its test results were seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CANVAS, NOISE = 32, 0.1  # side of a canvas, standard deviation of its noise
BACKGROUND = 0.2  # weight of background in the loss of the U-Net: nine of ten pixels are
TESTS = 1000

Pairs = tuple[Tensor, Tensor]


def double(inputs: int, outputs: int) -> nn.Sequential:
    """Return two 3x3 convolutions, each with a norm and ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """A U-Net with four levels for images with one channel."""

    def __init__(self, classes: int = 11, widths: tuple[int, ...] = (8, 16, 32, 64)) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(double, (1, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, 2) for width in widths[-2::-1])
        self.join = nn.ModuleList(double(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores of every pixel."""
        maps: list[Tensor] = []
        for block in self.down:
            x = block(F.max_pool2d(x, 2) if maps else x)
            maps.append(x)
        for up, join, skip in zip(self.up, self.join, maps[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


def vit() -> nn.Module:
    """Return timm's VisionTransformer in a small version: 3 blocks, 64 wide, with 8 heads."""
    from secateur.zoo.libraries import library

    library("timm")
    from timm.models.vision_transformer import VisionTransformer

    size = {"img_size": 28, "patch_size": 7, "in_chans": 1, "num_classes": 10}
    return VisionTransformer(**size, embed_dim=64, depth=3, num_heads=8)


def canvases(images: Tensor, labels: Tensor, count: int, seed: int) -> Pairs:
    """Return images with a digit at a random place and noise, and the class of each pixel: 0, or 1 + the digit."""
    generator = torch.Generator().manual_seed(seed)
    side = images.shape[-1]
    x, y = torch.zeros(count, CANVAS, CANVAS), torch.zeros(count, CANVAS, CANVAS, dtype=torch.long)
    chosen = torch.randint(len(images), (count,), generator=generator).tolist()
    corners = torch.randint(CANVAS - side, (count, 2), generator=generator).tolist()
    for canvas, classes, one, (row, column) in zip(x, y, chosen, corners, strict=True):
        part = (slice(row, row + side), slice(column, column + side))
        canvas[part] = images[one]
        classes[part][images[one] > 0.5] = 1 + labels[one]
    x = (x + NOISE * torch.randn(x.shape, generator=generator)).clamp(0, 1)
    return ((x - 0.13) / 0.31)[:, None], y


@dataclass(frozen=True)
class Task:
    """A network, its data, and how it is trained.

    Attributes:
        images: samples of the training set, or canvases made of them.
        epochs: over these samples.
        lr: the largest learning rate of AdamW, in one cycle.
        batch: samples in each step.
    """

    name: str
    build: Callable[[], nn.Module]
    segmentation: bool
    images: int
    epochs: int
    lr: float
    batch: int


TASKS = {
    task.name: task
    for task in (
        Task("unet-mnist", UNet, True, 12_000, 8, 1e-2, 32),
        Task("vit-mnist", vit, False, 60_000, 3, 2e-3, 64),
    )
}


def read(task: Task, root: Path, part: str, count: int, seed: int = 0) -> Pairs:
    """Return that many samples of "train", "validation" or "test" with their classes; a seed chooses which."""
    from secateur.data import dataset

    source = dataset("mnist", part, root, download=False)
    everything = torch.arange(len(source))
    if task.segmentation:
        plain = source.scaled((0.0,), (1.0,))
        return canvases(plain.inputs(everything)[:, 0], source.targets, count, seed)
    chosen = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:count]
    return source.inputs(chosen), source.targets[chosen]


def trained(task: Task, root: Path, runs: Path) -> nn.Module:
    """Return the trained network; it is trained once, and then read from the folder of runs."""
    torch.manual_seed(0)
    model, path = task.build(), runs / f"{task.name}.safetensors"
    if path.exists():
        model.load_state_dict(load_file(path))
        return model.eval()
    x, y = read(task, root, "train", task.images)
    weights = torch.tensor([BACKGROUND, *[1.0] * 10]) if task.segmentation else None
    steps = task.epochs * (len(x) // task.batch)
    adam = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    cycle = torch.optim.lr_scheduler.OneCycleLR(adam, task.lr, total_steps=steps)
    for epoch in range(task.epochs):
        losses = []
        for chosen in torch.randperm(len(x)).split(task.batch)[: len(x) // task.batch]:
            batch = x[chosen] if task.segmentation else shifted(x[chosen])
            loss = F.cross_entropy(model(batch), y[chosen], weight=weights)
            adam.zero_grad()
            loss.backward()
            adam.step()
            cycle.step()
            losses.append(loss.item())
        print(f"{task.name}: epoch {epoch + 1} of {task.epochs}, loss {sum(losses) / len(losses):.4f}", flush=True)
    runs.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return model.eval()


def shifted(x: Tensor) -> Tensor:
    """Return the images shifted by up to two pixels."""
    top, left = torch.randint(5, (2,)).tolist()
    side = x.shape[-1]
    return F.pad(x, (2, 2, 2, 2), mode="replicate")[..., top : top + side, left : left + side]
