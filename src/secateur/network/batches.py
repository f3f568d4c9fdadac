"""Batches: from the data that users have to calls of the network and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from secateur._torch import pytree
from secateur.errors import SecateurError, first_line
from secateur.network.examples import Example, call_arguments
from secateur.network.memory import out_of_memory
from secateur.network.modules import device_of, mode

Call = tuple[tuple[Any, ...], dict[str, Any]]
BATCH = 64  # samples that run together
EVERY = 4  # every fourth sample is held out


@dataclass(frozen=True)
class SplitBatch:
    """A batch whose first `fitted` samples are fitted and whose other samples are held out.

    Its samples are collected whenever they are asked for, so that those of a large calibration set can stay on disk.
    """

    sources: tuple[Call, ...]  # batches whose samples it has
    order: Tensor  # of its samples in these
    fitted: int
    first: int = 0  # the number of fitted samples in the batches before it

    @property
    def batch(self) -> Call:
        """The samples."""
        return take(_joined(self.sources), self.order)

    @property
    def folds(self) -> list[slice]:
        """The samples in EVERY folds for cross-validation: the fitted ones in turn, and the held-out ones last."""
        parts = EVERY - 1
        return [*(slice((i - self.first) % parts, self.fitted, parts) for i in range(parts)), slice(self.fitted, None)]


@dataclass(frozen=True)
class PickedBatches(Sequence[Call]):
    """Some samples of each of several batches, collected whenever a batch is asked for."""

    picked: Sequence[tuple[tuple[Call, ...], Tensor]]

    def __len__(self) -> int:
        return len(self.picked)

    @overload
    def __getitem__(self, which: int) -> Call: ...

    @overload
    def __getitem__(self, which: slice) -> PickedBatches: ...

    def __getitem__(self, which: int | slice) -> Call | PickedBatches:
        if isinstance(which, slice):
            return PickedBatches(self.picked[which])
        sources, order = self.picked[which]
        return take(_joined(sources), order)


def calls(
    data: Any,
    *,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    samples: int | None = None,
) -> Iterator[Call]:
    """Return the arguments of the network, batch by batch.

    >>> for args, kwargs in calls(loader, samples=256):
    ...     model(*args, **kwargs)

    Args:
        data: a tensor, numpy array, tuple or dict is one batch; a `torch.utils.data.Dataset` holds single samples;
            anything else is an iterable of batches. The first element of a tuple is the input, the others are labels,
            unless `example` has more arguments.
        to_inputs: turns a batch into the input of the network: a tensor, a tuple of arguments or a dict of keywords.
        samples: the number of samples to stop after.
    """
    for call, _ in with_labels(data, example=example, to_inputs=to_inputs, samples=samples):
        yield call


def with_labels(
    data: Any,
    *,
    example: Example | None = None,
    to_inputs: Callable[[Any], Any] | None = None,
    samples: int | None = None,
    numbers: Sequence[int] | None = None,
) -> Iterator[tuple[Call, Tensor | None]]:
    """Return the same as `calls`, with the labels: the first tensor beside the inputs that has one for each sample.

    >>> for call, labels in with_labels(loader):
    ...     ...

    Args:
        numbers: the number of each sample in the user's data set, for errors.
    """
    if example is None and to_inputs is None:
        _check_one_batch(_with_tensors(data) if isinstance(data, tuple) else data)
    wanted = len(call_arguments(example)[0]) if example is not None else 1
    left, first = samples, 0
    for place, batch in enumerate(as_batches(data)):
        args, kwargs = call_arguments(to_inputs(batch) if to_inputs else batch)
        beside = batch[1:] if to_inputs and isinstance(batch, tuple | list) else args[wanted:]
        if not to_inputs:
            args = args[:wanted]
        size = batch_size((args, kwargs))
        if size == 0:
            continue
        labels = next((leaf for leaf in beside if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size), None)
        if left is not None and size > left:
            args, kwargs = take((args, kwargs), slice(left))
            labels = None if labels is None else labels[:left]
        _check_samples((args, kwargs), place, numbers[first : first + size] if numbers else None)
        first += size
        yield (args, kwargs), labels
        if left is not None:
            left -= min(size, left)
            if not left:
                return


def whole_calls(
    batches: Iterable[Any], example: Example | None = None, to_inputs: Callable[[Any], Any] | None = None
) -> Iterator[Call]:
    """Return the arguments of a model that may take lists of samples, batch by batch.

    >>> list(whole_calls([([image, other], targets)]))
    [(([image, other],), {})]
    """
    wanted = len(call_arguments(example)[0]) if example is not None else 1
    for place, batch in enumerate(batches):
        args, kwargs = call_arguments(to_inputs(batch) if to_inputs else batch)
        call = (args if to_inputs else args[:wanted], kwargs)
        images = listed(call)
        for number, image in enumerate([] if images is None else images):
            if image.is_floating_point() and not bool(torch.isfinite(image).all()):
                raise SecateurError(
                    f"NaN or infinite values in sample {number} of batch {place}, counted from 0",
                    layer="data",
                    remedy="remove this sample, or correct how it is read",
                )
        yield call


def listed(call: Call) -> Sequence[Tensor] | None:
    """Return the samples of a call whose first argument is a list of images, as detectors take them; else None."""
    args, kwargs = call
    first = args[0] if args else next(iter(kwargs.values()), None)
    if not isinstance(first, list | tuple) or not first:
        return None
    images = [one for one in first if isinstance(one, Tensor) and one.dim() == 3]
    return images if len(images) == len(first) else None


def batch_size(call: Call) -> int:
    """Return the number of samples in a batch."""
    sizes = {len(leaf) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor) and leaf.dim()}
    if not sizes:
        raise SecateurError(
            "expected a batch of tensors, got no tensor",
            layer="data",
            remedy="give tensors (x), pairs (x, y), or dicts together with to_inputs=",
        )
    return max(sizes)


def count_samples(batches: Iterable[Call]) -> int:
    """Return the number of samples in several batches."""
    return sum(map(batch_size, batches))


def count_bytes(tree: Any) -> int:
    """Return the size of all tensors in a batch."""
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


def take(call: Call, which: slice | Tensor) -> Call:
    """Return some samples of a batch, by a slice or by their indices."""
    size = batch_size(call)

    def pick(leaf: Any) -> Any:
        if not (isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == size):
            return leaf
        return leaf[which] if isinstance(which, slice) else leaf[which.to(leaf.device)]

    return pytree.tree_map(pick, call)


def split(batches: Iterable[Call], size: int = BATCH) -> Iterator[Call]:
    """Return the same samples in batches of at most this size."""
    for batch in batches:
        for first in range(0, batch_size(batch), size):
            yield take(batch, slice(first, first + size))


def hold_out(batches: Iterable[Call], *, together: int = 0, which: Tensor | None = None) -> list[SplitBatch]:
    """Return the batches, each with its held-out samples, one in four, behind the others.

    Args:
        together: join small batches, up to this many samples.
        which: for each sample, over all batches, whether it is held out, instead of one in four.
    """
    parts, first, fitted = list[SplitBatch](), 0, 0
    for sources in _groups(batches, together):
        numbers = torch.arange(first, first + count_samples(sources))
        held = numbers % EVERY == EVERY - 1 if which is None else which[numbers]
        parts.append(SplitBatch(sources, held.int().argsort(stable=True), int((~held).sum()), fitted))
        first += len(held)
        fitted += parts[-1].fitted
    return parts


def _groups(batches: Iterable[Call], most: int) -> Iterator[tuple[Call, ...]]:
    """Return batches that can be joined, in groups of at most this many samples; at least one in each."""
    group: tuple[Call, ...] = ()
    for batch in batches:
        if group and (count_samples((*group, batch)) > most or not _alike(group[0], batch)):
            yield group
            group = ()
        group = (*group, batch)
    if group:
        yield group


def _alike(one: Call, other: Call) -> bool:
    """Return whether two batches have the same form, and the same values where there is not one for each sample."""
    leaves, others = pytree.tree_leaves(one), pytree.tree_leaves(other)
    if pytree.tree_structure(one) != pytree.tree_structure(other):
        return False
    sizes = batch_size(one), batch_size(other)
    for a, b in zip(leaves, others, strict=True):
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if type(a) is not type(b) or (a != b if isinstance(a, int | float | str) else a is not b):
                return False
        elif not a.dim() or (len(a), len(b)) != sizes:
            if a is not b:
                return False
        elif (a.shape[1:], a.dtype, a.device) != (b.shape[1:], b.dtype, b.device):
            return False
    return True


def _joined(sources: Sequence[Call]) -> Call:
    """Return several batches as one."""
    if len(sources) == 1:
        return sources[0]
    size = batch_size(sources[0])

    def join(*leaves: Any) -> Any:
        first = leaves[0]
        return torch.cat(leaves) if isinstance(first, Tensor) and first.dim() and len(first) == size else first

    return pytree.tree_map(join, *sources)


def whole_batches(parts: Sequence[SplitBatch]) -> PickedBatches:
    """Return all samples, batch by batch."""
    return PickedBatches([(part.sources, part.order) for part in parts])


def fitted_samples(parts: Sequence[SplitBatch]) -> PickedBatches:
    """Return the samples that are fitted, batch by batch."""
    return PickedBatches([(part.sources, part.order[: part.fitted]) for part in parts if part.fitted])


def held_out_samples(parts: Sequence[SplitBatch]) -> PickedBatches:
    """Return the samples that are held out, batch by batch."""
    held = [(part.sources, part.order[part.fitted :]) for part in parts]
    return PickedBatches([(sources, which) for sources, which in held if len(which)])


def first_batches(batches: Sequence[Call], samples: int) -> list[Call]:
    """Return batches, from the first one on, until there are as many samples.

    >>> first_batches(batches, 64)
    """
    before = accumulate(map(batch_size, batches), initial=0)
    return [batch for batch, so_far in zip(batches, before, strict=False) if so_far < samples]


def example_of(call: Call) -> Example:
    """Return one sample of a batch, as `trace` and `cost` take it."""
    args, kwargs = take(call, slice(1))
    return kwargs if kwargs and not args else args


def on_device_of(model: nn.Module, call: Call) -> Call:
    """Return the batch on the device of the network."""
    device = device_of(model)
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, call)


def forward(network: nn.Module, call: Call) -> Any:
    """Return the output of the network for a batch; if it fails, raise an error that names the batch.

    >>> forward(model, ((images,), {}))
    """
    args, kwargs = on_device_of(network, call)
    try:
        return network(*args, **kwargs)
    except SecateurError:
        raise
    except Exception as error:
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(call) if isinstance(leaf, Tensor)]
        raise out_of_memory(error) or SecateurError(
            f"the network could not run on a batch of shape {shapes}: {first_line(error)}",
            layer=type(network).__name__,
            remedy="give batches that forward accepts; to_inputs= can convert yours",
        ) from error


def float_outputs(network: nn.Module, call: Call) -> list[Tensor]:
    """Return the floating-point tensors in the output of the network for a batch."""
    return float_tensors(forward(network, call))


def float_tensors(output: Any) -> list[Tensor]:
    """Return the floating-point tensors in an output."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


@torch.no_grad()
def eval_outputs(network: nn.Module, call: Call) -> list[Tensor]:
    """Return the same as `float_outputs`, in evaluation mode and without gradients."""
    with mode(network, False):
        return float_outputs(network, call)


def no_data() -> SecateurError:
    """Return the error for data without a single sample."""
    return SecateurError(
        "there is no data", layer="data", remedy="give at least one batch of inputs; 128 samples are few"
    )


def as_batches(data: Any) -> Iterable[Any]:
    """Return any data that users have as an iterable of batches, with tensors instead of numpy arrays.

    >>> as_batches(TensorDataset(images, labels))
    """
    if isinstance(data, Tensor | np.ndarray | tuple | dict):
        return [_with_tensors(data)]
    if isinstance(data, Dataset):
        return _collated(DataLoader(data, batch_size=BATCH))
    if not isinstance(data, Iterable):
        raise SecateurError(
            f"expected a tensor or an iterable of batches, got a value of type {type(data).__name__}",
            layer="data",
            remedy="pass a tensor, a numpy array, a list of batches, a DataLoader or a Dataset",
        )
    return map(_with_tensors, data)


def _with_tensors(batch: Any) -> Any:
    return pytree.tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, batch)


def _collated(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of a data set; samples that do not make batches are an error with a remedy."""
    try:
        yield from loader
    except (TypeError, RuntimeError) as error:
        raise SecateurError(
            f"the samples of the data set cannot be collected into batches: {first_line(error)}",
            layer="data",
            remedy="let it return tensors of one shape (for images, transform=ToTensor()), or pass a DataLoader",
        ) from error


def _check_samples(call: Call, place: int, numbers: Sequence[int] | None) -> None:
    """Refuse NaN and infinity in the inputs, by batch and sample; -inf is allowed, attention masks have it."""
    size = batch_size(call)
    if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in pytree.tree_leaves(call)):
        raise SecateurError(
            "the samples are on the meta device, so they have no values",
            layer="data",
            remedy="pass samples on the CPU or on another device",
        )
    bad = torch.zeros(size, dtype=torch.bool)
    for leaf in pytree.tree_leaves(call):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() and len(leaf) == size:
            largest = leaf.detach().reshape(size, -1).amax(1) if leaf.numel() else leaf.new_zeros(size)
            bad |= (largest.isnan() | largest.isposinf()).cpu()
    if bad.any():
        found = [str(numbers[i] if numbers else i) for i in bad.nonzero().flatten().tolist()]
        listed = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
        batch = "the data set" if numbers else f"batch {place}"
        raise SecateurError(
            f"NaN or infinite values in sample{'s' if len(found) > 1 else ''} {listed} of {batch}, counted from 0",
            layer="data",
            remedy="remove these samples, or correct how they are read",
        )


def _check_one_batch(data: Any) -> None:
    """Refuse `images.split(32)`: it is a tuple, which is one batch of input and labels, but is meant as several."""
    tensors = [leaf for leaf in data if isinstance(leaf, Tensor)] if isinstance(data, tuple) else []
    if len(tensors) > 1 and len({(leaf.dtype, leaf.shape[1:]) for leaf in tensors}) == 1 and tensors[0].dim() > 1:
        raise SecateurError(
            f"the data is a tuple of {len(tensors)} tensors of one kind: one batch, or several?",
            layer="data",
            remedy="give a list for several batches, [(x, y)] for one with labels, or example= for several arguments",
        )
