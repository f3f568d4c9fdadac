"""Methods with their options, as a user writes them in one word: `pfp:pivotal`, `ft@residual+repair`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from secateur.errors import UsageError
from secateur.methods import METHODS
from secateur.methods.base import Method
from secateur.methods.pfp.method import PFP, SELECTS
from secateur.pruning.allocation import NAMES as ALLOCATIONS
from secateur.pruning.settings import PruneSettings

VARIANT = re.compile(r"(\w+)(?::(\w+))?(?:~([\w.]+))?(?:@(\w+))?([+-]repair)?(\+inputs)?", re.ASCII)
FORMS = (
    f"write a method ({', '.join(METHODS)}), then, where wanted and in this order, :SELECT ({', '.join(SELECTS)}), "
    f"~KIND of sensitivity, @ALLOCATION ({', '.join(ALLOCATIONS)}), +repair or -repair, +inputs: "
    "pfp:pivotal~mean@uniform+repair"
)


@dataclass(frozen=True)
class Variant:
    """A method with its options. `str(variant)` is the word that `parse` reads.

    Attributes:
        repair: None does what `prune` does with this method.
        inputs: whether inputs of the network are pruned, too.
    """

    method: str | Method
    select: str | None = None
    sensitivity: str | None = None
    allocation: str | None = None
    repair: bool | None = None
    inputs: bool = False

    @classmethod
    def parse(cls, text: str | Method) -> Variant:
        """Read a variant such as `pfp`, `pfp:pivotal`, `pfp~mean`, `ft@residual+repair`, `pfp+inputs`.

        >>> Variant.parse("ft@residual+repair")
        Variant(method='ft', select=None, sensitivity=None, allocation='residual', repair=True, inputs=False)
        """
        if isinstance(text, Method):
            return cls(text)
        match = VARIANT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise UsageError(f"cannot read the method {text!r}", remedy=FORMS)
        method, select, sensitivity, allocation, repair, inputs = match.groups()
        repairs = None if repair is None else repair == "+repair"
        found = cls(method, select, sensitivity, allocation, repairs, inputs is not None)
        try:
            chosen, sizes = found.settings(PruneSettings()).resolve()
        except UsageError as error:
            raise UsageError(f"invalid method {text!r}: {error.cause}", remedy=error.remedy) from None
        if sensitivity is not None and not isinstance(chosen, PFP) and sizes.name != "pfp":
            raise UsageError(
                f"invalid method {text!r}: {method} uses no sensitivities",
                remedy=f"leave ~{sensitivity} out, or allocate by sensitivities: {method}~{sensitivity}@pfp",
            )
        return found

    def settings(self, base: PruneSettings) -> PruneSettings:
        """Return the settings with this method and its options."""
        options: dict[str, Any] = {"select": self.select, "allocation": self.allocation, "repair": self.repair}
        options["prune_inputs"] = self.inputs or base.prune_inputs
        return replace(base, method=self.method, sensitivity=self.sensitivity or base.sensitivity, **options)

    @property
    def repaired(self) -> bool:
        """Whether the network is repaired after the cut."""
        return self.settings(PruneSettings()).repaired

    @property
    def stem(self) -> str:
        """The name without the repair."""
        name = self.method
        if isinstance(name, Method):
            given = ", ".join(f"{key}={value}" for key, value in name.settings().items())
            name = f"{name.name}({given})" if given else name.name
        options = ((":", self.select), ("~", self.sensitivity), ("@", self.allocation))
        return name + "".join(f"{sign}{value}" for sign, value in options if value is not None)

    def __str__(self) -> str:
        default = replace(self, repair=None).repaired
        repair = "+repair" if self.repaired else "-repair" if default else ""
        return f"{self.stem}{repair}{'+inputs' if self.inputs else ''}"


def variants(methods: Sequence[str | Method], *, repair: bool = False) -> list[Variant]:
    """Return each method once; with `repair`, those that do not say so come with and without one.

    >>> [str(variant) for variant in variants(["ft", "residual"], repair=True)]
    ['ft', 'ft+repair', 'residual-repair', 'residual+repair']
    """
    if isinstance(methods, str) or not methods:
        raise UsageError(f"methods is {methods!r}", remedy="pass a list of at least one, such as ['pfp', 'ft']")
    found: dict[str, Variant] = {}
    for one in map(Variant.parse, methods):
        both = repair and one.repair is None
        for variant in (replace(one, repair=False), replace(one, repair=True)) if both else (one,):
            if isinstance(one.method, Method) and str(variant) in found:
                raise UsageError(f"two methods are called {variant}", remedy="use different names or settings")
            found[str(variant)] = variant
    return list(found.values())
