"""Methods with their options, as a user writes them in one word: `pfp:pivotal`, `ft@residual+repair`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from secateur.allocations import NAMES as ALLOCATIONS
from secateur.allocations import Allocation
from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.methods.base import Method
from secateur.methods.pfp import PFP, SELECTS
from secateur.methods.residual import Residual
from secateur.planning import judges

ENTRY = re.compile(r"(\w+)(?::(\w+))?(?:~([\w.]+))?(?:@(\w+))?([+-]repair)?", re.ASCII)
FORMS = (
    f"write a method ({', '.join(METHODS)}), then, where wanted and in this order, :SELECT ({', '.join(SELECTS)}), "
    f"~KIND of sensitivity, @ALLOCATION ({', '.join(ALLOCATIONS)}), +repair or -repair: pfp:pivotal~mean@uniform+repair"
)


@dataclass(frozen=True)
class Entry:
    """A method with its options. `print(entry)` writes it as `parse` reads it.

    repair: None does what `prune` does with this method.
    """

    method: str | Method
    select: str | None = None
    sensitivity: str | None = None
    allocation: str | None = None
    repair: bool | None = None

    @classmethod
    def parse(cls, entry: str | Method) -> Entry:
        """Read what the user wrote, such as `pfp`, `pfp:pivotal`, `pfp~mean`, `ft@residual+repair`.

        >>> Entry.parse("ft@residual+repair")
        Entry(method='ft', select=None, sensitivity=None, allocation='residual', repair=True)
        """
        if isinstance(entry, Method):
            return cls(entry)
        match = ENTRY.fullmatch(entry) if isinstance(entry, str) else None
        if match is None:
            raise UsageError(f"the method {entry!r} cannot be read", remedy=FORMS)
        method, select, sensitivity, allocation, repair = match.groups()
        found = cls(method, select, sensitivity, allocation, None if repair is None else repair == "+repair")
        try:
            judge, shared = found.judges()
        except UsageError as error:
            raise UsageError(f"the method {entry!r} cannot be: {error.cause}", remedy=error.remedy) from None
        if sensitivity is not None and not isinstance(judge, PFP) and shared.name != "pfp":
            raise UsageError(
                f"the method {entry!r} cannot be: {method} looks at no sensitivities",
                remedy=f"leave ~{sensitivity} out, or share the budget by them: {method}~{sensitivity}@pfp",
            )
        return found

    def judges(self, *, delta: float = 1e-12, C: float = 1.0, seed: int = 0) -> tuple[Method, Allocation]:
        """What says which channels go, and how many of each group."""
        kind = self.sensitivity or "max"
        return judges(
            self.method, select=self.select, allocation=self.allocation, sensitivity=kind, delta=delta, C=C, seed=seed
        )

    @property
    def repaired(self) -> bool:
        """Whether the network is repaired after the cut."""
        own = self.method == "residual" or isinstance(self.method, Residual)
        return own if self.repair is None else self.repair

    @property
    def stem(self) -> str:
        """What it is called, but for the repair."""
        name = self.method
        if isinstance(name, Method):
            given = ", ".join(f"{key}={value}" for key, value in name.settings().items())
            name = f"{name.name}({given})" if given else name.name
        options = ((":", self.select), ("~", self.sensitivity), ("@", self.allocation))
        return name + "".join(f"{sign}{value}" for sign, value in options if value is not None)

    def __str__(self) -> str:
        own = replace(self, repair=None).repaired
        return f"{self.stem}{'+repair' if self.repaired else '-repair' if own else ''}"


def entries(methods: Sequence[str | Method], *, repair: bool = False) -> list[Entry]:
    """The methods as they were asked for, each once; with `repair` those that leave it open come with and without.

    >>> [str(entry) for entry in entries(["ft", "residual"], repair=True)]
    ['ft', 'ft+repair', 'residual-repair', 'residual+repair']
    """
    if isinstance(methods, str) or not methods:
        raise UsageError(f"the methods are {methods!r}", remedy="give a list with at least one, such as ['pfp', 'ft']")
    found: dict[str, Entry] = {}
    for one in map(Entry.parse, methods):
        both = repair and one.repair is None
        for entry in (replace(one, repair=False), replace(one, repair=True)) if both else (one,):
            if isinstance(one.method, Method) and str(entry) in found:
                raise UsageError(f"two methods are called {entry}", remedy="give them different names or settings")
            found[str(entry)] = entry
    return list(found.values())
