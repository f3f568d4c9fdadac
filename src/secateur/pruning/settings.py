"""The settings of a pruning job: one record for `prune`, `plan`, `compare`, recipes and the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

from secateur.channels.graph import Output
from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.methods.base import Method
from secateur.methods.pfp.method import PFP, SELECTS, Select
from secateur.network.outputs import selectors
from secateur.profiling.table import Engine, LatencyTable
from secateur.pruning.allocation import Allocation

SAMPLES = 256
Effort = Literal["quick", "default", "thorough"]
EFFORTS: tuple[Effort, ...] = get_args(Effort)
SAMPLING_DELTA = 1e-12  # of the guarantee that comes with importance sampling (pfp)
CERTIFICATE_DELTA = 1e-3  # of statements from held-out samples


@dataclass(frozen=True, kw_only=True)
class PruneSettings:
    """How a network is pruned, as plain data; `sc.prune` explains each setting.

    >>> PruneSettings(method="pfp", select="pivotal").resolve()
    (PFP(select='pivotal', ...), Allocation(name='pfp', ...))
    """

    method: str | Method = "residual"
    select: Select | None = None
    allocation: str | None = None
    repair: bool | None = None
    sensitivity: str = "max"
    delta: float = SAMPLING_DELTA
    certificate_delta: float = CERTIFICATE_DELTA
    C: float | Literal["measured"] = 1.0
    seed: int = 0
    samples: int | None = SAMPLES
    steps: int = 1
    task: Literal["segmentation"] | None = None
    scope: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    free_outputs: tuple[str, ...] = ()
    at_least: int | Mapping[str, int] = 1
    round_to: int | Mapping[str, int] = 1
    output: Output = "module"
    prune_inputs: bool = False
    latency_table: str | LatencyTable | None = None
    engine: Engine = "torch"
    memory: int | None = None
    effort: Effort = "default"

    def __post_init__(self) -> None:
        for name, number in (("steps", self.steps), ("samples", self.samples), ("memory", self.memory)):
            if number is not None and number < 1:
                raise UsageError(f"{name} is {number}", remedy="use a whole number from 1 up")
        if not 0 < self.certificate_delta < 1:
            raise UsageError(
                f"certificate_delta is {self.certificate_delta}",
                remedy="use a probability between 0 and 1, such as 1e-3",
            )
        if self.engine not in get_args(Engine):
            raise UsageError(f"engine is {self.engine!r}", remedy=f"use one of {', '.join(get_args(Engine))}")
        if self.effort not in EFFORTS:
            raise UsageError(f"effort is {self.effort!r}", remedy=f"use one of {', '.join(EFFORTS)}")
        if isinstance(self.C, str) and self.C != "measured":
            raise UsageError(f"C is {self.C!r}", remedy='use a factor from 1 up, or "measured"')
        if isinstance(self.keep, str):
            raise UsageError(f"keep is {self.keep!r}", remedy=f"pass a list of patterns: keep=[{self.keep!r}]")
        object.__setattr__(self, "keep", tuple(self.keep))
        object.__setattr__(self, "scope", (self.scope,) if isinstance(self.scope, str) else tuple(self.scope or ()))
        object.__setattr__(self, "free_outputs", selectors(self.free_outputs))
        if self.task not in (None, "segmentation"):
            raise UsageError(f"task is {self.task!r}", remedy="use 'segmentation', or leave it out for other outputs")
        if self.task and self.output == "graph":
            raise UsageError("task='segmentation' needs output='module'", remedy="leave one of them out")
        self._check_method()
        self.resolve()

    def _check_method(self) -> None:
        if not isinstance(self.method, Method) and self.method not in METHODS:
            raise UsageError(f"there is no method {self.method!r}", remedy=f"use one of {', '.join(METHODS)}")
        if self.select is not None and self.select not in SELECTS:
            raise UsageError(f"select is {self.select!r}", remedy=f"use one of {', '.join(SELECTS)}")
        if self.select is not None and self.method != "pfp":
            name = self.method.name if isinstance(self.method, Method) else self.method
            raise UsageError(
                f"select={self.select!r} belongs to the method pfp, and the method is {name}",
                remedy=f'write method="pfp", select={self.select!r}, or leave select out',
            )

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> PruneSettings:
        """Return the settings among the arguments of a function, given as its `locals()`."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in arguments.items() if name in names})

    def resolve(self) -> tuple[Method, Allocation]:
        """Return the method that selects channels, and the allocation that sizes the groups."""
        options = {
            "select": self.select or "derand",
            "delta": self.delta,
            "C": 1.0 if self.C == "measured" else self.C,  # a job measures it, and sets the number
            "seed": self.seed,
            "sensitivity": self.sensitivity,
        }
        if isinstance(self.method, Method):
            method = self.method
        else:
            method = _built(self.method, options)
        return method, Allocation(self.allocation or method.allocation, PFP(**options))  # type: ignore[arg-type]

    @property
    def repaired(self) -> bool:
        """Whether the cut network is repaired: as asked for, else as the method wants it."""
        return self.resolve()[0].repairs if self.repair is None else self.repair


def _built(name: str, options: Mapping[str, Any]) -> Method:
    """Return the method that is registered under a name, with those of the options that it has."""
    kind: Any = METHODS[name]
    own = {field.name for field in fields(kind)} if isinstance(kind, type) and is_dataclass(kind) else set()
    try:
        method = kind(**{option: value for option, value in options.items() if option in own})
    except TypeError as error:
        raise UsageError(
            f"METHODS[{name!r}] cannot be built: {error}",
            remedy="register a class whose parameters all have defaults, or pass an instance: method=Mine(...)",
        ) from error
    if not isinstance(method, Method):
        raise UsageError(
            f"METHODS[{name!r}] makes an object of type {type(method).__name__}",
            remedy="derive it from secateur.methods.Method",
        )
    return method
