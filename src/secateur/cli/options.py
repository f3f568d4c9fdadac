"""The options that several commands share, each written once, and the panels of --help that they stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from secateur.channels.graph import Output
from secateur.profiling.table import Engine
from secateur.tables import ROWS

PANELS = RUN, BUDGET, DATA, OUTPUT, METHOD, CERTIFICATE, ADVANCED = (
    "Run",
    "Budget",
    "Data",
    "Output",
    "Method",
    "Certificate",
    "Advanced",
)  # in the order of --help

RUNS_CODE = "path/to/file.py:FACTORY, which runs that file's code"
MODELS = f"zoo:NAME, torchvision:NAME, timm:NAME, or {RUNS_CODE}"
SOURCES = f"a folder of images, a .npy, .npz, .safetensors or .pt file, embedded:digits, or {RUNS_CODE}"


def option(panel: str, metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return an option with its help; a flag has the metavar ""."""
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, **more)


def argument(metavar: str, text: str) -> Any:
    """Return a required argument with its help."""
    return typer.Argument(metavar=metavar, help=text, show_default=False)


def count(panel: str, text: str, **more: Any) -> Any:
    """Return an option for a whole number from 1 up."""
    return option(panel, "N", text, callback=_from_one, **more)


def _from_one(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise typer.BadParameter(f"{value} is less than 1; use a whole number from 1 up")
    return value


# Networks and data
Model = Annotated[str, argument("MODEL", f"{MODELS}.")]
Network = Annotated[str, argument("NETWORK", f"A .safetensors file that prune saved, {MODELS}.")]
Original = Annotated[str | None, option(DATA, "MODEL", "The original of a .safetensors file that does not name it.")]
Weights = Annotated[Path | None, option(DATA, "FILE", "State dict of MODEL: .safetensors or .pt.")]
NetworkWeights = Annotated[
    Path | None, option(DATA, "FILE", "State dict of a network given by name: .safetensors or .pt.")
]
Input = Annotated[list[str] | None, option(DATA, "SHAPE", "Input shape: 1x3x224x224; once per input.")]
CalibrationData = Annotated[str, option(DATA, "SOURCE", f"Calibration data, never test data: {SOURCES}.")]
Samples = Annotated[int, count(DATA, "Number of samples to use.")]
Batch = Annotated[int, count(ADVANCED, "Samples in one batch.")]
Mean = Annotated[str | None, option(DATA, "NUMBERS", "Mean to subtract: a number, or per channel.")]
Std = Annotated[str | None, option(DATA, "NUMBERS", "Std to divide by: a number, or per channel.")]
Seed = Annotated[int, option(ADVANCED, "N", "Seed for choosing samples and for random methods.")]

# Cutting
PruneTask = Annotated[
    Literal["segmentation"] | None, option(ADVANCED, "NAME", "segmentation: outputs are maps of class scores.")
]
Scope = Annotated[
    list[str], option(ADVANCED, "NAME", "Submodules to prune instead of the whole model; may be repeated.")
]
Keep = Annotated[list[str], option(ADVANCED, "PATTERN", "Layers that keep all filters; may be repeated.")]
FreeOutputs = Annotated[
    list[str], option(ADVANCED, "PATH", "Outputs that need not keep their channels: 1, feats; may be repeated.")
]
RoundTo = Annotated[int, count(ADVANCED, "Make group sizes multiples of N.")]
AtLeast = Annotated[int, count(ADVANCED, "Channels that every group keeps.")]
PruneInputs = Annotated[
    bool, option(ADVANCED, "", "Prune inputs of the network, too; it still takes all of them.", "--prune-inputs")
]
LatencyTableFile = Annotated[
    str | None, option(ADVANCED, "FILE", "For --latency: a table that profile wrote, also on another machine.")
]
TimedEngine = Annotated[Engine, option(ADVANCED, "NAME", "What is timed: torch or onnxruntime.")]
CutAs = Annotated[Output, option(ADVANCED, "KIND", "module (your class), or graph (its exported program).")]

Memory = Annotated[
    int | None, count(ADVANCED, "MB for temporary arrays.", show_default="half of the free memory, at most 1536")
]

# Timing
Threads = Annotated[int | None, count(ADVANCED, "CPU threads; by default the setting of torch.")]
Runs = Annotated[int, count(ADVANCED, "Timed runs of each network.")]

# Results
Force = Annotated[bool, option(OUTPUT, "", "Overwrite FILE.", "--force")]
ShowAll = Annotated[bool, option(OUTPUT, "", f"Show all groups, not only {ROWS}.", "--all")]
AsJson = Annotated[bool, option(OUTPUT, "", "Print the result as JSON.", "--json")]
AsCsv = Annotated[bool, option(OUTPUT, "", "Print the table as CSV.", "--csv")]
Quiet = Annotated[bool, option(OUTPUT, "", "Print only errors, and what --json or --csv print.", "--quiet", "-q")]
