"""Kill a small sweep with SIGKILL at random moments, start it again each time, and compare the results.

    python benchmarks/killed_sweep.py                    # 20 kills; writes results/killed_sweep.json
    python benchmarks/killed_sweep.py --kills 2          # fewer: prints only

The sweep trains LeNet-5 (6-16-120-84) on 256 of the package's digits, prunes it twice and retrains it. When a sweep has
finished, another one begins, until there are enough kills. The result files must equal, byte for byte, those of a sweep
that was never killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import options, progress_bar, tests_on_path, write_record

KILLS = 20


def main() -> None:
    """Run one sweep undisturbed and others with kills."""
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    args = parser.parse_args()
    tests_on_path()
    from support.small_runs import fingerprints, write_digits, write_recipe

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        data, recipe = write_digits(root / "data"), write_recipe(root, "train: {epochs: 6}\nretrain: {epochs: 6}\n")
        command = [sys.executable, "-m", "secateur", "sweep", str(recipe), "--data", str(data), "--resume", "--out"]
        started = time.perf_counter()
        subprocess.run([*command, str(root / "undisturbed")], check=True, capture_output=True)
        uninterrupted = time.perf_counter() - started
        pick, moments, sweeps = random.Random(args.seed), list[str](), 0
        same = True
        with progress_bar() as bar:
            task = bar.add_task("kills", total=args.kills)
            while len(moments) < args.kills:
                killed = root / f"killed-{sweeps}"
                while len(moments) < args.kills and (moment := _kill_once([*command, str(killed)], killed, pick)):
                    moments.append(moment)
                    bar.advance(task)
                subprocess.run([*command, str(killed)], check=True, capture_output=True)
                same = same and fingerprints(root / "undisturbed") == fingerprints(killed)
                sweeps += 1
    record = {
        "what": "a sweep killed at random moments and resumed, against one that was not: result files byte for byte",
        "kills": len(moments),
        "sweeps": sweeps,
        "killed_while": moments,
        "seconds_uninterrupted": round(uninterrupted, 1),
        "same": same,
        "seed": args.seed,
    }
    if args.kills >= KILLS:
        write_record("killed_sweep", record)
    print(f"{len(moments)} kills, same result: {same}")
    sys.exit(0 if same else 1)


def _kill_once(command: list[str], folder: Path, pick: random.Random) -> str | None:
    """Start the sweep and kill it soon after it begins to write; return how far it was, None if it had ended."""
    before = _state(folder)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and _state(folder) == before:
        time.sleep(0.005)
    time.sleep(pick.random() * 0.5)
    if process.poll() is not None:
        return None
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = [path for path in folder.rglob("*.json") if path.name != "recipe.json"]
    names = ", ".join(sorted(str(path.relative_to(folder)) for path in done)) or "nothing"
    return f"working, with {names} done"


def _state(folder: Path) -> list[tuple[str, int]]:
    found = []
    for path in folder.rglob("*") if folder.exists() else ():
        try:
            found.append((str(path), path.stat().st_mtime_ns))
        except FileNotFoundError:  # a temporary file, renamed meanwhile
            continue
    return sorted(found)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
