"""Time the miniatures of the paper's tables and figures, one after the other, on one core.

    python benchmarks/reproduce_quick.py --data DIR --runs DIR      # writes results/reproduce_quick.json

Each is `secateur reproduce NAME --quick` in a process of its own; `make reproduce` runs all of them. The folder of runs
must be new: what is finished there would take no time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from environment import add_data_option, options, print_rows, write_record
from secateur.reproduction import items
from secateur.reproduction.reproduce import chosen


def measure(name: str, data: Path, runs: Path) -> dict[str, Any]:
    """Run the miniature of an item; return its processor time and how many files it has written."""
    command = [sys.executable, "-m", "secateur", "reproduce", name, "--quick", "--quiet"]
    out = runs / "reproduction" / name
    command += ["--data", str(data), "--runs", str(runs), "--out", str(out)]
    before = _cpu_seconds()
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return {"item": name, "cpu_seconds": round(_cpu_seconds() - before, 1), "files": sum(1 for _ in out.iterdir())}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run every miniature and write the record."""
    parser = options(__doc__)
    add_data_option(parser, "the data sets and weights/")
    parser.add_argument("--runs", type=Path, required=True, help="new folder for the runs")
    args = parser.parse_args()
    if args.runs.exists() and any(args.runs.iterdir()):
        parser.error(f"--runs: {args.runs} is not empty")
    names = [name for name in items.names() if chosen(items.read(name), "quick")]
    rows = []
    for name in names:
        rows.append(measure(name, args.data.resolve(), args.runs))
        print(f"{name}: {rows[-1]['cpu_seconds']} s of processor time", flush=True)
    total = sum(row["cpu_seconds"] for row in rows)
    note = "items later in the list use runs of earlier ones"
    write_record("reproduce_quick", {"cpu_seconds": round(total, 1), "note": note, "rows": rows})
    print_rows({"item": "item", "CPU seconds": "cpu_seconds", "files": "files"}, rows)


if __name__ == "__main__":
    main()
