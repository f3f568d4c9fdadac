"""Prune a network of segmentation_models_pytorch, train it on in your own loop, certify it, and export it to ONNX.

    pip install 'secateur[segmentation,onnx]'
    python docs/prune_smp.py                                # a small U-Net on made-up images, about a minute
    python docs/prune_smp.py --kind FPN --encoder mobilenet_v2

The images are bright discs on noise, so it shows the way, not a result.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.zoo.libraries import library

library("torchvision")  # smp imports it; this helps where it does not match torch
import segmentation_models_pytorch as smp  # noqa: E402


def discs(count: int, seed: int, side: int = 64) -> tuple[Tensor, Tensor]:
    """Return images with a disc on noise, and its pixels: 1 or 2 for two kinds of texture, 0 elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 3, side, side, generator=generator)
    axis = torch.arange(side)
    centre = torch.randint(16, side - 16, (2, count, 1, 1), generator=generator)
    inside = (axis[:, None] - centre[0]) ** 2 + (axis - centre[1]) ** 2 < 14**2
    kind = torch.randint(1, 3, (count, 1, 1), generator=generator)
    stripes = torch.where(kind == 1, axis[:, None] % 4 < 2, axis % 4 < 2)
    x = torch.where((inside & stripes)[:, None], 0.5 + x / 2, x / 2)
    return x, inside * kind


def train(network: nn.Module, loader: DataLoader, epochs: int, lr: float) -> None:
    """Train by a plain loop, pixel by pixel."""
    optimizer = torch.optim.AdamW(network.parameters(), lr)  # after a cut: new parameters, so a new optimizer
    network.train()
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()


def mean_iou(network: nn.Module, images: Tensor, classes: Tensor) -> float:
    """Return the mean over classes of intersection over union."""
    with torch.no_grad():
        found = network(images).argmax(1)
    stats = smp.metrics.get_stats(found, classes, mode="multiclass", num_classes=3)
    return float(smp.metrics.iou_score(*stats, reduction="macro"))


def main() -> None:
    """Walk the whole way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="Unet", help="an architecture of smp (default: %(default)s)")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--macs", default="50%", help="what may remain (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="before pruning; half of it afterwards")
    parser.add_argument("--out", type=Path, default=Path("smp-pruned"))
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    torch.manual_seed(0)
    small = {"encoder_depth": 3, "decoder_channels": (64, 32, 16)} if args.kind == "Unet" else {}
    network = getattr(smp, args.kind)(args.encoder, encoder_weights=None, classes=3, **small)
    images, classes = discs(128, seed=0)
    loader = DataLoader(TensorDataset(images, classes), batch_size=16, shuffle=True)
    validation, heldout = discs(64, seed=1), discs(200, seed=2)

    train(network, loader, args.epochs, 1e-3)
    print(f"trained: mean IoU {mean_iou(network, *validation):.3f}")

    res = sc.prune(network, loader, {"macs": args.macs}, task="segmentation", samples=64)
    sc.save(args.out / "pruned.safetensors", res)
    print(f"pruned, {res.before} to {res.after}: mean IoU {mean_iou(res.model, *validation):.3f}")

    train(res.model, loader, max(1, args.epochs // 2), 3e-4)
    print(f"trained on: mean IoU {mean_iou(res.model, *validation):.3f}")
    print(sc.certify(network, res.model, [heldout], task="segmentation", labels=True))
    print(sc.export(res.model, args.out / "pruned.onnx", images[:1], data=images[:8]))


if __name__ == "__main__":
    main()
