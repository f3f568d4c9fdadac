"""Runs written by hand: records with known numbers, as a sweep would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secateur.experiments import recipe as recipes


def figures(error: float, error5: float | None = None) -> dict[str, Any]:
    """Return an evaluation with this error in percent."""
    top5 = None if error5 is None else 1 - error5 / 100
    return {"samples": 1000, "loss": error, "top1": 1 - error / 100, "top5": top5}


def write_run(
    runs: Path,
    recipe: str,
    originals: Sequence[tuple[float, float]],
    steps: Mapping[str, Sequence[Sequence[tuple[float, float, float]]]],
    *,
    error5: float | None = None,
) -> Path:
    """Write a run.

    Args:
        originals: for each network its error on validation and on test data.
        steps: for each method and target, for each network: part of the parameters removed, errors on validation and
            on test data. The error before retraining is ten points more.
    """
    folder = runs / recipe
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(recipes.read(recipe).to_json())
    for number, (validation, test) in enumerate(originals):
        home = folder / f"network-{number}"
        home.mkdir()
        record = {"network": number, "validation": figures(validation), "test": figures(test, error5)}
        (home / "original.json").write_text(json.dumps(record))
    for method, targets in steps.items():
        for step, networks in enumerate(targets, 1):
            for number, (removed, validation, test) in enumerate(networks):
                home = folder / f"network-{number}" / method.replace(":", "-")
                home.mkdir(exist_ok=True)
                record = {
                    "network": number, "method": method, "step": step, "target": step / 10, "params": 1, "macs": 1,
                    "params_removed": removed, "macs_removed": removed / 2,
                    "pruned": {"validation": figures(validation + 10), "test": figures(test + 10)},
                    "retrained": {"validation": figures(validation), "test": figures(test, error5)},
                }  # fmt: skip
                (home / f"step-{step:02}.json").write_text(json.dumps(record))
    return folder
