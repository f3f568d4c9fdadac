"""Cut every torchvision CNN and a wide choice of timm's, beside Torch-Pruning, and check each cut.

    python benchmarks/coverage.py                       # all of it; stop and start again at will
    python benchmarks/coverage.py --only 'timm:res2*' --tool secateur --again
    python benchmarks/coverage.py --table               # docs/coverage.md from results/coverage.json

Each network runs in a process of its own under a time limit. Half of each group goes, at random, from a network with
random weights and norm statistics. It is ok when the smaller network equals the masked one, trains, and exports, and at
least 30 % of the parameters went.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from coverage_table import page
from environment import PARTIAL, RESULTS, append_record, peak_mb, progress_bar, read_records, versions, write_whole
from judge import CUT_SHARE, FLOAT32_LIMIT, FLOAT64_LIMIT, VACUOUS, difference, macs, parameters, tensors, trains
from networks import build, names
from rival import prune

TOOLS = ("secateur", "torch-pruning")
LINES = PARTIAL / "coverage.jsonl"
RECORD = RESULTS / "coverage.json"
TABLE = RESULTS.parent / "docs" / "coverage.md"


def cut(full_name: str, record: dict[str, Any]) -> None:
    """Halve every group of one network with secateur and check the result; fills in the record, `stage` by stage."""
    import secateur as sc

    model, example = build(full_name)
    before = parameters(model), macs(model, example)
    record |= {"side": example.shape[-1], "params": before[0]}
    for output in ("module", "graph"):
        record |= {"output": output, "stage": "cut"}
        try:
            small, masked = _cut_once(model, example, output, record)
        except sc.SecateurError:
            if output == "graph":
                raise
            continue
        if output == "module":
            record["params_removed_module"] = record["params_removed"]
        if record["params_removed"] >= CUT_SHARE:
            break
    record["stage"] = "compare"
    record["mask_changes"] = difference(masked, model, example)
    record["difference"] = difference(small, masked, example)
    equal = record["difference"] <= FLOAT32_LIMIT
    record["macs_removed"] = round(1 - macs(small, example) / before[1], 4)
    record["stage"] = "train"
    if record["output"] == "module":
        trains(small, example)
    else:
        torch.stack([t.square().mean() for t in tensors(small(example))]).sum().backward()
    record["stage"] = "export"
    torch.export.export(small, (example,), strict=False)
    if not equal:  # rounding alone may be to blame: once more in float64
        record["stage"] = "float64"
        del small, masked
        small, masked = _cut_once(model.double(), example.double(), record["output"], dict(record))
        record["difference_float64"] = difference(small, masked, example.double())
        equal = record["difference_float64"] <= FLOAT64_LIMIT
    if not equal:
        record["outcome"] = "wrong"
    elif record["params_removed"] < CUT_SHARE:
        record["outcome"] = "too little"
        record["error"] = _reasons(sc.trace(model, example, output=record["output"]))
    else:
        record["outcome"] = "ok" if record["mask_changes"] > VACUOUS else "vacuous"


def _cut_once(model: nn.Module, example: Tensor, output: str, record: dict[str, Any]) -> tuple[nn.Module, nn.Module]:
    import secateur as sc

    started = time.perf_counter()
    graph = sc.trace(model, example, output="graph" if output == "graph" else "module")
    traced = time.perf_counter()
    plan = sc.random_plan(graph, kept=0.5, seed=0)
    planned = time.perf_counter()
    small = sc.cut(model, plan)
    finished = time.perf_counter()
    record |= {
        "trace_seconds": round(traced - started, 2),
        "cut_seconds": round(finished - planned, 2),
        "peak_mb": round(peak_mb()),
        "groups": len(graph.groups),
        "prunable": len(graph.prunable),
        "params_removed": round(1 - parameters(small) / parameters(model), 4),
    }
    return small.eval(), sc.mask(model, plan).eval()


def _reasons(graph: Any) -> str:
    """Say what keeps most of the groups."""
    counts = Counter(str(reason)[:160] for group in graph.groups for reason in group.reasons)
    return "; ".join(f"{count} x {reason}" for reason, count in counts.most_common(3))


def one(full_name: str, tool: str) -> dict[str, Any]:
    """Run one tool on one network and say how it went."""
    record: dict[str, Any] = {"network": full_name, "tool": tool, "stage": "build"}
    try:
        (cut if tool == "secateur" else prune)(full_name, record)
    except Exception as error:
        refused = type(error).__name__.endswith("SecateurError") or any(
            c.__name__ == "SecateurError" for c in type(error).__mro__
        )
        record["outcome"] = "refused" if refused else "crash"
        record["error"] = f"{type(error).__name__}: {error}"[:600]
    else:
        del record["stage"]
    return record


def in_process(full_name: str, tool: str, limit: float) -> dict[str, Any]:
    """Run one tool on one network in a process of its own, under a time limit."""
    command = [sys.executable, __file__, "--one", full_name, "--tool", tool]
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        record = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        record = {"network": full_name, "tool": tool, "outcome": "too slow", "error": f"over {limit:.0f} s"}
    except (IndexError, json.JSONDecodeError):
        record = {
            "network": full_name,
            "tool": tool,
            "outcome": "crash",
            "error": f"exit {done.returncode}: {done.stderr[-300:]}",
        }
    return record | {"total_seconds": round(time.perf_counter() - started, 1)}


def run(args: argparse.Namespace) -> None:
    """Run what is not done yet, and gather all records."""
    tools = TOOLS if args.tool == "both" else (args.tool,)
    done = {
        (r["network"], r["tool"]) for r in read_records(LINES) if not args.again or not fnmatch(r["network"], args.only)
    }
    jobs = []
    for section, networks in names().items():
        for name in networks:
            if fnmatch(name, args.only):
                jobs += [(name, tool) for tool in tools if tool == "secateur" or section != "transformers"]
    jobs = [job for job in jobs if job not in done]
    with progress_bar() as progress, ThreadPoolExecutor(args.jobs) as pool:
        task = progress.add_task("coverage", total=len(jobs))
        for future in as_completed([pool.submit(in_process, *job, args.limit) for job in jobs]):
            record = future.result()
            append_record(LINES, record)
            progress.update(task, advance=1, description=f"{record['network']} {record['tool']}: {record['outcome']}")
            if record["outcome"] != "ok":
                progress.console.print(
                    record["network"], record["tool"], record["outcome"], record.get("error", "")[:200], markup=False
                )
    gather()


def gather() -> None:
    """Write results/coverage.json: the last record of every network and tool, sorted, one a line."""
    last = {(r["network"], r["tool"]): r for r in read_records(LINES)}
    section_of = {name: section for section, networks in names().items() for name in networks}
    rows = [{"section": section_of[n], **last[n, t]} for n, t in sorted(last) if n in section_of]
    packages = versions("secateur", "torch-pruning", "torch", "torchvision", "timm")
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_whole(RECORD, f'{{"versions": {json.dumps(packages)},\n"records": [\n{lines}\n]}}\n')


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="a pattern over library:name, such as 'timm:res2*'")
    parser.add_argument("--tool", default="both", choices=[*TOOLS, "both"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300, help="seconds for one network")
    parser.add_argument("--again", action="store_true", help="run also what is done already")
    parser.add_argument("--table", action="store_true", help="only write docs/coverage.md")
    parser.add_argument("--one", metavar="NETWORK", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.tool)))
    elif args.table:
        write_whole(TABLE, page(json.loads(RECORD.read_text())))
    else:
        run(args)


if __name__ == "__main__":
    main()
