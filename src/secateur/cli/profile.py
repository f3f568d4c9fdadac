"""`secateur profile`: how long the layers of a network take here, by their sizes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

import secateur as sc
from secateur.cli import options
from secateur.cli.inputs import build_with_example, check_out, input_shapes, input_text, note_operators
from secateur.cli.options import OUTPUT, option
from secateur.cli.screen import TableScreen, heading
from secateur.tables import ROWS, percent, table


def profile(
    *,
    model: options.Model,
    weights: options.Weights = None,
    input: options.Input = None,
    engine: options.TimedEngine = "torch",
    threads: options.Threads = None,
    out: Annotated[
        Path | None, option(OUTPUT, "FILE", "File for the latency table, for prune --latency-table.")
    ] = None,
    force: options.Force = False,
    all: options.ShowAll = False,
    screen: TableScreen,
) -> None:
    """Time the layers of MODEL in several sizes on this machine, for budgets in latency here or elsewhere."""
    if out is not None:
        check_out(out, force)
    with screen.status(f"building {model}"):
        network, example = build_with_example(model, input, weights)
    note_operators(screen, model)
    found = sc.latency_table(network, example, engine=engine, threads=threads, progress=screen.live)
    if out is not None:
        found.save(out)
    whole = sum(one.ms(*one.full) for one in found.segments)
    rows: list[dict[str, Any]] = [
        {"layer": one.weight, "outputs": one.full[0], "inputs": one.full[1], "part": one.ms(*one.full) / whole,
         "part at half the outputs": one.ms(one.full[0] / 2, one.full[1]) / whole,
         "part at half of both": one.ms(one.full[0] / 2, one.full[1] / 2) / whole}
        for one in found.segments
    ]  # fmt: skip
    made = table("layer", "outputs", "inputs", "time", "half outputs", "half of both")
    shown = rows if all else sorted(rows, key=lambda row: -row["part"])[:ROWS]
    for row in shown:
        name, outputs, inputs, *parts = row.values()
        made.add_row(Text(str(name)), str(outputs), str(inputs), *(percent(part) for part in parts))
    hidden = len(rows) - len(shown)
    screen.show_table(
        {"model": model, "input": input_shapes(example), "out": out and str(out), "table": asdict(found)},
        rows,
        *heading(model, input_text(example)),
        made,
        *([Text(f"{hidden} faster layers are not shown; --all lists them.", "dim")] if hidden else []),
        "",
        Text(str(found)),
        Text(f"Saved: {out}, for prune --latency-table" if out else "Nothing was saved; --out FILE saves the table."),
    )
