"""Folders of sweeps that were never run, of any size, for tests and benchmarks of the report page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def figures(top1: float | None, loss: float | None = 0.1) -> dict[str, Any]:
    return {"samples": 100, "loss": loss, "top1": top1, "top5": None}


def write(folder: Path, name: str, data: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def step(
    network: int, method: str, number: int, removed: float, validation: float | None, test: float | None
) -> dict[str, Any]:
    return {
        "network": network,
        "method": method,
        "step": number,
        "target": removed,
        "params": round(1e5 * (1 - removed)),
        "macs": round(1e6 * (1 - removed / 2)),
        "params_removed": removed,
        "macs_removed": removed / 2,
        "verification": 1e-7,
        "pruned": {"validation": figures(0.5), "test": figures(0.4)},
        "retrained": {"validation": figures(validation), "test": figures(test)},
    }


def write_log(path: Path, epochs: int, start: float = 1.0) -> None:
    lines = [
        {"epoch": epoch, "lr": 0.01, "loss": start / epoch, "top1": 0.9, "validation": figures(1 - 0.1 / epoch)}
        for epoch in range(1, epochs + 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_sweep(
    folder: Path, *, networks: int = 2, methods: tuple[str, ...] = ("pfp", "ft"), steps: int = 3, epochs: int = 3
) -> Path:
    """Write a finished sweep whose accuracy falls smoothly, differently for each method."""
    targets = [round((number + 1) / (steps + 1), 4) for number in range(steps)]
    write(folder, "recipe.json", {"name": folder.name, "networks": networks, "methods": methods, "targets": targets})
    for network in range(networks):
        best = 0.98 - 0.002 * network
        original = {"params": 100_000, "macs": 1_000_000, "validation": figures(best), "test": figures(best)}
        write(folder, f"network-{network}/original.json", {"network": network, **original})
        write_log(folder / f"network-{network}" / "original.jsonl", epochs)
        for place, method in enumerate(methods):
            for number, removed in enumerate(targets, 1):
                found = best - 0.02 * (place + 1) * removed**3
                name = f"network-{network}/{place}-method/step-{number:02}"
                write(folder, f"{name}.json", step(network, method, number, removed, found, found))
                write_log(folder / f"{name}.jsonl", epochs, 0.5)
    return folder
