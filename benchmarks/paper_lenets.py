"""Gather what `secateur train` reached with the paper's settings for the LeNets.

for k in 0 1 2; do secateur train lenet300100 --network $k --out runs/lenet300100; done
for k in 0 1 2; do secateur train lenet5 --network $k --out runs/lenet5; done
python benchmarks/paper_lenets.py --runs runs                     # writes results/paper_lenets.json
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

from environment import RESULTS, versions, write_whole

WANTED = {"lenet300100": (1.75, 1.59), "lenet5": (0.85, 0.72)}  # test error in percent: asked for, in the paper
RECORD = RESULTS / "paper_lenets.json"


def main() -> None:
    """Read the runs, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    args = parser.parse_args()
    rows = []
    for name, (asked, paper) in WANTED.items():
        files = sorted((args.runs / name).glob("network-*/original.json"))
        found = [json.loads(file.read_text()) for file in files]
        errors = [round(100 - 100 * one["test"]["top1"], 2) for one in found]
        validation = [round(100 - 100 * one["validation"]["top1"], 2) for one in found]
        mean = round(statistics.mean(errors), 3)
        rows.append(
            {"recipe": name, "test_error": errors, "mean": mean, "validation_error": validation, "asked": asked,
             "paper": paper}
        )  # fmt: skip
        print(f"{name}: test error {errors}, mean {mean} %; asked for at most {asked} %, in the paper {paper} %")
    write_whole(RECORD, json.dumps({"rows": rows, "versions": versions("secateur", "torch")}, indent=1) + "\n")


if __name__ == "__main__":
    main()
