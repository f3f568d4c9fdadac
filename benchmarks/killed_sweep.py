"""Kill a small sweep with SIGKILL at random moments, start it again each time, and compare how it ends.

python benchmarks/killed_sweep.py --kills 20         # writes results/killed_sweep.json

The sweep trains LeNet-5 (6-16-120-84) on 256 of the package's digits, prunes it twice and retrains it. When it has
come through, another one is begun, until there were so many kills. The files that a result is made of must equal, byte
for byte, those of a sweep that was never killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from environment import RESULTS, progress_bar, versions, write_whole

RECORD = RESULTS / "killed_sweep.json"
TESTS = Path(__file__).resolve().parent.parent / "tests"


def main() -> None:
    """Run one sweep in peace and one under fire."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.path.insert(0, str(TESTS))
    from small_runs import write_digits, write_recipe
    from test_loop import fingerprints

    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        data, recipe = write_digits(root / "data"), write_recipe(root, "train: {epochs: 6}\nretrain: {epochs: 6}\n")
        command = [sys.executable, "-m", "secateur", "sweep", str(recipe), "--data", str(data), "--resume", "--out"]
        started = time.perf_counter()
        subprocess.run([*command, str(root / "peace")], check=True, capture_output=True)
        whole = time.perf_counter() - started
        pick, moments, sweeps = random.Random(args.seed), list[str](), 0
        same = True
        with progress_bar() as bar:
            task = bar.add_task("kills", total=args.kills)
            while len(moments) < args.kills:
                fire = root / f"fire-{sweeps}"
                while len(moments) < args.kills and (moment := _kill_once([*command, str(fire)], fire, pick)):
                    moments.append(moment)
                    bar.advance(task)
                subprocess.run([*command, str(fire)], check=True, capture_output=True)
                same = same and fingerprints(root / "peace") == fingerprints(fire)
                sweeps += 1
    record = {
        "what": "a sweep killed at random moments and resumed, against one that was not: result files byte for byte",
        "kills": len(moments),
        "sweeps": sweeps,
        "killed_while": moments,
        "seconds_of_the_whole_sweep": round(whole, 1),
        "same": same,
        "seed": args.seed,
        "versions": versions("secateur", "torch"),
    }
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")
    print(f"{len(moments)} kills, same result: {same}")
    sys.exit(0 if same else 1)


def _kill_once(command: list[str], folder: Path, pick: random.Random) -> str | None:
    """Start the sweep and kill it a moment after it begins to write; say how far it was, nothing if it had ended."""
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
