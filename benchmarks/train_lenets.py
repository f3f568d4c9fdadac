"""Train the LeNets on MNIST with the settings of the Provable Filter Pruning paper.

python benchmarks/train_lenets.py --data DIR --out DIR                          # LeNet-5, seed 0
python benchmarks/train_lenets.py --data DIR --out DIR --network lenet300100 --seed 1

Images are scaled to [0, 1] and not normalised further. The network of the last epoch is the one that is kept, and it
meets the test set once. Writes NETWORK-seedK.safetensors, and a row of results/train_lenets.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import mnist
from environment import RESULTS, versions, write_whole
from secateur.embedded import as_images
from secateur.zoo import NETWORKS

EPOCHS, BATCH = 40, 64
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
DECAY, DECAY_AT = 0.1, {"lenet5": (25, 35), "lenet300100": (30,)}  # epochs of 40
RECORD = RESULTS / "train_lenets.json"


def train(name: str, root: Path, epochs: int, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """Train one network; give it with its row of the record."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = NETWORKS[name]().to(memory_format=torch.channels_last)  # nearly twice as fast
    optimizer = torch.optim.SGD(model.parameters(), **SGD)
    decay_at = [epoch * epochs // EPOCHS for epoch in DECAY_AT[name]]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, decay_at, DECAY)
    images, labels = _part(root, "train", seed)
    validation = _part(root, "validation", seed)
    started = time.perf_counter()
    for epoch in range(1, epochs + 1):
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        schedule.step()
        seconds = time.perf_counter() - started
        check, error = evaluate(model, *validation)
        print(
            f"{name} seed {seed} epoch {epoch}/{epochs}: training loss {total / len(images):.5f}, "
            f"validation loss {check:.4f}, validation error {error:.2%}, {seconds:.0f} s",
            flush=True,
        )
    return model, {
        "network": name,
        "seed": seed,
        "test_error": round(evaluate(model, *_part(root, "test", seed))[1], 5),
        "validation_error": round(error, 5),
        "epochs": epochs,
        "batch": BATCH,
        **SGD,
        "decay": DECAY,
        "decay_at": decay_at,
        "seconds": round(seconds, 1),
        "versions": {"python": platform.python_version(), **versions("torch", "secateur")},
    }


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Give the mean loss and the share of wrong answers."""
    with torch.no_grad():
        scores = torch.cat([model(batch) for batch in images.split(1000)])
    return cross_entropy(scores, labels).item(), (scores.argmax(1) != labels).float().mean().item()


def _part(root: Path, part: mnist.Part, seed: int) -> tuple[Tensor, Tensor]:
    pixels, labels = mnist.load(root, part, seed)
    return as_images(pixels), labels.long()


def _add_to_record(row: dict[str, Any]) -> None:
    rows = json.loads(RECORD.read_text())["networks"] if RECORD.exists() else []
    merged = {(each["network"], each["seed"]): each for each in [*rows, row]}
    content = {"input": "0 to 1", "epochs_in_the_paper": EPOCHS, "networks": [merged[key] for key in sorted(merged)]}
    write_whole(RECORD, json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Train one network, write its weights and its row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mnist.add_data_option(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--network", choices=sorted(DECAY_AT), default="lenet5")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, row = train(args.network, args.data, args.epochs, args.seed)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_whole(args.out / f"{args.network}-seed{args.seed}.safetensors", save(state))
    _add_to_record(row)
    print(f"test error {row['test_error']:.2%}")


if __name__ == "__main__":
    main()
