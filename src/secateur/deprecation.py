"""Old spellings that still work for one version, each with a warning that names the new one."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


def renamed_arguments(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept old keyword arguments of a function under their new names.

    >>> @renamed_arguments(points="samples")
    ... def measure(data, *, samples=256): ...
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> R:
            for old in names.keys() & kwargs.keys():
                warn_deprecated(f"{function.__name__}({old}=...)", f"{names[old]}=")
                if names[old] in kwargs:
                    raise TypeError(f"{function.__name__}() got both {old!r} and {names[old]!r}, its new name")
                kwargs[names[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def renamed_fields(**names: str) -> Callable[[C], C]:
    """Let old attributes of a result read the new ones.

    >>> @renamed_fields(points="samples")
    ... @dataclass(frozen=True)
    ... class Result:
    ...     samples: int
    """

    def decorate(cls: C) -> C:
        for old, new in names.items():
            setattr(cls, old, _alias(cls.__name__, old, new))
        return cls

    return decorate


def old_bounds(*modules: ModuleType) -> SimpleNamespace:
    """Return the functions of `secateur.bounds`, which moved to these modules, under their old names too."""
    warn_deprecated("secateur.bounds", "secateur.methods.pfp.bounds or secateur.certificates.bounds")
    found = {name: value for module in modules for name, value in vars(module).items()}
    found |= {name.replace("samples_", "points_"): value for name, value in found.items()}
    return SimpleNamespace(**{name: value for name, value in found.items() if name[0] != "_" and callable(value)})


def _alias(owner: str, old: str, new: str) -> property:
    def read(self: Any) -> Any:
        warn_deprecated(f"{owner}.{old}", new)
        return getattr(self, new)

    read.__doc__ = f"Deprecated: use `{new}`."
    return property(read)


def warn_deprecated(old: str, new: str) -> None:
    """Warn the caller of the function that calls this one."""
    warnings.warn(f"{old} is deprecated and will be removed in 0.3; use {new}", DeprecationWarning, stacklevel=3)
