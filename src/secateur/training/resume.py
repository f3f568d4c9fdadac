"""The state of a training run in one safe file, written after every epoch, from which it resumes bit for bit.

The file is a safetensors file: the network's tensors as model/NAME, the optimizer's as optimizer/KIND/NAME, those of a
moving average as average/NAME. Its metadata are JSON: the settings, the trained parameters, the epochs so far. There is
no random state, since every epoch sets its own seed.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from secateur.errors import SecateurError, UsageError, explained
from secateur.network.modules import named_tensors
from secateur.storage.files import write_atomic
from secateur.training.averages import Average

VERSION = "1"
BEFORE = {"schedule": "steps", "norm_batches": 0}  # of files that older versions wrote, without these settings
AGAIN = "remove the file to start again, or use another state_path"


@dataclass(frozen=True)
class State:
    """The content of a state file."""

    tensors: dict[str, Tensor]
    trained: list[str]  # names of the parameters that were not frozen
    epochs: list[dict[str, Any]]  # the records of the epochs so far
    scaler: dict[str, Any]
    averaged: int = 0  # steps of the moving average

    def average(self, model: nn.Module, decay: float) -> Average:
        """Return the moving average of the run."""
        return Average(model, decay, _under("average/", self.tensors), self.averaged)

    def fill_model(self, path: Path, model: nn.Module) -> None:
        """Copy the values into the network if names, shapes, types and frozen parameters are the same."""
        stored = _under("model/", self.tensors)
        own = named_tensors(model)
        for name in sorted(own.keys() ^ stored.keys()):
            raise _misfit(path, name, f"only the {'network' if name in own else 'file'} has such a tensor")
        for name, tensor in own.items():
            if (tensor.shape, tensor.dtype) != (stored[name].shape, stored[name].dtype):
                found = f"{tuple(stored[name].shape)} of {stored[name].dtype}"
                raise _misfit(
                    path, name, f"it is {found} in the file, {tuple(tensor.shape)} of {tensor.dtype} in the network"
                )
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        for name in sorted(trained ^ set(self.trained)):
            change = "frozen and is now trained" if name in trained else "trained and is now frozen"
            raise _misfit(path, name, f"it was {change}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(stored[name])

    def fill_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Copy the values into the optimizer, in the memory format of the parameters."""
        parameters = dict(model.named_parameters())
        for key, tensor in _under("optimizer/", self.tensors).items():
            kind, name = key.split("/", 1)
            parameter = parameters[name]
            if kind != "step":  # Adam counts its steps on the CPU
                tensor = torch.empty_like(parameter).copy_(tensor)
            optimizer.state[parameter][kind] = tensor
        scaler.load_state_dict(self.scaler)


def prepare(path: Path, model: nn.Module) -> None:
    """Refuse a run whose state could not be written later; remove temporary files of a killed run."""
    if not path.parent.is_dir():
        raise UsageError(f"state_path: there is no folder {path.parent}", remedy="create it first")
    for name in model.state_dict():
        if name.split(".")[-1] == "_extra_state":
            raise SecateurError(
                "this module has state that is not a tensor (get_extra_state)",
                layer=name.rpartition(".")[0] or type(model).__name__,
                remedy="keep it in buffers, or train without state_path",
            )
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)


def write(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    run: Mapping[str, Any],
    epochs: list[dict[str, Any]],
    average: Average | None = None,
) -> None:
    """Write the state after an epoch, atomically.

    Args:
        run: everything that must be the same when the run resumes.
        epochs: the records of the epochs so far.
        average: the moving average of the weights, if there is one.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    tensors = {f"model/{name}": tensor for name, tensor in named_tensors(model).items()}
    for name, parameter in parameters.items():
        for kind, value in optimizer.state[parameter].items():
            if value is not None:
                tensors[f"optimizer/{kind}/{name}"] = value
    tensors |= {f"average/{name}": value for name, value in (average.values if average else {}).items()}
    copies = {
        name: tensor.detach().clone(memory_format=torch.contiguous_format).cpu() for name, tensor in tensors.items()
    }
    metadata = {
        "secateur-training": VERSION,
        "run": json.dumps(run),
        "trained": json.dumps(sorted(parameters)),
        "epochs": json.dumps(epochs),
        "scaler": json.dumps(scaler.state_dict()),
        "averaged": json.dumps(average.steps if average else 0),
    }
    remedy = "use tensors of a common dtype, or train without state_path"
    with explained("the state cannot be saved", remedy=remedy):
        data = safetensors.torch.save(copies, metadata)
    write_atomic(path, data)


def read(path: Path, run: Mapping[str, Any]) -> State | None:
    """Return the state in a file, None if there is no file; the file of another run is refused."""
    if not path.exists():
        return None
    with explained(f"{path} cannot be read", remedy=AGAIN):
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        if metadata.get("secateur-training") != VERSION:
            raise SecateurError(f"{path} is not the state of a training run", remedy="use another state_path")
        before, trained, epochs, scaler = (json.loads(metadata[k]) for k in ("run", "trained", "epochs", "scaler"))
        before = BEFORE | before
    now = json.loads(json.dumps(run))
    differences = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name)
    ]
    if differences:
        raise SecateurError(f"{path} belongs to another training run: {'; '.join(differences)}", remedy=AGAIN)
    return State(tensors, trained, epochs, scaler, json.loads(metadata.get("averaged", "0")))


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _misfit(path: Path, name: str, cause: str) -> SecateurError:
    return SecateurError(f"{path} does not fit this network: {cause}", layer=name, remedy=AGAIN)
