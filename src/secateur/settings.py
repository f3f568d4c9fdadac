"""Settings from YAML: plain dataclasses filled in, and every mistake named with its file and line."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from secateur.errors import SecateurError, UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A value and where it was written; a mapping or a list holds entries again."""

    value: Any
    where: str

    def plain(self) -> Any:
        """The value without the places."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value


def read_yaml(path: Path) -> Entry:
    """A YAML file as entries.

    >>> read_yaml(Path("recipe.yaml")).value["network"]
    Entry(value='zoo:lenet5', where='recipe.yaml:3')
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SecateurError(f"{path} cannot be read: {error}", remedy="give the path of a YAML file") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return _entry(node, path.name) if node else Entry({}, path.name)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path.name}:{mark.line + 1}" if mark else path.name
        cause = getattr(error, "problem", None) or "too deeply nested"
        raise UsageError(f"this is not YAML: {cause}", layer=where, remedy="mend that line") from error


def _entry(node: yaml.Node, name: str) -> Entry:
    where = f"{name}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Entry] = {}
        for key, value in node.value:
            line = f"{name}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                raise UsageError(
                    f"the key {key.value!r} is not a word, or stands twice", layer=line, remedy="rename it"
                )
            found[key.value] = Entry(_entry(value, name).value, line)
        return Entry(found, where)
    if isinstance(node, yaml.SequenceNode):
        return Entry([_entry(value, name) for value in node.value], where)
    return Entry(_scalar(node), where)


def _scalar(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_object(node, deep=True)


def merge(base: Entry, changes: Entry) -> Entry:
    """The base with the changes laid over it, mapping by mapping."""
    if not isinstance(base.value, dict) or not isinstance(changes.value, dict):
        return changes
    merged = dict(base.value)
    for key, entry in changes.value.items():
        merged[key] = merge(merged[key], entry) if key in merged else entry
    return Entry(merged, changes.where)


def override(tree: Entry, assignments: Sequence[str]) -> Entry:
    """The tree with `key.key=value` assignments laid over it, as `--set` takes them."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not all(path.split(".")):
            raise UsageError(f"--set {assignment!r} is no assignment", remedy="write it like train.epochs=3")
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {assignment!r}: the value is not YAML", remedy="quote it") from error
        where = f"--set {path}"
        change = Entry(_entry(node, "--set").value if node else None, where)
        for key in reversed(path.split(".")):
            change = Entry({key: change}, where)
        tree = merge(tree, change)
    return tree


def fill(kind: type[T], tree: Entry, *, defaults: T | None = None) -> T:
    """The dataclass `kind` from a mapping; what is not written keeps its default.

    >>> fill(Training, read_yaml(path).value["train"])

    A key that is no field, a value of another type and a field without value are errors that name the line.
    """
    if not isinstance(tree.value, dict):
        raise UsageError(f"{kind.__name__} is {tree.plain()!r}", layer=tree.where, remedy="write a mapping")
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, entry in tree.value.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there is: {', '.join(fields)}"
            raise UsageError(f"there is no setting {key!r}", layer=entry.where, remedy=hint)
        before = getattr(defaults, key) if defaults is not None else None
        values[key] = _value(key, hints[key], entry, before)
    if defaults is not None:
        return _checked(lambda: dataclasses.replace(defaults, **values), tree)  # type: ignore[type-var]
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UsageError(f"{', '.join(missing)} is missing", layer=tree.where, remedy=f"add {missing[0]}: ...")
    return _checked(lambda: kind(**values), tree)


def _checked(make: Callable[[], T], tree: Entry) -> T:
    """A dataclass may refuse its values: say where they stand."""
    try:
        return make()
    except UsageError as error:
        field = next((key for key in tree.value if key in error.cause.split()), None)
        where = tree.value[field].where if field else tree.where
        raise UsageError(error.cause, layer=where, remedy=error.remedy) from error


def _value(key: str, hint: Any, entry: Entry, before: Any) -> Any:
    """A value of the hinted type, or an error."""
    options = _options(hint)
    if entry.value is None and type(None) in options:
        return None
    for option in options:
        made = _made(key, option, entry, before)
        if made is not _NOTHING:
            return made
    wanted = " or ".join(_words(option) for option in options)
    raise UsageError(f"{key} is {entry.plain()!r}", layer=entry.where, remedy=f"give {wanted}")


_NOTHING = object()


def _made(key: str, option: Any, entry: Entry, before: Any) -> Any:
    value = entry.value
    if dataclasses.is_dataclass(option) and isinstance(option, type):
        return fill(option, entry, defaults=before) if isinstance(value, dict) else _NOTHING
    if get_origin(option) is Literal:
        return value if value in get_args(option) else _NOTHING
    if get_origin(option) is tuple:
        if not isinstance(value, list):
            return _NOTHING
        return tuple(_value(key, get_args(option)[0], item, None) for item in value)
    if get_origin(option) in (dict, Mapping):
        return entry.plain() if isinstance(value, dict) else _NOTHING
    if option is float:
        return _number(value)
    if option is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else _NOTHING
    return value if isinstance(option, type) and isinstance(value, option) else _NOTHING


def _number(value: Any) -> Any:
    """A float; YAML 1.1 takes 1e-4 for a word."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return _NOTHING
    try:
        return float(value)
    except ValueError:
        return _NOTHING


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _words(option: Any) -> str:
    if get_origin(option) is Literal:
        return " or ".join(map(repr, get_args(option)))
    if get_origin(option) is tuple:
        return f"a list of {_words(get_args(option)[0])}s"
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "nothing"}
    return names.get(option, "a mapping")
