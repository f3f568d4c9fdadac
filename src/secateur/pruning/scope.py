"""Prune parts of a larger model, which runs as a whole on its own data, such as a detector."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from secateur.certificates import fingerprints
from secateur.errors import SecateurError, UsageError
from secateur.network.batches import Call, as_batches, batch_size, eval_outputs, listed, no_data, whole_calls
from secateur.network.examples import Example, call_arguments
from secateur.network.modules import duplicate, unwrap
from secateur.network.scope import SCOPE_REMEDY, ScopeNetwork, capture, put_back, scope_paths
from secateur.pruning.pool import Pair, Pool
from secateur.pruning.result import Pruned
from secateur.pruning.settings import PruneSettings
from secateur.surgery.cut import cut, mask, wrap_like
from secateur.surgery.plan import Plan
from secateur.surgery.verify import relative_difference
from secateur.tracing.parts import in_parts

SAME = 1e-3  # relative difference of the whole model's outputs up to which nothing is noted


@dataclass(frozen=True)
class Scope:
    """Submodules of a model as a network of their own, with the inputs that they get when the whole model runs.

    Attributes:
        model: the whole model.
        paths: the names of the submodules.
        network: the submodules; its parameters are those of the model, under the same names.
        calls: calls of the network, for calibration.
        unused: further ones that are set aside.
        first: the first call of the whole model.
        used: fingerprints of the samples of the whole model behind `calls`.
        notes: how the samples were chosen.
    """

    model: nn.Module
    paths: tuple[str, ...]
    network: ScopeNetwork
    calls: list[Call]
    unused: list[Call]
    first: Call
    used: str
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        data: Any,
        settings: PruneSettings,
        *,
        example: Example | None = None,
        to_inputs: Callable[[Any], Any] | None = None,
        unused: int = 0,
    ) -> Scope:
        """Read the data of the whole model, run it, and keep what the submodules get."""
        inner = unwrap(model)
        paths = scope_paths(inner, settings.scope)
        if settings.output == "graph":
            raise UsageError(
                "output='graph' cuts a program as a whole, not a part of a model",
                layer=", ".join(paths),
                remedy="leave output out, or prune the submodule itself: sc.prune(model.backbone, inputs, ...)",
            )
        calls, others, notes = _whole_calls(data, settings, unused, example, to_inputs)
        total = sum(map(samples_of, calls))
        most = math.ceil((settings.samples or total) / total) if total else 1

        def captured(group: Sequence[Call]) -> list[Call]:
            return [one for call in group for one in capture(inner, paths, [call], most=most * samples_of(call))]

        used = fingerprints.pack([*fingerprints.remembered(inner), *chain(*map(fingerprints.of, calls))])
        network = ScopeNetwork(inner, paths)
        return cls(model, paths, network, captured(calls), captured(others), calls[0], used, notes)

    @property
    def pairs(self) -> list[Pair]:
        """The calls as data of a job, which `unpack` reads."""
        return [(call, None) for call in self.calls]

    def whole(self, res: Pruned) -> Pruned:
        """Return the result for the whole model, from that of its part."""
        plan = replace(res.plan, scope=self.paths)
        inner = unwrap(self.model)
        small = cut(inner, plan) if plan.kept else duplicate(inner)
        put_back(small, res.model)
        before, after = (sum(p.numel() for p in network.parameters()) for network in (inner, small))
        notes = [
            f"only {', '.join(self.paths)} was pruned, and budget, figures and agreement are of that part; the whole "
            f"model has {after:,} of {before:,} parameters",
            *self.notes,
        ]
        if plan.kept:
            notes += self._outputs(plan, small)
        fingerprints.remember(small, self.used)
        return replace(
            res,
            model=wrap_like(self.model, small),
            plan=plan,
            graph=None if res.graph is None else replace(res.graph, scope=self.paths),
            fingerprints=self.used,
            notes=(*notes, *res.notes),
        )

    def _outputs(self, plan: Plan, small: nn.Module) -> Iterator[str]:
        """Run the whole model with its smaller part, and yield a note if the cut changes more than the mask does."""
        inner = unwrap(self.model)
        eval_outputs(small, self.first)  # or the error says why it does not run
        found, wanted = (eval_outputs(one, self.first) for one in (cut(inner, plan), mask(inner, plan)))
        shapes = [[tuple(one.shape) for one in outputs] for outputs in (found, wanted)]
        difference = relative_difference(found, wanted) if shapes[0] == shapes[1] else math.inf
        if difference > SAME:
            by = f"by {difference:.0e} (relative)" if math.isfinite(difference) else "in their number"
            yield (
                f"the outputs of the whole model with the cut and with the masked part differ {by}: it makes choices "
                "(thresholds, sorting) that rounding can change, or it uses the part in another way, too"
            )


def unpack(pair: Pair) -> Any:
    """Return the arguments of a pair of `Scope.pairs`, as `to_inputs` does."""
    args, kwargs = pair[0]
    return args or kwargs


def samples_of(call: Call) -> int:
    """Return the number of samples in a call of a whole model, which may take them as a list."""
    images = listed(call)
    return batch_size(call) if images is None else len(images)


def _whole_calls(
    data: Any,
    settings: PruneSettings,
    unused: int,
    example: Example | None,
    to_inputs: Callable[[Any], Any] | None,
) -> tuple[list[Call], list[Call], tuple[str, ...]]:
    """Return calls of the whole model for calibration, further ones, and notes on how they were chosen."""
    ordered = not isinstance(data, list)
    if isinstance(data, Iterator):
        data = list(_first(data, settings, unused, to_inputs))
    start = next(iter(whole_calls(as_batches(data), example, to_inputs)), None)
    if start is None:
        raise no_data()
    if listed(start) is None:
        pool = Pool.of(data, settings.samples, seed=settings.seed, unused=unused, example=example, to_inputs=to_inputs)
        return pool.calls, [call for call, _ in pool.unused], pool.notes
    source = whole_calls(as_batches(data), example, to_inputs)
    if not ordered:
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(settings.seed))
        every = list(source)
        source = iter([every[i] for i in order.tolist()])
    calls, others, count = list[Call](), list[Call](), 0
    wanted = math.inf if settings.samples is None else settings.samples
    for call in source:
        if count >= wanted + unused:
            break
        (calls if count < wanted else others).append(call)
        count += samples_of(call)
    note = f"the first {sum(map(samples_of, calls)):,} samples of the data were used, in their order"
    return calls, others, (note,) if others and ordered else ()


def _first(
    data: Iterator[Any], settings: PruneSettings, unused: int, to_inputs: Callable[[Any], Any] | None
) -> Iterator[Any]:
    """Yield the batches of an iterator, as many as are needed."""
    count, wanted = 0, math.inf if settings.samples is None else settings.samples + unused
    for batch in data:
        yield batch
        count += samples_of(call_arguments(to_inputs(batch) if to_inputs else batch))
        if count >= wanted:
            return


def check_not_listed(
    model: nn.Module, data: Any, example: Example | None, to_inputs: Callable[[Any], Any] | None
) -> None:
    """Refuse lists of images: a model that takes them is pruned in parts, and the error names these."""
    plain = isinstance(data, DataLoader) and data.generator is None and not data.num_workers
    if not isinstance(data, list | tuple) and not plain:
        return  # to look at its first batch would take time, or change its order
    with torch.random.fork_rng(devices=[]):
        start = next(iter(whole_calls(as_batches(data), example, to_inputs)), None)
    if start is not None and listed(start) is not None:
        cause = "the model takes a list of images, and such a model is pruned in parts"
        error = SecateurError(cause, layer=type(model).__name__, remedy=SCOPE_REMEDY)
        raise in_parts(error, unwrap(model), start, cause)


def refuse_with_scope(budget: Any, heldout: Any, graph: Any) -> None:
    """Refuse what a scope cannot be combined with."""
    if heldout is not None or (isinstance(budget, dict) and "drop" in budget):
        raise UsageError(
            "a budget in drop is about the whole model, and scope= prunes a part of it",
            remedy="prune to a budget in macs or params, then certify the result with sc.certify",
        )
    if graph is not None:
        raise UsageError("graph= and scope= exclude each other", remedy="leave graph out: the scope is traced again")
