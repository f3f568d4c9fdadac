"""Where the time of a job goes: a timer for its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

OTHER = "other"  # the time outside of all stages


@dataclass
class Stage:
    """The time that one stage of a job took, without the stages inside it."""

    name: str
    calls: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # over all threads


@dataclass
class Profile:
    """The stages of a job, in the order in which they began.

    >>> with profiled() as profile:
    ...     with stage("trace"):
    ...         ...
    >>> profile.seconds
    4.2
    """

    stages: dict[str, Stage] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list, repr=False)
    _since: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    @property
    def seconds(self) -> float:
        """The time of all stages."""
        return sum(one.seconds for one in self.stages.values())

    @property
    def cpu_seconds(self) -> float:
        """The CPU time of all stages."""
        return sum(one.cpu_seconds for one in self.stages.values())

    def as_rows(self) -> list[dict[str, Any]]:
        """Return a row for each stage, as plain data."""
        return [
            {
                "stage": one.name,
                "calls": one.calls,
                "seconds": round(one.seconds, 3),
                "cpu_seconds": round(one.cpu_seconds, 3),
            }
            for one in sorted(self.stages.values(), key=lambda one: one.name == OTHER)
            if one.name != OTHER or one.seconds >= 0.0005
        ]

    def _switch(self, name: str | None) -> None:
        """Count the time since the last switch for the open stage; then open another one, or close it."""
        now = time.perf_counter(), time.process_time()
        if self._open:
            last = self.stages[self._open[-1]]
            last.seconds += now[0] - self._since[0]
            last.cpu_seconds += now[1] - self._since[1]
        self._since = now
        if name is None:
            self._open.pop()
            return
        self._open.append(name)
        self.stages.setdefault(name, Stage(name)).calls += 1


_current: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def profiled() -> Iterator[Profile]:
    """Time the stages within a `with` block. Inside another such block, the stages count for both.

    >>> with profiled() as profile:
    ...     sc.plan(model, images, {"macs": "50%"})
    >>> profile.as_rows()[0]
    {'stage': 'trace', 'calls': 1, 'seconds': 0.41, 'cpu_seconds': 0.4}
    """
    outer = _current.get()
    profile = Profile() if outer is None else outer
    token = _current.set(profile)
    profile._switch(OTHER)
    try:
        yield profile
    finally:
        profile._switch(None)
        _current.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Count the time of a `with` block for a stage of the job that is profiled, if any."""
    profile = _current.get()
    if profile is None:
        yield
        return
    profile._switch(name)
    try:
        yield
    finally:
        profile._switch(None)
