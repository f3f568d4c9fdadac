"""Cut thousands of random networks and compare each with its masked original.

    python benchmarks/random_architectures.py                 # 10,000 networks; stop and start again at will
    python benchmarks/random_architectures.py --count 500     # fewer: prints only
    python benchmarks/random_architectures.py --replay 4711   # one of them again, with its spec and the whole error

The same blocks, specs and checks as in tests/properties, with seeds 0, 1, 2, ...
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from collections import Counter
from typing import Any

from environment import Keep, Rows, add_keep_option, options, prepare, progress_bar, tests_on_path, write_record

tests_on_path()

COUNT = 10_000


def one(seed: int) -> dict[str, Any]:
    """Cut one network and return its row: cut, kept, wrong, refused or crashed."""
    import secateur as sc
    from support.networks.architectures import random_spec
    from support.networks.checks import check

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
    import support.networks.checks  # noqa: F401  loads torch and secateur

    prepare(1)
    gc.freeze()  # everything loaded now stays, so that no collection needs to examine it


def run(count: int, jobs: int, keep: Keep) -> None:
    """Run the seeds that are not done yet, and write the record."""
    rows = Rows("random_architectures")
    done = {row["seed"] for row in rows.read(keep)}
    seeds = [seed for seed in range(count) if seed not in done]
    spawn = multiprocessing.get_context("spawn")
    # A worker lives for 200 networks, since torch.export leaks memory.
    with progress_bar() as progress, spawn.Pool(jobs, _start, maxtasksperchild=20) as pool:
        task = progress.add_task("random architectures", total=count, completed=count - len(seeds))
        bad = 0
        for row in pool.imap_unordered(one, seeds, chunksize=10):
            rows.add(row)
            if row["outcome"] in ("wrong", "crashed"):
                bad += 1
                progress.console.print(f"seed {row['seed']} {row['outcome']}: {row['error']}", markup=False)
            progress.update(task, advance=1, description=f"random architectures, {bad} wrong or crashed")
    gather(rows, count)


def gather(rows: Rows, count: int) -> None:
    """Write and print the record: counts, the worst difference, and the rows of all that failed."""
    last = {row["seed"]: row for row in rows.read() if row["seed"] < count}
    found = [last[seed] for seed in sorted(last)]
    outcomes = Counter(row["outcome"] for row in found)
    cut = [row for row in found if row["outcome"] == "cut"]
    refusals = Counter(row["error"].splitlines()[0][:160] for row in found if row["outcome"] == "refused")
    summary = {
        "networks": len(found),
        "cut": outcomes["cut"],
        "kept_only": outcomes["kept"],
        "wrong": outcomes["wrong"],
        "refused": outcomes["refused"],
        "crashed": outcomes["crashed"],
        "worst_difference": max((row["difference"] for row in cut), default=0.0),
        "mean_removed": round(sum(row["removed"] for row in cut) / max(1, len(cut)), 4),
        "seconds": round(sum(row["seconds"] for row in found)),
        "seconds_each": round(sum(row["seconds"] for row in found) / max(1, len(found)), 2),
        "refusals": dict(refusals.most_common()),
        "failed": [row for row in found if row["outcome"] in ("wrong", "crashed")],
    }
    if count >= COUNT:
        write_record("random_architectures", summary, commits={row["commit"] for row in found})
    print(json.dumps({key: value for key, value in summary.items() if key != "failed"}, indent=1))


def replay(seed: int) -> None:
    """Run one network and let its error through."""
    from support.networks.architectures import random_spec
    from support.networks.checks import check

    _start()
    print(random_spec(seed))
    print(check(random_spec(seed)))


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="of networks (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run one network and let its error through")
    add_keep_option(parser)
    args = parser.parse_args()
    if args.replay is None:
        run(args.count, args.jobs, args.keep)
    else:
        replay(args.replay)


if __name__ == "__main__":
    main()
