"""`secateur export`: a network as a file for another runtime."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.text import Text

import secateur as sc
from secateur.cli import inputs, options
from secateur.cli.bench import times_in_words, timing_in_words
from secateur.cli.inputs import Reading
from secateur.cli.options import DATA, OUTPUT, option
from secateur.cli.screen import TableScreen, heading, unwrapped
from secateur.costs.timing import RUNS, use_threads
from secateur.storage.export import RUNTIMES, To
from secateur.tables import paragraphs, table

CERTIFY = "secateur certify FILE.onnx --model ... bounds the difference of the file itself on held-out data"
READING = Reading(samples=64)


def export(
    *,
    network: options.Network,
    model: options.Original = None,
    weights: options.NetworkWeights = None,
    data: Annotated[str | None, option(DATA, "SOURCE", "Inputs to check on, as for prune; by default random.")] = None,
    input: options.Input = None,
    reading: Reading = READING,
    out: Annotated[Path, option(OUTPUT, "FILE", "File to write.")],
    to: Annotated[To, option(OUTPUT, "KIND", "onnx, or torch-export for a .pt2 file.")] = "onnx",
    int8: Annotated[bool, option(OUTPUT, "", "Quantize an ONNX file to int8; calibrates on --data.", "--int8")] = False,
    scope: options.Scope = (),  # type: ignore[assignment]
    fixed_batch: Annotated[
        bool, option(OUTPUT, "", "Fix the batch size to that of the input.", "--fixed-batch")
    ] = False,
    force: options.Force = False,
    threads: options.Threads = None,
    runs: options.Runs = RUNS,
    screen: TableScreen,
) -> None:
    """Write NETWORK for another runtime, after checking that it computes the same there."""
    inputs.check_out(out, force)
    inputs.check_weights(weights, network)
    with screen.status(f"building {network}"):
        original, example = inputs.open_with_example(network, model, input, weights)
    inputs.note_operators(screen, network, model)
    with screen.status(f"reading {data}"):
        samples = None if data is None else reading.read(data, example)
    runtime = RUNTIMES[to]
    with screen.status(f"exporting, and running both in torch and in {runtime}"), use_threads(threads):
        kind = {"scope": scope, "int8": int8, "dynamic": not fixed_batch}
        found = sc.export(original, out, example, to, data=samples, runs=runs, **kind)  # type: ignore[arg-type]
    saved = inputs.is_file(network)
    before = Path(network).stat().st_size if saved else found.bytes_before
    made = table("", "size", "median", "quartiles")
    rows = []
    for name, size, timed in (
        (f"torch ({'file' if saved else 'tensors'})", before, found.times.first),
        (runtime, found.bytes_after, found.times.second),
    ):
        rows.append({"runtime": name, "bytes": size} | asdict(timed))
        made.add_row(name, f"{size / 1e3:,.0f} kB", *times_in_words(timed))
    origin = f"from {samples.origin}" if samples else "with random values"
    sizes = ", ".join(map(str, found.batches))
    notes = [] if weights or saved or inputs.runs_code(network) else [inputs.RANDOM]
    head = {
        "network": network,
        "model": model,
        "weights": weights and str(weights),
        "notes": notes,
        "input": inputs.input_shapes(example),
    }
    facts = {"data": samples and samples.origin, "path": str(found.path), "bytes_before": before, "runtime": runtime}
    screen.show_table(
        head | asdict(found) | facts,
        rows,
        *heading(network, f"{inputs.input_text(example)}, {timing_in_words(found.times)}"),
        made,
        "",
        Text(f"{runtime} compared with torch: {found.times.verdict}."),
        Text(
            f"Checked: its outputs {'differ from' if int8 else 'equal'} those of torch {found.exactness} on "
            f"{found.samples} inputs {origin}, in batches of {sizes}."
        ),
        *paragraphs("Note: ", [CERTIFY] if int8 else []),
        *paragraphs("Note: ", notes),
        unwrapped(f"Saved: {out}"),
    )
