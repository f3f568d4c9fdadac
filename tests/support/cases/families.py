"""Small versions of networks that users bring: YOLO, U-Net, DeepLab, pyramids, super-resolution, GANs, audio."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.cases.base import Conv, Net, case

GENERATOR = torch.Generator().manual_seed(2)
NOISE = torch.randn(2, 6, generator=GENERATOR, dtype=torch.float64)
SOUND = torch.randn(2, 1, 32, generator=GENERATOR, dtype=torch.float64)


class C2f(nn.Module):
    """A block of YOLO: the channels are split, one half passes through further layers, and all parts are joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.c = channels // 2
        self.cv1, self.cv2 = Conv(channels, channels, 1), Conv(channels + self.c, channels, 1)
        self.m = nn.Sequential(Conv(self.c, self.c, 3, padding=1), nn.SiLU(), Conv(self.c, self.c, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.cv1(x).chunk(2, 1))
        parts.append(parts[-1] + self.m(parts[-1]))
        return self.cv2(torch.cat(parts, 1))


YOLO = {"stem": 8, "block.cv1": 4, "block.m.0": 4, "block.cv2": 8, "boxes.0": 6, "scores.0": 6}


@case(YOLO, graph=YOLO | {"block.cv1#2": 4})  # in the program, each half of the split has its own channels
def yolo() -> nn.Module:
    """A stem, a C2f block, fast pyramid pooling, and a head that returns boxes and scores of all positions."""

    def run(m: Net, x: Tensor) -> Tensor:
        x = m.block(F.silu(m.stem(x)))
        once = F.max_pool2d(x, 3, 1, 1)
        x = torch.cat([x, once, F.max_pool2d(once, 3, 1, 1)], 1)
        return torch.cat([m.boxes(x), m.scores(x).sigmoid()], 1).flatten(2)

    head = [nn.Sequential(Conv(24, 6, 1), nn.SiLU(), Conv(6, out, 1)) for out in (4, 3)]
    return Net(run, stem=Conv(3, 8, 3, 2, 1), block=C2f(8), boxes=head[0], scores=head[1])


@case({"down1": 4, "down2": 6, "bottom": 8, "up2": 6, "join2": 6, "up1": 4, "join1": 4})
def u_net() -> nn.Module:
    """Two scales with skip connections by concatenation, and transposed convolutions."""

    def run(m: Net, x: Tensor) -> Tensor:
        one = m.down1(x).relu()
        two = m.down2(F.max_pool2d(one, 2)).relu()
        low = m.bottom(F.max_pool2d(two, 2)).relu()
        two = m.join2(torch.cat([two, m.up2(low)], 1)).relu()
        return m.last(m.join1(torch.cat([one, m.up1(two)], 1)).relu())

    return Net(
        run,
        down1=Conv(3, 4, 3, padding=1),
        down2=Conv(4, 6, 3, padding=1),
        bottom=Conv(6, 8, 3, padding=1),
        up2=nn.ConvTranspose2d(8, 6, 2, 2),
        join2=Conv(12, 6, 3, padding=1),
        up1=nn.ConvTranspose2d(6, 4, 2, 2),
        join1=Conv(8, 4, 3, padding=1),
        last=Conv(4, 3, 1),
    )


@case({"stem": 6, "near": 5, "far": 5, "pooled": 5, "join": 6})
def deeplab() -> nn.Module:
    """Pyramid pooling with dilated convolutions and the mean of the image, and bilinear upsampling."""

    def run(m: Net, x: Tensor) -> Tensor:
        y = m.stem(x).relu()
        mean = m.pooled(y.mean((2, 3), keepdim=True)).relu()
        mean = F.interpolate(mean, size=y.shape[-2:], mode="bilinear", align_corners=False)
        y = m.join(torch.cat([m.near(y), m.far(y), mean], 1)).relu()
        return F.interpolate(m.last(y), scale_factor=2, mode="bilinear", align_corners=False)

    return Net(
        run,
        stem=Conv(3, 6, 3, 2, 1),
        near=Conv(6, 5, 1),
        far=Conv(6, 5, 3, padding=2, dilation=2),
        pooled=Conv(6, 5, 1),
        join=Conv(15, 6, 1),
        last=Conv(6, 4, 1),
    )


@case({"down": 8, "inner": 6})
def segnet() -> nn.Module:
    """The places of the maxima on the way down are those of the values on the way up, so both have equal channels."""

    def run(m: Net, x: Tensor) -> Tensor:
        y, places = F.max_pool2d(m.down(x), 2, return_indices=True)
        return m.last(F.max_unpool2d(m.up(m.inner(y).relu()), places, 2))

    return Net(run, down=Conv(3, 8, 3, padding=1), inner=Conv(8, 6, 1), up=Conv(6, 8, 1), last=Conv(8, 3, 1))


@case({"low": 4, "high": 6, "from_high": 5, "smooth": 5})
def feature_pyramid() -> nn.Module:
    """Features of two scales brought to one width, added, and read by one head that both scales share."""

    def run(m: Net, x: Tensor) -> list[Tensor]:
        low = m.low(x).relu()
        high = m.from_high(m.high(low).relu())
        low = m.from_low(low) + F.interpolate(high, scale_factor=2.0)
        return [m.head(m.smooth(one).relu()) for one in (low, high)]

    return Net(
        run,
        low=Conv(3, 4, 3, padding=1),
        high=Conv(4, 6, 3, 2, 1),
        from_low=Conv(4, 5, 1),
        from_high=Conv(6, 5, 1),
        smooth=Conv(5, 5, 3, padding=1),
        head=Conv(5, 4, 1),
    )


@case({"first": 6, "body": 5})
def super_resolution() -> nn.Module:
    """A residual body and a sub-pixel convolution."""

    def run(m: Net, x: Tensor) -> Tensor:
        y = m.first(x)
        y = y + m.back(m.body(y).relu())
        return F.pixel_shuffle(m.last(y), 2)

    return Net(
        run, first=Conv(3, 6, 3, padding=1), body=Conv(6, 5, 1), back=Conv(5, 6, 1), last=Conv(6, 12, 3, padding=1)
    )


@case({"first": 6, "up": 4}, example=NOISE)
def generator() -> nn.Module:
    """A GAN's generator: a linear layer whose output is viewed as a map, norms, transposed convolutions."""

    def run(m: Net, x: Tensor) -> Tensor:
        y = m.norm(m.first(x).view(len(x), -1, 4, 4)).relu()
        return m.last(m.up(y).relu()).tanh()

    return Net(
        run,
        first=nn.Linear(6, 6 * 16),
        norm=nn.BatchNorm2d(6),
        up=nn.ConvTranspose2d(6, 4, 4, 2, 1),
        last=nn.ConvTranspose2d(4, 3, 4, 2, 1),
    )


@case({"first": 8, "filter": 6}, example=SOUND)
def sound() -> nn.Module:
    """Gated dilated convolutions in one dimension, with a skip connection."""

    def run(m: Net, x: Tensor) -> Tensor:
        y = m.first(x)
        gated = m.filter(y).tanh() * m.gate(y).sigmoid()
        return m.last((y + m.back(gated)).mean(-1))

    return Net(
        run,
        first=nn.Conv1d(1, 8, 3, padding=1),
        filter=nn.Conv1d(8, 6, 3, padding=2, dilation=2),
        gate=nn.Conv1d(8, 6, 3, padding=2, dilation=2),
        back=nn.Conv1d(6, 8, 1),
        last=nn.Linear(8, 4),
    )
