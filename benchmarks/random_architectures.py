"""Cut thousands of random networks and compare each with its masked original.

    python benchmarks/random_architectures.py                 # 10,000 networks; stop and start again at will
    python benchmarks/random_architectures.py --count 500 --jobs 1
    python benchmarks/random_architectures.py --replay 4711   # one of them again, with its spec and the whole error

The same blocks, specs and checks as in tests/properties, over seeds 0, 1, 2, ...
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import platform
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from environment import PARTIAL, RESULTS, append_record, progress_bar, read_records, versions, write_whole

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "properties"))

LINES = PARTIAL / "random_architectures.jsonl"
RECORD = RESULTS / "random_architectures.json"


def one(seed: int) -> dict[str, Any]:
    """Cut one network and say how it went: cut, kept, wrong, refused or crashed."""
    from architectures import random_spec
    from checks import check

    import secateur as sc

    started = time.perf_counter()
    record: dict[str, Any] = {"seed": seed}
    try:
        checked = check(random_spec(seed))
        record |= {
            "outcome": "cut" if checked.cut else "kept",
            "difference": checked.difference,
            "removed": round(checked.removed, 3),
        }
    except AssertionError as error:
        record |= {"outcome": "wrong", "error": str(error)[:300]}
    except sc.SecateurError as error:
        record |= {"outcome": "refused", "error": str(error)[:300]}
    except Exception as error:
        record |= {"outcome": "crashed", "error": f"{type(error).__name__}: {error}"[:300]}
    return record | {"seconds": round(time.perf_counter() - started, 3)}


def _start() -> None:
    import checks  # noqa: F401  brings torch and secateur along
    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    gc.freeze()  # what is loaded now stays, so that no collection need look at it


def run(count: int, jobs: int) -> None:
    """Run the seeds that are not done yet, and write the record."""
    done = {record["seed"] for record in read_records(LINES)}
    seeds = [seed for seed in range(count) if seed not in done]
    spawn = multiprocessing.get_context("spawn")
    # A worker lives for 200 networks: torch.export leaves memory behind.
    with progress_bar() as progress, spawn.Pool(jobs, _start, maxtasksperchild=20) as pool:
        task = progress.add_task("random architectures", total=count, completed=count - len(seeds))
        bad = 0
        for record in pool.imap_unordered(one, seeds, chunksize=10):
            append_record(LINES, record)
            if record["outcome"] in ("wrong", "crashed"):
                bad += 1
                progress.console.print(f"seed {record['seed']} {record['outcome']}: {record['error']}", markup=False)
            progress.update(task, advance=1, description=f"random architectures, {bad} wrong or crashed")
    gather(count)


def gather(count: int) -> None:
    """Write results/random_architectures.json: counts, the worst difference, and the seeds of all that failed."""
    records = sorted({r["seed"]: r for r in read_records(LINES) if r["seed"] < count}.values(), key=lambda r: r["seed"])
    outcomes = Counter(record["outcome"] for record in records)
    cut = [record for record in records if record["outcome"] == "cut"]
    refusals = Counter(record["error"].splitlines()[0][:160] for record in records if record["outcome"] == "refused")
    summary = {
        "networks": len(records),
        "cut": outcomes["cut"],
        "kept_only": outcomes["kept"],
        "wrong": outcomes["wrong"],
        "refused": outcomes["refused"],
        "crashed": outcomes["crashed"],
        "worst_difference": max((record["difference"] for record in cut), default=0.0),
        "mean_removed": round(sum(record["removed"] for record in cut) / max(1, len(cut)), 4),
        "seconds": round(sum(record["seconds"] for record in records)),
        "seconds_each": round(sum(record["seconds"] for record in records) / max(1, len(records)), 2),
        "refusals": dict(refusals.most_common()),
        "failed": [record for record in records if record["outcome"] in ("wrong", "crashed")],
        "versions": {"python": platform.python_version(), **versions("torch", "secateur")},
    }
    write_whole(RECORD, json.dumps(summary, indent=1) + "\n")
    print(json.dumps({key: value for key, value in summary.items() if key != "failed"}, indent=1))


def replay(seed: int) -> None:
    """Run one network again and let the error through."""
    from architectures import random_spec
    from checks import check

    _start()
    print(random_spec(seed))
    print(check(random_spec(seed)))


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--replay", type=int, metavar="SEED")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run has done")
    args = parser.parse_args()
    if args.replay is not None:
        replay(args.replay)
        return
    if args.fresh:
        LINES.unlink(missing_ok=True)
    run(args.count, args.jobs)


if __name__ == "__main__":
    main()
