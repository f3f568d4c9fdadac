"""`secateur inspect`: the channels of a network before anything is cut, or what a pruned file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text

import secateur as sc
from secateur.cli import options
from secateur.cli.inputs import DEFAULTS, build_with_example, input_shapes, input_text, is_file, is_onnx, note_operators
from secateur.cli.options import OUTPUT, option
from secateur.cli.screen import TableScreen, heading
from secateur.costs.cost import shares
from secateur.errors import UsageError
from secateur.network.examples import revive
from secateur.storage.checkpoint import read_info, read_plan
from secateur.storage.container import shown
from secateur.tables import ROWS, paragraphs, table

LONG = ("groups", "scores", "fingerprints", "repair", "certificate", "layers", "kept")  # information that --json prints


def inspect(
    *,
    network: options.Network,
    input: options.Input = None,
    scope: options.Scope = DEFAULTS.scope,
    keep: options.Keep = DEFAULTS.keep,
    free_outputs: options.FreeOutputs = DEFAULTS.free_outputs,
    output: options.CutAs = DEFAULTS.output,
    all: Annotated[bool, option(OUTPUT, "", f"Show all groups, not only {ROWS}; indices in JSON.", "--all")] = False,
    screen: TableScreen,
) -> None:
    """Show which channels of NETWORK can be cut and what they cost; of a pruned file, what was cut and how."""
    if is_onnx(network):
        raise UsageError(
            f"the channels of {network} cannot be traced",
            remedy="inspect the network that it was exported from; secateur bench times an .onnx file",
        )
    if is_file(network):
        if input or scope or keep or free_outputs or output != DEFAULTS.output:
            remedy = "leave --input, --scope, --keep, --free-outputs and --output out, or name a network"
            raise UsageError(f"{network} is cut already", remedy=remedy)
        _show_file(Path(network), all, screen)
        return
    with screen.status(f"building {network}"):
        module, example = build_with_example(network, input)
    note_operators(screen, network)
    with screen.status("counting parameters and MACs"):
        cost = sc.cost(module, example)
    with screen.status("tracing channels"):
        graph = sc.trace(module, example, scope=scope, keep=keep, free_outputs=free_outputs, output=output)
    parts = shares(graph, cost)
    head = {"model": network, "input": input_shapes(example), "params": cost.params, "macs": cost.macs}
    origin = "given" if input else "the default; set it with --input"
    record = graph.as_dict(parts, indices=all)
    columns = ("name", "channels", "prunable", "params_share", "macs_share")
    screen.show_table(
        head | record,
        [
            {key: group[key] for key in columns} | {"reasons": "; ".join(one["text"] for one in group["reasons"])}
            for group in record["groups"]
        ],
        *heading(network, f"{input_text(example)} ({origin})"),
        graph.table(parts, total=cost, rows=None if all else ROWS),
        compact=all,
    )


def _show_file(path: Path, all: bool, screen: TableScreen) -> None:
    """Show the groups that were cut and the information of a saved network; the network itself is not built."""
    plan, info = read_plan(path), read_info(path)
    example = revive(plan.example)
    rows = [{"name": group.name, "before": group.size, "after": len(group.kept)} for group in plan.groups]
    visible = plan.groups if all else plan.groups[:ROWS]
    made = table("group", "before", "after")
    for group in visible:
        made.add_row(Text(group.name), f"{group.size:,}", f"{len(group.kept):,}")
    hidden = len(rows) - len(visible)
    notes = [f"{hidden} more groups are not shown; --all lists them."] if hidden else []
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    for key, value in info.items():
        if key not in LONG:
            facts.add_row(shown(key), Text(shown(value if isinstance(value, str) else json.dumps(value))))
    indices = [{"kept": list(group.kept)} if all else {} for group in plan.groups]
    head = {"file": str(path), "input": input_shapes(example), "output": plan.output}
    screen.show_table(
        head | {"groups": [row | kept for row, kept in zip(rows, indices)], "info": info},
        rows,
        *heading(str(path), f"a pruned network, {input_text(example)}"),
        made,
        *paragraphs("", notes),
        "",
        facts,
        compact=all,
    )
