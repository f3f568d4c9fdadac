"""One safe file for a cut network: its tensors, the plan that cut it, and what is worth knowing about it.

The file is a safetensors file, so reading it runs no code. Its metadata hold "secateur" (the version of this format),
"plan" (the plan as JSON), "aliases" (the second names of tied tensors, which are stored once), "info" and two
checksums; docs/files.md describes each.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

import secateur
from secateur import container
from secateur.container import AXES_LIMIT, NAME_LIMIT, Entry, Header, shown
from secateur.errors import SecateurError, UsageError
from secateur.files import write_whole
from secateur.graph import Output
from secateur.models import build
from secateur.plan import Plan
from secateur.program import check_finite, duplicate, first_line, unwrap
from secateur.surgery import cut

VERSION = "2"  # 2 added the checksums
UNSEALED = "1"  # the version before them, which is still read
BUILT_BY_NAME = ("torchvision", "timm", "zoo")
EXAMPLE_LIMIT = 2**28  # numbers in the example of a plan
EXAMPLE_TYPES = tuple("bfloat16 bool complex64 complex128 float16 float32 float64 int8 int16 int32 int64 uint8".split())


def save(
    path: str | Path,
    result: Any,
    plan: Plan | None = None,
    *,
    architecture: str | None = None,
    sensitivities: Mapping[str, Tensor | Sequence[float]] | None = None,
    certificate: object = None,
    info: Mapping[str, object] | None = None,
) -> None:
    """Write a cut network into one file: all of it or, if anything fails, nothing.

    >>> sc.save("small.safetensors", sc.prune(model, data, budget={"macs": "50%"}))
    >>> sc.save("small.safetensors", small, plan, architecture="torchvision:resnet18")

    result: the cut network with its plan, or something that has both as `.model` and `.plan`, and `.info`,
        `.sensitivities` and `.certificate` if it likes.
    architecture: the original network as `torchvision:NAME`, `timm:NAME` or `zoo:NAME`: then `load` needs no model.
    sensitivities: what `sensitivity` gave.
    certificate: plain data, such as `json.loads(cert.to_json())`.
    info: what else to note down, as JSON can hold it. The versions of secateur, torch and Python are added.
    """
    path = Path(path).resolve()  # a link stays a link
    if not path.parent.is_dir():
        raise SecateurError(f"there is no folder {path.parent}", remedy="make it first, or save somewhere else")
    model, plan, notes = _parts(result, plan)
    tensors, aliases = _tensors_of(model)
    _check_cut(tensors, plan)
    check_finite(model)
    found = {"architecture": architecture, "sensitivities": sensitivities, "certificate": certificate}
    about = {**notes, **(info or {}), **{key: value for key, value in found.items() if value is not None}}
    about["versions"] = {
        "secateur": secateur.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    try:
        _check_plan(plan)
        metadata = {
            "secateur": VERSION,
            "plan": plan.to_json(),
            "aliases": json.dumps(aliases),
            "info": json.dumps(about, allow_nan=False, default=_numbers),
        }
        container.parse(metadata["info"])  # what is written can be read
        data = container.pack(tensors, metadata)
    except Exception as error:
        raise SecateurError(
            f"the network cannot be written down: {first_line(error)}",
            remedy="give an info of texts, finite numbers, lists and dicts, and tensors of a common dtype",
        ) from error
    write_whole(path, data)


def load(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The cut network in a file, given the original one, freshly built; that one is untouched.

    >>> small = sc.load("small.safetensors", torchvision.models.resnet18())
    >>> small = sc.load("small.safetensors")  # if it was saved with an architecture

    Each tensor has the values and the floating point type of the file. Nothing is traced, except for a plan with
    `output="graph"`, whose network is exported again. The tensors are read last, when their shapes are known to be
    those that the network needs.
    """
    path = Path(path)
    header = _header(path)
    plan = _plan(path, header)
    aliases = _aliases(path, header)
    model = _in_type_of(header.entries, _original(path, header) if model is None else model)
    try:
        small = cut(model, plan)
    except SecateurError:
        raise
    except Exception as error:
        raise SecateurError(
            f"the plan in {path} cannot be followed on this model: {first_line(error)}",
            remedy="give the model that it was made for, freshly built",
        ) from error
    _fill(path, unwrap(small), header, aliases)
    return small


def read_plan(path: str | Path) -> Plan:
    """The plan in a file that `save` wrote.

    >>> print(read_plan("small.safetensors"))
    """
    return _plan(Path(path), _header(Path(path)))


def read_info(path: str | Path) -> dict[str, Any]:
    """What a file that `save` wrote says about its network.

    >>> read_info("small.safetensors")["versions"]
    {'secateur': '0.1.0', 'torch': '2.9.0', 'python': '3.12.1'}
    """
    return _object(Path(path), _header(Path(path)), "info")


def _parts(result: Any, plan: Plan | None) -> tuple[nn.Module, Plan, Mapping[str, object]]:
    """The network, the plan and the notes in the arguments of `save`."""
    notes: dict[str, object] = {}
    model = result
    if plan is None:
        model, plan = getattr(result, "model", None), getattr(result, "plan", None)
        more = {key: getattr(result, key, None) for key in ("sensitivities", "certificate")}
        notes = {**(getattr(result, "info", None) or {}), **{key: value for key, value in more.items() if value}}
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


def _check_plan(plan: Plan) -> None:
    """Refuse a plan that no network can follow, whatever it is; those that this one cannot follow, `cut` refuses."""
    if plan.output not in get_args(Output):
        raise ValueError(f"the plan's output is {shown(plan.output)}")
    _example_size(plan.example)
    for name in plan.shapes.keys() - {slot.parameter for slot in plan.kept}:
        raise ValueError(f"the plan has a shape, but no axis, for {shown(name)}")
    for slot, indices in plan.kept.items():
        shape = plan.shapes.get(slot.parameter, ())
        if not 0 <= slot.axis < len(shape) <= AXES_LIMIT or max(shape) >= 2**63:
            raise ValueError(f"the plan names axis {slot.axis} of {shown(slot.parameter)} of shape {shown(shape)}")
        _check_kept(slot.parameter, indices, shape[slot.axis])
    for slot, factors in plan.scales.items():
        if len(factors) != len(plan.kept.get(slot, ())):
            raise ValueError(f"the plan has {len(factors)} scales for axis {slot.axis} of {shown(slot.parameter)}")
    for slot in plan.reads:
        if slot not in plan.kept:
            raise ValueError(f"the plan reads axis {slot.axis} of {shown(slot.parameter)}, which does not shrink")
    for group in plan.groups:
        _check_kept(group.name, group.kept, group.size)
        if group.scales and len(group.scales) != len(group.kept):
            raise ValueError(f"the plan has {len(group.scales)} scales for {shown(group.name)}")


def _check_kept(name: str, indices: tuple[int, ...], size: int) -> None:
    if not isinstance(name, str) or not name.isprintable() or len(name) > NAME_LIMIT:
        raise ValueError(f"the plan has a part of the name {shown(name)}")
    if not indices or indices != tuple(sorted(set(indices))) or indices[0] < 0 or indices[-1] >= size:
        raise ValueError(f"the indices kept of {shown(name)} do not rise within 0 to {size - 1}")


def _example_size(part: Any) -> int:
    """How many numbers an example holds; what `describe` cannot have written is refused."""
    if part is None or isinstance(part, bool | int | float | str):
        return 1
    if isinstance(part, list):
        count = sum(map(_example_size, part))
    elif isinstance(part, dict) and part.keys() == {"arguments"} and isinstance(part["arguments"], dict):
        count = sum(map(_example_size, part["arguments"].values()))
    elif isinstance(part, dict) and part.keys() == {"shape", "dtype"} and part["dtype"] in EXAMPLE_TYPES:
        shape = part["shape"]
        if (
            not isinstance(shape, list)
            or len(shape) > AXES_LIMIT
            or not all(isinstance(n, int) and n >= 0 for n in shape)
        ):
            raise ValueError(f"the plan's example has the shape {shown(shape)}")
        count = math.prod(shape)
    else:
        raise ValueError(f"the plan's example holds {shown(part)}")
    if count > EXAMPLE_LIMIT:
        raise ValueError(f"the plan's example holds more than {EXAMPLE_LIMIT} numbers")
    return count


def _numbers(value: Any) -> list[float]:
    """A tensor among the notes, as JSON can hold it."""
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no place in JSON")


def _header(path: Path) -> Header:
    """The header of a file of this format, its metadata unchanged since they were written."""
    header = container.read_header(path)
    version = header.metadata.get("secateur")
    if version is None:
        raise SecateurError(
            f"{path} is a safetensors file, but not one of secateur's: it has no plan",
            remedy="give a file that save wrote; plain weights go into the model with load_state_dict",
        )
    if version not in (UNSEALED, VERSION):
        raise SecateurError(
            f"{path} has version {version[:20]!r} of the format, this secateur reads {VERSION!r}",
            remedy="read it with the secateur that wrote it, or a newer one",
        )
    if _sealed(header):
        container.check_metadata(path, header)
    return header


def _sealed(header: Header) -> bool:
    """Whether a file must have the right checksums: one of the first version has none."""
    return header.metadata["secateur"] != UNSEALED or not header.metadata.keys().isdisjoint(
        (container.TENSORS, container.METADATA)
    )


def _plan(path: Path, header: Header) -> Plan:
    _object(path, header, "plan")  # bounded before it is read
    try:
        plan = Plan.from_json(header.metadata["plan"])
        _check_plan(plan)
    except SecateurError as error:
        raise _damaged(path, error.cause) from error
    except (ArithmeticError, TypeError, ValueError) as error:  # numbers too large, lists in the place of names
        raise _damaged(path, str(error)) from error
    return plan


def _aliases(path: Path, header: Header) -> dict[str, str]:
    aliases = _object(path, header, "aliases")
    for second, first in aliases.items():
        if not isinstance(first, str) or first not in header.entries or second in header.entries:
            raise _damaged(path, f"{shown(second)!r} stands for {shown(first)!r}")
    return aliases


def _object(path: Path, header: Header, key: str) -> dict[str, Any]:
    """A JSON object in the metadata."""
    try:
        found = container.parse(header.metadata[key])
    except (KeyError, ValueError) as error:
        raise _damaged(path, f"its {key} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise _damaged(path, f"its {key} is not a JSON object")
    return found


def _original(path: Path, header: Header) -> nn.Module:
    """The network that a file names, freshly built; the random numbers of the caller stay as they were."""
    name = _object(path, header, "info").get("architecture")
    if not isinstance(name, str):
        raise UsageError(
            f"{path} does not say which network was cut", remedy="build that network and give it: load(path, model)"
        )
    if name.partition(":")[0] not in BUILT_BY_NAME:
        raise UsageError(
            f"{path} was made from {shown(name)}, and code that a file names is not run",
            remedy="build that network yourself and give it: load(path, model)",
        )
    with torch.random.fork_rng(devices=[]):
        return build(name)


def _in_type_of(entries: Mapping[str, Entry], model: nn.Module) -> nn.Module:
    """The model, or a copy in the floating point type that all tensors of the file share."""
    wanted, found = (_float_types(state) for state in (entries, unwrap(model).state_dict()))
    return duplicate(model).to(wanted.pop()) if len(wanted) == 1 and wanted != found else model


def _float_types(state: Mapping[str, Any]) -> set[torch.dtype]:
    types = {getattr(tensor, "dtype", None) for tensor in state.values()}
    return {kind for kind in types if kind is not None and kind.is_floating_point}


def _fill(path: Path, small: nn.Module, header: Header, aliases: Mapping[str, str]) -> None:
    """Read the tensors and put them into the cut network, if they are exactly those it needs."""
    entries = header.entries | {second: header.entries[first] for second, first in aliases.items()}
    own, ties = _tensors_of(small)
    own |= {second: own[first] for second, first in ties.items()}
    for name in sorted(own.keys() ^ entries.keys()):
        there = "the file has no such tensor" if name in own else "the network has no such tensor"
        raise _misfit(path, name, there)
    for name, entry in entries.items():
        if entry.shape != own[name].shape:
            raise _misfit(path, name, f"it has shape {entry.shape}, the network {tuple(own[name].shape)}")
        if entry.dtype != own[name].dtype:
            raise _misfit(path, name, f"it has type {entry.dtype}, the network {own[name].dtype}")
    for second, first in sorted(ties.items() ^ aliases.items()):
        raise _misfit(path, second, f"it is tied to {first} in the {'network' if second in ties else 'file'} only")
    tensors = container.read_tensors(path, header, sealed=_sealed(header))
    state = small.state_dict()  # it also holds the versions of its modules, which some of them ask for
    state.update(tensors | {second: tensors[first] for second, first in aliases.items()})
    small.load_state_dict(state)
    check_finite(small)


def _misfit(path: Path, name: str, cause: str) -> SecateurError:
    return SecateurError(
        f"{path} does not fit this network: {cause}",
        layer=shown(name),
        remedy="give the model that was cut, built in the same way",
    )


def _damaged(path: Path, cause: str) -> SecateurError:
    return SecateurError(f"{path} is damaged: {cause}", remedy="copy it again, or save it again")
