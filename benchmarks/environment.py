"""What every benchmark needs: a quiet and reproducible torch, its options, and records that say how they were made."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import history
from catalogue import BY_NAME
from secateur.errors import SecateurError
from secateur.storage.files import write_atomic
from secateur.zoo.libraries import library

RESULTS = history.ROOT / "results"
EVERYWHERE = ("secateur", "torch", "numpy")  # packages whose versions every record has
FOLDER_OPTIONS = ("--data", "--out", "--runs", "--weights")
Keep = Literal["all", "current", "none"]
Row = dict[str, Any]


def prepare(threads: int = 1) -> None:
    """Make torch quiet and single-threaded, and torchvision importable."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    with suppress(SecateurError):  # not installed
        library("torchvision")


def tests_on_path() -> None:
    """Make `support`, the helpers that tests and benchmarks share, importable."""
    sys.path.insert(0, str(history.ROOT / "tests"))


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def in_fresh_process(script: str, *words: str, **variables: str) -> Row:
    """Run a script in a process of its own and return the JSON on the last line that it prints.

    Args:
        script: its file.
        words: of its command line.
        variables: of the environment, beside those of this process.
    """
    command, environment = [sys.executable, script, *words], os.environ | variables
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


# --- the command line


def options(description: str | None, *, threads: int | None = None) -> argparse.ArgumentParser:
    """Return a parser that shows the script's docstring as its help; `threads` adds --threads with this default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if threads is not None:
        parser.add_argument("--threads", type=int, default=threads, help="for torch (default: %(default)s)")
    return parser


def add_data_option(parser: argparse.ArgumentParser, contents: str, *, required: bool = True) -> None:
    """Add --data, a folder with these contents; SECATEUR_DATA is its default."""
    default = os.environ.get("SECATEUR_DATA")
    words = f"folder with {contents} (default: SECATEUR_DATA)"
    parser.add_argument("--data", type=Path, default=default, required=required and not default, help=words)


def add_keep_option(parser: argparse.ArgumentParser) -> None:
    """Add --keep: which rows of earlier runs are not measured again."""
    parser.add_argument(
        "--keep",
        choices=["current", "all", "none"],
        default="current",
        help="which rows of earlier runs are not measured again: those measured by the present code (the default), "
        "all, or none",
    )


def progress_bar() -> Progress:
    """Return a bar with what runs, how much is done, and the time."""
    words = TextColumn("{task.description}")
    return Progress(words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())


def print_table(
    headings: Sequence[str],
    rows: Iterable[Iterable[object]],
    *,
    title: str | None = None,
    words: int = 1,
    width: int | None = None,
) -> None:
    """Print a table whose first columns are `words`, to the left, and the others numbers, to the right."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < words else "right")
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=width).print(table)


def print_rows(columns: dict[str, str], rows: Sequence[Row], *, title: str | None = None) -> None:
    """Print some of the values of rows: `columns` has the heading of each and the key of its values."""
    print_table(list(columns), [[row[key] for key in columns.values()] for row in rows], title=title)


# --- records


def provenance(name: str, command: str | None = None) -> dict[str, Any]:
    """Return what a record of this benchmark says about its making: commit, date, command, versions and machine.

    `modified` is added where measured files differ from the commit.
    """
    benchmark = BY_NAME[name]
    modified = history.uncommitted(benchmark.measures) if COMMIT else []
    return {
        "commit": COMMIT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command or command_line(name, sys.argv[1:]),
        "versions": {"python": platform.python_version(), **versions(*EVERYWHERE, *benchmark.packages)},
        "machine": machine(),
        **({"modified": modified} if modified else {}),
    }


def write_record(
    name: str, data: dict[str, Any], *, command: str | None = None, commits: Iterable[str | None] = ()
) -> None:
    """Write results/NAME.json: the data of a benchmark, and above it what `provenance` says.

    Args:
        name: of the benchmark in the catalogue.
        data: plain data; its keys must not be those of the provenance.
        command: without machine paths; by default the command of this process.
        commits: those that measured the rows of `data`, where some are of earlier runs.
    """
    head, measured = provenance(name, command), set(commits)
    if measured - {head["commit"]}:
        head["commits"] = sorted(measured, key=str)
    if taken := head.keys() & data.keys():
        raise ValueError(f"the data of {name} have keys of the provenance: {', '.join(sorted(taken))}")
    write_atomic(RESULTS / f"{name}.json", as_text(head | data) + "\n")


def read_record(name: str) -> dict[str, Any]:
    """Return the record of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def command_line(name: str, words: Sequence[str]) -> str:
    """Return the command of a script as a record shows it, with DIR for every folder.

    >>> command_line("quality", ["--data", "some/folder", "--repeats", "0"])
    'python benchmarks/quality.py --data DIR --repeats 0'
    """
    shown = []
    for before, word in zip(["", *words], words):
        option, equals, _ = word.partition("=")
        folder = before in FOLDER_OPTIONS or (equals and option in FOLDER_OPTIONS)
        shown.append((f"{option}=DIR" if equals else "DIR") if folder else word)
    return " ".join(["python", f"benchmarks/{name}.py", *shown])


def versions(*packages: str) -> dict[str, str | None]:
    """Return the version of each package, None for one that is not installed.

    >>> versions("numpy")
    {'numpy': '2.4.6'}
    """
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(package) is None:
            return None
        return str(importlib.import_module(package).__version__)  # run from its source tree


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the memory and the operating system, nothing that names this one machine."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "os": f"{platform.system()} {platform.release()}",
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _from_this_repository() -> bool:
    """Return whether the package that runs is the one beside this folder, whose commit git knows."""
    spec = importlib.util.find_spec("secateur")
    return spec is not None and Path(str(spec.origin)).resolve().is_relative_to(history.ROOT / "src")


COMMIT = history.head() if _from_this_repository() else None  # when this process started


def as_text(value: Any, depth: int = 0) -> str:
    """Return JSON with one line for each innermost object, so that a changed row is one changed line."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if depth and not any(map(_has_object, inner)):
        return json.dumps(value)
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(key))}: {as_text(one, depth + 1)}" for key, one in value.items()]
    else:
        parts = [as_text(one, depth + 1) for one in inner]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return f"{start}\n" + ",\n".join(" " * (depth + 1) + part for part in parts) + f"\n{' ' * depth}{end}"


def _has_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(map(_has_object, value)))


class Rows:
    """The rows of a benchmark that can be stopped and started again, in results/partial/NAME.jsonl.

    A run begins with a line of its provenance, `{"run": {...}}`; each row that it measures is a line below.
    `settings` are constants of the script that rows must agree on; rows of other settings are passed over.
    """

    def __init__(self, name: str, settings: dict[str, Any] | None = None, root: Path = history.ROOT) -> None:
        self.name, self.root, self.path = name, root, root / "results" / "partial" / f"{name}.jsonl"
        self.settings = json.loads(json.dumps(settings))
        self._run: dict[str, Any] | None = None

    def read(self, keep: Keep = "all") -> list[Row]:
        """Return the rows, oldest first, each with the `commit` that measured it; None if it was modified.

        Args:
            keep: "current" leaves out rows of code that has changed since; "none" leaves out all.
        """
        rows: list[Row] = []
        run: dict[str, Any] = {"commit": None}
        for line in self.path.read_text().splitlines() if self.path.exists() and keep != "none" else ():
            try:
                found = json.loads(line)
            except json.JSONDecodeError:  # cut short by a stop
                continue
            if "run" in found:
                run = found["run"]
            elif run.get("settings") == self.settings and (keep == "all" or self._current(run)):
                rows.append(found | {"commit": _commit(run)})
        return rows

    def remarks(self, commits: Iterable[str | None]) -> list[str]:
        """Return what the runs of these commits say about themselves, in `remarks` of their provenance."""
        lines = self.path.read_text().splitlines() if self.path.exists() else ()
        runs = [json.loads(line)["run"] for line in lines if line.startswith('{"run"')]
        return [remark for run in runs if run["commit"] in commits for remark in run.get("remarks", ())]

    def add(self, row: Row) -> Row:
        """Append a row, after the provenance of this run if it is the first; return it with its commit."""
        if self._run is None:
            self._begin()
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return row | {"commit": _commit(self._run)}

    def _begin(self) -> None:
        self._run = provenance(self.name) | ({} if self.settings is None else {"settings": self.settings})
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a") as file:
            file.write(("" if whole else "\n") + json.dumps({"run": self._run}) + "\n")

    def _current(self, run: dict[str, Any]) -> bool:
        commit = _commit(run)
        if commit is None:
            return False
        try:
            later = history.changes(commit, BY_NAME[self.name].measures, self.root)
        except history.UnknownCommit:
            return False
        return all(change.same_numbers for change in later)


def _commit(run: dict[str, Any]) -> str | None:
    return None if run.get("modified") else run["commit"]
