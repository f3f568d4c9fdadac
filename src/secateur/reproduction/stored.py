"""Runs in one file each, so that their results can be published without the networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secateur.errors import SecateurError
from secateur.report.records import Records, read_records
from secateur.storage.files import read_json

KEYS = ("recipe", "originals", "steps", "stopped")


def compact(records: Records) -> dict[str, Any]:
    """Return the recipe and every record of a run as plain data."""
    return {key: _plain(getattr(records, key)) for key in (*KEYS, "missing", "latency")}


def read_run(runs: Path, recipe: str) -> Records | None:
    """Return the records of a recipe: of its folder in `runs`, else of the file RECIPE.json there; None without both.

    >>> read_run(Path("results/reproduction"), "lenet300100")
    """
    folder, file = runs / recipe, runs / f"{recipe}.json"
    if (folder / "recipe.json").is_file():
        return read_records(folder)
    if not file.is_file():
        return None
    found = read_json(file)
    if not isinstance(found, Mapping) or not all(key in found for key in KEYS):
        raise SecateurError(f"{file} holds no run", remedy="write it with benchmarks/reproduction.py")
    return Records(
        folder=folder,
        recipe=found["recipe"],
        originals=tuple(found["originals"]),
        steps=tuple(found["steps"]),
        stopped=tuple(found["stopped"]),
        missing=tuple(found.get("missing", ())),
        problems=(),
        latency=found.get("latency", {}),
        versions=found.get("versions", {}),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
