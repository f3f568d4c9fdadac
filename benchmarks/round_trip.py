"""Cut, save and load networks of three libraries; each must come back bit for bit.

python benchmarks/round_trip.py     # 50 networks; writes results/round_trip.json; stop and start again at will
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from environment import Rows, add_keep_option, options, prepare, progress_bar, write_record

ZOO = """
deepknight densenet22 densenet22-bc lenet300100 lenet5 lenet5-classic resnet20 resnet56 resnet20-b resnet56-b vgg16-bn
wrn16-8
""".split()
TORCHVISION = """
alexnet googlenet mnasnet0_5 mobilenet_v2 mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet34 resnet50
shufflenet_v2_x0_5 squeezenet1_0 squeezenet1_1 vgg11 vgg11_bn
""".split()
TIMM = """
cs3darknet_focus_s darknet17 dla46x_c efficientnet_lite0 gernet_s ghostnet_050 hardcorenas_a lcnet_050 legacy_seresnet18
mixnet_s mnasnet_small mobilenetv2_050 mobilenetv3_small_050 mobilenetv4_conv_small regnetx_002 repghostnet_050
resnet10t resnet26d resnetblur18 selecsls42b semnasnet_050 seresnet18 spnasnet_100
""".split()
NAMES = [f"zoo:{name}" for name in ZOO] + [f"torchvision:{name}" for name in TORCHVISION] + [f"timm:{n}" for n in TIMM]
SIDES = (64, 96, 224)  # the first that the network runs with


def one(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Cut, save and load one network and return its row."""
    import secateur as sc
    from secateur.storage.checkpoint import read_plan
    from secateur.zoo.names import build

    torch.manual_seed(seed)
    model = build(name).eval()
    example = _example(model)
    plan = sc.random_plan(sc.trace(model, example), kept=0.6, seed=seed)
    small = sc.cut(model, plan)
    with torch.no_grad():  # weights and statistics that the original never had, as retraining and repair leave them
        for tensor in small.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(torch.empty_like(tensor).uniform_(0.9, 1.1))
    path = folder / "small.safetensors"
    sc.save(path, small, plan, architecture=name)
    torch.manual_seed(seed + 1)  # the fresh original has other weights
    started = time.perf_counter()
    given = sc.load(path, build(name).eval())
    loaded = time.perf_counter() - started
    named = sc.load(path).eval()
    before, after = (sum(p.numel() for p in network.parameters()) for network in (model, small))
    return {
        "network": name,
        "seed": seed,
        "parameters": after,
        "removed": round(1 - after / before, 3),
        "file_mb": round(path.stat().st_size / 1e6, 2),
        "build_and_load_seconds": round(loaded, 3),
        "same_tensors": all(_same(small.state_dict(), other.state_dict()) for other in (given, named)),
        "same_outputs": all(_same(_answers(small, example), _answers(other, example)) for other in (given, named)),
        "same_plan": read_plan(path) == plan,
    }


def _example(model: torch.nn.Module) -> torch.Tensor:
    shape = getattr(model, "input_shape", None)
    if isinstance(shape, tuple):
        return torch.randn(2, *shape)
    for side in SIDES:
        try:
            with torch.no_grad():
                model(torch.zeros(2, 3, side, side))
            return torch.randn(2, 3, side, side)
        except RuntimeError:
            if side == SIDES[-1]:
                raise
    raise AssertionError("the last side either runs or raises")


@torch.no_grad()
def _answers(network: torch.nn.Module, example: torch.Tensor) -> dict[str, torch.Tensor]:
    found = network(example)
    assert isinstance(found, torch.Tensor)
    return {"output": found}


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether two sets of tensors are equal bit for bit: even 0.0 and -0.0 differ."""
    return one.keys() == other.keys() and all(
        a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
        for a, b in ((one[name], other[name]) for name in one)
    )


def main() -> None:
    """Run the networks that are not done yet, and write the record."""
    parser = options(__doc__)
    add_keep_option(parser)
    args = parser.parse_args()
    prepare()
    rows = Rows("round_trip")
    done = {row["network"] for row in rows.read(args.keep)}
    with progress_bar() as progress, tempfile.TemporaryDirectory() as folder:
        task = progress.add_task("round trips", total=len(NAMES), completed=len(done))
        for seed, name in enumerate(NAMES):
            if name in done:
                continue
            progress.update(task, description=name)
            try:
                row = one(name, seed, Path(folder))
            except Exception as error:
                row = {"network": name, "seed": seed, "error": f"{type(error).__name__}: {error}"[:500]}
            rows.add(row)
            progress.advance(task)
    gather(rows)


def gather(rows: Rows) -> None:
    """Write and print the record: the last row of every network."""
    last = {row["network"]: row for row in rows.read()}
    found = [last[name] for name in NAMES if name in last]
    exact = [row for row in found if row.get("same_tensors") and row["same_outputs"] and row["same_plan"]]
    others = [row for row in found if row not in exact]
    content = {"networks": len(found), "exact": len(exact), "not_exact": others, "rows": found}
    write_record("round_trip", content, commits={row["commit"] for row in found})
    print(f"{len(exact)} of {len(found)} networks came back bit for bit")
    for row in others:
        print(row)


if __name__ == "__main__":
    main()
