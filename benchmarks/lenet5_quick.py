"""Train, prune and retrain LeNet-5 with the recipe lenet5-quick, and record the error at every target.

    python benchmarks/lenet5_quick.py --data DIR --out DIR     # writes results/lenet5_quick.json; minutes on one core

Stopped, it continues from the folder --out.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from environment import add_data_option, options, prepare, write_record
from secateur.experiments import recipe as recipes
from secateur.experiments.sweep import sweep
from secateur.report.sweep import as_text, read_run


def main() -> None:
    """Run the sweep, write the record and print it."""
    parser = options(__doc__, threads=1)
    add_data_option(parser, "MNIST/raw")
    parser.add_argument("--out", type=Path, required=True, help="folder for the networks of the sweep")
    args = parser.parse_args()
    prepare(args.threads)
    sweep(recipes.read("lenet5-quick"), args.out, resume=True, data_root=args.data)
    found = read_run(args.out)
    write_record("lenet5_quick", found.as_dict())
    Console().print(as_text(found))


if __name__ == "__main__":
    main()
