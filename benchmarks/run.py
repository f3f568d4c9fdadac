"""List the records in results/ with their age, and measure again those that are older than the code.

    python benchmarks/run.py --list                            # every record: fresh or stale, and why
    python benchmarks/run.py --stale --data DIR --dry-run      # the commands that would run
    python benchmarks/run.py --stale --data DIR                # run them; stop and start again at will
    python benchmarks/run.py --stale --data DIR --only quality

A record is stale if a file that its script measures (`measures` in catalogue.py) has changed since the record's commit.
Commits that are known to change no number (`SAME_NUMBERS` in history.py) do not count. A stopped `--stale` continues:
records that are fresh by then are skipped, and the long benchmarks keep the rows that the present code has measured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from catalogue import BENCHMARKS, BY_NAME, Benchmark
from history import ROOT, Change, UnknownCommit, changes, git, head, uncommitted


@dataclass(frozen=True)
class Age:
    """A record's commit and date, and whether the measured code has changed since."""

    benchmark: Benchmark
    commit: str | None
    date: str | None
    state: str  # fresh, stale or missing
    reason: str


def age(benchmark: Benchmark, root: Path = ROOT) -> Age:
    """Return how old the record of a benchmark is.

    >>> age(BY_NAME["certificates"]).state
    'fresh'
    """
    path = root / "results" / f"{benchmark.name}.json"
    if not path.exists():
        return Age(benchmark, None, None, "missing", f"results/{path.name} does not exist")
    record = json.loads(path.read_text())
    reasons = stale_because(benchmark, record, root)
    state = "stale" if reasons else "fresh"
    return Age(
        benchmark, record["commit"], record["date"], state, "; ".join(reasons) or unchanged(record, benchmark, root)
    )


def stale_because(benchmark: Benchmark, record: dict[str, Any], root: Path) -> list[str]:
    """Return the reasons why a record no longer describes the code; none for a fresh one."""
    commits = record.get("commits", [record["commit"]])
    if None in commits:
        return ["it does not say which commit measured it, or some of its rows"]
    try:
        later = {commit: _that_count(changes(commit, benchmark.measures, root)) for commit in commits}
    except UnknownCommit as error:
        return [f"commit {error} is not in this repository"]
    reasons = []
    oldest = max(later, key=lambda commit: len(later[commit]))
    if found := later[oldest]:
        files = list(dict.fromkeys(_short(file) for change in found for file in change.files))
        which = ", ".join(files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")
        since = "" if oldest == record["commit"] else f" since {oldest[:7]}, which measured the oldest rows"
        last = f"{found[0].commit} {textwrap.shorten(found[0].subject, 60, placeholder=' ...')!r}"
        reasons.append(f"{len(found)} commit{'s' if len(found) > 1 else ''} changed {which}{since}; the last is {last}")
    if record.get("modified"):
        reasons.append(f"it was measured with uncommitted changes in {', '.join(map(_short, record['modified']))}")
    if dirty := uncommitted(benchmark.measures, root):
        reasons.append(f"uncommitted changes in {', '.join(map(_short, dirty))}")
    return reasons


def unchanged(record: dict[str, Any], benchmark: Benchmark, root: Path) -> str:
    """Say why a record is fresh."""
    later = [change.commit for change in changes(record["commit"], benchmark.measures, root)]
    return f"only moved or renamed, in {', '.join(later)}" if later else "no change since"


def _that_count(found: tuple[Change, ...]) -> list[Change]:
    return [change for change in found if not change.same_numbers]


def _short(path: str) -> str:
    return path.removeprefix("src/secateur/")


def show(ages: list[Age]) -> None:
    """Print a table of all records."""
    table = Table("script", "record", "commit", "date", "state", "reason", box=box.SIMPLE_HEAD)
    for one in ages:
        name, colour = one.benchmark.name, "green" if one.state == "fresh" else "red"
        when = (one.date or "-")[:10]
        cells = (f"{name}.py", f"{name}.json", (one.commit or "-")[:7], when)
        table.add_row(*cells, f"[{colour}]{one.state}[/]", one.reason.replace("[", "\\["))
    console = Console() if sys.stdout.isatty() else Console(width=200)
    console.print(table)
    console.print(f"{sum(one.state == 'fresh' for one in ages)} of {len(ages)} records are fresh")


def lacking(benchmark: Benchmark, data: Path | None) -> str | None:
    """Return what must be there before a benchmark can run, or None."""
    if data is None and "{data}" in " ".join((benchmark.command, *(command for _, command in benchmark.before))):
        return "--data DIR"
    missing = [name for name in benchmark.packages if not _installed(name)]
    return f"the package{'s' if len(missing) > 1 else ''} {', '.join(missing)}" if missing else None


def _installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def commands(benchmark: Benchmark, data: Path | None, runs: Path) -> list[list[str]]:
    """Return the commands to run; one whose product is there already is left out."""
    folders = {"data": shlex.quote(str(data)), "runs": shlex.quote(str(runs))}
    needed = [command for product, command in benchmark.before if not Path(product.format(**folders)).exists()]
    return [_program(shlex.split(command.format(**folders))) for command in (*needed, benchmark.command)]


def _program(words: list[str]) -> list[str]:
    start = {"python": [sys.executable], "secateur": [sys.executable, "-m", "secateur"]}
    return [*start[words[0]], *words[1:]]


def measure(ages: list[Age], data: Path | None, runs: Path, *, dry_run: bool, root: Path = ROOT) -> int:
    """Run the benchmarks whose records are not fresh; return how many could not be brought up to date."""
    open_ = [one for one in ages if one.state != "fresh"]
    left: list[str] = []
    for one in open_:
        print(f"{one.benchmark.name} ({one.state}): {one.reason}", flush=True)
        if what := lacking(one.benchmark, data):
            print(f"  skipped: it needs {what}")
            left.append(f"{one.benchmark.name} was skipped")
            continue
        for command in commands(one.benchmark, data, runs):
            print(f"  {shlex.join(command)}", flush=True)
            if not dry_run and subprocess.run(command, cwd=root, check=False).returncode:
                left.append(f"{one.benchmark.name} failed")
                break
        else:
            if not dry_run and (now := age(one.benchmark, root)).state != "fresh":
                left.append(f"{one.benchmark.name} is still {now.state}: {now.reason}")
    if not open_:
        print("nothing to do: the records are fresh")
    print("\n".join(left), end="\n" if left else "")
    return len(left)


def main() -> None:
    """Read the command line, then list or run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--list", action="store_true", help="print every record and whether it is stale")
    what.add_argument("--stale", action="store_true", help="run the benchmarks whose records are stale or missing")
    parser.add_argument("--only", metavar="NAME", choices=list(BY_NAME), help="one benchmark: %(choices)s")
    data = os.environ.get("SECATEUR_DATA")
    parser.add_argument("--data", type=Path, default=data, help="folder with data and weights (default: SECATEUR_DATA)")
    parser.add_argument(
        "--runs", type=Path, help="folder for trained networks (default: one in runs/ for this version of src)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and run nothing")
    args = parser.parse_args()
    if head() is None:
        parser.error("the age of records needs git and this repository; neither an sdist nor a copy will do")
    ages = [age(BY_NAME[args.only])] if args.only else [age(benchmark) for benchmark in BENCHMARKS]
    if args.list:
        show(ages)
        return
    runs = args.runs or ROOT / "runs" / git(ROOT, "log", "-1", "--abbrev=10", "--format=%h", "--", "src").strip()
    sys.exit(1 if measure(ages, args.data and args.data.resolve(), runs.resolve(), dry_run=args.dry_run) else 0)


if __name__ == "__main__":
    main()
