"""Settings from YAML: dataclasses are filled in, and every mistake is reported with its file and line."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from secateur.errors import UsageError, explained, first_line

T = TypeVar("T")
BYTES, DEPTH, VALUES, LETTERS = 2**16, 16, 2_000, 2_000  # of the largest file; recipes of the package have 60 values
WORDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false", types.NoneType: "null"}


@dataclass(frozen=True)
class Located:
    """A value and the line where it is written; mappings and lists hold located values."""

    value: Any
    where: str

    def plain(self) -> Any:
        """Return the value without lines."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        return [item.plain() for item in self.value] if isinstance(self.value, list) else self.value


def read_yaml(path: Path) -> Located:
    """Return the content of a YAML file.

    >>> read_yaml(Path("recipe.yaml")).value["network"]
    Located(value='zoo:lenet5', where='recipe.yaml:3')
    """
    with explained(f"{path} cannot be read", remedy="pass the path of a YAML file"):
        if not path.is_file():
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            text = file.read(BYTES + 1).decode()
    return _parse(text, path.name)


def _parse(text: str, name: str) -> Located:
    """Return the values in a YAML text; a text that is too large, too deep or uses aliases is refused, whole."""
    if len(text.encode()) > BYTES:
        raise _too_large(name, f"has more than {BYTES:,} bytes")
    try:
        _check_events(text, name)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _located(node, name) if node else Located({}, name)
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:  # a date or a number may be impossible
        if isinstance(error, UsageError):
            raise
        mark = getattr(error, "problem_mark", None)
        where = f"{name}:{mark.line + 1}" if mark else name
        cause = getattr(error, "problem", None) or first_line(error)
        raise UsageError(f"this is not valid YAML: {cause}", layer=where, remedy="fix that line") from error


def _check_events(text: str, name: str) -> None:
    """Refuse a text before it is built: ten short lines of aliases can stand for a billion values."""
    depth = values = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        where = f"{name}:{event.start_mark.line + 1}" if event.start_mark else name
        if isinstance(event, yaml.AliasEvent):
            raise UsageError(f"it has the alias *{event.anchor}", layer=where, remedy="write the value out")
        values += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH:
            raise _too_large(where, f"is nested more than {DEPTH} deep")
        if values > VALUES:
            raise _too_large(where, f"has more than {VALUES:,} values")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > LETTERS:
            raise _too_large(where, f"has a value of more than {LETTERS:,} letters")


def _too_large(where: str, cause: str) -> UsageError:
    return UsageError(
        f"the recipe {cause}", layer=where, remedy="write settings only; the recipes of secateur are short"
    )


def _located(node: yaml.Node, name: str) -> Located:
    where = f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.SequenceNode):
        return Located([_located(value, name) for value in node.value], where)
    if not isinstance(node, yaml.MappingNode):
        return Located(yaml.SafeLoader("").construct_object(node, deep=True), where)
    found: dict[str, Located] = {}
    for key, value in node.value:
        line = f"{name}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode) or key.value in found:
            raise UsageError(
                f"expected a new name as key, found {key.value!r}", layer=line, remedy="use each name once"
            )
        found[key.value] = Located(_located(value, name).value, line)
    return Located(found, where)


def merge(base: Located, changes: Located) -> Located:
    """Return the base with the changes applied, recursively for mappings."""
    if not isinstance(base.value, dict) or not isinstance(changes.value, dict):
        return changes
    merged = {key: merge(base.value[key], item) if key in base.value else item for key, item in changes.value.items()}
    return Located(base.value | merged, changes.where)


def override(tree: Located, assignments: Sequence[str]) -> Located:
    """Return the tree with assignments such as `train.epochs=3` applied, the form that `--set` takes."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not all(path.split(".")):
            raise UsageError(f"--set {assignment!r} is not an assignment", remedy="write it like train.epochs=3")
        where = f"--set {path}"
        change = Located(_parse(text, where).value if text.strip() else None, where)
        for key in reversed(path.split(".")):
            change = Located({key: change}, where)
        tree = merge(tree, change)
    return tree


def fill(kind: type[T], tree: Located, *, defaults: T | None = None) -> T:
    """Return the dataclass `kind` with the values of a mapping; fields that are not written keep their defaults.

    >>> fill(Training, read_yaml(path).value["train"])

    An unknown key, a value of the wrong type or a missing value is an error that names the line.

    Args:
        defaults: an instance whose values are the defaults, instead of those of the class.
    """
    if not isinstance(tree.value, dict):
        raise UsageError(f"{kind.__name__} is {tree.plain()!r}", layer=tree.where, remedy="write a mapping")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, item in tree.value.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(fields)}"
            raise UsageError(f"there is no setting {key!r}", layer=item.where, remedy=hint)
        values[key] = _convert(key, hints[key], item, getattr(defaults, key, fields[key].default))
    required = [name for name, field in fields.items() if field.default is field.default_factory is MISSING]
    if defaults is None and (missing := [name for name in required if name not in values]):
        raise UsageError(f"{', '.join(missing)} is missing", layer=tree.where, remedy=f"add {missing[0]}: ...")
    try:
        return kind(**values) if defaults is None else dataclasses.replace(defaults, **values)  # type: ignore[type-var]
    except UsageError as error:  # the dataclass refuses a value: name its line
        field = next((key for key in tree.value if key in error.cause.split()), None)
        where = tree.value[field].where if field else tree.where
        raise UsageError(error.cause, layer=where, remedy=error.remedy) from error


def _convert(key: str, hint: Any, found: Located, default: Any) -> Any:
    """Return a value as the first of the hinted types that it fits."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    value = found.value
    for option in options:
        origin = get_origin(option)
        if dataclasses.is_dataclass(option) and isinstance(value, dict):
            return fill(option, found, defaults=default if isinstance(default, option) else None)  # type: ignore[arg-type]
        if origin is tuple and isinstance(value, list):
            return tuple(_convert(key, get_args(option)[0], item, None) for item in value)
        if origin is Mapping and isinstance(value, dict):
            return found.plain()
        if type(value) is option or (origin is Literal and value in get_args(option)):
            return value
        if option is float and (number := _number(value)) is not None:
            return number
    expected = " or ".join(words for option in options if (words := _words(option)))
    raise UsageError(f"{key} is {found.plain()!r}", layer=found.where, remedy=f"use {expected}")


def _number(value: Any) -> float | None:
    """Return a value as a float; YAML 1.1 reads 1e-4 as a string."""
    try:
        return None if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except (ValueError, OverflowError):
        return None


def _words(option: Any) -> str | None:
    """Return a type in words; None for one that YAML cannot express."""
    if get_origin(option) is Literal:
        return " or ".join(map(repr, get_args(option)))
    if get_origin(option) is tuple:
        return f"a list of {(_words(get_args(option)[0]) or 'value').removeprefix('a ')}s"
    return "a mapping" if get_origin(option) is Mapping or dataclasses.is_dataclass(option) else WORDS.get(option)
