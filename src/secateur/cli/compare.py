"""`secateur compare`: find the method that suits a network."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import secateur as sc
from secateur.cli import options
from secateur.cli.inputs import Cutting, Subject, check_out
from secateur.cli.options import BUDGET, DATA, METHOD, OUTPUT, count, option
from secateur.cli.screen import TableScreen, heading, unwrapped
from secateur.errors import SecateurError, UsageError
from secateur.methods import METHODS
from secateur.pruning import budget
from secateur.pruning.compare import HELD
from secateur.pruning.comparison import Comparison
from secateur.pruning.variants import variants
from secateur.storage.files import write_json
from secateur.tables import paragraphs

ON = "Labelled data to evaluate on, never the test data; without it, output divergence on held-out samples."
LIST = f"Of {', '.join(METHODS)}, with options: pfp:pivotal, pfp~mean, ft@residual, ft+repair."


def compare(
    *,
    subject: Subject,
    params: Annotated[str | None, option(BUDGET, "LIMITS", "Parameters that may remain: 70%,50%,30% or 300k.")] = None,
    macs: Annotated[str | None, option(BUDGET, "LIMITS", "Multiply-accumulates that may remain: 50%,30%.")] = None,
    on: Annotated[str | None, option(DATA, "SOURCE", ON)] = None,
    on_samples: Annotated[int, count(DATA, "Samples of --on, at most.")] = 10_000,
    out: Annotated[Path | None, option(OUTPUT, "FILE", "File for all figures as JSON, after every network.")] = None,
    force: options.Force = False,
    screen: TableScreen,
    methods: Annotated[str | None, option(METHOD, "LIST", LIST, show_default="all that the data allows")] = None,
    repair: Annotated[bool, option(METHOD, "", "Evaluate every method with and without a repair.", "--repair")] = False,
    repeats: Annotated[int, count(METHOD, "Repeat with N calibration sets.")] = 1,
    cutting: Cutting,
) -> None:
    """Prune MODEL by several methods under several budgets, and evaluate all on the same data."""
    limits = _limits(params=params, macs=macs)
    chosen = None if methods is None else [text.strip() for text in methods.split(",")]
    if chosen is not None:
        variants(chosen)  # refused before anything takes time
    if out is not None:
        check_out(out, force)
    loaded = subject.load(screen, repeats * subject.samples + (HELD if on is None else 0))
    labelled = None if on is None else subject.read_unseen(on, loaded.example, on_samples)
    if labelled is not None and not labelled.labelled:
        remedy = "put x and y into one .npz, or yield pairs (x, y) from path/to/file.py:FACTORY; or leave --on out"
        raise UsageError(f"{on} has no labels", layer="--on", remedy=remedy)
    head = loaded.head | {"on": labelled and labelled.origin}
    done = 0

    def record(found: Comparison) -> dict[str, Any]:
        return head | found.info | {"notes": [*found.notes, *loaded.notes]}

    def write(so_far: Comparison) -> None:
        nonlocal done
        if out is not None:
            write_json(out, record(so_far))
            done = len(so_far.cells)

    try:
        found = sc.compare(
            loaded.network,
            loaded.data.batches,
            limits,
            chosen,
            on=labelled,
            repair=repair,
            repeats=repeats,
            samples=subject.samples,
            seed=subject.seed,
            example=loaded.example,
            progress=screen.live,
            after_each=write,
            **cutting.settings,
        )
    except KeyboardInterrupt:
        if done:
            typer.echo(f"{out} has the figures of {done} networks, marked as unfinished", err=True)
        raise
    write(found)
    where = "that were held out" if labelled is None else f"of {labelled.origin}"
    screen.show_table(
        record(found),
        [asdict(row) for row in found.rows],
        *heading(
            subject.model,
            f"{found.samples} samples of {loaded.data.origin}, evaluated on {found.evaluated:,} {where}",
        ),
        found.table(),
        *paragraphs("Note: ", loaded.notes),
        *([] if out is None else ["", unwrapped(f"Saved: {out}")]),
    )
    if all(row.value is None for row in found.rows):
        raise SecateurError("every method failed", remedy="see the error of each, and raise the budget")


def _limits(**given: str | None) -> dict[str, list[str]]:
    """Return the one resource and its limits, checked before anything takes time."""
    found = {name: text.split(",") for name, text in given.items() if text is not None}
    if len(found) != 1:
        cause = "there are budgets in params and in MACs" if found else "there is no budget"
        raise UsageError(cause, remedy="say what may remain of one of them: --params 70%,50%,30% or --macs 50%")
    for name, limits in found.items():
        for limit in limits:
            budget.parse({name: limit})
    return found
