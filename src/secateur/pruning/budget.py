"""Budgets: the parameters, MACs, latency or accuracy drop that a user allows."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from secateur.errors import UsageError

FORMS = 'such as {"params": "40%"}, {"macs": "2.1G"} or {"latency_ms": 8.0}'
ERRORS = ("eps", "output_eps")  # budgets in error: of every layer, or of the network
RESOURCES = {"params": "params", "macs": "macs", "latency_ms": "latency_ms", "latency": "latency_ms"}
COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
TIMES = {"ms": 1.0, "s": 1e3}
NUMBER = re.compile(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-z%]*)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """The most that may remain: a number, or a percentage of the original.

    >>> Limit(40.0, relative=True).of(11_689_512)
    4675804.8
    """

    value: float
    relative: bool

    def of(self, before: float) -> float:
        """Return the limit as a number, given the value of the original."""
        return self.value * before / 100 if self.relative else self.value

    def __str__(self) -> str:
        return f"{self.value:g}%" if self.relative else f"{self.value:,.15g}"


@dataclass(frozen=True)
class Budget:
    """The limit of each resource; None sets no limit. `print(budget)` is one line.

    A budget in error limits nothing else: `eps` is that of every layer, `output_eps` that of the network.
    """

    params: Limit | None = None
    macs: Limit | None = None
    latency_ms: Limit | None = None
    eps: float | None = None
    output_eps: float | None = None

    def ceilings(self, before_params: int, before_macs: int) -> dict[str, float]:
        """Return the most parameters and MACs that may remain, for the resources that have a limit.

        >>> parse({"params": "40%"}).ceilings(before_params=1000, before_macs=5000)
        {'params': 400.0}

        Latency is measured, not counted: its limit is `budget.latency_ms.of(original_ms)`.
        """
        limits = (("params", self.params, before_params), ("macs", self.macs, before_macs))
        return {name: limit.of(before) for name, limit, before in limits if limit}

    def as_dict(self) -> dict[str, str | float]:
        """Return the limits as plain data, which `parse` reads: percentages as text."""
        return {
            name: limit if isinstance(limit, float) else str(limit) if limit.relative else limit.value
            for name, limit in vars(self).items()
            if limit
        }

    def __str__(self) -> str:
        return ", ".join(f"{name} {limit}" for name, limit in vars(self).items() if limit)

    @property
    def error(self) -> float | None:
        """The error that the sizes are for, None for a budget in resources."""
        return self.eps if self.eps is not None else self.output_eps


def parse(budget: Mapping[str, object]) -> Budget:
    """Read a budget: a mapping from `params`, `macs`, `latency_ms` or `latency` to what may remain, or an error.

    >>> parse({"params": "40%", "macs": 2.1e9})
    Budget(params=Limit(value=40.0, relative=True), macs=Limit(value=2100000000.0, relative=False), latency_ms=None)

    A value is a percentage of the original ("40%"), a number, or a text with a unit: "300k", "25M", "2.1G" for
    parameters and MACs, "8ms" or "0.5s" for time. `{"eps": 0.5}` and `{"output_eps": 0.5}` are relative errors.
    """
    if not isinstance(budget, Mapping):
        raise UsageError(f"the budget is {budget!r}", remedy=f"pass a mapping, {FORMS}")
    if not budget:
        raise UsageError("the budget is empty", remedy=f"state what may remain, {FORMS}")
    if kinds := [name for name in ERRORS if name in budget]:
        error = _error(budget, kinds[0])
        return Budget(eps=error) if kinds[0] == "eps" else Budget(output_eps=error)
    limits: dict[str, Limit] = {}
    for key, value in budget.items():
        if key not in RESOURCES:
            close = difflib.get_close_matches(str(key), RESOURCES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"use {', '.join(RESOURCES)}"
            raise UsageError(f"the budget has an unknown resource {key!r}", remedy=hint)
        if RESOURCES[key] in limits:
            raise UsageError("the budget limits the latency twice", remedy="use either latency or latency_ms")
        limits[RESOURCES[key]] = _limit(key, value)
    return Budget(params=limits.get("params"), macs=limits.get("macs"), latency_ms=limits.get("latency_ms"))


def parse_drop(budget: Mapping[str, object]) -> float:
    """Return the accuracy drop of a budget in drop, as a fraction.

    >>> parse_drop({"drop": "1%"})
    0.01
    """
    if len(budget) > 1:
        others = ", ".join(str(key) for key in budget if key != "drop")
        raise UsageError(
            f"the budget is in drop and in {others}",
            remedy="use only drop, which determines the size, or only the others",
        )
    number, unit = _number(budget["drop"])
    if unit != "%" or not 0 < number < 100:
        raise _refusal("drop", budget["drop"], "write the percentage points that may be lost: '1%'")
    return number / 100


def _error(budget: Mapping[str, object], kind: str) -> float:
    if len(budget) > 1:
        others = ", ".join(str(key) for key in budget if key != kind)
        raise UsageError(
            f"the budget is in {kind} and in {others}", remedy=f"use only {kind}, which determines the sizes, or others"
        )
    number, unit = _number(budget[kind])
    if unit or not 0 < number < 1:
        raise _refusal(kind, budget[kind], "write a relative error between 0 and 1; from 1 on it guarantees nothing")
    return number


def _limit(key: str, value: object) -> Limit:
    units = TIMES if key.startswith("latency") else COUNTS
    forms = "write '50%' or '8ms'" if units is TIMES else "write '40%', '300k', '2.1G' or a number"
    number, unit = _number(value)
    if unit == "%":
        if not 0 < number <= 100:
            raise _refusal(key, value, "a percentage is above 0% and at most 100%")
        return Limit(number, relative=True)
    if key == "latency_ms" and not unit:
        unit = "ms"
    if unit not in units or not (0 < number < math.inf):
        raise _refusal(key, value, forms)
    number *= units[unit]
    if units is COUNTS and number <= 1:
        part = f"'{100 * number:g}%'"
        raise _refusal(key, value, f"write {part} for a part of the original, else the number of {key}")
    return Limit(number, relative=False)


def _number(value: object) -> tuple[float, str]:
    """Return a value as a number and its unit in lower case; NaN if it is not a number."""
    try:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value), ""
        match = NUMBER.fullmatch(value) if isinstance(value, str) else None
        return (float(match[1]), match[2].lower()) if match else (math.nan, "")
    except (ValueError, OverflowError):  # such as "1.2.3" and 10**400
        return math.nan, ""


def _refusal(key: str, value: object, remedy: str) -> UsageError:
    return UsageError(f"the budget for {key} is {value!r}", remedy=remedy)
