"""Runs in one file each, so that their results can be published without the networks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from secateur.errors import SecateurError, UsageError
from secateur.experiments.recipe import Recipe
from secateur.report.latency import RUNS, THREADS
from secateur.report.records import LATENCY, Records, read_records
from secateur.storage.files import read_json, write_json

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


def restore(stored: Path, recipe: Recipe, folder: Path) -> int:
    """Write the stored records of a recipe into the folder of its run, where it has none; return how many.

    >>> restore(Path("results/reproduction"), read("lenet300100"), Path("runs/lenet300100"))
    60

    A sweep then runs what is missing only. Since the networks are not stored, each step keeps the figures of the
    original that it was cut from: trained again, on another machine, the original may differ a little.
    """
    records = read_run(stored, recipe.name)
    if records is None:
        return 0
    if differences := recipe.differences(records.recipe):
        raise UsageError(
            f"the stored results of {recipe.name} were made with other settings: {', '.join(differences)}",
            layer=str(stored),
            remedy="run it without --from, or from another folder",
        )
    originals = {one["network"]: one for one in records.originals}
    written = 0
    for one in records.originals:
        written += _write_new(folder / f"{one['path']}.json", one)
    for one in (*records.steps, *records.stopped):
        source = one.get("original") or {key: originals[one["network"]][key] for key in ("validation", "test")}
        written += _write_new(folder / f"{one['path']}.json", {**one, "original": source})
    if records.latency:
        written += _write_new(folder / LATENCY, {"threads": THREADS, "runs": RUNS, "networks": records.latency})
    return written


def _write_new(path: Path, record: Mapping[str, Any]) -> bool:
    """Write a record, without the path of its file, unless the file exists; return whether it was written."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {key: value for key, value in record.items() if key != "path"})
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
