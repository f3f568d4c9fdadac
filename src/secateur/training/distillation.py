"""Distillation: the original network as the teacher of a smaller one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateur._torch import pytree
from secateur.errors import SecateurError, UsageError
from secateur.network.batches import Call, float_outputs
from secateur.network.divergence import are_class_scores
from secateur.network.modules import named_tensors
from secateur.network.precision import at_least_float32, check_all_finite
from secateur.surgery.plan import Plan
from secateur.training.features import Feature, FeatureObserver, values_like, wanted_values
from secateur.training.settings import Training


class Forward:
    """One forward pass of the student: its call, its outputs and its features."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.outputs: list[Tensor] = []
        self.features: list[Feature] = []


@dataclass(frozen=True)
class Answer:
    """What the teacher makes of a batch: its outputs, and the values that each feature should have, if known."""

    outputs: list[Tensor]
    features: list[Tensor | None]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return sum(tensor.nbytes for tensor in (*self.outputs, *self.features) if tensor is not None)


class Teacher:
    """A network whose outputs and features another one is trained to match.

    It runs once for each batch, in evaluation mode and without gradients, on the inputs that the student was called
    with. Channels that the plan has cut are left out of the comparison.

    >>> teacher = Teacher(model, small, settings, plan)
    >>> with teacher.watch(small) as seen:
    ...     small(images)
    >>> loss = teacher.loss(seen)

    Args:
        model: the teacher, in evaluation mode.
        student: the network that is trained.
        settings: temperature and weights.
        plan: how the student was cut from the teacher, if it was.
        pooled: compare the maps before the last pooling, where there are any, instead of what enters the last layer.
        memory: bytes for answers that will be needed again.

    Attributes:
        channels_last: whether it takes images in channels_last, where the student is trained on such.
        labelled: whether the last batch had labels, or a loss of the user's step.
        losses: what is compared, known after the first batch.
        notes: what is not compared, and why.
    """

    def __init__(
        self,
        model: nn.Module,
        student: nn.Module,
        settings: Training,
        plan: Plan | None = None,
        *,
        pooled: bool = False,
        memory: int = 0,
    ) -> None:
        _check_apart(model, student)
        self.model, self.student, self.settings, self.plan = model, student, settings, plan
        self.pooled, self.memory = pooled, memory
        self.channels_last = False
        self.labelled = False
        self.losses: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._names: list[str] | None = None  # the weights of the last layers, known after the first batch
        self._answers: dict[int, Answer] = {}

    @contextmanager
    def watch(self, network: nn.Module) -> Iterator[Forward]:
        """Record the call of the student in a `with` block; of several, the last one."""
        seen = Forward()
        wanted = self.settings.feature_weight and not self.settings.compile and self._names != []
        observer = FeatureObserver(self.student, self._names) if wanted else None

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            seen.call, seen.outputs = (args, kwargs), _floats(output)
            seen.features = observer.features(seen.outputs) if observer else []

        handle = network.register_forward_hook(hook, with_kwargs=True)
        try:
            with observer or nullcontext():
                yield seen
        finally:
            handle.remove()
        if seen.call is None:
            raise UsageError(
                "the step has not called the network, so the teacher has no inputs",
                layer="teacher",
                remedy="call the network itself in the step: model(...)",
            )

    def loss(self, seen: Forward, labels: Tensor | None = None, *, key: int | None = None) -> Tensor:
        """Return the loss of a batch.

        Args:
            seen: the forward pass of the student.
            labels: the loss of the labels or of the user's step; None without labels.
            key: of a batch that comes again, so that the answer of the teacher can be kept.
        """
        self.labelled = labels is not None
        answer = self._answers.get(key) if key is not None else None
        if answer is None:
            answer = self._ask(seen)
            if key is not None and answer.nbytes <= self.memory:
                self.memory -= answer.nbytes
                self._answers[key] = answer
        loss = self._of_outputs(seen.outputs, answer.outputs)
        if labels is not None:
            loss = self.settings.teacher_weight * loss + (1 - self.settings.teacher_weight) * labels
        for feature, wanted in zip(seen.features, answer.features, strict=False):
            if wanted is not None:
                mine = at_least_float32(values_like(feature, wanted))
                loss = loss + self.settings.feature_weight * relative_squared_error(mine, at_least_float32(wanted))
        return loss

    @torch.no_grad()
    def _ask(self, seen: Forward) -> Answer:
        """Run the teacher on the call of the student."""
        assert seen.call is not None
        own = named_tensors(self.model)
        names = [feature.slot.parameter for feature in seen.features if feature.slot.parameter in own]
        with FeatureObserver(self.model, names) as observer:
            outputs = float_outputs(self.model, seen.call if self.channels_last else _contiguous(seen.call))
            theirs = {feature.slot: feature for feature in observer.features(outputs)}
        features = [wanted_values(f, theirs.get(f.slot), self.plan, pooled=self.pooled) for f in seen.features]
        answer = Answer(outputs, features)
        if self._names is None:
            self._begin(seen, answer, bool(theirs))
        return answer

    def _of_outputs(self, found: list[Tensor], wanted: list[Tensor]) -> Tensor:
        total = found[0].new_zeros(())
        for new, old in zip(found, wanted, strict=False):
            new, old = at_least_float32(new), at_least_float32(old).to(new.device)
            kind = self._kind(old)
            if kind == "KL divergence":
                total = total + softened_kl(new, old, self.settings.temperature)
            else:
                total = total + (F.mse_loss if kind == "mean squared error" else relative_squared_error)(new, old)
        return total

    def _kind(self, output: Tensor) -> str:
        """Return the loss for an output: of the same kind as that of the labels, if there are any."""
        if self.settings.loss == "mse":
            return "mean squared error" if self.labelled else "relative squared error"
        return "KL divergence" if are_class_scores(output) else "relative squared error"

    def _begin(self, seen: Forward, answer: Answer, has_layers: bool) -> None:
        """Check the first batch, and note what is compared."""
        check_outputs(seen.outputs, answer.outputs)
        pairs = zip(seen.features, answer.features, strict=True)
        compared = [feature.slot.parameter for feature, wanted in pairs if wanted is not None]
        self._names = [feature.slot.parameter for feature in seen.features] if compared else []
        kinds = {self._kind(output): None for output in answer.outputs}
        heated = f", temperature {self.settings.temperature:g}"
        self.losses = tuple(f"{kind} from the teacher{heated if 'KL' in kind else ''}" for kind in kinds)
        notes = []
        if compared:
            self.losses += (f"relative squared error of the features that enter {', '.join(compared)}",)
        elif self.settings.feature_weight:
            notes.append(f"features are not compared with the teacher's: {self._why_not(seen.features, has_layers)}")
        if extra := len(seen.outputs) - len(answer.outputs):
            notes.append(f"{extra} more outputs, which the network has only in training, are not compared")
        self.notes = tuple(notes)

    def _why_not(self, mine: list[Feature], has_layers: bool) -> str:
        if self.settings.compile:
            return "compile is set"
        if not mine:
            return "the network has no last layer whose input channels are known"
        if not has_layers:
            return f"the teacher has no layer {mine[0].slot.parameter}"
        return f"channels were cut before {mine[0].slot.parameter}, and no plan says which (pass plan=)"


def check_outputs(found: list[Tensor], wanted: list[Tensor]) -> None:
    """Refuse a teacher whose outputs have other shapes than those of the network, or are not finite."""
    mine, theirs = ([tuple(one.shape) for one in outputs] for outputs in (found, wanted))
    if not wanted or mine[: len(theirs)] != theirs:
        raise UsageError(
            f"the teacher returns {_shapes(theirs)} where the network returns {_shapes(mine)}",
            layer="teacher",
            remedy="pass the original of the pruned network, or a network with the same outputs",
        )
    for output in wanted:
        remedy = "check the weights of the teacher, and the data"
        check_all_finite(output, "its output", layer="teacher", remedy=remedy)


def softened_kl(new: Tensor, old: Tensor, temperature: float) -> Tensor:
    """Return the mean KL divergence of class probabilities, times the square of the temperature.

    The factor keeps the size of the gradients the same for all temperatures.
    """
    found, wanted = ((scores / temperature).log_softmax(1) for scores in (new, old))
    return F.kl_div(found, wanted, log_target=True, reduction="batchmean") * temperature**2


def relative_squared_error(new: Tensor, old: Tensor) -> Tensor:
    """Return the squared error over the squares of the wanted values."""
    return (new - old).square().sum() / old.square().sum().clamp_min(1e-24)


def weights_hash(model: nn.Module) -> str:
    """Return a hash of all weights, by which a run that resumes knows its teacher."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in named_tensors(model).items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_apart(model: nn.Module, student: nn.Module) -> None:
    """Refuse a teacher that would change with the student."""
    trained = {p.data_ptr(): name for name, p in student.named_parameters() if p.requires_grad and p.numel()}
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() in trained:
            raise SecateurError(
                f"it shares {name} with the network that is trained, and would change with it",
                layer="teacher",
                remedy="pass another network, or a copy: copy.deepcopy(model)",
            )


def _contiguous(call: Call) -> Call:
    return pytree.tree_map(lambda leaf: leaf.contiguous() if isinstance(leaf, Tensor) else leaf, call)


def _floats(output: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes)) or "no floating-point tensor"
