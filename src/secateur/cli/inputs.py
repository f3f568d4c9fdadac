"""Networks, data and files from their names on the command line."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import secateur as sc
from secateur._torch import pytree
from secateur.cli import options
from secateur.cli.screen import Screen
from secateur.data.calibration import Calibration, read_batches
from secateur.data.calibration.folder import has_classes
from secateur.embedded import digits
from secateur.errors import UsageError
from secateur.network.examples import Example, call_arguments, revive
from secateur.pruning.settings import PruneSettings
from secateur.storage.checkpoint import read_info, read_plan
from secateur.storage.container import shown
from secateur.zoo.libraries import missing_operators
from secateur.zoo.names import BUILDERS, build, parse_shape

DEFAULTS: Any = PruneSettings()  # an option takes fewer types than its setting
DIGITS = "embedded:digits"
RANDOM = "the weights are random, so the result means nothing; pass trained ones with --weights FILE"


@dataclass(frozen=True)
class Reading:
    """The options for reading samples from a source."""

    samples: options.Samples = DEFAULTS.samples
    mean: options.Mean = None
    std: options.Std = None
    batch: options.Batch = 32
    seed: options.Seed = DEFAULTS.seed

    def __post_init__(self) -> None:
        self._scale()  # refused before anything takes time

    def read(
        self, source: str, example: Example, samples: int | None = None, unused: int = 0, labels: bool = False
    ) -> Calibration:
        """Return samples that fit an example, and up to `unused` further ones that are set aside."""
        inputs = _tensors(example)
        if not inputs:
            raise UsageError("the example of the network has no tensor", remedy="give its shape: --input 1x3x224x224")
        if len(inputs) > 1 and not runs_code(source):
            raise UsageError(
                f"{source} holds one input, and the network takes {len(inputs)}",
                remedy="use path/to/file.py:FACTORY that yields batches (x1, x2, ...)",
            )
        shape, wanted = tuple(inputs[0].shape[1:]), samples or self.samples
        return read_batches(
            source,
            shape=shape,
            samples=wanted,
            batch=self.batch,
            seed=self.seed,
            labels=labels,
            unused=unused,
            **self._scale(),
        )

    def read_unseen(self, source: str, example: Example, samples: int | None = None) -> Calibration:
        """Return samples that no network has seen, labelled where they can be."""
        if source != DIGITS:
            labels = Path(source).is_dir() and has_classes(Path(source))
            return self.read(source, example, samples, labels=labels)
        if self.mean is not None or self.std is not None:
            raise UsageError("the embedded digits are scaled already", remedy="leave --mean and --std out")
        x, y = (part[: samples or self.samples] for part in digits("test"))
        return Calibration(list(zip(x.split(self.batch), y.split(self.batch))), len(x), True, f"{DIGITS} (test)")

    def _scale(self) -> dict[str, list[float] | None]:
        return {"mean": numbers("mean", self.mean), "std": numbers("std", self.std)}


@dataclass(frozen=True)
class Loaded:
    """A network with calibration data, the record of both, and notes on them."""

    network: nn.Module
    example: Example
    data: Calibration
    head: dict[str, Any]
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Subject(Reading):
    """The options for a network and its calibration data."""

    model: options.Model
    data: options.CalibrationData
    weights: options.Weights = None
    input: options.Input = None

    def load(self, screen: Screen, samples: int | None = None, unused: int = 0) -> Loaded:
        """Build the network, and read as many samples as asked for, with up to `unused` further ones set aside."""
        with screen.status(f"building {self.model}"):
            network, example = build_with_example(self.model, self.input, self.weights)
        note_operators(screen, self.model)
        with screen.status(f"reading {self.data}"):
            data = self.read(self.data, example, samples, unused)
        if isinstance(first := data.batches[0], Mapping):  # batches by keyword say what the network takes
            example = {
                key: leaf[:1] if isinstance(leaf, Tensor) and leaf.dim() else leaf for key, leaf in first.items()
            }
        weights = self.weights and str(self.weights)
        head = {"model": self.model, "weights": weights, "input": input_shapes(example), "data": data.origin}
        notes = []
        if weights is None and not runs_code(self.model):
            notes.append(RANDOM)
        if runs_code(self.data) and data.samples == (samples or self.samples):
            notes.append(f"the first {data.samples:,} samples of {self.data} were used; shuffle there if order matters")
        return Loaded(network, example, data, head, notes)


@dataclass(frozen=True)
class Cutting:
    """The options for what may be cut, and how."""

    task: options.PruneTask = DEFAULTS.task
    scope: options.Scope = DEFAULTS.scope
    keep: options.Keep = DEFAULTS.keep
    free_outputs: options.FreeOutputs = DEFAULTS.free_outputs
    round_to: options.RoundTo = DEFAULTS.round_to
    at_least: options.AtLeast = DEFAULTS.at_least
    output: options.CutAs = DEFAULTS.output
    prune_inputs: options.PruneInputs = DEFAULTS.prune_inputs
    memory: options.Memory = DEFAULTS.memory  # in MB; the setting is in bytes

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of these options, as `sc.prune` takes them."""
        return vars(self) | {"memory": None if self.memory is None else self.memory << 20}


def build_with_example(model: str, shapes: list[str] | None, weights: Path | None = None) -> tuple[nn.Module, Example]:
    """Return the network of that name, and an input of zeros for it."""
    given = zeros(shapes)
    network = build(model, weights)
    return network, given or (torch.zeros(_default_shape(network)),)


def open_with_example(
    name: str, original: str | None, shapes: list[str] | None, weights: Path | None = None
) -> tuple[nn.Module, Example]:
    """Return the network of that name or in that file, and an input for it."""
    if not is_file(name):
        return build_with_example(name, shapes, weights)
    given = zeros(shapes)
    try:
        network = sc.load(name) if original is None else sc.load(name, build(original))
        return network, given or example_of_file(Path(name), network)
    except UsageError as error:
        if original is not None or not Path(name).is_file():
            raise
        raise UsageError(error.cause, remedy="name that network: --model net.py:make") from error


def example_of_file(path: Path, network: nn.Module) -> Example:
    """Return an input of zeros for the network in a file; of a model that was pruned in parts, for the whole model."""
    plan = read_plan(path)
    if not plan.scope:
        return revive(plan.example)
    shapes = read_info(path).get("input")
    if isinstance(shapes, list) and shapes and all(map(_is_shape, shapes)):
        return tuple(torch.zeros(shape) for shape in shapes)
    return (torch.zeros(_default_shape(network)),)


def _is_shape(found: Any) -> bool:
    sizes = isinstance(found, list) and all(isinstance(n, int) and 0 < n < 2**16 for n in found)
    return sizes and math.prod(found) < 2**28


def original_of(path: Path) -> str:
    """Return the name of the network that a saved one was cut from, if it can be built from the name alone."""
    name = read_info(path).get("architecture")
    if isinstance(name, str) and name.partition(":")[0] in BUILDERS:
        return name
    named = (
        f"was cut from {shown(name)}, whose code is run only if you name it" if name else "does not name its original"
    )
    raise UsageError(f"{path} {named}", remedy="name that network: --model net.py:make")


def trained_original_of(path: Path, model: str | None, weights: Path | None) -> str:
    """Return the name of the original of a saved network; a name that stands for random weights is refused."""
    model = model or original_of(path)
    if weights is None and not runs_code(model):
        source = read_info(path).get("weights")
        named = f"; prune read {shown(source)}" if isinstance(source, str) else ""
        raise UsageError(
            f"{model} without weights is random, not the original", remedy=f"pass --weights FILE, as for prune{named}"
        )
    return model


def trained(model: str | None, weights: Path | None, path: Path) -> str:
    """Return the name of the original of an exported file, which has to be given with its weights."""
    if model is None:
        raise UsageError(f"{path} does not name its original", remedy="name that network: --model net.py:make")
    if weights is None and not runs_code(model):
        raise UsageError(f"{model} without weights is random, not the original", remedy="pass --weights FILE")
    return model


def check_weights(weights: Path | None, *names: str) -> None:
    """Refuse weights that no network would take."""
    if weights is not None and all(is_file(name) or is_onnx(name) for name in names):
        raise UsageError(
            f"{' and '.join(names)} {'have their' if len(names) > 1 else 'has its'} own weights",
            layer="--weights",
            remedy="leave --weights out; it is for a network given by name",
        )


def note_operators(screen: Screen, *names: str | None) -> None:
    """Print a note if a network is of a library that lacks operators."""
    if any(name and name.partition(":")[0] in ("torchvision", "timm") for name in names) and missing_operators():
        screen.log(f"note: {missing_operators()}")


def runs_code(name: str) -> bool:
    """Whether a name stands for code in a file of the user's."""
    return name.endswith(".py") or name.rpartition(":")[0].endswith(".py")


def is_file(name: str) -> bool:
    """Whether a name stands for a saved network."""
    return name.endswith(".safetensors")


def is_onnx(name: str) -> bool:
    """Whether a name stands for an ONNX file."""
    return name.endswith(".onnx")


def input_shapes(example: Example) -> Any:
    """Return the shapes of the inputs, by name where they have names."""
    args, kwargs = call_arguments(example)
    return pytree.tree_map_only(Tensor, lambda leaf: list(leaf.shape), kwargs or list(args))


def input_text(example: Example) -> str:
    """Return the shapes of the inputs in words."""
    return "input " + ", ".join("x".join(map(str, tensor.shape)) for tensor in _tensors(example))


def numbers(name: str, text: str | None) -> list[float] | None:
    """Return the numbers in the value of an option."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--{name} is {text!r}", remedy="write one number, or several with commas: 0.485,0.456,0.406"
        ) from None


def check_out(out: Path, force: bool) -> None:
    """Refuse a file that cannot be written before the work begins."""
    folder = out.resolve().parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", remedy="create it first, or write to another folder")
    if out.is_dir():
        raise UsageError(f"{out} is a folder", remedy=f"name a file, such as {out / 'small.safetensors'}")
    if out.exists() and not out.is_file():
        raise UsageError(f"{out} is a device, pipe or socket", remedy="name a regular file, or a new one")
    if out.exists() and not force:
        raise UsageError(f"{out} exists", remedy="choose another name, or overwrite it with --force")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} is not writable", remedy="check its permissions, or write to another folder")


def _default_shape(model: nn.Module) -> tuple[int, ...]:
    """Return the input shape that a model of the zoo or of timm names, else that of an ImageNet photo."""
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple):
        return (1, *shape)
    for name in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, name, None)
        if isinstance(config, dict) and config.get("input_size"):
            return (1, *config["input_size"])
    return (1, 3, 224, 224)


def zeros(shapes: list[str] | None) -> tuple[Tensor, ...]:
    """Return zeros in the shapes of --input."""
    return tuple(torch.zeros(parse_shape(text)) for text in shapes or ())


def _tensors(example: Example) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(call_arguments(example)) if isinstance(leaf, Tensor)]
