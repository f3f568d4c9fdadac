"""A network as a file for other runtimes, checked there before it is written."""

from __future__ import annotations

import importlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from secateur.batches import Call, batch_size, calls, on_device_of
from secateur.bench import RUNS, Bench, in_turn
from secateur.cost import forward_pass
from secateur.errors import SecateurError, UsageError
from secateur.files import write_whole
from secateur.program import Example, call_arguments, clone, doubled, first_line, free_batch, mode, silence, unwrap
from secateur.surgery import relative_difference, tolerance_for

To = Literal["onnx", "torch-export"]
BATCHES = (1, 2, 5)  # sizes that a file with a free batch size is tried with
RUNTIMES = {"onnx": "onnxruntime", "torch-export": "torch.export"}
Runner = Callable[[Call], list[Tensor]]


@dataclass(frozen=True)
class Export:
    """What was written, and how it compares with the network in torch; `print(exported)` tells it."""

    path: Path
    to: To
    difference: float  # the largest difference between the outputs, relative to the largest output
    points: int  # inputs that it was checked on
    real: bool  # whether they were the user's
    batches: tuple[int, ...]  # the sizes in which they came
    bytes_before: int  # of the network's tensors
    bytes_after: int  # of the file
    times: Bench  # one pass in torch, and in the file's own runtime

    @property
    def exactness(self) -> str:
        """The difference in words."""
        return f"to {self.difference:.0e} (relative)" if self.difference else "exactly"

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batches))
        before, after = (f"{size / 1e3:,.0f} kB" for size in (self.bytes_before, self.bytes_after))
        return "\n".join(
            [
                f"{self.path}: {after}, the network's tensors {before}",
                f"equals the network {self.exactness} on {self.points} {'' if self.real else 'random '}inputs, "
                f"in batches of {sizes}",
                f"torch: {self.times.first}",
                f"{RUNTIMES[self.to]}: {self.times.second}",
                f"{RUNTIMES[self.to]} beside torch: {self.times.verdict}",
            ]
        )


def export(
    model: nn.Module,
    path: str | Path,
    example: Example,
    to: To = "onnx",
    *,
    data: Any = None,
    dynamic: bool = True,
    runs: int = RUNS,
    seed: int = 0,
) -> Export:
    """Write a network for another runtime, in eval mode: all of it, if its outputs there are the same, or nothing.

    >>> print(sc.export(res.model, "small.onnx", images[:1], data=images))

    example: a tensor, a tuple of arguments or a dict of keyword arguments; it is also what is timed.
    to: "onnx", run by onnxruntime, or "torch-export", the .pt2 file of `torch.export`.
    data: inputs to check on, as for `prune`; random ones in the example's shape if not given.
    dynamic: leave the size of the first axis of every input free; tried with 1, 2 and 5 points.
    runs: passes to time in each runtime.

    A relative difference above 1e-4 (in half precision 5e-2) is an error.
    """
    path = Path(path).resolve()
    if to not in get_args(To):
        raise UsageError(f"cannot export to {to!r}", remedy=f"use {' or '.join(map(repr, get_args(To)))}")
    if not path.parent.is_dir():
        raise SecateurError(f"there is no folder {path.parent}", remedy="make it first, or save somewhere else")
    model = unwrap(model)
    example = alike(model, call_arguments(example))
    inputs = _inputs(model, example, data, dynamic, seed)
    with mode(model, False), torch.no_grad():
        exported = _exported(model, example, dynamic)
        content, run = _onnx(exported) if to == "onnx" else _torch_export(exported)
        difference = max(_difference(model, run, call, to) for call in inputs)
    limit = max(1e-4, tolerance_for(model))
    if difference > limit:
        raise SecateurError(
            f"in {RUNTIMES[to]} its outputs differ by {difference:.1e} (relative), more than {limit:.0e}",
            layer=type(model).__name__,
            remedy="nothing was written; if model.double() passes, it is rounding that the network amplifies",
        )
    with forward_pass(model, example[0] or example[1]) as one:
        times = in_turn(one, lambda: run(example), runs=runs, threads=torch.get_num_threads(), seed=seed)
    write_whole(path, content)
    return Export(
        path=path,
        to=to,
        difference=difference,
        points=sum(map(batch_size, inputs)),
        real=data is not None,
        batches=tuple(sorted({batch_size(call) for call in inputs})),
        bytes_before=sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
        bytes_after=len(content),
        times=times,
    )


def need(package: str) -> Any:
    """Import a package of the extra `onnx`, or say how to get it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise SecateurError(f"{error.name} is not installed", remedy="pip install 'secateur[onnx]'") from error
    except Exception as error:
        raise SecateurError(
            f"{package} is installed but cannot be imported: {first_line(error)}",
            remedy="pip install --force-reinstall 'secateur[onnx]'",
        ) from error


def _exported(model: nn.Module, example: Call, dynamic: bool) -> torch.export.ExportedProgram:
    args, kwargs = pytree.tree_map(clone, doubled(example) if dynamic else example)  # the export leaves marks on them
    shapes = free_batch(args, kwargs) if dynamic else None
    try:
        with silence():
            return torch.export.export(model, args, kwargs, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        fixed = ", or dynamic=False (--fixed-batch) if the size of a batch is written into it" if dynamic else ""
        raise SecateurError(
            f"torch.export cannot follow it: {first_line(error)}",
            layer=type(model).__name__,
            remedy=f"check that the example is what forward takes{fixed}",
        ) from error


def _onnx(exported: torch.export.ExportedProgram) -> tuple[bytes, Runner]:
    """The bytes of an ONNX file, and a call that runs them in onnxruntime with torch's number of threads."""
    need("onnx"), need("onnxscript")
    runtime = need("onnxruntime")
    try:
        with silence():
            proto = torch.onnx.export(exported, dynamo=True, verbose=False).model_proto  # type: ignore[union-attr]
        _tidy(proto)
        content = proto.SerializeToString()
    except Exception as error:
        raise SecateurError(
            f"torch.onnx cannot write it: {first_line(error)}", remedy="to='torch-export' keeps it in torch"
        ) from error
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; they come as exceptions as well
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _cannot_run("onnx", error) from error
    names = [one.name for one in session.get_inputs()]  # all tensors, in order; an unused one as well

    def run(call: Call) -> list[Tensor]:
        fed = {name: leaf.detach().cpu().numpy() for name, leaf in zip(names, _tensors(call), strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, fed)]

    return content, run


def _torch_export(exported: torch.export.ExportedProgram) -> tuple[bytes, Runner]:
    """The bytes of a .pt2 file, and a call that runs them, read back."""
    file = io.BytesIO()
    try:
        with silence():
            torch.export.save(exported, file)
            loaded = torch.export.load(io.BytesIO(file.getvalue())).module()
    except Exception as error:
        raise SecateurError(f"torch.export cannot save it: {first_line(error)}", remedy="try to='onnx'") from error

    def run(call: Call) -> list[Tensor]:
        args, kwargs = call
        with torch.no_grad():
            return _tensors(loaded(*args, **kwargs))

    return file.getvalue(), run


def _tidy(proto: Any) -> None:
    """Call the free size of the first axis `batch`, where torch says s77, and say the shape of a weight once."""
    graph = proto.graph
    free = {one.type.tensor_type.shape.dim[0].dim_param for one in graph.input if one.type.tensor_type.shape.dim}
    for value in [*graph.input, *graph.output, *graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            for symbol in free - {""}:
                if dim.dim_param:
                    dim.dim_param = re.sub(rf"\b{symbol}\b", "batch", dim.dim_param)
    # onnxruntime's quantizer transposes weights, and then finds them at odds with a shape that stands elsewhere.
    weights = {weight.name for weight in graph.initializer}
    others = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(others)


def _inputs(model: nn.Module, example: Call, data: Any, dynamic: bool, seed: int) -> list[Call]:
    """What to check on: the user's points, or random ones, and with a free batch size in batches of several sizes."""
    if data is None:
        generator = torch.Generator().manual_seed(seed)
        most = max(BATCHES) if dynamic else batch_size(example)
        batches = [pytree.tree_map(lambda leaf: at_random(leaf, generator), sized(example, most))]
    else:
        several = len(example[0]) > 1 or example[1]
        given = list(calls(data, example=(example[0] or example[1]) if several else None))
        if not given:
            raise SecateurError("there is no data to check on", layer="data", remedy="give at least one batch")
        if wrong := next((kwargs for _, kwargs in given if kwargs.keys() != example[1].keys()), None):
            raise SecateurError(
                f"a batch has the inputs {sorted(wrong)}, the example {sorted(example[1])}",
                layer="data",
                remedy="give the same ones",
            )
        # In the order of the example, by which the file knows them.
        batches = [alike(model, (args, {name: kwargs[name] for name in example[1]})) for args, kwargs in given]
    if dynamic:
        return [*(sized(batches[0], size) for size in BATCHES), *(batches if data is not None else [])]
    return [sized(batch, batch_size(example)) for batch in batches]


def sized(call: Call, size: int) -> Call:
    """So many points of a batch, from the front again where it has fewer."""
    has = batch_size(call)
    places = torch.arange(size) % has

    def chosen(leaf: Any) -> Any:
        return leaf[places.to(leaf.device)] if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == has else leaf

    return pytree.tree_map(chosen, call)


def at_random(leaf: Any, generator: torch.Generator) -> Any:
    """Normal numbers in the place of floats; whole numbers may stand for something, and stay."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    return torch.randn(leaf.shape, generator=generator).to(leaf)


def alike(model: nn.Module, call: Call) -> Call:
    """The batch where the network is, and in its precision."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return pytree.tree_map(
        lambda leaf: leaf.to(own) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
        on_device_of(model, call),
    )


def _difference(model: nn.Module, run: Runner, call: Call, to: To) -> float:
    args, kwargs = call
    wanted = [leaf.detach().cpu().double() for leaf in _tensors(model(*args, **kwargs))]
    try:
        found = [leaf.cpu().double() for leaf in run(call)]
    except Exception as error:
        raise _cannot_run(to, error) from error
    shapes = [[tuple(leaf.shape) for leaf in leaves] for leaves in (found, wanted)]
    broken = _finite(wanted) and not _finite(found)
    if shapes[0] != shapes[1] or broken:
        what = f"outputs of shape {shapes[0]} instead of {shapes[1]}" if shapes[0] != shapes[1] else "NaN or infinity"
        raise SecateurError(
            f"with {batch_size(call)} points {RUNTIMES[to]} gives {what}",
            layer=type(model).__name__,
            remedy="nothing was written; check the weights, or try dynamic=False (--fixed-batch)",
        )
    return relative_difference(found, wanted)


def _finite(tensors: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _cannot_run(to: To, error: Exception) -> SecateurError:
    return SecateurError(
        f"{RUNTIMES[to]} cannot run it: {first_line(error)}",
        remedy="nothing was written; try model.float(), dynamic=False (--fixed-batch), or the other kind of file",
    )
