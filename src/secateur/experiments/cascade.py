"""Prune, retrain and evaluate one network with one method, step by step, with every state on the disk.

A run folder holds

    recipe.json                          every setting
    network-0/original.safetensors       the trained network; original.json has its accuracy
    network-0/pfp/step-01.safetensors    the first pruned and retrained network, with its plan from the original
    network-0/pfp/step-01.json           its accuracy, written last: a step with this file is done

The folder of a method has its name, with a dash instead of the colon of `pfp:rand`.

Every file is replaced atomically, every step depends only on earlier files and on the recipe's seeds, and training
resumes after its last finished epoch. So a run that was killed and restarted ends like one that was not.

Records without their networks count too, as results that were stored elsewhere: the original is trained again if a
method is not finished, and a cascade starts again from the first step whose network is not there.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from secateur.channels.graph import ChannelGraph
from secateur.costs.cost import Cost, cost
from secateur.data import Batches, Data, data_root, dataset
from secateur.errors import SecateurError, explained
from secateur.experiments.protocol import file_identity, origin, protocol
from secateur.experiments.recipe import Recipe
from secateur.pruning.prune import prune
from secateur.pruning.result import Pruned
from secateur.storage import checkpoint
from secateur.storage.files import read_json, write_atomic, write_json
from secateur.surgery.cut import plan_from_original
from secateur.surgery.plan import Plan
from secateur.training.loop import evaluate, train
from secateur.training.recovery import recover
from secateur.training.settings import Training
from secateur.zoo.names import build

PIXELS = 2_000_000  # that are evaluated together


@dataclass(frozen=True)
class Parts:
    """The training, validation and test data of a recipe, and the file with its weights."""

    train: Data
    validation: Data
    test: Data
    weights: Path | None = None

    @classmethod
    def of(cls, recipe: Recipe, root: Path | None = None) -> Parts:
        """Read all three; find the weights."""
        train, validation, test = (dataset(recipe.data, part, root=root) for part in ("train", "validation", "test"))
        if scale := recipe.normalise:
            train, validation, test = (part.scaled(scale.mean, scale.std) for part in (train, validation, test))
        if recipe.validation == "test":
            validation, test = halves(test)
        if recipe.images:
            train, validation, test = (some(part, recipe.images) for part in (train, validation, test))
        return cls(train, validation, test, _weights(recipe, data_root(root)))


def train_original(recipe: Recipe, number: int, folder: Path, data: Parts, *, progress: bool = False) -> None:
    """Train one network from its seed, or take it from the recipe's weights, unless that is done or not needed."""
    path = folder / f"network-{number}" / "original"
    if not lacks_original(recipe, number, folder):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if data.weights:
        model, source = build(recipe.network, data.weights), {"weights": file_identity(data.weights)}
    else:
        model, source = _fresh(recipe, number), {}
        if recipe.train.epochs:
            _train(recipe, recipe.train, model, data, path, _seed(recipe, number, 0), progress)
    counted = cost(model, _example(data.train))
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_atomic(path.with_suffix(".safetensors"), safetensors.torch.save(state))
    record = {"network": number, "protocol": origin(recipe), **source, "params": counted.params, "macs": counted.macs}
    record |= _evaluate(recipe, model, data)
    write_json(path.with_suffix(".json"), record)
    path.with_suffix(".state").unlink(missing_ok=True)


def prune_and_retrain(
    recipe: Recipe, number: int, method: str, folder: Path, data: Parts, *, progress: bool = False
) -> None:
    """Prune and retrain one network with one method for every target, from the first one that is not done."""
    if not steps_left(recipe, number, method, folder):
        return
    home = folder / f"network-{number}" / folder_name(method)
    home.mkdir(parents=True, exist_ok=True)
    original = load_original(recipe, number, folder)
    before = cost(original, _example(data.train))
    graph: ChannelGraph | None = None  # of the network that the next step starts from, once it has been traced
    for step, ratio in enumerate(recipe.ratios, 1):
        path, last = (home / f"step-{n:02}" for n in (step, step - 1))
        if _is_done(recipe, path):
            graph = None if recipe.cascade else graph
            continue
        start = original
        if recipe.cascade and step > 1:
            if "stopped" in read_json(last.with_suffix(".json")):
                return
            start = checkpoint.load(last.with_suffix(".safetensors"), original)
        seed = _seed(recipe, number, step)
        record: dict[str, Any] = {"network": number, "method": method, "step": step, "target": ratio}
        record["protocol"] = protocol(recipe, method)
        try:
            pruned = _prune(recipe, method, start, data, before, ratio, graph, seed=seed)
        except SecateurError as error:  # the budget cannot be met: that is a result
            write_json(path.with_suffix(".json"), record | {"stopped": str(error)})
            return
        model, after, graph = pruned.model, pruned.after, pruned.graph
        if graph is not None and recipe.cascade:
            graph = pruned.plan.graph_after(graph)
        record |= {
            "params": after.params,
            "macs": after.macs,
            "params_removed": 1 - after.params / before.params,
            "macs_removed": 1 - after.macs / before.macs,
            "verification": pruned.verification,
            "pruned": _evaluate(recipe, model, data),
        }
        plan = plan_from_original(model, pruned.plan)
        if recipe.recover:
            batches = calibration(data.train, recipe.settings(method).samples, seed)
            model = recover(model, original, batches, plan=plan, seed=seed, **vars(recipe.recover)).model
            record["recovered"] = _evaluate(recipe, model, data)
        if recipe.retrain.epochs:
            teacher = original if recipe.retrain.teacher else None
            _train(recipe, recipe.retrain, model, data, path, seed, progress, teacher=teacher, plan=plan)
        changed = recipe.recover or recipe.retrain.epochs
        record["retrained"] = _evaluate(recipe, model, data) if changed else record["pruned"]
        info = {"recipe": recipe.name, **record}
        checkpoint.save(path.with_suffix(".safetensors"), model.eval(), pruned.plan, info=info)
        write_json(path.with_suffix(".json"), record)
        path.with_suffix(".state").unlink(missing_ok=True)


def lacks_original(recipe: Recipe, number: int, folder: Path) -> bool:
    """Return whether an original is still to be trained: there is no record, or steps to run from it and no network."""
    path = folder / f"network-{number}" / "original"
    if not path.with_suffix(".json").exists():
        return True
    unfinished = any(steps_left(recipe, number, method, folder) for method in recipe.methods)
    return unfinished and not path.with_suffix(".safetensors").exists()


def steps_left(recipe: Recipe, number: int, method: str, folder: Path) -> int:
    """Return how many steps of a method are still to run; none if pruning could not go on."""
    home = folder / f"network-{number}" / folder_name(method)
    paths = [home / f"step-{step:02}" for step in range(1, len(recipe.ratios) + 1)]
    records = [path for path in paths if path.with_suffix(".json").exists()]
    if len(records) == len(paths) or (records and "stopped" in read_json(records[-1].with_suffix(".json"))):
        return 0
    return sum(not _is_done(recipe, path) for path in paths)


def _is_done(recipe: Recipe, path: Path) -> bool:
    """Return whether a step needs no run: it has a record and, in a cascade, the network that the next step needs."""
    return path.with_suffix(".json").exists() and (not recipe.cascade or path.with_suffix(".safetensors").exists())


def load_original(recipe: Recipe, number: int, folder: Path) -> nn.Module:
    """Return the trained network of a run."""
    path = folder / f"network-{number}" / "original.safetensors"
    model = _fresh(recipe, number)
    with explained(f"{path} cannot be loaded", remedy="remove the run folder and start again"):
        model.load_state_dict(safetensors.torch.load(path.read_bytes()))
    return model.eval()


def _prune(
    recipe: Recipe,
    method: str,
    model: nn.Module,
    data: Parts,
    before: Cost,
    ratio: float,
    graph: ChannelGraph | None,
    *,
    seed: int,
) -> Pruned:
    budget: dict[str, object] = {recipe.resource: (1 - ratio) * getattr(before, recipe.resource)}
    settings = replace(recipe.settings(method), seed=seed)
    batches = calibration(data.train, settings.samples, seed)
    return prune(model, batches, budget, graph=graph, **vars(replace(settings, samples=None)))


def calibration(data: Data, samples: int | None, seed: int, batch: int = 64) -> list[tuple[Tensor, Tensor]]:
    """Return random training samples with their targets, as inputs of the network and without augmentation."""
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:samples]
    return [(data.inputs(part), data.targets[part]) for part in chosen.split(batch)]


def _train(
    recipe: Recipe,
    settings: Training,
    model: nn.Module,
    data: Parts,
    path: Path,
    seed: int,
    progress: bool,
    teacher: nn.Module | None = None,
    plan: Plan | None = None,
) -> None:
    own = {name: value for name, value in vars(settings).items() if name in Training.__dataclass_fields__}
    train(
        model,
        Batches(data.train, recipe.batch, shuffle=True, augment=True, seed=seed),
        Training(**own | {"seed": seed}),
        validation=Batches(data.validation, evaluation_batch(data.validation), shuffle=False, augment=False, seed=seed),
        teacher=teacher,
        plan=plan,
        state_path=path.with_suffix(".state"),
        log=path.with_suffix(".jsonl"),
        progress=progress,
    )


def _evaluate(recipe: Recipe, model: nn.Module, data: Parts) -> dict[str, dict[str, Any]]:
    """Return loss and accuracy on validation and test data, as plain data."""
    found = {}
    for part in ("validation", "test"):
        own = getattr(data, part)
        batches = Batches(own, evaluation_batch(own), shuffle=False, augment=False, seed=0)
        found[part] = asdict(evaluate(model, batches, loss=recipe.train.loss))
    return found


def evaluation_batch(data: Data) -> int:
    """Return how many samples are evaluated together: 512 small images, fewer large ones, which need much memory."""
    return max(16, min(512, PIXELS // math.prod(data.images.shape[2:])))


def folder_name(method: str) -> str:
    """Return the name of a method's folder; not every system allows a colon."""
    return method.replace(":", "-")


def some(data: Data, count: int) -> Data:
    """Return at most this many random samples, always the same."""
    return data.take(torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:count])


def halves(data: Data) -> tuple[Data, Data]:
    """Return two random halves, always the same."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))
    return data.take(order[: len(data) // 2]), data.take(order[len(data) // 2 :])


def _weights(recipe: Recipe, root: Path) -> Path | None:
    """Return the file of the recipe's weights: as it is written, or in the folder of the data sets."""
    if recipe.weights is None:
        return None
    for path in (Path(recipe.weights), root / recipe.weights):
        if path.is_file():
            return path.resolve()
    raise SecateurError(
        f"there are no weights {recipe.weights}, here or in {root}",
        layer=f"the recipe {recipe.name}",
        remedy="put the file there, or name another with --set weights=FILE",
    )


def _fresh(recipe: Recipe, number: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(recipe, number, 0))
        return build(recipe.network)


def _seed(recipe: Recipe, number: int, step: int) -> int:
    """Return a seed for each network and step."""
    return (recipe.seed + number) * 1000 + step


def _example(data: Data) -> Tensor:
    return data.inputs(torch.arange(1))
