"""Store the results of runs in one file each, and write docs/reproduction.md from the stored results.

    python benchmarks/reproduction.py --runs runs        # stores runs/RECIPE as results/reproduction/RECIPE.json
    python benchmarks/reproduction.py                    # writes the page only

Runs come from `secateur sweep RECIPE --out runs/RECIPE` or `secateur reproduce NAME --runs runs`; those of quick
recipes are left out, and unfinished ones are stored as far as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environment import RESULTS, as_text, options, provenance, write_atomic, write_record
from history import ROOT
from secateur import rows as forms
from secateur.experiments import recipe as recipes
from secateur.report.records import read_records
from secateur.reproduction import items
from secateur.reproduction.allocation import FILE
from secateur.reproduction.claims import checked
from secateur.reproduction.points import Results, results
from secateur.reproduction.reproduce import rendered
from secateur.reproduction.stored import compact, read_run

STORED, PAGE = RESULTS / "reproduction", ROOT / "docs" / "reproduction.md"
QUICK = ("-quick", "-smoke")
HEAD = """# The paper, reproduced

Every table and figure of the paper beside our own runs. `benchmarks/reproduction.py` writes this page from the records
in `results/reproduction`; `secateur reproduce NAME` runs and renders each of them, `--plan` says how long that takes,
`--quick` runs a miniature. Errors and changes are in percentage points on test data, selected on validation data; PR
and FR are the parts of parameters and MACs removed. A dash means that there is no run or no published value.

```sh
secateur reproduce table-lenet --plan
secateur reproduce table-lenet --runs runs
```
"""


def store(runs: Path) -> None:
    """Store every run of a packaged recipe that has results."""
    STORED.mkdir(exist_ok=True)
    for name in recipes.names():
        folder = runs / name
        if name.endswith(QUICK) or not (folder / "recipe.json").is_file():
            continue
        if (folder / FILE).is_file():
            write_atomic(STORED / f"{name}-{FILE}", (folder / FILE).read_text())
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
    """Return the page: all claims, then all tables and figures."""
    parts = [HEAD, "## The claims of the text\n", forms.markdown(checked(find)), ""]
    for name in items.names():
        found = rendered(items.read(name), "full", STORED)
        rows = found.rows if found.item.kind != "settings" else []
        parts += [f"## {found.item.title}\n", f"`secateur reproduce {name}`: {found.item.paper}.\n"]
        parts += [forms.markdown(rows, formats=found.formats), ""] if rows else []
        if found.item.kind == "settings":
            parts.append("The settings are those of the packaged recipes; the command prints them as a table.\n")
        parts += [f"{found.item.note}\n"] if found.item.note else []
        parts += [f"- Missing: {text}" for text in found.missing] + [""] * bool(found.missing)
    return "\n".join(parts).rstrip() + "\n"


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


if __name__ == "__main__":
    main()
