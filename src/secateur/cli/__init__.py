"""The `secateur` command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import torch
import typer

from secateur._version import __version__
from secateur.cli import (
    bench,
    certify,
    compare,
    demo,
    doctor,
    export,
    figure,
    finetune,
    inspect,
    profile,
    prune,
    report,
    reproduce,
    runs,
    theory,
)
from secateur.cli.command import INTERRUPTED, Command, Commands, as_command

app = typer.Typer(
    cls=Commands,
    help="Remove whole filters from trained PyTorch networks, and verify that the cut is exact.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"secateur {__version__}, torch {torch.__version__}")
        raise typer.Exit


@app.callback()
def options_before_a_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the versions and exit.")
    ] = False,
) -> None:
    """Accept the options that come before a command."""


EXAMPLES: dict[Callable[..., None], str] = {
    inspect.inspect: "secateur inspect torchvision:resnet18",
    prune.prune: "secateur prune net.py:make --data photos --macs 50% --out small.safetensors",
    compare.compare: "secateur compare net.py:make --data photos --on val.npz --params 50%,30%",
    finetune.finetune: "secateur finetune small.safetensors --data photos --out tuned.safetensors",
    certify.certify: "secateur certify small.safetensors --model net.py:make --data heldout.npz",
    theory.theory: "secateur theory small.safetensors --model net.py:make --data heldout.npz",
    export.export: "secateur export small.safetensors --model net.py:make --out small.onnx",
    bench.bench: "secateur bench net.py:make small.safetensors --model net.py:make --threads 1",
    profile.profile: "secateur profile net.py:make --input 1x3x224x224 --out latency.json",
    runs.train: "secateur train lenet5-quick --out runs/lenet",
    runs.sweep: "secateur sweep lenet5-quick --set train.epochs=3",
    report.report: "secateur report runs/lenet5-quick --out page.html",
    figure.figure: "secateur figure runs/lenet5-quick --chart macs --out figure.pdf",
    reproduce.reproduce: "secateur reproduce table-lenet --quick",
    demo.demo: "secateur demo",
    doctor.doctor: "secateur doctor",
}
COMMANDS = {as_command(function): example for function, example in EXAMPLES.items()}

for command, example in COMMANDS.items():
    app.command(cls=Command, epilog=f"Example:\n\n{example}")(command)


def main() -> None:
    """Run the command line; after Ctrl-C the exit code is 130 for every caller.

    Python itself would end by the signal once an interrupt has passed through code that was made from text.
    """
    try:
        app(prog_name="secateur")
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise
