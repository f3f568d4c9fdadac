"""Store the results of runs in one file each, and write docs/reproduction.md from the stored results.

    python benchmarks/reproduction.py --runs runs        # stores runs/RECIPE as results/reproduction/RECIPE.json
    python benchmarks/reproduction.py                    # writes the page only

Runs come from `secateur sweep RECIPE --out runs/RECIPE` or `secateur reproduce NAME --runs runs`; those of quick
recipes are left out, and unfinished ones are stored as far as they are. Results that are stored already and that a
folder does not have are kept, so that several machines can add to them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import reproduction_page
from environment import RESULTS, as_text, options, provenance, write_atomic, write_record
from history import ROOT
from secateur.errors import UsageError
from secateur.experiments import recipe as recipes
from secateur.report.records import read_records
from secateur.reproduction import items
from secateur.reproduction.allocation import FILE
from secateur.reproduction.claims import checked
from secateur.reproduction.points import Results, results
from secateur.reproduction.stored import compact, read_run, restore

STORED, PAGE = RESULTS / "reproduction", ROOT / "docs" / "reproduction.md"
QUICK = ("-quick", "-smoke")


def store(runs: Path) -> None:
    """Store every run of a packaged recipe that has results."""
    STORED.mkdir(exist_ok=True)
    for name in recipes.names():
        folder = runs / name
        if name.endswith(QUICK) or not (folder / "recipe.json").is_file():
            continue
        if (folder / FILE).is_file():
            write_atomic(STORED / f"{name}-{FILE}", (folder / FILE).read_text())
        try:
            restore(STORED, recipes.read(name), folder)  # what is stored and not in the folder stays stored
        except UsageError as error:
            print(f"{name}: the stored results are replaced, {error.cause}")
        records = read_records(folder)
        if records.originals and records.steps:
            head = {"command": f"secateur sweep {name}", "stored_by": provenance("reproduction")}
            write_atomic(STORED / f"{name}.json", as_text(head | compact(records)) + "\n")
            print(f"{name}: {len(records.steps)} results; missing: {', '.join(records.missing) or 'nothing'}")


def find(names: Sequence[str]) -> Results | None:
    """Return the stored results of the first of some recipes that has any."""
    labels = {run.recipe: run.label for name in items.names() for run in items.read(name).runs}
    labels |= {run.short: run.label for name in items.names() for run in items.read(name).runs if run.short}
    for name in names:
        records = read_run(STORED, name)
        if records is not None and records.originals and records.steps:
            return results(labels.get(name, name), records)
    return None


def page() -> str:
    """Return the page from the stored results."""
    path = RESULTS / "reproduce_quick.json"
    return reproduction_page.page(STORED, find, json.loads(path.read_text()) if path.is_file() else None)


def main() -> None:
    """Store the runs if a folder is given, and write the page."""
    parser = options(__doc__)
    parser.add_argument("--runs", type=Path, help="folder with the runs")
    args = parser.parse_args()
    if args.runs:
        store(args.runs)
    stored = sorted(path.stem for path in STORED.glob("*.json"))
    write_record("reproduction", {"stored": stored, "claims": checked(find)})
    write_atomic(PAGE, page())
    reproduction_page.draw(STORED, PAGE.parent / reproduction_page.FOLDER)


if __name__ == "__main__":
    main()
