"""Prune a network with a timm backbone in the middle of its own training loop: a plain loop, or Lightning.

    pip install 'secateur[zoo,onnx]' lightning
    python docs/prune_timm.py                    # a plain loop: 1,500 digits, a few seconds
    python docs/prune_timm.py --lightning

It trains, prunes to half of the MACs, trains on, validates and exports. The digits are in the package.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.embedded import digits
from secateur.zoo.libraries import library

timm = library("timm")


class Classifier(nn.Module):
    """A backbone of timm with a head of its own, as in many projects."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        self.backbone = timm.create_model(backbone, in_chans=1, num_classes=0)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(self.backbone.num_features, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores."""
        return self.head(self.backbone(x))


def train(network: nn.Module, loader: DataLoader, epochs: int, lr: float) -> None:
    """Train by a plain loop."""
    optimizer = torch.optim.AdamW(network.parameters(), lr)  # after a cut: new parameters, so a new optimizer
    network.train()
    for _ in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(network(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()


def train_with_lightning(network: nn.Module, loader: DataLoader, epochs: int, lr: float) -> None:
    """Train by Lightning: the module holds the network, so a smaller one is trained in the same way."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Any, index: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.network(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.network.parameters(), lr)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    network.train()
    lightning.Trainer(max_epochs=epochs, accelerator="cpu", **quiet).fit(Lit(network), loader)
    network.eval()


def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of correct classes."""
    with torch.no_grad():
        return float((network(images).argmax(1) == labels).float().mean())


def main() -> None:
    """Walk the whole way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="test_resnet", help="of timm (default: %(default)s, a tiny one)")
    parser.add_argument("--lightning", action="store_true", help="train with Lightning instead of a plain loop")
    parser.add_argument("--macs", default="50%", help="what may remain (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="before pruning; half of it afterwards")
    parser.add_argument("--out", type=Path, default=Path("timm-pruned"))
    args = parser.parse_args()
    args.out.mkdir(exist_ok=True)
    torch.manual_seed(0)
    images, labels = digits("test")
    loader = DataLoader(TensorDataset(images[:1500], labels[:1500]), batch_size=50, shuffle=True)
    heldout = images[1500:], labels[1500:]
    fit = train_with_lightning if args.lightning else train

    network = Classifier(args.backbone)
    fit(network, loader, args.epochs, 1e-3)
    print(f"trained: {accuracy(network, *heldout):.1%} of 500 held-out digits")

    res = sc.prune(network, loader, {"macs": args.macs}, samples=256)
    sc.save(args.out / "pruned.safetensors", res)
    print(f"pruned, {res.before} to {res.after}: {accuracy(res.model, *heldout):.1%}")

    fit(res.model, loader, max(1, args.epochs // 2), 3e-4)
    print(f"trained on: {accuracy(res.model, *heldout):.1%}")
    print(sc.export(res.model, args.out / "pruned.onnx", images[:1], data=images[:8]))


if __name__ == "__main__":
    main()
