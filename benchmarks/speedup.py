"""How much time a cut saves compared with the MACs it saves, and how closely a latency budget is met.

    python benchmarks/speedup.py             # writes results/speedup.json; on a quiet machine about ten minutes
    python benchmarks/speedup.py --smoke     # small inputs: prints only

ResNet50 and MobileNetV2 with random weights, one image of 224 x 224. Every group keeps the same part of its channels,
any number of them or a multiple of 8, so that 70, 50 and 30 % of the MACs remain; then the cut and the original network
are timed, interleaved. Accuracy is not measured. For the second part `sc.prune` is asked for 70 % of the time.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from environment import options, prepare, write_record

NETWORKS = ("resnet50", "mobilenet_v2")
REMAIN = (0.7, 0.5, 0.3)
ASKED = 0.7


def main() -> None:
    """Measure both parts for both networks and print each result."""
    parser = options(__doc__, threads=1)
    parser.add_argument("--runs", type=int, default=100, help="of each network (default: %(default)s)")
    parser.add_argument("--smoke", action="store_true", help="64 x 64, few runs, no record")
    args = parser.parse_args()
    prepare(args.threads)
    size, runs = (64, 20) if args.smoke else (224, args.runs)
    example = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    before = os.getloadavg()
    by_macs = [row for name in NETWORKS for row in cut_to_macs(name, example, runs)]
    by_time = [prune_to_time(name, example, runs) for name in NETWORKS]
    record = {
        "what": "time of networks cut to a part of their MACs, and of networks pruned to a part of their time; "
        f"one image of {size} x {size}, random weights, {runs} interleaved runs of each",
        "threads": args.threads,
        "load": {"before": before[0], "after": os.getloadavg()[0], "cores": os.cpu_count()},
        "by_macs": by_macs,
        "by_time": by_time,
    }
    if not args.smoke:
        write_record("speedup", record)


def cut_to_macs(name: str, example: torch.Tensor, runs: int) -> list[dict[str, Any]]:
    """Cut all groups by the same part until the wanted MACs remain, and time the results against the original."""
    import secateur as sc

    model = random_weights(name)
    graph, original = sc.trace(model, example), sc.cost(model, example).macs
    rows = []
    for multiple in (1, 8):
        for remain in REMAIN:
            small = largest(model, graph, example, remain * original, multiple)
            found = sc.bench(model, small, example, runs=runs)
            macs = sc.cost(small, example).macs / original
            rows.append(
                {
                    "network": name,
                    "multiples_of": multiple,
                    "macs_left": round(macs, 4),
                    "macs_ratio": round(1 / macs, 3),
                    **timed(found),
                }
            )
            print(f"{name}, multiples of {multiple}: {macs:.1%} of the MACs, {found.verdict}", flush=True)
    return rows


def largest(model: nn.Module, graph: Any, example: torch.Tensor, limit: float, multiple: int) -> nn.Module:
    """Return the largest network within `limit` MACs whose groups all keep about the same part, by bisection."""
    import secateur as sc

    def cut_to(kept: float) -> nn.Module:
        units = {
            group.name: range(min(group.size, max(multiple, round(group.size * kept / multiple) * multiple)))
            for group in graph.prunable
        }
        return sc.cut(model, sc.Plan.keeping(graph, units))

    low, high = 0.0, 1.0
    best = cut_to(low)
    for _ in range(10):
        middle = (low + high) / 2
        small = cut_to(middle)
        if sc.cost(small, example).macs <= limit:
            low, best = middle, small
        else:
            high = middle
    return best


def prune_to_time(name: str, example: torch.Tensor, runs: int) -> dict[str, Any]:
    """Prune to a part of the time, then time the result against the original, interleaved."""
    import secateur as sc

    model = random_weights(name)
    images = torch.randn(8, *example.shape[1:], generator=torch.Generator().manual_seed(1))
    alone = sc.latency(model, example, runs=runs)
    res = sc.prune(model, images, {"latency_ms": f"{100 * ASKED:g}%"}, example=example)
    found = sc.bench(model, res.model, example, runs=runs)
    left = 1 / found.speedup
    row = {
        "network": name,
        "asked_left": ASKED,
        "time_left": round(left, 4),
        "time_left_interval": [round(1 / found.high, 4), round(1 / found.low, 4)],
        "off_by": round(left / ASKED - 1, 4),
        "macs_left": round(res.after.macs / res.before.macs, 4),
        "alone_ms": round(alone.median_ms, 3),
        **timed(found),
    }
    print(f"{name}: {ASKED:.0%} of the time asked for, {left:.1%} left ({row['off_by']:+.1%} off)", flush=True)
    return row


def timed(found: Any) -> dict[str, Any]:
    """Return both times and the speedup."""
    return {
        "original_ms": round(found.first.median_ms, 3),
        "cut_ms": round(found.second.median_ms, 3),
        "cut_quartiles_ms": [round(found.second.q25_ms, 3), round(found.second.q75_ms, 3)],
        "speedup": round(found.speedup, 3),
        "interval": [round(found.low, 3), round(found.high, 3)],
        "measurable": found.measurable,
    }


def random_weights(name: str) -> nn.Module:
    """Return a network of torchvision with random weights."""
    import torchvision.models

    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None).eval()


if __name__ == "__main__":
    main()
