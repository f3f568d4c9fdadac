"""Accuracy of a pruned segmenter and a pruned vision transformer, beside Torch-Pruning, with and without recovery.

    python benchmarks/tasks.py --data DIR --runs DIR             # all of it; stop and start again at will
    python benchmarks/tasks.py --data DIR --runs DIR --network unet-mnist
    python benchmarks/tasks.py --page                            # docs/tasks.md from results/tasks.json

DIR has MNIST. The networks are trained on training images and kept in the folder of runs. Every row is one network,
tool, share of the MACs that remains, and what followed the cut: nothing, norm statistics estimated again (`norms`), or
100 steps of `sc.recover`. All of it uses the same 256 training images without labels; test images are met once, by the
finished network.

Torch-Pruning removes the filters of least L2 norm with its own pruner, at the ratio that meets the budget, the same in
every layer (tp-l2). In transformers tp-l2 also narrows the tokens, as in its example for timm; tp-l2-inner removes
hidden units and channels inside heads only.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from environment import (
    Rows,
    add_data_option,
    add_keep_option,
    options,
    prepare,
    read_record,
    write_atomic,
    write_record,
)
from tasks_networks import TASKS, TESTS, Pairs, Task, read, trained
from tasks_page import PAGE, page

SAMPLES, STEPS, BUDGETS = 256, 100, (0.7, 0.5)
KEY = ("network", "method", "budget", "after")


def methods(task: Task) -> tuple[str, ...]:
    """Return the tools that prune this network."""
    return ("secateur", "tp-l2") if task.segmentation else ("secateur", "tp-l2", "tp-l2-inner")


@torch.no_grad()
def predicted(model: nn.Module, x: Tensor) -> Tensor:
    """Return the class of every sample or pixel."""
    return torch.cat([model.eval()(batch).argmax(1) for batch in x.split(100)])


def scores(found: Tensor, original: Tensor, truth: Tensor, segmentation: bool) -> dict[str, Any]:
    """Return the accuracy and the agreement with the original in percent, and of maps the mean IoU of all classes."""
    row: dict[str, Any] = {
        "accuracy": round(100 * float((found == truth).float().mean()), 2),
        "agreement": round(100 * float((found == original).float().mean()), 2),
    }
    if segmentation:
        pairs = [(found == one, truth == one) for one in truth.unique()]
        shares = [float((a & b).sum() / (a | b).sum()) for a, b in pairs]
        row["mean_iou"] = round(100 * sum(shares) / len(shares), 2)
    return row


def torch_pruned(model: nn.Module, example: Tensor, method: str, ratio: float) -> nn.Module:
    """Return a copy pruned by Torch-Pruning at this ratio, as in its README and in its example for timm."""
    import torch_pruning as tp

    small = copy.deepcopy(model)
    heads: dict[nn.Module, int] = {}
    kept = [small.head]
    for module in small.modules():
        if hasattr(module, "qkv"):
            heads[module.qkv] = module.num_heads
            module.forward = _attention.__get__(module)
        if method.endswith("-inner"):
            kept += [getattr(module, name) for name in ("proj", "fc2") if hasattr(module, name)]
    pruner = tp.pruner.BasePruner(
        small,
        example,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=ratio,
        ignored_layers=kept,
        num_heads=heads,
    )
    pruner.step()
    for module in small.modules():
        if hasattr(module, "qkv"):
            module.num_heads = pruner.num_heads[module.qkv]
            module.head_dim = module.qkv.out_features // (3 * module.num_heads)
            module.scale = module.head_dim**-0.5
    return small


def _attention(self: Any, x: Tensor, **_: Any) -> Tensor:
    """Attention of timm with the width of the cut layers, as Torch-Pruning's example has it."""
    batch, tokens, _ = x.shape
    q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
    weights = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1)
    return self.proj((weights @ v).transpose(1, 2).reshape(batch, tokens, -1))


def torch_pruned_to(model: nn.Module, example: Tensor, method: str, budget: float) -> nn.Module:
    """Return the largest network within the budget that Torch-Pruning finds, by bisection of its ratio."""
    import secateur as sc

    whole = sc.cost(model, example).macs
    low, high, best = 0.0, 1.0, None
    for _ in range(9):
        ratio = (low + high) / 2
        try:
            small = torch_pruned(model, example, method, ratio)
            fits = sc.cost(small, example).macs <= budget * whole
        except Exception:  # the ratio is too large: nothing is left of a layer
            high = ratio
            continue
        low, high, best = (low, ratio, small) if fits else (ratio, high, best)
    if best is None:
        raise RuntimeError(f"no ratio of {method} meets {budget:.0%} of the MACs")
    return best


@torch.no_grad()
def with_new_norms(model: nn.Module, x: Tensor) -> nn.Module:
    """Return a copy whose BatchNorm statistics are those of these samples."""
    model = copy.deepcopy(model).eval()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    for batch in x.split(64):
        model(batch)
    return model.eval()


def measured(task: Task, model: nn.Module, x: Tensor, test: Pairs, method: str, budget: float) -> Iterator[Any]:
    """Yield the rows of one pruned network: as it is, with new norm statistics, and recovered."""
    import secateur as sc

    original, started, plan = predicted(model, test[0]), time.perf_counter(), None
    if method == "secateur":
        kind = {"task": "segmentation"} if task.segmentation else {}
        res = sc.prune(model, list(x.split(64)), {"macs": f"{budget:.0%}"}, samples=None, **kind)
        small, plan = res.model, res.plan
    else:
        small = torch_pruned_to(model, x[:1], method, budget)
    seconds = time.perf_counter() - started
    before, after = (sc.cost(one, x[:1]) for one in (model, small))
    base = {"network": task.name, "method": method, "budget": budget}
    base |= {"macs": round(after.macs / before.macs, 4), "params": round(after.params / before.params, 4)}

    def row(followed_by: str, network: nn.Module, seconds: float) -> dict[str, Any]:
        found = scores(predicted(network, test[0]), original, test[1], task.segmentation)
        return {**base, "after": followed_by, **found, "seconds": round(seconds, 1)}

    yield row("nothing", small, seconds)
    if method != "secateur" and task.segmentation:
        small = with_new_norms(small, x)
        yield row("norms", small, seconds)
    recovered = sc.recover(small, model, list(x.split(64)), plan=plan, steps=STEPS)
    yield row("recover", recovered.model, recovered.seconds)


def main() -> None:
    """Measure the rows that are missing, and write the record."""
    parser = options(__doc__)
    add_data_option(parser, "MNIST", required=False)
    parser.add_argument("--runs", type=Path, help="folder for the trained networks")
    parser.add_argument("--network", default="", help="only networks whose name contains this")
    add_keep_option(parser)
    parser.add_argument("--page", action="store_true", help="only write docs/tasks.md")
    args = parser.parse_args()
    if args.page:
        write_atomic(PAGE, page(read_record("tasks")))
        return
    if not args.data or not args.runs:
        parser.error("--data and --runs are needed")
    prepare(1)
    rows = Rows("tasks", {"samples": SAMPLES, "steps": STEPS, "tests": TESTS})
    done = {tuple(row[part] for part in KEY) for row in rows.read(args.keep)}
    for task in (task for task in TASKS.values() if args.network in task.name):
        model = trained(task, args.data, args.runs)
        x, _ = read(task, args.data, "train", SAMPLES, seed=1)
        test = read(task, args.data, "test", TESTS if task.segmentation else 10_000, seed=2)
        if (task.name, "original", 1.0, "nothing") not in done:
            own = predicted(model, test[0])
            base = {"network": task.name, "method": "original", "budget": 1.0, "macs": 1.0, "params": 1.0}
            rows.add({**base, "after": "nothing", **scores(own, own, test[1], task.segmentation), "seconds": 0.0})
        for method, budget in ((method, budget) for method in methods(task) for budget in BUDGETS):
            if (task.name, method, budget, "recover") not in done:
                for row in measured(task, model, x, test, method, budget):
                    print(rows.add(row), flush=True)
                gather(rows)
    gather(rows)


def gather(rows: Rows) -> None:
    """Write the record: the last row of every network, tool, budget and treatment."""
    last = {tuple(row[part] for part in KEY): row for row in rows.read()}
    order = {name: number for number, name in enumerate(TASKS)}
    records = sorted(last.values(), key=lambda row: order[row["network"]])
    what = "accuracy in percent on test images; `secateur` with its defaults; seconds beside other work on the machine"
    write_record("tasks", {"what": what, "records": records}, commits={row["commit"] for row in records})


if __name__ == "__main__":
    main()
