"""Run a thousand random command lines on tiny networks: each must end with exit code 0, 1 or 2, without a traceback.

    python benchmarks/fuzz_cli.py                # 1,000 command lines; writes results/fuzz_cli.json
    python benchmarks/fuzz_cli.py --count 50     # the first 50 of them: prints only
    python benchmarks/fuzz_cli.py --replay 471   # one of them again, with all that it prints

The options are those that the commands declare, so a new one is tried as well. Two thirds of the command lines have
sensible values only. A failure is also: an error without a message, and JSON or CSV that cannot be parsed. `demo`,
`doctor`, `train` and `sweep` take no network, or take long, and are not run.
"""

from __future__ import annotations

import csv
import json
import os
import random
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

COUNT = 1000
COMMANDS = ("inspect", "prune", "prune", "prune", "compare", "compare", "certify", "export", "bench", "bench", "report")
SENSIBLE = 2 / 3  # of the command lines
GIVEN = 0.08  # probability that an option is given which need not be
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
    "folder": (".", "none"),
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
    "threads": ("1",),
    "output": ("module", "graph"),
}
ALIKE = {"first": "network", "second": "network", "on": "data", "heldout": "data"}
NEW = ("new.file", "new.safetensors")
ANY_NUMBER = ("1", "2", "8", "20")


@dataclass(frozen=True)
class Outcome:
    """How one command line ended; `wrong` says what it should not have done."""

    words: tuple[str, ...]
    code: int
    wrong: str = ""
    printed: str = ""


def write_inputs(folder: Path) -> None:
    """Write what the command lines name: networks, data, weights, a pruned and a damaged file, an ONNX file."""
    write_networks(folder)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 6)).astype(np.float32)
    np.savez(folder / "data.npz", x=x, y=generator.integers(2, size=40))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    torch.save(model.state_dict(), folder / "weights.pt")
    sc.save(folder / "small.safetensors", sc.prune(model, torch.randn(40, 6), {"params": "60%"}))
    (folder / "bad.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (folder / "old.file").touch()
    sc.export(model, folder / "net.onnx", torch.zeros(1, 6), runs=20)


def command_line(seed: int) -> tuple[str, ...]:
    """Return a random command line, the same for the same seed."""
    rng = random.Random(seed)
    name = rng.choice(COMMANDS)
    sensible = rng.random() < SENSIBLE
    words, positional = [name], []
    for one in typer.main.get_command(app).commands[name].params:  # type: ignore[attr-defined]
        if one.param_type_name == "argument":
            positional.append(_value(one, rng, sensible))
        elif one.name != "help" and rng.random() < (GIVEN if _optional(name, one) else 0.95 if sensible else 0.6):
            spelled = rng.choice([*one.opts, *one.secondary_opts])
            words += [spelled] if one.is_flag else [spelled, _value(one, rng, sensible)]
    return tuple(words[:1] + positional + words[1:])


def _optional(command: str, one: Any) -> bool:
    """Whether an option may be left out without a refusal; the tiny networks need their --input."""
    usual = {"prune": ("params", "input"), "compare": ("params", "input", "methods"), "certify": ("model",)}
    return not one.required and one.name not in usual.get(command, ("input",))


def _value(one: Any, rng: random.Random, sensible: bool) -> str:
    known = SENSIBLE_VALUES.get(ALIKE.get(one.name, one.name), ANY_NUMBER)
    return rng.choice(known if sensible or rng.random() < 0.5 else ODD)


def run(words: tuple[str, ...]) -> Outcome:
    """Run a command line in this process, and judge how it ended."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(words))
    for name in NEW:  # so that the next one can write it
        Path(name).unlink(missing_ok=True)
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
    for name in sorted(set(COMMANDS)):
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
