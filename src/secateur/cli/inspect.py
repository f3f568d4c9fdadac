"""`secateur inspect`: the channels of a network before anything is cut, or what a pruned file holds."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from rich.table import Table
from rich.text import Text

import secateur as sc
from secateur.cli import options
from secateur.cli.inputs import DEFAULTS, build_with_example, input_shapes, input_text, is_file, is_onnx, note_operators
from secateur.cli.onnx import onnx_layers, onnx_sizes, open_onnx
from secateur.cli.options import OUTPUT, option
from secateur.cli.screen import TableScreen, heading
from secateur.costs.cost import shares
from secateur.errors import UsageError
from secateur.network.examples import revive
from secateur.pruning.agreement import Agreement
from secateur.storage.checkpoint import read_info, read_plan
from secateur.storage.container import shown
from secateur.tables import ROWS, paragraphs, table

# information that only --json prints
LONG = ("groups", "graph", "scores", "fingerprints", "repair", "certificate", "layers", "kept")


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
    """Show which channels of NETWORK can be cut; of a pruned file, what was cut; of an .onnx file, its layers."""
    traced = bool(input or scope or keep or free_outputs or output != DEFAULTS.output)
    if is_onnx(network):
        _check_no_tracing(f"the channels of {network} cannot be traced", traced)
        _show_onnx(Path(network), all, screen)
        return
    if is_file(network):
        _check_no_tracing(f"{network} is cut already", traced)
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


def _fact(key: str, value: object) -> str:
    """Return a piece of information in words, or shortened."""
    if key == "agreement" and isinstance(value, dict):
        with suppress(TypeError, ValueError, ZeroDivisionError):  # of another version, or damaged
            return str(Agreement(**value)).removeprefix("Expect: ")
    return shown(value if isinstance(value, str) else json.dumps(value))


def _check_no_tracing(cause: str, traced: bool) -> None:
    """Refuse the options that say how a network is traced."""
    if traced:
        remedy = "leave --input, --scope, --keep, --free-outputs and --output out, or name a network"
        raise UsageError(cause, remedy=remedy)


def _show_onnx(path: Path, all: bool, screen: TableScreen) -> None:
    """Show the layers of an ONNX file, its inputs and its outputs."""
    session = open_onnx(str(path))
    layers = onnx_layers(str(path))
    inputs, outputs = onnx_sizes(session.get_inputs()), onnx_sizes(session.get_outputs())
    values = sum(layer["parameters"] for layer in layers)
    made = table("weight", "operator", "shape", "parameters")
    for layer in layers if all else layers[:ROWS]:
        shape = "x".join(map(str, layer["shape"])) or "1"
        made.add_row(Text(layer["weight"]), layer["operator"], shape, f"{layer['parameters']:,}")
    hidden = len(layers) - made.row_count
    notes = [f"{hidden} more layers are not shown; --all lists them."] if hidden else []
    named = [
        f"{kind} {name}: {'x'.join(map(str, shape))}"
        for kind, several in (("input", inputs), ("output", outputs))
        for name, shape in several.items()
    ]
    size = path.stat().st_size
    screen.show_table(
        {"file": str(path), "bytes": size, "inputs": inputs, "outputs": outputs, "params": values, "layers": layers},
        [layer | {"shape": "x".join(map(str, layer["shape"]))} for layer in layers],
        *heading(str(path), f"an ONNX file of {size / 1000:,.0f} kB, {values:,} parameters"),
        *(Text(line) for line in named),
        "",
        made,
        *paragraphs("", notes),
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
            facts.add_row(shown(key), Text(_fact(key, value)))
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
