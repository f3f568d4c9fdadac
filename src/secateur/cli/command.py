"""How a function becomes a command: groups of options, errors without tracebacks, old names of options."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from secateur.cli.options import OUTPUT, PANELS
from secateur.errors import SecateurError, UsageError
from secateur.network.memory import memory_errors

INTERRUPTED = 130  # the exit code after Ctrl-C, by the convention of shells
OLD_NAMES = {"--points": "--samples", "--draws": "--repeats", "--on-points": "--on-samples"}


class Commands(TyperGroup):
    """All commands, and the options before a command."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, with no type for flags, which take no value."""
        return [_plain_flag(one) for one in super().get_params(ctx)]


class Command(TyperCommand):
    """A command that accepts old names of its options, and lists them by panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with old names replaced by the new ones and no option taken for a value."""
        known = {name for parameter in self.params for name in parameter.opts}
        for place, argument in enumerate(args):
            old, equals, value = argument.partition("=")
            if OLD_NAMES.get(old) in known:
                deprecated(old, OLD_NAMES[old])
                args[place] = f"{OLD_NAMES[old]}{equals}{value}"
        self._check_values(ctx, args)
        return super().parse_args(ctx, args)

    def _check_values(self, ctx: Any, args: list[str]) -> None:
        """Fail where an option stands in place of a value, `--out --json`, which click would take as the value."""
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        known = {name for one in options for name in (*one.opts, *one.secondary_opts)}
        flags = {name for one in options if one.is_flag for name in (*one.opts, *one.secondary_opts)}
        words = iter(args)
        for word in words:
            if word == "--":
                return
            if word in known - flags and (value := next(words, "")) in known:
                ctx.fail(f"Option '{word}' requires a value, found the option '{value}'; to mean it, {word}={value}.")

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments, then the options by panel, required ones first; --help belongs to the output."""
        found: list[Any] = [_plain_flag(one) for one in super().get_params(ctx)]
        for one in found:
            if one.name == "help":
                one.rich_help_panel = OUTPUT
        order = ("", *PANELS)
        return sorted(found, key=lambda one: (order.index(one.rich_help_panel or ""), not one.required))


def _plain_flag(one: Any) -> Any:
    if getattr(one, "is_flag", False):
        one.metavar = ""
    return one


def as_command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that typer can call, with our own errors as messages and exit codes.

    A parameter whose type is a dataclass is a group of options: typer sees its fields, the function gets an instance.
    A default of the parameter sets the defaults of the options.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: list[Parameter] = []
    groups: dict[str, Any] = {}
    for one in inspect.signature(function).parameters.values():
        kind = hints[one.name]
        if not is_dataclass(kind):
            parameters.append(one.replace(annotation=kind))
            continue
        groups[one.name] = kind
        own = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            default = getattr(one.default, field.name, field.default)
            default = Parameter.empty if default is MISSING else default
            parameters.append(Parameter(field.name, one.KEYWORD_ONLY, default=default, annotation=own[field.name]))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        with _plain_errors(), memory_errors():
            for name, kind in groups.items():
                given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            function(**given)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def deprecated(old: str, new: str) -> None:
    """Print that an option has another name now."""
    typer.echo(f"warning: {old} is deprecated and will be removed in 0.3; use {new}", err=True)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Print our own errors without a traceback; exit with 2 for a wrong call, 1 for a failed job, 130 after Ctrl-C."""
    stderr = sys.stderr
    try:
        yield
    except SecateurError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None
    except KeyboardInterrupt:
        sys.stderr = stderr  # Ctrl-C can strike just where tracing has redirected it and not yet noted that
        typer.echo("interrupted: no half-written file is left", err=True)
        raise typer.Exit(INTERRUPTED) from None
