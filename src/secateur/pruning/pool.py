"""The samples that a job may use: drawn at random from the user's data, and divided into calibration sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, Subset

from secateur._torch import pytree
from secateur.errors import SecateurError, UsageError, first_line
from secateur.network.batches import Call, batch_size, no_data, take, with_labels
from secateur.network.examples import Example
from secateur.network.spill import Spill

Pair = tuple[Call, Tensor | None]  # a batch and its labels
IN_ORDER = (
    "the first {} samples of the data were used, in their order, because it is neither a tensor, a list of batches nor "
    "a Dataset with a length or a DataLoader over one; shuffle it yourself if its order means something"
)


@dataclass(frozen=True)
class Pool:
    """Batches with their labels, a note on how they were chosen, and further batches that are not part of the pool.

    >>> Pool.of(loader, 256, seed=0).pairs
    """

    pairs: list[Pair]
    notes: tuple[str, ...] = ()
    unused: list[Pair] = field(default_factory=list)
    _merged: list[Any] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if not self.pairs:
            raise no_data()

    @classmethod
    def of(
        cls,
        data: Any,
        count: int | None,
        *,
        seed: int,
        unused: int = 0,
        example: Example | None = None,
        to_inputs: Callable[[Any], Any] | None = None,
    ) -> Pool:
        """Return `count` samples of the data, at random by the seed; all of them if there are no more or count is None.

        Of the samples that are left, up to `unused` more are set aside. The order of an iterator cannot be changed: its
        first samples are used, the next ones are set aside, and a note says so. Of data that is read batch by batch,
        samples that do not fit into a quarter of the free memory are kept in temporary files.
        """

        in_memory = isinstance(data, Tensor | np.ndarray | tuple | dict | list)
        spill = None if in_memory else Spill()

        def read(source: Any, samples: int | None = None, numbers: Sequence[int] | None = None) -> list[Pair]:
            pairs = with_labels(source, example=example, to_inputs=to_inputs, samples=samples, numbers=numbers)
            return list(pairs) if spill is None else [spill.kept(pair) for pair in pairs]

        if count is None:
            return cls(read(data))
        if (items := _indexed(data)) is not None:
            if len(items) <= count:
                return cls(read(data))
            order = _permutation(len(items), seed)[: count + unused]
            used, rest = order[:count], order[count:]
            pairs = read(_subset(data, items, used), numbers=used)
            with torch.random.fork_rng(devices=[]):  # reading more leaves the random numbers that follow unchanged
                return cls(pairs, unused=read(_subset(data, items, rest), numbers=rest) if rest else [])
        if in_memory:
            pool = cls(read(data))
            if len(pool) <= count:
                return pool
            order = _permutation(len(pool), seed)[: count + unused]
            return cls(pool.some(order[:count]), unused=pool.some(order[count:]) if unused else [])
        first, others = _divided(read(data, count + unused), count)
        pool = cls(first)
        return pool if len(pool) < count else cls(first, (IN_ORDER.format(f"{count:,}"),), others)

    def __len__(self) -> int:
        return sum(batch_size(call) for call, _ in self.pairs)

    def in_batches(self, size: int) -> Pool:
        """Return the same samples in batches of at most this size."""
        return replace(self, pairs=_split(self.pairs, size), unused=_split(self.unused, size))

    @property
    def largest(self) -> int:
        """The number of samples in the largest batch."""
        return max(batch_size(call) for call, _ in [*self.pairs, *self.unused])

    @property
    def calls(self) -> list[Call]:
        """The batches without labels."""
        return [call for call, _ in self.pairs]

    @property
    def labels(self) -> list[Tensor] | None:
        """The labels of each batch, None if any batch has none."""
        found = [labels for _, labels in self.pairs if labels is not None]
        return found if len(found) == len(self.pairs) else None

    def parts(self, samples: int, repeats: int, held: int, seed: int) -> tuple[list[int], list[list[int]]]:
        """Divide the samples: which are held out, and which each repeat calibrates on, disjoint if there are enough.

        >>> pool.parts(samples=256, repeats=3, held=0, seed=0)[1]
        """
        held = min(held, len(self) // 4)
        order = _permutation(len(self), seed)
        apart, rest = order[:held], order[held:]
        size = min(samples, len(rest))
        if repeats > 1 and size == len(rest):
            raise UsageError(
                f"{size} samples are left for calibration, and every repeat with {samples} would use all of them",
                layer="data",
                remedy="pass more data, or ask for fewer samples or a single repeat",
            )
        if repeats * size <= len(rest):
            return apart, [rest[i * size : (i + 1) * size] for i in range(repeats)]
        orders = [_permutation(len(rest), seed + repeat) for repeat in range(repeats)]
        return apart, [[rest[i] for i in order[:size]] for order in orders]

    def some(self, which: Sequence[int]) -> list[Pair]:
        """Return these samples in batches of the first batch's size; all of them as they are."""
        if len(which) == len(self):
            return self.pairs
        if not self._merged:
            self._merged.append(self._merge())
        size, whole = batch_size(self.pairs[0][0]), len(self)
        return [_picked(self._merged[0], part, whole) for part in torch.tensor(which, dtype=torch.long).split(size)]

    def _merge(self) -> Any:
        sizes = [batch_size(call) for call, _ in self.pairs]

        def joined(*leaves: Any) -> Any:
            if all(isinstance(x, Tensor) and x.dim() and len(x) == size for x, size in zip(leaves, sizes)):
                return torch.cat(leaves)
            return None if any(leaf is None for leaf in leaves) else leaves[0]

        try:
            return pytree.tree_map(joined, *self.pairs)
        except (RuntimeError, ValueError) as error:
            raise SecateurError(
                f"samples of different batches cannot be mixed: {first_line(error)}",
                layer="data",
                remedy="pass batches of one shape, or use all samples (samples=None)",
            ) from error


def _permutation(count: int, seed: int) -> list[int]:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()


def _indexed(data: Any) -> Any:
    """Return the dataset with a length and an index behind the data, None if there is none or its order is meant."""
    if isinstance(data, DataLoader):
        plain = isinstance(data.sampler, SequentialSampler | RandomSampler) and data.batch_size is not None
        return _indexed(data.dataset) if plain else None
    known = isinstance(data, Dataset) and not isinstance(data, IterableDataset)
    return data if known and hasattr(data, "__len__") and hasattr(data, "__getitem__") else None


def _divided(pairs: Sequence[Pair], count: int) -> tuple[list[Pair], list[Pair]]:
    """Return the first `count` samples, and the others."""
    first, rest = list[Pair](), list[Pair]()
    for call, labels in pairs:
        size = batch_size(call)
        here = min(size, count)
        count -= here
        if here == size:
            first.append((call, labels))
            continue
        for part, where in ((slice(here), first), (slice(here, None), rest)):
            if len(range(size)[part]):
                where.append((take(call, part), None if labels is None else labels[part]))
    return first, rest


def _split(pairs: Sequence[Pair], size: int) -> list[Pair]:
    parts = ((pair, slice(first, first + size)) for pair in pairs for first in range(0, batch_size(pair[0]), size))
    return [(take(call, part), None if labels is None else labels[part]) for (call, labels), part in parts]


def _subset(data: Any, items: Any, which: Sequence[int]) -> Any:
    """Return these samples of a dataset, in batches of the loader if there is one."""
    subset = Subset(items, which)
    if not isinstance(data, DataLoader):
        return subset
    return DataLoader(
        subset,
        batch_size=data.batch_size,
        collate_fn=data.collate_fn,
        num_workers=data.num_workers,
        worker_init_fn=data.worker_init_fn,
        multiprocessing_context=data.multiprocessing_context,
    )


def _picked(tree: Any, which: Tensor, size: int) -> Any:
    return pytree.tree_map(
        lambda x: x[which.to(x.device)] if isinstance(x, Tensor) and x.dim() and len(x) == size else x, tree
    )
