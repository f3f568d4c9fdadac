"""Prune, retrain, evaluate, again and again: one network, one method, every state on the disk.

A run folder holds

    recipe.json                          every setting
    network-0/original.safetensors       the trained network; original.json says what it reaches
    network-0/pfp/step-01.safetensors    the first pruned and retrained network, with its plan from the original
    network-0/pfp/step-01.json           what it reaches, written last: a step with this file is done

Every file is written whole or not at all, every step depends only on the files before it and on the recipe's seeds, and
training goes on from its last finished epoch. So a run that was killed and started again ends as one that was not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from secateur import checkpoint
from secateur.cost import Cost, cost
from secateur.data import Batches, Data, dataset
from secateur.errors import SecateurError
from secateur.files import read_json, write_json, write_whole
from secateur.models import build
from secateur.plan import Plan
from secateur.prune import Pruned, prune
from secateur.recipe import Recipe
from secateur.train import evaluate, train
from secateur.training import Training

STEP = "step-{:02}"


@dataclass(frozen=True)
class Parts:
    """The data of a recipe."""

    train: Data
    validation: Data
    test: Data

    @classmethod
    def of(cls, recipe: Recipe, root: Path | None = None) -> Parts:
        """Read them all."""
        return cls(*(dataset(recipe.data, part, root=root) for part in ("train", "validation", "test")))


def train_original(recipe: Recipe, number: int, folder: Path, data: Parts, *, progress: bool = False) -> None:
    """Train one network from its seed; nothing happens if it is done."""
    home = folder / f"network-{number}"
    if (home / "original.json").exists():
        return
    home.mkdir(parents=True, exist_ok=True)
    model = _fresh(recipe, number)
    _train(recipe, recipe.train, model, data, home / "original", seed=_seed(recipe, number, 0), progress=progress)
    counted = cost(model, _example(data.train))
    write_whole(home / "original.safetensors", safetensors.torch.save(_contiguous(model.state_dict())))
    figures = _figures(recipe, model, data)
    write_json(home / "original.json", {"network": number, "params": counted.params, "macs": counted.macs, **figures})
    (home / "original.state").unlink(missing_ok=True)


def prune_and_retrain(
    recipe: Recipe, number: int, method: str, folder: Path, data: Parts, *, progress: bool = False
) -> None:
    """Go through the targets with one method, from the first that is not done."""
    home = folder / f"network-{number}" / method
    home.mkdir(parents=True, exist_ok=True)
    original = load_original(recipe, number, folder)
    whole = cost(original, _example(data.train))
    for step, ratio in enumerate(recipe.ratios, 1):
        record = home / f"{STEP.format(step)}.json"
        if record.exists():
            continue
        before = STEP.format(step - 1)
        start, so_far = original, None
        if recipe.cascade and step > 1:
            if "stopped" in read_json(home / f"{before}.json"):
                return
            path = home / f"{before}.safetensors"
            start, so_far = checkpoint.load(path, original), checkpoint.read_plan(path)
        try:
            pruned = _prune(recipe, method, start, data, whole, ratio, seed=_seed(recipe, number, step))
        except SecateurError as error:  # the budget is out of reach: that is a result
            stopped = {"network": number, "method": method, "step": step, "target": ratio, "stopped": str(error)}
            write_json(record, stopped)
            return
        _step(recipe, number, method, step, ratio, pruned, so_far, whole, data, home, progress)


def load_original(recipe: Recipe, number: int, folder: Path) -> nn.Module:
    """The trained network of a run."""
    path = folder / f"network-{number}" / "original.safetensors"
    model = _fresh(recipe, number)
    try:
        model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    except Exception as error:
        raise SecateurError(
            f"{path} cannot be loaded: {type(error).__name__}: {error}", remedy="remove the run folder and start again"
        ) from error
    return model.eval()


def _step(
    recipe: Recipe,
    number: int,
    method: str,
    step: int,
    ratio: float,
    pruned: Pruned,
    so_far: Plan | None,
    whole: Cost,
    data: Parts,
    home: Path,
    progress: bool,
) -> None:
    """Retrain one pruned network, evaluate it, and write it down."""
    name = STEP.format(step)
    plan = so_far.then(pruned.plan) if so_far and pruned.plan.kept else so_far or pruned.plan
    model = pruned.model
    figures = {"pruned": _figures(recipe, model, data)}
    if recipe.retrain.epochs:
        seed = _seed(recipe, number, step)
        _train(recipe, recipe.retrain, model, data, home / name, seed=seed, progress=progress)
    figures["retrained"] = _figures(recipe, model, data)
    record = {
        "network": number,
        "method": method,
        "step": step,
        "target": ratio,
        "params": pruned.after.params,
        "macs": pruned.after.macs,
        "params_removed": 1 - pruned.after.params / whole.params,
        "macs_removed": 1 - pruned.after.macs / whole.macs,
        "verification": pruned.verification,
        **figures,
    }
    checkpoint.save(home / f"{name}.safetensors", model.eval(), plan, info={"recipe": recipe.name, **record})
    write_json(home / f"{name}.json", record)
    (home / f"{name}.state").unlink(missing_ok=True)


def _prune(
    recipe: Recipe, method: str, model: nn.Module, data: Parts, whole: Cost, ratio: float, *, seed: int
) -> Pruned:
    settings = asdict(recipe.prune)
    resource = settings.pop("resource")
    budget = {resource: (1 - ratio) * getattr(whole, resource)}
    points = calibration(data.train, settings.pop("points"), seed)
    if method != "pfp":
        del settings["select"]
    return prune(model, points, budget, method=method, seed=seed, points=None, **settings)


def calibration(data: Data, points: int, seed: int, batch: int = 64) -> list[tuple[Tensor, Tensor]]:
    """Training points as the network takes them, with their targets, without augmentation, drawn with a seed."""
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:points]
    return [(data.inputs(part), data.targets[part]) for part in chosen.split(batch)]


def _train(
    recipe: Recipe, settings: Training, model: nn.Module, data: Parts, path: Path, *, seed: int, progress: bool
) -> None:
    batches = Batches(data.train, recipe.batch, shuffle=True, augment=True, seed=seed)
    validation = Batches(data.validation, 512, shuffle=False, augment=False, seed=seed)
    train(
        model,
        batches,
        replace(settings, seed=seed),
        validation=validation,
        state_path=path.with_suffix(".state"),
        log=path.with_suffix(".jsonl"),
        progress=progress,
    )


def _figures(recipe: Recipe, model: nn.Module, data: Parts) -> dict[str, dict[str, Any]]:
    found = {}
    for part in ("validation", "test"):
        batches = Batches(getattr(data, part), 512, shuffle=False, augment=False, seed=0)
        found[part] = asdict(evaluate(model, batches, loss=recipe.train.loss))
    return found


def _fresh(recipe: Recipe, number: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(recipe, number, 0))
        return build(recipe.network)


def _seed(recipe: Recipe, number: int, step: int) -> int:
    """One seed for each network and step."""
    return (recipe.seed + number) * 1000 + step


def _example(data: Data) -> Tensor:
    return data.inputs(torch.arange(1))


def _contiguous(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in state.items()}
