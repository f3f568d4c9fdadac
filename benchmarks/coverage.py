"""Cut every torchvision CNN and many of timm's with secateur and with Torch-Pruning, and check each cut.

    python benchmarks/coverage.py                       # all of it; stop and start again at will
    python benchmarks/coverage.py --only 'timm:res2*' --tool secateur --keep none
    python benchmarks/coverage.py --page                # docs/coverage.md from results/coverage.json

Each network runs in a process of its own under a limit of processor time. Half of each group is removed at random from
a network with random weights and norm statistics. The result is ok if the smaller network equals the masked one, trains
and exports, and at least 30 % of the parameters are gone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import time
from collections import Counter
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from coverage_checks import (
    CUT_SHARE,
    FLOAT32_LIMIT,
    FLOAT64_LIMIT,
    VACUOUS,
    difference,
    macs,
    parameters,
    tensors,
    trains,
)
from coverage_networks import build, names
from coverage_page import TOOLS, page
from coverage_torch_pruning import prune
from environment import (
    RESULTS,
    Rows,
    add_keep_option,
    options,
    peak_mb,
    read_record,
    write_atomic,
    write_record,
)

PAGE = RESULTS.parent / "docs" / "coverage.md"


def cut(full_name: str, record: dict[str, Any]) -> None:
    """Halve every group of one network with secateur and check the result; fill in the record, `stage` by stage."""
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
    if record["output"] == "graph" and record["params_removed"] <= record.get("params_removed_module", -1):
        record["output"] = "module"  # a program gains nothing
        small, masked = _cut_once(model, example, "module", record)
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
    if not equal:  # the difference may be rounding: once more in float64
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
    """Return the most frequent reasons for which groups cannot be pruned."""
    counts = Counter(str(reason)[:160] for group in graph.groups for reason in group.reasons)
    return "; ".join(f"{count} x {reason}" for reason, count in counts.most_common(3))


def one(full_name: str, tool: str) -> dict[str, Any]:
    """Run one tool on one network and return its row."""
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
    """Run one tool on one network in a process of its own, for so many seconds of a processor, and return its row.

    It is forked from this one, which has imported torch and secateur, so that a row does not pay for that.
    """
    started, seconds = time.perf_counter(), round(limit)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))  # other work on the machine does not count
        os.close(reader)
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        with os.fdopen(writer, "w") as answer:
            answer.write(json.dumps(one(full_name, tool)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    record: dict[str, Any] = {"network": full_name, "tool": tool}
    if code == -signal.SIGXCPU:
        record |= {"outcome": "too slow", "error": f"over {seconds} s of processor time"}
    elif code or not text:
        record |= {"outcome": "crash", "error": f"exit {code}"}
    else:
        record = json.loads(text)
    return record | {"total_seconds": round(time.perf_counter() - started, 1)}


def warm_up() -> None:
    """Import what every row needs, by tracing a small network, before processes are forked."""
    import secateur as sc

    torch.set_num_threads(1)
    sc.trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)), torch.randn(1, 3, 8, 8))
    with suppress(ImportError):
        import torch_pruning  # noqa: F401


def run(args: argparse.Namespace) -> None:
    """Run the networks that are not done yet, and write the record of all."""
    rows = Rows("coverage")
    tools = TOOLS if args.tool == "both" else (args.tool,)
    done = {(row["network"], row["tool"]) for row in rows.read(args.keep)}
    jobs = []
    for section, networks in names().items():
        for name in networks:
            if fnmatch(name, args.only):
                jobs += [(name, tool) for tool in tools if tool == "secateur" or section != "transformers"]
    jobs = [job for job in jobs if job not in done]
    warm_up()
    for number, job in enumerate(jobs, 1):
        row = rows.add(in_process(*job, args.limit))
        print(f"{number}/{len(jobs)}", *job, row["outcome"], row.get("error", "")[:200], flush=True)
    gather(rows)


def gather(rows: Rows) -> None:
    """Write the record: the last row of every network and tool."""
    last = {(row["network"], row["tool"]): row for row in rows.read()}
    section_of = {name: section for section, networks in names().items() for name in networks}
    records = [{"section": section_of[n], **last[n, t]} for n, t in sorted(last) if n in section_of]
    commits = {row["commit"] for row in records}
    write_record("coverage", {"remarks": rows.remarks(commits), "records": records}, commits=commits)


def main() -> None:
    """Read the command line and run."""
    parser = options(__doc__)
    parser.add_argument("--only", default="*", help="a pattern over library:name, such as 'timm:res2*'")
    parser.add_argument("--tool", default="both", choices=[*TOOLS, "both"])
    parser.add_argument("--limit", type=float, default=300, help="processor seconds per network (default: %(default)s)")
    add_keep_option(parser)
    parser.add_argument("--page", action="store_true", help="only write docs/coverage.md")
    args = parser.parse_args()
    if args.page:
        write_atomic(PAGE, page(read_record("coverage")))
    else:
        run(args)


if __name__ == "__main__":
    main()
