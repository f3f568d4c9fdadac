"""Export a network for other runtimes; the file is checked there before it is written."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.certificates import fingerprints
from secateur.channels.program import suppress_output
from secateur.checks import known_keywords
from secateur.costs.timing import RUNS, Bench, forward_pass, interleaved
from secateur.deprecation import renamed_fields
from secateur.errors import SecateurError, UsageError, explained
from secateur.network.batches import Call, batch_size, calls, on_device_of
from secateur.network.examples import Example, call_arguments, clone, doubled, free_batch, named_arguments
from secateur.network.modules import mode, stand_in, unwrap
from secateur.network.scope import ScopeNetwork, inputs_of, scope_paths
from secateur.optional import require
from secateur.storage.files import writable_file, write_atomic
from secateur.storage.onnx_network import INSTALL, USED, onnx_session
from secateur.storage.quantize import int8_content
from secateur.surgery.verify import relative_difference, tolerance_for

To = Literal["onnx", "torch-export"]
BATCHES = (1, 2, 5)  # sizes that a file with a free batch size is checked with
RUNTIMES = {"onnx": "onnxruntime", "torch-export": "torch.export"}
Runner = Callable[[Call], list[Tensor]]


@renamed_fields(points="samples")
@dataclass(frozen=True)
class Export:
    """An exported file, and how it compares with the network in torch; `print(exported)` shows it.

    Attributes:
        path: the file, as it was given.
        to: its kind, "onnx" or "torch-export".
        difference: largest difference between the outputs, relative to the largest output; of an int8 file, the error
            of its quantization.
        samples: number of inputs that it was checked on.
        real: whether those were the user's data rather than random numbers.
        batches: batch sizes that it was checked with.
        bytes_before: size of the network's tensors.
        bytes_after: size of the file.
        times: latency of one pass in torch and in the file's own runtime.
        int8: whether the file was quantized.
    """

    path: Path
    to: To
    difference: float
    samples: int
    real: bool
    batches: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    times: Bench
    int8: bool = False

    @property
    def exactness(self) -> str:
        """The difference in words."""
        if self.int8:
            return f"up to {self.difference:.1%} of the largest output, the error of int8,"
        return f"to {self.difference:.0e} (relative)" if self.difference else "exactly"

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.batches))
        compared = "differs from" if self.int8 else "equals"
        before, after = (f"{size / 1e3:,.0f} kB" for size in (self.bytes_before, self.bytes_after))
        return "\n".join(
            [
                f"{self.path}: {after}, the network's tensors {before}",
                f"{compared} the network {self.exactness} on {self.samples} {'' if self.real else 'random '}inputs, "
                f"in batches of {sizes}",
                f"torch: {self.times.first}",
                f"{RUNTIMES[self.to]}: {self.times.second}",
                f"{RUNTIMES[self.to]} compared with torch: {self.times.verdict}",
            ]
        )


@known_keywords
def export(
    model: nn.Module,
    path: str | Path,
    example: Example,
    to: To = "onnx",
    *,
    data: Any = None,
    scope: str | Sequence[str] = (),
    int8: bool = False,
    dynamic: bool = True,
    runs: int = RUNS,
    seed: int = 0,
) -> Export:
    """Export a network in eval mode; the file is written only if its outputs equal those of torch.

    >>> print(sc.export(res.model, "small.onnx", images[:1], data=images))

    A relative difference above 1e-4 (5e-2 in half precision) is an error. An int8 file is made from a file that passed
    this check; `certify` bounds its own difference: `sc.certify(model, sc.load_onnx("small.onnx"), heldout)`.

    Args:
        model: the network.
        path: the file to write.
        example: a tensor, a tuple of arguments or a dict of keyword arguments; this call is also timed.
        to: "onnx", run by onnxruntime, or "torch-export", the .pt2 file of `torch.export`.
        data: inputs to check on, as for `prune`; random ones in the shape of the example if not given.
        scope: names of submodules to export instead of the whole model, which runs once on the example and on the data.
        int8: for ONNX, quantize weights and activations to eight bits after the check, with `data` as calibration
            samples, which it needs; 64 to 256 are usual.
        dynamic: leave the batch size free: the first axis of every input. Checked with 1, 2 and 5 samples.
        runs: number of timed passes in each runtime.
        seed: of the random inputs and of the order of the timed passes.
    """
    path = Path(path)
    if to not in get_args(To):
        raise UsageError(f"cannot export to {to!r}", remedy=f"use {' or '.join(map(repr, get_args(To)))}")
    if int8 and (to != "onnx" or data is None):
        raise UsageError(
            "int8 needs to='onnx' and calibration samples",
            remedy="pass data=, such as the samples that the network was pruned with (--data)",
        )
    writable_file(path)
    model = unwrap(model)
    if scope:
        paths = scope_paths(model, scope)
        example, *_ = inputs_of(model, paths, [example])
        data = None if data is None else inputs_of(model, paths, data)
        model = ScopeNetwork(model, paths)
    example = alike(model, call_arguments(example))
    inputs = _inputs(model, example, data, dynamic, seed)
    with mode(model, False), torch.no_grad():
        exported = _exported(model, example, dynamic)
        content, run = _onnx(exported, model) if to == "onnx" else _torch_export(exported)
        difference = max(_difference(model, run, call, to) for call in inputs)
    limit = max(1e-4, tolerance_for(model))
    if difference > limit:
        raise SecateurError(
            f"in {RUNTIMES[to]} its outputs differ by {difference:.1e} (relative), more than {limit:.0e}",
            layer=type(model).__name__,
            remedy="nothing was written; if model.double() passes, the network amplifies rounding errors",
        )
    if int8:
        content, run = _quantized(content, inputs, model)
        with mode(model, False), torch.no_grad():
            difference = max(_difference(model, run, call, to) for call in inputs)
    with forward_pass(model, example[0] or example[1]) as one:
        times = interleaved(one, lambda: run(example), runs=runs, threads=torch.get_num_threads(), seed=seed)
    write_atomic(path.resolve(), content)  # a link stays a link
    return Export(
        path=path,
        to=to,
        difference=difference,
        samples=sum(map(batch_size, inputs)),
        real=data is not None,
        batches=tuple(sorted({batch_size(call) for call in inputs})),
        bytes_before=sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values()),
        bytes_after=len(content),
        times=times,
        int8=int8,
    )


def _exported(model: nn.Module, example: Call, dynamic: bool) -> torch.export.ExportedProgram:
    args, kwargs = pytree.tree_map(clone, doubled(example) if dynamic else example)  # the export leaves marks on them
    shapes = free_batch(args, kwargs) if dynamic else None
    fixed = ", or use dynamic=False (--fixed-batch) if forward depends on the batch size" if dynamic else ""
    remedy = f"check that forward accepts the example{fixed}"
    with explained("torch.export cannot follow it", layer=type(model).__name__, remedy=remedy), suppress_output():
        copy = named_arguments(stand_in(model), kwargs)
        return torch.export.export(copy, args, kwargs, dynamic_shapes=shapes, strict=False)


def _onnx(exported: torch.export.ExportedProgram, model: nn.Module) -> tuple[bytes, Runner]:
    """Return the bytes of an ONNX file, and a function that runs them in onnxruntime with torch's thread count."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        require(name, install=INSTALL)
    with explained("torch.onnx cannot export it", remedy="to='torch-export' keeps it in torch"):
        with suppress_output():
            proto = torch.onnx.export(exported, dynamo=True, verbose=False).model_proto  # type: ignore[union-attr]
        _tidy(proto)
        _remember(proto, fingerprints.remembered(model))
        content = proto.SerializeToString()
    return content, _runner(content)


def _quantized(content: bytes, calls: Sequence[Call], model: nn.Module) -> tuple[bytes, Runner]:
    """Return the same for the file in int8; it remembers its calibration samples, too."""
    onnx = require("onnx", install=INSTALL)
    names = [one.name for one in onnx.load_from_string(content).graph.input]
    proto = onnx.load_from_string(int8_content(content, names, calls))
    _remember(proto, [*fingerprints.remembered(model), *(one for call in calls for one in fingerprints.of(call))])
    content = proto.SerializeToString()
    return content, _runner(content)


def _remember(proto: Any, used: Sequence[str]) -> None:
    """Write the fingerprints of samples into the metadata of a file, in place of those that it has."""
    others = [one for one in proto.metadata_props if one.key != USED]
    del proto.metadata_props[:]
    proto.metadata_props.extend(others)
    if used:
        proto.metadata_props.add(key=USED, value=fingerprints.pack(used))


def _runner(content: bytes) -> Runner:
    with _running("onnx"):
        session = onnx_session(content)
    names = [one.name for one in session.get_inputs()]  # all tensors in order, an unused one as well

    def run(call: Call) -> list[Tensor]:
        fed = {name: leaf.detach().cpu().numpy() for name, leaf in zip(names, _tensors(call), strict=True)}
        return [torch.from_numpy(found) for found in session.run(None, fed)]

    return run


def onnx_pass(model: nn.Module, example: Example) -> Callable[[], Any]:
    """Return a function that runs a network on the example in onnxruntime, with torch's number of threads."""
    model = unwrap(model)
    call = alike(model, call_arguments(example))
    with mode(model, False), torch.no_grad():
        _, run = _onnx(_exported(model, call, dynamic=False), model)
    return lambda: run(call)


def _torch_export(exported: torch.export.ExportedProgram) -> tuple[bytes, Runner]:
    """Return the bytes of a .pt2 file, and a function that runs them after reading them back."""
    file = io.BytesIO()
    with explained("torch.export cannot save it", remedy="try to='onnx'"), suppress_output():
        torch.export.save(exported, file)
        loaded = torch.export.load(io.BytesIO(file.getvalue())).module()

    def run(call: Call) -> list[Tensor]:
        args, kwargs = call
        with torch.no_grad():
            return _tensors(loaded(*args, **kwargs))

    return file.getvalue(), run


def _tidy(proto: Any) -> None:
    """Name the free first axis `batch`, where torch writes s77, and remove the repeated shapes of weights."""
    graph = proto.graph
    free = {one.type.tensor_type.shape.dim[0].dim_param for one in graph.input if one.type.tensor_type.shape.dim}
    for value in [*graph.input, *graph.output, *graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            for symbol in free - {""}:
                if dim.dim_param:
                    dim.dim_param = re.sub(rf"\b{symbol}\b", "batch", dim.dim_param)
    # onnxruntime's quantizer transposes weights, and then refuses the shape that is given for them elsewhere.
    weights = {weight.name for weight in graph.initializer}
    others = [value for value in graph.value_info if value.name not in weights]
    del graph.value_info[:]
    graph.value_info.extend(others)


def _inputs(model: nn.Module, example: Call, data: Any, dynamic: bool, seed: int) -> list[Call]:
    """Return the user's samples or random ones to check on; with a free batch size in batches of several sizes."""
    if data is None:
        generator = torch.Generator().manual_seed(seed)
        most = max(BATCHES) if dynamic else batch_size(example)
        batches = [pytree.tree_map(lambda leaf: at_random(leaf, generator), sized(example, most))]
    else:
        several = len(example[0]) > 1 or example[1]
        given = list(calls(data, example=(example[0] or example[1]) if several else None))
        if not given:
            raise SecateurError("there is no data to check on", layer="data", remedy="pass at least one batch")
        if wrong := next((kwargs for _, kwargs in given if kwargs.keys() != example[1].keys()), None):
            raise SecateurError(
                f"a batch has the inputs {sorted(wrong)}, the example {sorted(example[1])}",
                layer="data",
                remedy="pass the same inputs in both",
            )
        # In the order of the example, which is their order in the file.
        batches = [alike(model, (args, {name: kwargs[name] for name in example[1]})) for args, kwargs in given]
    if dynamic:
        return [*(sized(batches[0], size) for size in BATCHES), *(batches if data is not None else [])]
    return [sized(batch, batch_size(example)) for batch in batches]


def sized(call: Call, size: int) -> Call:
    """Return a batch of `size` samples; the samples repeat where the given batch has fewer."""
    available = batch_size(call)
    indices = torch.arange(size) % available

    def pick(leaf: Any) -> Any:
        has_samples = isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == available
        return leaf[indices.to(leaf.device)] if has_samples else leaf

    return pytree.tree_map(pick, call)


def at_random(leaf: Any, generator: torch.Generator) -> Any:
    """Return normal random numbers in place of a tensor of floats; integers may be indices and stay."""
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        return leaf
    return torch.randn(leaf.shape, generator=generator).to(leaf)


def alike(model: nn.Module, call: Call) -> Call:
    """Return the batch on the device and in the precision of the network."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return pytree.tree_map(
        lambda leaf: leaf.to(own) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf,
        on_device_of(model, call),
    )


def _difference(model: nn.Module, run: Runner, call: Call, to: To) -> float:
    args, kwargs = call
    wanted = [leaf.detach().cpu().double() for leaf in _tensors(model(*args, **kwargs))]
    with _running(to):
        found = [leaf.cpu().double() for leaf in run(call)]
    shapes = [[tuple(leaf.shape) for leaf in leaves] for leaves in (found, wanted)]
    wrong = "NaN or infinity" if _finite(wanted) and not _finite(found) else None
    if shapes[0] != shapes[1]:
        wrong = f"outputs of shape {shapes[0]} instead of {shapes[1]}"
    if wrong:
        raise SecateurError(
            f"with {batch_size(call)} samples {RUNTIMES[to]} gives {wrong}",
            layer=type(model).__name__,
            remedy="nothing was written; check the weights, or try dynamic=False (--fixed-batch)",
        )
    return relative_difference(found, wanted)


def _finite(tensors: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _running(to: To) -> AbstractContextManager[None]:
    return explained(
        f"{RUNTIMES[to]} cannot run it",
        remedy="nothing was written; try model.float(), dynamic=False (--fixed-batch), or the other kind of file",
    )
