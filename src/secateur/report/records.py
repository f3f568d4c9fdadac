"""The files of a sweep's folder as plain data, finished or not; a damaged file is named and left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from secateur.errors import SecateurError, UsageError
from secateur.storage.checkpoint import read_info
from secateur.storage.files import read_json

LATENCY = "latency.json"  # times of the networks, in the folder of the run


@dataclass(frozen=True)
class Records:
    """What a run folder holds.

    Attributes:
        recipe: all settings.
        originals: the record of each trained network.
        steps: the records of pruned and retrained networks.
        stopped: those of pruning that could not go on.
        missing: results that the recipe asks for and that are not there yet, in words.
        problems: files that could not be read, in words.
        latency: for the path of each timed network the part of the original's time that it takes, with its interval.
        versions: of the packages that wrote the first pruned network.
    """

    folder: Path
    recipe: Mapping[str, Any]
    originals: tuple[Mapping[str, Any], ...]
    steps: tuple[Mapping[str, Any], ...]
    stopped: tuple[Mapping[str, Any], ...]
    missing: tuple[str, ...]
    problems: tuple[str, ...]
    latency: Mapping[str, Any]
    versions: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.recipe.get("name", self.folder.name))


def read_records(folder: Path) -> Records:
    """Return the records of a run folder."""
    path = folder / "recipe.json"
    if not path.is_file():
        raise UsageError(f"there is no run in {folder}", remedy="pass the folder that a sweep wrote")
    recipe = read_json(path)
    if not isinstance(recipe, Mapping):
        raise SecateurError(f"{path} holds no recipe", remedy="pass the folder that a sweep wrote")
    problems: list[str] = []

    def found(pattern: str, *keys: str) -> Iterator[dict[str, Any]]:
        for file in sorted(folder.glob(pattern)):
            try:
                record = read_json(file)
            except SecateurError as error:
                problems.append(f"{file.relative_to(folder)} cannot be read: {error.cause}")
                continue
            if isinstance(record, Mapping) and all(key in record for key in keys):
                yield {**record, "path": str(file.relative_to(folder).with_suffix(""))}
            else:
                problems.append(
                    f"{file.relative_to(folder)} lacks {' or '.join(keys)}; another version may have written it"
                )

    originals = tuple(found("network-*/original.json", "test", "validation"))
    every = tuple(found("network-*/*/step-*.json", "network", "method", "step"))
    stopped = tuple(one for one in every if "stopped" in one)
    steps = []
    for one in every:
        if {"params_removed", "macs_removed", "retrained"} <= one.keys():
            steps.append(one)
        elif "stopped" not in one:
            problems.append(f"{one['path']}.json has no results; another version may have written it")
    times = _optional(folder / LATENCY)
    return Records(
        folder=folder,
        recipe=recipe,
        originals=originals,
        steps=tuple(steps),
        stopped=stopped,
        missing=tuple(_missing(recipe, originals, every)),
        problems=tuple(problems),
        latency=times.get("networks", {}) if isinstance(times.get("networks"), Mapping) else {},
        versions=_versions(folder, steps),
    )


def _optional(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path) if path.is_file() else {}
    except SecateurError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _versions(folder: Path, steps: list[dict[str, Any]]) -> Mapping[str, Any]:
    for one in steps[:1]:
        try:
            found = read_info(folder / f"{one['path']}.safetensors").get("versions")
        except SecateurError:
            return {}
        return found if isinstance(found, Mapping) else {}
    return {}


def _missing(recipe: Mapping[str, Any], originals: Any, every: Any) -> Iterator[str]:
    """Yield what the recipe asks for and nothing has written yet."""
    networks, methods, targets = (recipe.get(key) for key in ("networks", "methods", "targets"))
    count = targets.get("steps") if isinstance(targets, Mapping) else len(targets) if isinstance(targets, list) else 0
    if not isinstance(networks, int) or not isinstance(methods, list) or not isinstance(count, int):
        return
    if len(originals) < networks:
        yield f"{networks - len(originals)} of {networks} networks are not trained yet"
    done: dict[tuple[int, str], int] = {}
    ended = set()
    for one in every:
        key = one["network"], one["method"]
        done[key] = done.get(key, 0) + 1
        if "stopped" in one:
            ended.add(key)
    for method in methods:
        left = [count - done.get((number, method), 0) for number in range(networks) if (number, method) not in ended]
        if sum(left) > 0:
            yield f"{method}: {sum(left)} of {networks * count} results are not there yet"


def read_curves(folder: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the log of every training by the path of its network, also of one that is not finished."""
    found = {}
    for file in [*sorted(folder.glob("network-*/original.jsonl")), *sorted(folder.glob("network-*/*/step-*.jsonl"))]:
        lines = []
        for line in file.read_text(errors="replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:  # the last line of a run that was killed, or is being written
                continue
            if isinstance(record, Mapping) and isinstance(record.get("epoch"), int):
                lines.append(record)
        if lines:
            found[str(file.relative_to(folder).with_suffix(""))] = lines
    return found
