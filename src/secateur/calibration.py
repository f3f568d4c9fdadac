"""Calibration data: what the user names on the command line becomes batches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from secateur.data.pictures import SUFFIXES, fitted, open_picture
from secateur.errors import SecateurError, UsageError
from secateur.models import from_file
from secateur.program import first_line, users_line

FORMS = (
    "name calibration data as a folder of images, a .npy, .npz, .safetensors, .pt or .pth file, "
    "path/to/file.py:factory or embedded:digits"
)
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
INPUTS, LABELS = ("x", "images"), ("y", "labels")
ARRAYS = "store one array, or the arrays x and y, as .npy, .npz, .safetensors or with torch.save"
Scale = float | Sequence[float]


@dataclass(frozen=True)
class Calibration:
    """Batches of calibration data, to be passed on wherever data is asked for.

    >>> for batch in read_batches("photos", shape=(3, 224, 224)):
    ...     model(batch)
    """

    batches: list[Any]  # of x, of (x, y), or what a factory of the user's gives
    points: int
    labelled: bool
    origin: str  # what the user named, and how it was scaled

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


@dataclass(frozen=True)
class _Request:
    """What to make of the data, checked."""

    shape: tuple[int, ...]
    points: int
    batch: int
    scale: tuple[list[float], list[float]] | None  # mean and standard deviation
    seed: int


def read_batches(
    source: str,
    *,
    shape: tuple[int, ...],
    points: int = 256,
    batch: int = 32,
    mean: Scale | None = None,
    std: Scale | None = None,
    seed: int = 0,
) -> Calibration:
    """Read at most `points` points of calibration data; more than that are drawn at random by the seed.

    >>> read_batches("photos", shape=(3, 224, 224))
    >>> read_batches("cifar.npz", shape=(3, 32, 32), mean=0.5, std=0.25)
    >>> read_batches("my/data.py:make_loader", shape=(3, 64, 64), points=1000)
    >>> read_batches("embedded:digits", shape=(1, 28, 28))

    shape: of one input, without the batch. Bytes become floats from 0 to 1, and height x width x channels is turned
        round. Pictures are resized by their short side, then cropped at the centre.
    mean, std: subtracted and divided by, one number or one for each channel. If not given, colour pictures are
        scaled as for ImageNet and arrays stay as they are.

    A factory takes no arguments and gives batches (x, (x, y) or dicts) as the network wants them; the first are taken.
    """
    if points < 1 or batch < 1:
        raise UsageError(f"{points} points in batches of {batch}", remedy="ask for at least 1 of each")
    if not shape:
        raise UsageError("the input has no size besides the batch", remedy="give a shape like (3, 224, 224)")
    wanted = _Request(shape, points, batch, _scale(mean, std, shape[0]), seed)
    path = Path(source)
    if source.endswith(".py") or source.rpartition(":")[0].endswith(".py"):
        return _from_factory(source, wanted)
    if source == "embedded:digits":
        from secateur.embedded import digits

        x, y = digits("calibration")
        return _from_arrays(x, y, source, source, wanted)
    if source and path.is_dir():
        return _from_folder(path, wanted)
    if path.suffix.lower() in READERS:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", remedy=FORMS)
        return _from_arrays(*_pick(path, _arrays(path)), source, wanted)
    raise UsageError(f"{source!r} is not calibration data that can be read", remedy=FORMS)


def _scale(mean: Scale | None, std: Scale | None, channels: int) -> tuple[list[float], list[float]] | None:
    """One mean and one standard deviation for each channel, or None if neither was given."""
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise UsageError("mean and std belong together", remedy="give both; mean 0 and std 1 change nothing")
    means, stds = ([float(v) for v in (value if isinstance(value, Sequence) else [value])] for value in (mean, std))
    for name, values in (("mean", means), ("std", stds)):
        if len(values) not in (1, channels):
            raise UsageError(
                f"{name} has {len(values)} numbers, the input has {channels} channels",
                remedy=f"give one number or {channels}",
            )
        if not all(math.isfinite(v) and (v > 0 or name == "mean") for v in values):
            raise UsageError(f"{name} is {values}", remedy="give finite numbers, and a std above 0")
    return means, stds


# A factory of the user's


def _from_factory(source: str, wanted: _Request) -> Calibration:
    if wanted.scale:
        raise UsageError("a factory scales its own data", remedy="leave mean and std out, or scale in the factory")
    batches, count = list[Any](), 0
    with torch.random.fork_rng(devices=[]):  # a loader that shuffles does it by our seed
        torch.manual_seed(wanted.seed)
        made = from_file(source, Iterable, "an iterable of batches", forms=FORMS)
        for item in _delivered([made] if isinstance(made, Tensor) else made, source):
            item = tuple(item) if isinstance(item, list) else item
            item = _head(item, _size(item, f"batch {len(batches)} of {source}", wanted.shape), wanted.points - count)
            size = len(_tensors(item)[0])
            _refuse_unsound(item, range(count, count + size), source)
            batches.append(item)
            count += size
            if count == wanted.points:
                break
    if not batches:
        raise SecateurError(f"{source} gave no batch", remedy="let the factory give at least one batch")
    first = batches[0]
    labelled = any(name in first for name in LABELS) if isinstance(first, Mapping) else isinstance(first, tuple)
    return Calibration(batches, count, labelled and len(first) > 1, source)


def _delivered(batches: Iterable[Any], source: str) -> Iterator[Any]:
    """What a loader gives; an error inside it names the line."""
    try:
        yield from batches
    except Exception as error:
        where, line = users_line(error)
        raise SecateurError(
            f"{source} failed while it gave batches: {first_line(error)}{where and f' at {where}: {line}'}",
            remedy="make list(factory()) work first",
        ) from error


def _tensors(item: Any) -> list[Tensor]:
    """The tensors in a batch that have points."""
    return [leaf for leaf in pytree.tree_leaves(item) if isinstance(leaf, Tensor) and leaf.dim()]


def _size(item: Any, where: str, shape: tuple[int, ...]) -> int:
    """The number of points in one batch; a batch that is none is refused."""
    tensors = _tensors(item) if isinstance(item, Tensor | tuple | Mapping) else []
    if not tensors:
        raise SecateurError(
            f"{where} is a {type(item).__name__} without points",
            remedy="give tensors x, pairs (x, y), or dicts of them",
        )
    found = tuple(tensors[0].shape[1:])
    if not isinstance(item, Mapping) and found != shape:
        raise _wrong_shape(where, found, shape)
    if not len(tensors[0]):
        raise SecateurError(f"{where} has no points", remedy="leave empty batches out")
    return len(tensors[0])


def _head(item: Any, size: int, count: int) -> Any:
    """The first points of a batch."""
    if count >= size:
        return item
    return pytree.tree_map(lambda t: t[:count] if isinstance(t, Tensor) and t.dim() and len(t) == size else t, item)


# Files of arrays


def _arrays(path: Path) -> Any:
    """What a file holds: an array, several, or several by name. Nothing is unpickled."""
    try:
        return READERS[path.suffix.lower()](path)
    except Exception as error:
        raise SecateurError(
            f"{path} cannot be read: {first_line(error)}", remedy=f"{ARRAYS}; files that run code are not opened"
        ) from error


def _numpy(path: Path) -> Any:
    with path.open("rb") as file:  # numpy leaves a file that it opened and could not read open
        zipped = file.read(2) == b"PK"
        file.seek(0)
        if zipped:
            with np.load(file, allow_pickle=False) as arrays:
                wanted = [name for name in arrays.files if name in (*INPUTS, *LABELS)] or arrays.files[:1]
                return {name: arrays[name] for name in wanted}
    return np.load(path, mmap_mode="c", allow_pickle=False)  # mapped, since only some of its points are read


def _safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


READERS: dict[str, Any] = {
    ".npy": _numpy,
    ".npz": _numpy,
    ".safetensors": _safetensors,
    ".pt": lambda path: torch.load(path, map_location="cpu", weights_only=True),
    ".pth": lambda path: torch.load(path, map_location="cpu", weights_only=True),
}


def _pick(path: Path, found: Any) -> tuple[Tensor, Tensor | None, str]:
    """The inputs and the labels in what a file holds, and what to call the inputs in an error."""
    where, x, y = str(path), found, None
    if isinstance(found, Mapping):
        name = next((name for name in INPUTS if name in found), next(iter(found), None))
        where = f"{path} (array {name!r})"
        x = found.get(name)
        y = next((found[label] for label in LABELS if label in found and label != name), None)
    elif isinstance(found, tuple | list) and len(found) == 2:
        x, y = found
    return _tensor(x, where), None if y is None else _tensor(y, f"{path} (labels)"), where


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        # torch knows no foreign byte order
        return torch.from_numpy(value.astype(value.dtype.newbyteorder("="), copy=False))
    except (AttributeError, TypeError):
        kind = getattr(value, "dtype", None) or type(value).__name__
        raise SecateurError(f"{where} holds {kind}, no array of numbers", remedy=ARRAYS) from None


def _from_arrays(x: Tensor, y: Tensor | None, where: str, source: str, wanted: _Request) -> Calibration:
    total = len(x) if x.dim() else 0
    if not total:
        raise SecateurError(f"{where} has no points", remedy="give at least one")
    if y is not None and (not y.dim() or len(y) != total):
        raise SecateurError(
            f"{where} has {total} points and labels of shape {tuple(y.shape)}", remedy="give one label for each point"
        )
    if not x.is_floating_point() and x.dtype != torch.uint8:
        raise SecateurError(
            f"{where} holds {x.dtype}, whose scale is not known",
            remedy="store bytes (uint8, 0 to 255) or floats as the network wants them",
        )
    chosen = _choice(total, wanted)
    x = _turned(x, wanted.shape, where)[chosen]
    x = _scaled(x.float() / 255 if x.dtype == torch.uint8 else x.float(), wanted.scale)
    _refuse_unsound(x, chosen, where)
    batches: list[Any] = list(x.split(wanted.batch))
    if y is not None:
        batches = list(zip(batches, y[chosen].split(wanted.batch)))
    return Calibration(batches, len(x), y is not None, f"{source}{_note(wanted.scale)}")


def _turned(x: Tensor, shape: tuple[int, ...], where: str) -> Tensor:
    """The points in the layout that the network wants."""
    found = tuple(x.shape[1:])
    if found == shape:
        return x
    if len(shape) == 3 and shape[0] in (1, 3, 4) and found == (*shape[1:], shape[0]):
        return x.permute(0, 3, 1, 2)
    if len(shape) == 3 and shape[0] == 1 and found == shape[1:]:
        return x.unsqueeze(1)
    raise _wrong_shape(where, found, shape)


# Folders of pictures


def _from_folder(folder: Path, wanted: _Request) -> Calibration:
    shape, scale = wanted.shape, wanted.scale
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UsageError(
            f"pictures do not fit an input of shape {shape}", remedy="pictures need 1 or 3 channels, height and width"
        )
    visible = (path for path in folder.rglob("*") if not path.name.startswith("."))
    files = sorted(path for path in visible if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise SecateurError(
            f"there is no picture in {folder}", remedy=f"put files there: {', '.join(sorted(SUFFIXES))}"
        )
    note = _note(scale)
    if scale is None and shape[0] == 3:
        scale, note = (list(IMAGENET[0]), list(IMAGENET[1])), " (scaled by the mean and std of ImageNet)"
    x = torch.stack([_picture(files[i], shape) for i in _choice(len(files), wanted)])
    return Calibration(list(_scaled(x, scale).split(wanted.batch)), len(x), False, f"{folder}{note}")


def _picture(path: Path, shape: tuple[int, ...]) -> Tensor:
    """One picture as floats from 0 to 1, resized by its short side and cropped at the centre."""
    picture = fitted(open_picture(path, "L" if shape[0] == 1 else "RGB"), (shape[2], shape[1]))
    pixels = torch.from_numpy(np.array(picture)).float() / 255
    return pixels.unsqueeze(0) if shape[0] == 1 else pixels.permute(2, 0, 1)


# Parts of several forms


def _choice(total: int, wanted: _Request) -> list[int]:
    """Which points are taken: all in their order, or as many as wanted at random."""
    if total <= wanted.points:
        return list(range(total))
    return torch.randperm(total, generator=torch.Generator().manual_seed(wanted.seed))[: wanted.points].tolist()


def _scaled(x: Tensor, scale: tuple[list[float], list[float]] | None) -> Tensor:
    if scale is None:
        return x
    mean, std = (torch.tensor(values).view(-1, *[1] * (x.dim() - 2)) for values in scale)
    return (x - mean) / std


def _note(scale: tuple[list[float], list[float]] | None) -> str:
    return f" (scaled by mean {scale[0]} and std {scale[1]})" if scale else ""


def _refuse_unsound(item: Any, numbers: Sequence[int], where: str) -> None:
    """Refuse NaN and infinite values, and say by their numbers in which points they are."""
    sound = torch.ones(len(numbers), dtype=torch.bool)
    for tensor in _tensors(item):
        if tensor.is_floating_point() and len(tensor) == len(numbers):
            sound &= torch.isfinite(tensor.detach().cpu()).reshape(len(numbers), -1).all(1)
    if not sound.all():
        named = [str(number) for number, fine in zip(numbers, sound.tolist()) if not fine]
        listed = ", ".join(named[:5]) + (f" and {len(named) - 5} more" if len(named) > 5 else "")
        raise SecateurError(
            f"{where} has NaN or infinite values in point{'s' if len(named) > 1 else ''} {listed}",
            remedy="remove those points (the first is number 0)",
        )


def _wrong_shape(where: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> SecateurError:
    return SecateurError(
        f"one point of {where} has shape {found}, the network's input has {wanted}",
        remedy="store the points in the input's shape, or give the shape that they have",
    )
