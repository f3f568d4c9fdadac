"""Plan random networks under random budgets, cut them, and check that every budget was met and used.

    python benchmarks/random_budgets.py                  # 500 networks; writes results/random_budgets.json
    python benchmarks/random_budgets.py --count 20       # fewer: prints only

Each network consists of the blocks of the property tests, has random weights and random inputs, and is planned by the
paper's method under a random budget in parameters, MACs or both, and under a larger one. Checked: the cut network
costs no more than the budget; one more channel of the costliest group would not fit; the larger budget keeps at least
as many units of every group; the cut network equals the masked one.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from multiprocessing import get_context
from typing import Any

from environment import options, prepare, progress_bar, tests_on_path, write_record

COUNT = 500


def check(seed: int) -> dict[str, Any]:
    """Plan and cut one network twice and return its row."""
    import torch

    import secateur as sc
    from secateur.costs.sizes import Sizes
    from secateur.surgery.rewrite import runnable

    tests_on_path()
    from support.networks.architectures import build, random_spec

    spec = random_spec(seed)
    model, example = build(spec)
    graph = sc.trace(model, example, output=spec["output"])
    if not graph.prunable:
        return {"seed": seed, "outcome": "nothing to cut"}
    pick = random.Random(seed)
    select = pick.choice(["derand", "pivotal"])
    original = sc.cost(model, example)
    sizes = Sizes(graph, sc.cost(runnable(model, graph), example))
    floor = {group.name: 1 for group in graph.prunable}
    asked = pick.choice([("params",), ("macs",), ("params", "macs")])
    share = pick.random()
    budgets = []
    for part in (share, share + (1 - share) * pick.random()):
        low = {"params": sizes.params(floor), "macs": sizes.macs(floor)}
        budgets.append({name: low[name] + part * (getattr(original, name) - low[name]) + 1 for name in asked})
    plans = [
        sc.plan(model, example, budget, method="pfp", select=select, seed=seed, output=spec["output"], example=example)
        for budget in budgets
    ]
    problems = []
    sets = []
    for plan, budget in zip(plans, budgets, strict=True):
        kept = {group.name: group.kept for group in plan.groups}
        counts = {group.name: len(kept.get(group.name, range(group.size))) for group in graph.prunable}
        sets.append(counts)
        small = sc.cost(sc.cut(model, plan), example) if plan.kept else sc.cost(runnable(model, graph), example)
        if any(getattr(small, name) > limit for name, limit in budget.items()):
            problems.append("exceeded")
        measures = {"params": sizes.params, "macs": sizes.macs}
        steps = {
            name: max(measures[name]({}) - measures[name]({g.name: g.size - 1}) for g in graph.prunable)
            for name in asked
        }
        full = all(counts[g.name] == g.size for g in graph.prunable)
        if not full and all(limit - getattr(small, name) > steps[name] for name, limit in budget.items()):
            problems.append("not used")
        if plan.kept and sc.verify(model, plan, example) > 1e-9:
            problems.append("cut differs from masked")
    if any(sets[0][name] > sets[1][name] for name in sets[0]):
        problems.append("not monotone")
    assert torch.get_num_threads() == 1
    return {"seed": seed, "outcome": ", ".join(dict.fromkeys(problems)) or "ok", "select": select, "asked": asked}


def run(seed: int) -> dict[str, Any]:
    """Check one network and return its row; an exception is an outcome."""
    prepare(1)
    try:
        return check(seed)
    except Exception as error:
        return {"seed": seed, "outcome": f"crash: {type(error).__name__}: {str(error).splitlines()[0]}"}


def main() -> None:
    """Check the networks in several processes, write the record and print it."""
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="of networks (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    args = parser.parse_args()
    rows = []
    with get_context("spawn").Pool(args.jobs, maxtasksperchild=50) as pool, progress_bar() as bar:
        task = bar.add_task("random budgets", total=args.count)
        for row in pool.imap_unordered(run, range(args.first, args.first + args.count)):
            rows.append(row)
            bar.advance(task)
    rows.sort(key=lambda row: row["seed"])
    outcomes = Counter(row["outcome"] for row in rows)
    record = {
        "what": "random networks under two random budgets each: met, used, monotone, exact",
        "count": len(rows),
        "first_seed": args.first,
        "outcomes": dict(outcomes.most_common()),
        "selects": dict(Counter(row.get("select", "-") for row in rows)),
        "budgets": dict(Counter("+".join(row.get("asked", ())) for row in rows)),
        "not_ok": [row for row in rows if row["outcome"] not in ("ok", "nothing to cut")],
    }
    if args.count >= COUNT:
        write_record("random_budgets", record)
    print(json.dumps(record["outcomes"]))
    sys.exit(1 if record["not_ok"] else 0)


if __name__ == "__main__":
    main()
