"""Run a thousand random command lines on tiny networks: each must end with exit code 0, 1 or 2, without a traceback.

    python benchmarks/fuzz_cli.py                # 1,000 command lines; writes results/fuzz_cli.json
    python benchmarks/fuzz_cli.py --count 50     # the first 50 of them: prints only
    python benchmarks/fuzz_cli.py --replay 471   # one of them again, with all that it prints

The commands and options are those that are declared, so new ones are tried as well. Two thirds of the command lines
have sensible values only. A failure is also: an error without a message, and JSON or CSV that cannot be parsed.
Everything is tiny: sweeps train on 96 digits, and `reproduce` only plans and renders. Ray clusters are not started.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer.main
from typer.testing import CliRunner

import secateur as sc
from environment import options, prepare, progress_bar, tests_on_path, write_record
from secateur.cli import app

tests_on_path()

from support.command_line import write_networks  # noqa: E402
from support.small_runs import write_digits  # noqa: E402
from support.written_sweeps import write_sweep  # noqa: E402

COUNT = 1000
WEIGHTS = {"prune": 3, "compare": 2, "bench": 2, "doctor": 0.2, "demo": 0.1}  # of the commands; 1 for all others
SENSIBLE = 2 / 3  # of the command lines
GIVEN = 0.06  # probability that an option is given which need not be
ODD = ("", "0", "-1", "nan", "1e400", "abc", "50%%", "%", "1x6", "none.npz", "none.py:make", "net.py:none", "zoo:none")
ODD += (".", "\u00e9\x1b[2J", "a,b", "--json", "net.py:Choosing", "net.py:batches", "data.npz", "bad.safetensors")
SENSIBLE_VALUES: dict[str, tuple[str, ...]] = {
    "network": (
        "net.py:make",
        "net.py:make",
        "net.py:make",
        "net.py:deep",
        "net.py:Net",
        "small.safetensors",
        "net.onnx",
    ),
    "model": ("net.py:make",) * 8 + ("net.py:Net", "net.py:Pair"),
    "small": ("small.safetensors",),
    "theory.small": ("pfp.safetensors",) * 4 + ("small.safetensors",),
    "sources": ("run", "run", "small.safetensors", "bench.json", "none"),
    "source": ("run", "run", "small.safetensors", "bench.json", "none"),
    "name": ("table-lenet", "table-cifar", "fig-curves", "all", "none"),
    "recipe": ("tiny.yaml",) * 4 + ("bomb.yaml", "lenet5-quick"),
    "data": ("data.npz",) * 3 + ("net.py:batches", "net.py:pairs"),
    "input": ("1x6",) * 8 + ("2x6", "1x3x8x8"),
    "weights": ("weights.pt",) * 5 + ("bad.safetensors",),
    "params": ("50%",) * 4 + ("80%", "60", "70%,50%"),
    "macs": ("50%", "90%", "40", "0.1k"),
    "latency": ("90%", "1ms"),
    "drop": ("50%", "1%"),
    "out": ("new.file",) * 5 + ("new.safetensors", "old.file", "none/x.safetensors"),
    "to": ("torch-export", "onnx"),
    "method": ("residual", "pfp", "ft", "random", "taylor", "norm"),
    "methods": ("ft", "pfp,ft", "residual", "pfp:pivotal,ft+repair"),
    "select": ("derand", "rand", "partial", "pivotal"),
    "allocation": ("uniform", "residual", "pfp"),
    "sensitivity": ("max", "mean", "rms", "q0.9"),
    "delta": ("0.1", "1e-3"),
    "certificate_delta": ("0.1",),
    "eps": ("0.5", "0.5,0.9"),
    "beta": ("0.1",),
    "task": ("classification", "regression"),
    "range": ("1",),
    "keep": ("0", "2", "fir*"),
    "mean": ("0.5", "0,0,0"),
    "std": ("1", "0.5"),
    "runs": ("20",),
    "reproduce.runs": ("none", "."),
    "minutes": ("0.01",),
    "epochs": ("1", "2"),
    "lr": ("0.01", "1e-4"),
    "teacher": ("original", "none", "net.py:make"),
    "amp": ("auto", "off", "bf16"),
    "set": ("train.epochs=2", "prune.samples=16", "networks=2", "none=1", "targets=0.5"),
    "jobs": ("1", "2"),
    "engine": ("torch", "onnxruntime"),
    "sweep.engine": ("local",),
    "reproduce.engine": ("local",),
    "effort": ("quick", "default", "thorough"),
    "memory": ("1", "100"),
    "scope": ("0", "none"),
    "free_outputs": ("0", "none"),
    "latency_table": ("latency.json", "bench.json"),
    "output_eps": ("0.9",),
    "chart": ("macs", "params", "none"),
    "width": ("column", "3.5"),
    "table": ("markdown", "csv", "latex"),
    "title": ("A title",),
    "threads": ("1",),
    "train.data": ("digits",) * 5 + ("none",),
    "sweep.data": ("digits",) * 5 + ("none",),
    "reproduce.data": ("digits", "none"),
    "doctor.data": ("digits", "none"),
    "train.network": ("0", "0", "1"),
    "train.out": ("new.run",) * 4 + ("old.file", "run"),
    "sweep.out": ("new.run",) * 4 + ("old.file", "run"),
    "reproduce.out": ("new.run", "old.file"),
    "figure.out": ("new.svg", "new.pdf", "new.file", "old.file"),
    "report.out": ("new.html", "old.file"),
    "output": ("module", "graph"),
}
ALIKE = {"first": "network", "second": "network", "on": "data", "heldout": "data"}
USUAL = {  # options that need not be given, and mostly are; the tiny networks need their --input
    "prune": ("params", "input"),
    "compare": ("params", "input", "methods"),
    "certify": ("model", "weights"),
    "theory": ("model", "weights"),
    "finetune": ("model", "weights", "minutes"),
    "train": ("out", "data"),
    "sweep": ("out", "data"),
    "figure": ("out", "chart"),
    "reproduce": ("plan", "data"),
    "report": (),
}
TINY = """
name: tiny
network: zoo:lenet5-classic
data: mnist
batch: 32
train: {epochs: 1, lr: 0.05}
retrain: {epochs: 1, lr: 0.01}
prune: {samples: 32}
targets: [0.4]
networks: 1
"""
BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nname: *b\n"
ANY_NUMBER = ("1", "2", "8", "20")


@dataclass(frozen=True)
class Outcome:
    """How one command line ended; `wrong` says what it should not have done."""

    words: tuple[str, ...]
    code: int
    wrong: str = ""
    printed: str = ""


def write_inputs(folder: Path) -> None:
    """Write what the command lines name: networks, data, weights, files, recipes, a sweep and a latency table."""
    write_networks(folder)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 6)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=generator.integers(2, size=40))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    torch.save(model.state_dict(), folder / "weights.pt")
    sc.save(folder / "small.safetensors", sc.prune(model, torch.randn(40, 6), {"params": "60%"}))
    sc.save(folder / "pfp.safetensors", sc.prune(model, torch.randn(40, 6), {"params": "60%"}, method="pfp"))
    (folder / "bad.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (folder / "old.file").touch()
    sc.export(model, folder / "net.onnx", torch.zeros(1, 6), runs=20)
    write_digits(folder / "digits", train=96, test=32)
    (folder / "tiny.yaml").write_text(TINY)
    (folder / "bomb.yaml").write_text(BOMB)
    write_sweep(folder / "run")
    found = CliRunner().invoke(app, ["bench", "net.py:make", "net.py:make", "--input", "1x6", "--runs", "20", "--json"])
    (folder / "bench.json").write_text(found.stdout)
    CliRunner().invoke(app, ["profile", "net.py:make", "--input", "1x6", "--out", str(folder / "latency.json")])


def command_line(seed: int) -> tuple[str, ...]:
    """Return a random command line, the same for the same seed."""
    rng = random.Random(seed)
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    names = sorted(commands)
    name = rng.choices(names, [WEIGHTS.get(one, 1) for one in names])[0]
    sensible = rng.random() < SENSIBLE
    words, positional = [name], []
    for one in commands[name].params:
        if one.param_type_name == "argument":
            positional.append(_value(name, one, rng, sensible))
        elif one.name != "help" and rng.random() < (GIVEN if _optional(name, one) else 0.95 if sensible else 0.6):
            spelled = rng.choice([*one.opts, *one.secondary_opts])
            words += [spelled] if one.is_flag else [spelled, _value(name, one, rng, sensible)]
    if name == "reproduce" and not {"--plan", "--render"} & set(words):
        words.append("--render")  # anything else would train for minutes
    return tuple(words[:1] + positional + words[1:])


def _optional(command: str, one: Any) -> bool:
    """Whether an option may be left out without a refusal."""
    return not one.required and one.name not in USUAL.get(command, ("input",))


def _value(command: str, one: Any, rng: random.Random, sensible: bool) -> str:
    known = SENSIBLE_VALUES.get(f"{command}.{one.name}") or SENSIBLE_VALUES.get(ALIKE.get(one.name, one.name))
    return rng.choice((known or ANY_NUMBER) if sensible or rng.random() < 0.5 else ODD)


def run(words: tuple[str, ...]) -> Outcome:
    """Run a command line in this process, and judge how it ended."""
    before = set(Path().iterdir())
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(words))
    for path in set(Path().iterdir()) - before:  # so that the next one can write it
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    wrong = ""
    if result.exception and not isinstance(result.exception, SystemExit):
        wrong = "".join(traceback.format_exception(result.exception))
    elif result.exit_code not in (0, 1, 2) or "Traceback" in result.output:
        wrong = f"exit code {result.exit_code}"
    elif result.exit_code and "rror" not in result.stderr:
        wrong = "an error without a message"
    elif not result.exit_code:
        wrong = _unreadable(words, result.stdout)
    return Outcome(words, result.exit_code, wrong, result.output)


def _unreadable(words: tuple[str, ...], stdout: str) -> str:
    try:
        if "--json" in words:
            json.loads(stdout)
        elif "--csv" in words:
            lines = list(csv.reader(stdout.splitlines()))
            if len({len(line) for line in lines}) != 1:
                return "lines of CSV with different numbers of cells"
    except ValueError as error:
        return f"unreadable output: {error}"
    return ""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="command lines (default: %(default)s)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="run this one alone")
    args = parser.parse_args()
    prepare()
    os.environ["SECATEUR_DATA"] = "nowhere"
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        write_inputs(Path(folder))
        if args.replay is not None:
            found = run(command_line(args.replay))
            print(" ".join(map(repr, found.words)), found.printed, found.wrong, f"exit code {found.code}", sep="\n")
            sys.exit(bool(found.wrong))
        codes: Counter[tuple[str, int]] = Counter()
        failures: list[dict[str, Any]] = []
        slowest = 0.0
        with progress_bar() as bar:
            for seed in bar.track(range(args.count), description="running"):
                started = time.process_time()
                found = run(command_line(seed))
                slowest = max(slowest, time.process_time() - started)
                codes[found.words[0], found.code] += 1
                if found.wrong:
                    failures.append({"seed": seed, "words": found.words, "wrong": found.wrong})
                    print(f"seed {seed}: {' '.join(map(repr, found.words))}\n{found.wrong}", flush=True)
    for name in sorted({name for name, _ in codes}):
        print(f"{name}: " + ", ".join(f"exit code {code}: {codes[name, code]}" for code in (0, 1, 2)))
    print(f"{len(failures)} failures of {args.count} command lines")
    if args.count >= COUNT:
        names = sorted({name for name, _ in codes})
        by_command = {name: {str(code): codes[name, code] for code in (0, 1, 2)} for name in names}
        totals = {str(code): sum(one[str(code)] for one in by_command.values()) for code in (0, 1, 2)}
        content = {"command_lines": args.count, "seeds": f"0 to {args.count - 1}", "failures": failures}
        content |= {"exit_codes": totals, "by_command": by_command, "slowest_processor_seconds": round(slowest, 1)}
        write_record("fuzz_cli", content)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
