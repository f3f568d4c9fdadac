"""Gather the test errors that `secateur train` reaches with the paper's settings for the LeNets.

for k in 0 1 2; do secateur train lenet300100 --network $k --out runs/lenet300100; done
for k in 0 1 2; do secateur train lenet5 --network $k --out runs/lenet5; done
python benchmarks/paper_lenets.py --runs runs                     # writes results/paper_lenets.json
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from environment import options, write_record

WANTED = {"lenet300100": (1.75, 1.59), "lenet5": (0.85, 0.72)}  # test error in percent: our limit, in the paper


def main() -> None:
    """Read the runs, print the test errors and write the record."""
    parser = options(__doc__)
    parser.add_argument("--runs", type=Path, required=True, help="folder with the networks that `secateur train` wrote")
    args = parser.parse_args()
    rows = []
    for name, (asked, paper) in WANTED.items():
        files = sorted((args.runs / name).glob("network-*/original.json"))
        if not files:
            parser.error(f"{args.runs / name} has no trained network: run `secateur train {name}` first, see above")
        found = [json.loads(file.read_text()) for file in files]
        errors = [round(100 - 100 * one["test"]["top1"], 2) for one in found]
        validation = [round(100 - 100 * one["validation"]["top1"], 2) for one in found]
        mean = round(statistics.mean(errors), 3)
        rows.append(
            {"recipe": name, "test_error": errors, "mean": mean, "validation_error": validation, "asked": asked,
             "paper": paper}
        )  # fmt: skip
        print(f"{name}: test error {errors}, mean {mean} %; our limit {asked} %, in the paper {paper} %")
    write_record("paper_lenets", {"rows": rows})


if __name__ == "__main__":
    main()
