"""Train the LeNets on MNIST with the settings of the Provable Filter Pruning paper.

    python benchmarks/train_lenets.py --data DIR --out DIR                          # both networks, seed 0
    python benchmarks/train_lenets.py --data DIR --out DIR --network lenet300100 --seed 1

Images are scaled to [0, 1] and not normalised further. The network of the last epoch is kept, and evaluated once on the
test set. Writes NETWORK-seedK.safetensors, and a row of results/train_lenets.json.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from environment import Rows, add_data_option, options, write_atomic, write_record
from secateur.data import dataset
from secateur.zoo import NETWORKS

EPOCHS, BATCH = 40, 64
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
DECAY, DECAY_AT = 0.1, {"lenet5": (25, 35), "lenet300100": (30,)}  # epochs of 40


def train(name: str, root: Path, epochs: int, seed: int) -> tuple[nn.Module, dict[str, Any]]:
    """Train one network; return it with its row of the record."""
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
    }


def evaluate(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the mean loss and the share of wrong answers."""
    with torch.no_grad():
        scores = torch.cat([model(batch) for batch in images.split(1000)])
    return cross_entropy(scores, labels).item(), (scores.argmax(1) != labels).float().mean().item()


def _part(root: Path, part: str, seed: int) -> tuple[Tensor, Tensor]:
    data = dataset("mnist", part, root, seed=seed, download=False).scaled((0.0,), (1.0,))
    return data.inputs(torch.arange(len(data))), data.targets


def gather(rows: Rows) -> None:
    """Write the record: the last row of every network and seed."""
    last = {(row["network"], row["seed"]): row for row in rows.read()}
    networks = [last[key] for key in sorted(last)]
    head = {"input": "0 to 1", "epochs_in_the_paper": EPOCHS}
    write_record("train_lenets", {**head, "networks": networks}, commits={row["commit"] for row in networks})


def main() -> None:
    """Train the networks; write their weights and rows."""
    parser = options(__doc__)
    add_data_option(parser, "MNIST/raw")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--network", choices=sorted(DECAY_AT), help="only this one")
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help="another number is not recorded (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and batches (default: %(default)s)")
    args = parser.parse_args()
    rows = Rows("train_lenets")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in [args.network] if args.network else sorted(DECAY_AT):
        model, row = train(name, args.data, args.epochs, args.seed)
        state = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
        write_atomic(args.out / f"{name}-seed{args.seed}.safetensors", save(state))
        if args.epochs == EPOCHS:
            rows.add(row)
            gather(rows)
        print(f"{name}: test error {row['test_error']:.2%}")


if __name__ == "__main__":
    main()
