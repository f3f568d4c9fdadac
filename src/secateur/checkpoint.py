"""One safe file for a cut network: its tensors, the plan that cut it, and what is worth knowing about it.

The file is a safetensors file, so reading it runs no code. Its metadata hold "secateur" (the version of this format),
"plan" (the plan as JSON), "aliases" (the second names of tied tensors, which are stored once) and "info".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

import secateur
from secateur.errors import SecateurError, UsageError
from secateur.files import tensor_file, write_whole
from secateur.plan import Plan
from secateur.program import duplicate, first_line, unwrap
from secateur.surgery import cut

VERSION = "1"


def save(path: str | Path, result: Any, plan: Plan | None = None, *, info: Mapping[str, object] | None = None) -> None:
    """Write a cut network into one file: all of it or, if anything fails, nothing.

    >>> sc.save("small.safetensors", sc.prune(model, data, budget={"macs": "50%"}))
    >>> sc.save("small.safetensors", small, plan, info={"model": "torchvision:resnet18"})

    result: the cut network with its plan, or something that has both as `.model` and `.plan`, and `.info` if it likes.
    info: what else to note down, as JSON can hold it. The versions of secateur and torch are added.
    """
    path = Path(path).resolve()  # a link stays a link
    if not path.parent.is_dir():
        raise SecateurError(f"there is no folder {path.parent}", remedy="make it first, or save somewhere else")
    model, plan, notes = _parts(result, plan)
    tensors, aliases = _tensors_of(model)
    _check_cut(tensors, plan)
    versions = {"secateur": secateur.__version__, "torch": str(torch.__version__)}
    try:
        data = tensor_file(
            tensors,
            {
                "secateur": VERSION,
                "plan": plan.to_json(),
                "aliases": json.dumps(aliases),
                "info": json.dumps({**notes, **(info or {}), "versions": versions}, allow_nan=False),
            },
        )
    except Exception as error:
        raise SecateurError(
            f"the network cannot be written down: {first_line(error)}",
            remedy="give an info of texts, finite numbers, lists and dicts, and tensors of a common dtype",
        ) from error
    write_whole(path, data)


def load(path: str | Path, model: nn.Module) -> nn.Module:
    """The cut network in a file, given the original one, freshly built; that one is untouched.

    >>> small = sc.load("small.safetensors", torchvision.models.resnet18())

    Each tensor has the values and the floating point type of the file. Nothing is traced, except for a plan with
    `output="graph"`, whose network is exported again.
    """
    path = Path(path)
    metadata, tensors = _read(path, tensors=True)
    plan = _plan(path, metadata)
    aliases = _object(path, metadata, "aliases")
    for second, first in aliases.items():
        if not isinstance(first, str) or first not in tensors or second in tensors:
            raise _damaged(path, f"{second!r} stands for {first!r}")
    model = _in_type_of(tensors, model)
    try:
        small = cut(model, plan)
    except SecateurError:
        raise
    except Exception as error:
        raise SecateurError(
            f"the plan in {path} cannot be followed on this model: {first_line(error)}",
            remedy="give the model that it was made for, freshly built",
        ) from error
    _fill(path, unwrap(small), tensors, aliases)
    return small


def read_plan(path: str | Path) -> Plan:
    """The plan in a file that `save` wrote.

    >>> print(read_plan("small.safetensors"))
    """
    return _plan(Path(path), _read(Path(path))[0])


def read_info(path: str | Path) -> dict[str, Any]:
    """What a file that `save` wrote says about its network.

    >>> read_info("small.safetensors")["versions"]
    {'secateur': '0.1.0', 'torch': '2.9.0'}
    """
    return _object(Path(path), _read(Path(path))[0], "info")


def _parts(result: Any, plan: Plan | None) -> tuple[nn.Module, Plan, Mapping[str, object]]:
    """The network, the plan and the notes in the arguments of `save`."""
    notes: Mapping[str, object] = {}
    model = result
    if plan is None:
        model, plan = getattr(result, "model", None), getattr(result, "plan", None)
        notes = getattr(result, "info", None) or {}
    if not isinstance(model, nn.Module) or not isinstance(plan, Plan):
        raise SecateurError(
            f"a {type(result).__name__} has no cut network and plan to save",
            remedy="write save(path, result) with what prune gave, or save(path, small, plan)",
        )
    return unwrap(model), plan, notes


def _tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a network, each once, and the first name behind each further name of a tied one."""
    tensors, aliases, seen = dict[str, Tensor](), dict[str, str](), dict[Any, str]()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise SecateurError(
                f"its state is a {type(tensor).__name__}, no tensor", layer=name, remedy="keep extra state elsewhere"
            )
        if tensor.is_meta or tensor.layout != torch.strided:
            raise SecateurError(
                "the tensor has no values of its own" if tensor.is_meta else f"the tensor is {tensor.layout}",
                layer=name,
                remedy="use a network of plain tensors on a real device",
            )
        first = seen.setdefault(_place(tensor), name)
        if first != name:
            aliases[name] = first
        else:
            tensors[name] = tensor.detach().cpu().contiguous()
    # Two views of one memory that are not the same tensor are stored as two: safetensors refuses shared memory.
    memory = dict[int, str]()
    for name, tensor in tensors.items():
        if memory.setdefault(tensor.untyped_storage().data_ptr(), name) != name:
            tensors[name] = tensor.clone()
    return tensors, aliases


def _place(tensor: Tensor) -> Any:
    """Equal for two names of one tensor."""
    if not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _check_cut(tensors: Mapping[str, Tensor], plan: Plan) -> None:
    """Refuse a network that its plan does not lead to: it could not be loaded again."""
    if not plan.kept:
        raise SecateurError("the plan is empty: it removes nothing", remedy="save an uncut network with torch.save")
    for slot, indices in plan.kept.items():
        found = tensors.get(slot.parameter)
        if found is not None and (found.dim() <= slot.axis or found.shape[slot.axis] != len(indices)):
            raise SecateurError(
                f"the plan leaves {len(indices)} along axis {slot.axis}, the tensor has shape {tuple(found.shape)}",
                layer=slot.parameter,
                remedy="save the network that cut(model, plan) gave, with the same plan",
            )


def _read(path: Path, *, tensors: bool = False) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata of a file of this format and, if asked for, its tensors."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}", remedy="give the path of a file that save wrote")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            values = {name: file.get_tensor(name) for name in file.keys()} if tensors else {}
    except Exception as error:
        raise SecateurError(
            f"{path} is not a whole safetensors file: {first_line(error)}",
            remedy="copy it again, or give a file that save wrote",
        ) from error
    version = metadata.get("secateur")
    if version is None:
        raise SecateurError(
            f"{path} is a safetensors file, but not one of secateur's: it has no plan",
            remedy="give a file that save wrote; plain weights go into the model with load_state_dict",
        )
    if version != VERSION:
        raise SecateurError(
            f"{path} has version {version[:20]!r} of the format, this secateur reads {VERSION!r}",
            remedy="read it with the secateur that wrote it, or a newer one",
        )
    return metadata, values


def _plan(path: Path, metadata: Mapping[str, str]) -> Plan:
    try:
        return Plan.from_json(metadata["plan"])
    except SecateurError as error:
        raise _damaged(path, error.cause) from error
    except (KeyError, RecursionError) as error:
        raise _damaged(path, f"its plan cannot be read: {first_line(error)}") from error


def _object(path: Path, metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    """A JSON object in the metadata."""
    try:
        found = json.loads(metadata[key])
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, f"its {key} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise _damaged(path, f"its {key} are not a JSON object")
    return found


def _in_type_of(tensors: Mapping[str, Tensor], model: nn.Module) -> nn.Module:
    """The model, or a copy in the floating point type that all tensors of the file share."""
    wanted, found = (_float_types(state) for state in (tensors, unwrap(model).state_dict()))
    return duplicate(model).to(wanted.pop()) if len(wanted) == 1 and wanted != found else model


def _float_types(state: Mapping[str, Any]) -> set[torch.dtype]:
    return {tensor.dtype for tensor in state.values() if isinstance(tensor, Tensor) and tensor.is_floating_point()}


def _fill(path: Path, small: nn.Module, tensors: Mapping[str, Tensor], aliases: Mapping[str, str]) -> None:
    """Put the values of the file into the cut network, if they are exactly those it needs."""
    state = {**tensors, **{second: tensors[first] for second, first in aliases.items()}}
    own, ties = _tensors_of(small)
    own |= {second: own[first] for second, first in ties.items()}
    for name in sorted(own.keys() ^ state.keys()):
        there = "the file has no such tensor" if name in own else "the network has no such tensor"
        raise _misfit(path, name, there)
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            raise _misfit(path, name, f"it has shape {tuple(tensor.shape)}, the network {tuple(own[name].shape)}")
        if tensor.dtype != own[name].dtype:
            raise _misfit(path, name, f"it has type {tensor.dtype}, the network {own[name].dtype}")
    for second, first in sorted(ties.items() ^ aliases.items()):
        raise _misfit(path, second, f"it is tied to {first} in the {'network' if second in ties else 'file'} only")
    small.load_state_dict(state)


def _misfit(path: Path, name: str, cause: str) -> SecateurError:
    return SecateurError(
        f"{path} does not fit this network: {cause}",
        layer=name,
        remedy="give the model that was cut, built in the same way",
    )


def _damaged(path: Path, cause: str) -> SecateurError:
    return SecateurError(f"{path} is damaged: {cause}", remedy="copy it again, or save it again")
