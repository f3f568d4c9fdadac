"""Save and load a cut network: one safe file with its tensors, the plan that cut it, and information about it.

The file is a safetensors file, so reading it runs no code. Its metadata hold "secateur" (the version of this format),
"plan" (the plan as JSON), "aliases" (the further names of tied tensors, which are stored once), "info" and two
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

from secateur._version import __version__
from secateur.certificates import fingerprints
from secateur.channels.graph import ChannelGraph, Output
from secateur.checks import known_keywords
from secateur.deprecation import renamed_arguments, warn_deprecated
from secateur.errors import SecateurError, UsageError, explained, first_line
from secateur.network.modules import check_finite, duplicate, unwrap
from secateur.storage import container
from secateur.storage.container import AXES_LIMIT, NAME_LIMIT, Header, damaged, shown
from secateur.storage.files import as_path, writable_file, write_atomic
from secateur.storage.stored_graph import as_plain, from_plain
from secateur.surgery.cut import cut, plan_from_original
from secateur.surgery.plan import Plan
from secateur.zoo.names import build

VERSION = "3"  # 2 added the checksums, 3 renamed keys of `info`
OLD_VERSIONS = ("1", "2")  # which are still read
OLD_KEYS = {"points": "samples", "sensitivities": "scores", "harm": "divergence"}  # of `info` before version 3
BUILT_BY_NAME = ("torchvision", "timm", "zoo")
EXAMPLE_LIMIT = 2**28  # numbers in the example of a plan
EXAMPLE_TYPES = tuple("bfloat16 bool complex64 complex128 float16 float32 float64 int8 int16 int32 int64 uint8".split())


@renamed_arguments(sensitivities="scores")
@known_keywords
def save(
    path: str | Path,
    result: Any,
    plan: Plan | None = None,
    *,
    architecture: str | None = None,
    scores: Mapping[str, Tensor | Sequence[float]] | None = None,
    certificate: object = None,
    info: Mapping[str, object] | None = None,
) -> None:
    """Save a cut network and its plan in one file, which is written completely or not at all.

    >>> sc.save("small.safetensors", sc.prune(model, data, budget={"macs": "50%"}))
    >>> sc.save("small.safetensors", small, plan, architecture="torchvision:resnet18")

    A network that was pruned several times is saved with the plan from its original, into which `load` puts it.

    Args:
        path: the file to write.
        result: the result of `prune`; or a cut network, with its `plan`; or any object with the attributes `model` and
            `plan`, and optionally `info`, `scores` and `certificate`.
        plan: the plan that the network was cut by, the last one of several; not needed for a result that has it.
        architecture: the original network as `torchvision:NAME`, `timm:NAME` or `zoo:NAME`; then `load` needs no model.
        scores: a number for each channel of each group, such as `sensitivity` returns.
        certificate: plain data, such as `json.loads(cert.to_json())`.
        info: further information that JSON can hold. The versions of secateur, torch and Python are added.
    """
    path = writable_file(path)
    model, plan, about = _parts(result, plan)
    tensors, aliases = _tensors_of(model)
    _check_cut(tensors, plan)
    check_finite(model)
    given = {"architecture": architecture, "scores": scores, "certificate": certificate}
    about |= {**(info or {}), **{key: value for key, value in given.items() if value is not None}}
    if used := fingerprints.remembered(model):
        about.setdefault("fingerprints", fingerprints.pack(used))
    about["versions"] = {
        "secateur": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }
    with explained(
        "the network cannot be saved",
        remedy="use tensors of a common dtype, and an info of strings, finite numbers, lists and dicts",
    ):
        _check_plan(plan)
        metadata = {
            "secateur": VERSION,
            "plan": plan.to_json(),
            "aliases": json.dumps(aliases),
            "info": json.dumps(about, allow_nan=False, default=_numbers),
        }
        container.parse(metadata["info"])  # whatever is written can be read
        data = container.pack(tensors, metadata)
    write_atomic(path, data)


@known_keywords
def load(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Return the cut network that a file holds.

    >>> small = sc.load("small.safetensors", torchvision.models.resnet18())
    >>> small = sc.load("small.safetensors")  # if it was saved with an architecture

    Each tensor has the values and the floating point type of the file. Nothing is traced, except for a plan with
    `output="graph"`, whose network is exported again. The tensors are read last, after their shapes were compared with
    those that the network needs.

    Args:
        path: a file that `save` wrote.
        model: the original network, freshly built; its weights do not matter, and it is not changed.
    """
    path = as_path(path)
    header = _header(path)
    plan = _plan(path, header)
    aliases = _aliases(path, header)
    model = _in_type_of(header, _original(path, header) if model is None else model)
    with explained(
        f"the plan in {path} does not fit this model", remedy="pass the model that the plan was made for, freshly built"
    ):
        small = cut(model, plan)
    _fill(path, unwrap(small), header, aliases)
    used = _object(path, header, "info").get("fingerprints")
    if isinstance(used, str):
        fingerprints.remember(small, used)
    return small


def read_plan(path: str | Path) -> Plan:
    """Return the plan in a file that `save` wrote.

    >>> print(read_plan("small.safetensors"))
    """
    return _plan(Path(path), _header(Path(path)))


def read_graph(path: str | Path) -> ChannelGraph:
    """Return the channel graph of the network in a file that `save` wrote, so that it need not be traced again.

    >>> small = sc.load("small.safetensors", model)
    >>> sc.prune(small, images, {"macs": "50%"}, graph=read_graph("small.safetensors"))
    """
    found = read_info(path).get("graph")
    if found is None:
        raise SecateurError(
            f"{path} has no channel graph", remedy="trace the network: sc.trace(model, example); then save the result"
        )
    with explained(f"the channel graph in {path} is damaged", remedy="trace the network: sc.trace(model, example)"):
        return from_plain(found)


def read_info(path: str | Path) -> dict[str, Any]:
    """Return the information in a file that `save` wrote; old keys of earlier formats are renamed to today's.

    >>> read_info("small.safetensors")["versions"]
    {'secateur': '0.2.0', 'torch': '2.9.0', 'python': '3.12.1'}
    """
    header = _header(Path(path))
    info = _object(Path(path), header, "info")
    if header.metadata["secateur"] == VERSION:
        return info
    info = _renamed(info)
    rows = info.get("groups")
    nested = {"repair": _renamed(info.get("repair"))} if "repair" in info else {}
    return info | nested | ({"groups": [_renamed(row) for row in rows]} if isinstance(rows, list) else {})


def _renamed(found: Any) -> Any:
    """Return a JSON object with today's keys; anything else as it is."""
    if not isinstance(found, dict):
        return found
    return {OLD_KEYS.get(key, key): value for key, value in found.items() if OLD_KEYS.get(key) not in found}


def _parts(result: Any, plan: Plan | None) -> tuple[nn.Module, Plan, dict[str, object]]:
    """Return the network, the plan and the information in the arguments of `save`."""
    about: dict[str, object] = {}
    model = result
    if plan is None:
        model, plan = getattr(result, "model", None), getattr(result, "plan", None)
        about |= getattr(result, "info", None) or {}
        about |= {key: value for key in ("scores", "certificate") if (value := getattr(result, key, None))}
        graph = getattr(result, "graph", None)
        if isinstance(graph, ChannelGraph) and isinstance(plan, Plan) and plan.output == "module" and not plan.scope:
            about["graph"] = as_plain(plan.graph_after(graph))
        if not hasattr(result, "scores") and hasattr(result, "sensitivities"):
            warn_deprecated("the attribute `sensitivities` of a saved object", "`scores`")
            about["scores"] = result.sensitivities
    if not isinstance(model, nn.Module) or not isinstance(plan, Plan):
        raise SecateurError(
            f"expected a cut network and its plan, got a {type(result).__name__}",
            remedy="write save(path, result) with the result of prune, or save(path, small, plan)",
        )
    return unwrap(model), plan_from_original(model, plan), about


def _tensors_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a network, each once, and for each further name of a tied tensor its first name."""
    tensors, aliases, first_names = dict[str, Tensor](), dict[str, str](), dict[Any, str]()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise SecateurError(
                f"expected a state of tensors, found a {type(tensor).__name__}",
                layer=name,
                remedy="keep extra state elsewhere",
            )
        if tensor.is_meta or tensor.layout != torch.strided:
            raise SecateurError(
                "the tensor has no values (meta device)" if tensor.is_meta else f"the tensor is {tensor.layout}",
                layer=name,
                remedy="use a network of dense tensors on a real device",
            )
        first = first_names.setdefault(_identity(tensor), name)
        if first != name:
            aliases[name] = first
        else:
            tensors[name] = tensor.detach().cpu().contiguous()
    # Two views of one memory that are not the same tensor are stored twice: safetensors refuses shared memory.
    memory = dict[int, str]()
    for name, tensor in tensors.items():
        if memory.setdefault(tensor.untyped_storage().data_ptr(), name) != name:
            tensors[name] = tensor.clone()
    return tensors, aliases


def _identity(tensor: Tensor) -> Any:
    """Return a key that is equal for two names of one tensor."""
    if not tensor.numel():
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _check_cut(tensors: Mapping[str, Tensor], plan: Plan) -> None:
    """Refuse a network that was not cut by this plan: it could not be loaded again."""
    if not plan.kept:
        raise SecateurError("the plan removes nothing", remedy="save an uncut network with torch.save")
    for name in plan.shapes:
        found, expected = tensors.get(name), plan.shape_after(name)
        if found is not None and tuple(found.shape) != expected:
            raise SecateurError(
                f"the plan leaves shape {expected}, the tensor has shape {tuple(found.shape)}",
                layer=name,
                remedy="save the network that cut(model, plan) returned, with the same plan and with its own layers",
            )


def _check_plan(plan: Plan) -> None:
    """Refuse a plan that no network could follow; `cut` refuses those that the given network cannot follow."""
    if plan.output not in get_args(Output):
        raise ValueError(f"unknown output {shown(plan.output)} in the plan")
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
    for slot in plan.consumes:
        if slot not in plan.kept:
            raise ValueError(f"the plan masks axis {slot.axis} of {shown(slot.parameter)}, which does not shrink")
    for group in plan.groups:
        _check_kept(group.name, group.kept, group.size)
        if group.scales and len(group.scales) != len(group.kept):
            raise ValueError(f"the plan has {len(group.scales)} scales for {shown(group.name)}")


def _check_kept(name: str, indices: tuple[int, ...], size: int) -> None:
    if not isinstance(name, str) or not name.isprintable() or len(name) > NAME_LIMIT:
        raise ValueError(f"invalid name {shown(name)} in the plan")
    if not indices or indices != tuple(sorted(set(indices))) or indices[0] < 0 or indices[-1] >= size:
        raise ValueError(f"expected increasing indices from 0 to {size - 1} for {shown(name)}")


def _example_size(part: Any) -> int:
    """Return how many numbers an example holds; anything that `describe` does not write is refused."""
    if part is None or isinstance(part, bool | int | float | str):
        return 1
    if isinstance(part, list):
        count = sum(map(_example_size, part))
    elif isinstance(part, dict) and part.keys() == {"arguments"} and isinstance(part["arguments"], dict):
        count = sum(map(_example_size, part["arguments"].values()))
    elif isinstance(part, dict) and part.keys() == {"shape", "dtype"} and part["dtype"] in EXAMPLE_TYPES:
        shape = part["shape"]
        sizes: list[Any] = shape if isinstance(shape, list) else [None]
        if len(sizes) > AXES_LIMIT or not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError(f"invalid shape {shown(shape)} in the plan's example")
        count = math.prod(sizes)
    else:
        raise ValueError(f"invalid part {shown(part)} in the plan's example")
    if count > EXAMPLE_LIMIT:
        raise ValueError(f"the plan's example has more than {EXAMPLE_LIMIT} numbers")
    return count


def _numbers(value: Any) -> list[float]:
    """Return a tensor in `info` as a list, which JSON can hold."""
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def _header(path: Path) -> Header:
    """Return the header of a file of this format, after its metadata checksum was compared."""
    header = container.read_header(path)
    version = header.metadata.get("secateur")
    if version is None:
        raise SecateurError(
            f"{path} is a safetensors file without a plan, not one of secateur's",
            remedy="pass a file that sc.save wrote; load plain weights with model.load_state_dict",
        )
    if version not in (*OLD_VERSIONS, VERSION):
        raise SecateurError(
            f"{path} has version {version[:20]!r} of the format, this secateur reads versions up to {VERSION!r}",
            remedy="read it with the secateur that wrote it, or a newer one",
        )
    if _has_checksums(header):
        container.check_metadata(path, header)
    return header


def _has_checksums(header: Header) -> bool:
    """Return whether the checksums of a file must match: version 1 had none."""
    checksums = {container.TENSOR_CHECKSUM, container.METADATA_CHECKSUM}
    return header.metadata["secateur"] != "1" or not header.metadata.keys().isdisjoint(checksums)


def _plan(path: Path, header: Header) -> Plan:
    _object(path, header, "plan")  # its size is bounded before it is read
    try:
        plan = Plan.from_json(header.metadata["plan"])
        _check_plan(plan)
    except SecateurError as error:
        raise damaged(path, error.cause) from error
    except (ArithmeticError, TypeError, ValueError) as error:  # numbers too large, lists instead of names
        raise damaged(path, str(error)) from error
    return plan


def _aliases(path: Path, header: Header) -> dict[str, str]:
    aliases = _object(path, header, "aliases")
    for second, first in aliases.items():
        if not isinstance(first, str) or first not in header.tensors or second in header.tensors:
            raise damaged(path, f"invalid alias {shown(second)!r} of {shown(first)!r}")
    return aliases


def _object(path: Path, header: Header, key: str) -> dict[str, Any]:
    """Return a JSON object of the metadata."""
    try:
        found = container.parse(header.metadata[key])
    except (KeyError, ValueError) as error:
        raise damaged(path, f"its {key} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise damaged(path, f"its {key} is not a JSON object")
    return found


def _original(path: Path, header: Header) -> nn.Module:
    """Build the network that a file names, without changing the caller's random numbers."""
    name = _object(path, header, "info").get("architecture")
    if not isinstance(name, str):
        raise UsageError(
            f"{path} does not say which network was cut", remedy="build that network and pass it: load(path, model)"
        )
    if name.partition(":")[0] not in BUILT_BY_NAME:
        raise UsageError(
            f"{path} was cut from {shown(name)}, and code that a file names is never run",
            remedy="build that network yourself and pass it: load(path, model)",
        )
    with torch.random.fork_rng(devices=[]):
        return build(name)


def _in_type_of(header: Header, model: nn.Module) -> nn.Module:
    """Return the model, or a copy in the floating point type that all tensors of the file share."""
    wanted, found = (_float_types(state) for state in (header.tensors, unwrap(model).state_dict()))
    return duplicate(model).to(wanted.pop()) if len(wanted) == 1 and wanted != found else model


def _float_types(state: Mapping[str, Any]) -> set[torch.dtype]:
    types = {getattr(tensor, "dtype", None) for tensor in state.values()}
    return {kind for kind in types if kind is not None and kind.is_floating_point}


def _fill(path: Path, small: nn.Module, header: Header, aliases: Mapping[str, str]) -> None:
    """Read the tensors into the cut network if names, shapes, types and ties are exactly those of the network."""
    stored = header.tensors | {second: header.tensors[first] for second, first in aliases.items()}
    own, ties = _tensors_of(small)
    own |= {second: own[first] for second, first in ties.items()}
    for name in sorted(own.keys() ^ stored.keys()):
        raise _misfit(path, name, f"the {'file' if name in own else 'network'} has no such tensor")
    for name, tensor in stored.items():
        if tensor.shape != own[name].shape:
            raise _misfit(path, name, f"it has shape {tensor.shape}, the network {tuple(own[name].shape)}")
        if tensor.dtype != own[name].dtype:
            raise _misfit(path, name, f"it has type {tensor.dtype}, the network {own[name].dtype}")
    for second, first in sorted(ties.items() ^ aliases.items()):
        raise _misfit(path, second, f"it is tied to {first} in the {'network' if second in ties else 'file'} only")
    tensors = container.read_tensors(path, header, check=_has_checksums(header))
    state = small.state_dict()  # it also holds the versions of its modules, which some of them ask for
    state.update(tensors | {second: tensors[first] for second, first in aliases.items()})
    small.load_state_dict(state)
    check_finite(small)


def _misfit(path: Path, name: str, cause: str) -> SecateurError:
    return SecateurError(
        f"{path} does not fit this network: {cause}",
        layer=shown(name),
        remedy="pass the model that was cut, built in the same way",
    )
