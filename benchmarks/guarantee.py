"""Does the promise of the sample complexity hold on trained layers, and how loose is it?

python benchmarks/guarantee.py --data DIR --weights DIR     # writes results/guarantee.json
python benchmarks/guarantee.py --data DIR --weights DIR --only lenet5.fc1

For every group of the two LeNets (weights as benchmarks/train_lenets.py writes them), in double precision:

1. Sensitivities s on the first S training images.
2. C from the 6,000 validation images: the order statistic of rho(x) = max_j share_j(x) / s_j. A fresh image exceeds it
   with probability at most `level`, unless the validation images are untypical, with probability `certificate`.
3. m from C and the failure probability `draw`. Then 1,000 times: a test image that was not used before, a fresh draw,
   and the question whether |zhat - z| <= eps (z+ + z-) for all outputs and patches.
4. The smallest m that would have done: bisection over m on 1,000 other test images, each with its own random numbers
   that stay the same for every m; what it finds is tried again on 1,000 further images.

The promise fails with probability at most delta = draw + level + certificate: the draw fails for an image with
rho(x) <= C, or the image has rho(x) > C, or C is too small. The last is settled once, not for each image: given a good
C, the first two alone bound the share of violations. We call a promise broken if P(Bin(1000, delta) >= violations)
< 1e-3; were the true rate exactly delta, one test in a thousand would cry wolf.

- `partial` keeps k channels and draws m' from the rest. The theorem that chooses k mostly chooses 0, which is `rand`,
  so k = half of the channels is tried too, with the m' that belongs to it.
- `derand` has another promise: |zhat+ - z+| <= b z+ and the same for z-, with b = C times the dropped sensitivities.
  Nothing is drawn; it fails with probability at most level + certificate, and is tested against that. Where b <= eps
  it keeps the promise of the others too: the fewest channels for which that is so stand beside the other sizes.
- `pivotal` has no theorem here; it is set beside the others at the same size.

Layers that the record already holds for the same settings are passed over; --again starts over.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn.functional import unfold

import mnist
import secateur as sc
from environment import RESULTS, prepare, versions, write_whole
from secateur import select
from secateur.bounds import derandomized, excess, expected_unique, hybrid, order_statistic, sample_complexity
from secateur.embedded import as_images
from secateur.select import Array, Selection
from secateur.sensitivity import Sensitivity, exceedance, measure
from secateur.zoo import NETWORKS

RECORD = RESULTS / "guarantee.json"
LAYERS = {"lenet300100": {"fc1": "fc2", "fc2": "fc3"}, "lenet5": {"conv1": "conv2", "conv2": "fc1", "fc1": "fc2"}}
DRAWS = 1000
EPS = (0.5, 0.25)
ERROR_RATE = 1e-3  # of each binomial test
MOST = 2**20  # draws that the search goes up to
CHUNK = 50  # points whose contributions are worked on together


@dataclass(frozen=True)
class Split:
    """How a failure probability is spent, and on how many images the sensitivities are measured."""

    delta: float
    draw: float
    level: float
    certificate: float
    sample: int


SPLITS = (
    Split(0.1, 0.05, 0.04, 0.01, 256),
    Split(0.01, 0.005, 0.004, 0.001, 256),
    Split(0.01, 0.005, 0.004, 0.001, 4096),
)


@dataclass(frozen=True)
class Images:
    """The three parts, in double precision; the test set in random order, cut into blocks of 1,000."""

    train: Tensor
    validation: Tensor
    blocks: tuple[Tensor, ...]

    @classmethod
    def load(cls, root: Path, seed: int) -> Images:
        """Read MNIST; the split is the one that the networks were trained with."""
        train, validation, test = (
            as_images(mnist.load(root, part, seed)[0]).double() for part in ("train", "validation", "test")
        )
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))
        return cls(train[: max(split.sample for split in SPLITS)], validation, test[order].split(DRAWS))


@dataclass(frozen=True)
class Layer:
    """A group of channels and the layer that reads it."""

    model: nn.Module
    network: str
    group: str
    consumer: str
    units: int

    @property
    def name(self) -> str:
        return f"{self.network}.{self.group}"

    def contributions(self, images: Tensor) -> Tensor:
        """What each unit adds to each output at each patch: [points, units, outputs, patches]."""
        layer, seen = self.model.get_submodule(self.consumer), list[Tensor]()
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.no_grad():
            self.model(images)
        handle.remove()
        # The layers at hand have neither padding nor stride; a flattened channel is a window of its own.
        x = unfold(seen[0], layer.kernel_size) if isinstance(layer, nn.Conv2d) else seen[0][..., None]
        x = x.reshape(len(x), self.units, -1, x.shape[-1])
        weight = layer.weight.detach().reshape(len(layer.weight), self.units, -1)
        return torch.cat([torch.einsum("nukp,ouk->nuop", part, weight) for part in x.split(CHUNK)])


def errors(c: Tensor, scales: Array) -> Array:
    """For each point the largest |zhat - z| / (z+ + z-), each with its own scale of every unit (0: dropped)."""
    found = []
    for part, by in zip(c.split(CHUNK), torch.from_numpy(scales - 1).split(CHUNK), strict=True):
        gap, whole = torch.einsum("nu,nuop->nop", by, part).abs(), part.abs().sum(1)
        found.append((gap / whole.where(whole > 0, 1)).flatten(1).amax(1))
    return torch.cat(found).numpy()


def shares(c: Tensor) -> Array:
    """For each point the largest share of every unit in the sum of its own sign: [points, units]."""
    found = []
    for part in c.split(CHUNK):
        signed = torch.stack([part.clamp(min=0), (-part).clamp(min=0)])
        total = signed.sum(2, keepdim=True)
        found.append((signed / total.where(total > 0, 1)).amax((0, 3, 4)))
    return torch.cat(found).numpy()


def signed_errors(c: Tensor, dropped: list[int]) -> Array:
    """For each point the largest |zhat+ - z+| / z+ or |zhat- - z-| / z-, where these units go and nothing is scaled."""
    found = []
    for part in c.split(CHUNK):
        signed = torch.stack([part.clamp(min=0), (-part).clamp(min=0)])
        total = signed.sum(2)
        found.append((signed[:, :, dropped].sum(2) / total.where(total > 0, 1)).amax((0, 2, 3)))
    return torch.cat(found).numpy()


def drawn(units: int, choose: Callable[[np.random.Generator], Selection], seed: int, name: str) -> Array:
    """The scales of 1,000 draws, one for each point; the same name gives the same random numbers."""
    scales = np.zeros((DRAWS, units))
    for number in range(DRAWS):
        chosen = choose(select.generator(seed, f"{name} {number}"))
        scales[number, chosen.kept] = chosen.scales
    return scales


def verdict(found: Array, limit: float, allowed: float, delta: float) -> dict[str, Any]:
    """Count what exceeds the limit, test the count, and say which limit would have done."""
    violations = int((found > limit).sum())
    chance = float(binomtest(violations, len(found), allowed, alternative="greater").pvalue)
    return {
        "limit": limit,
        "allowed": allowed,
        "violations": violations,
        "p_value": chance,
        "holds": chance >= ERROR_RATE,
        "error_quantile": float(np.quantile(found, 1 - delta, method="inverted_cdf")),
    }


def rest_draws(s: Array, k: int, eps: float, sites: int, delta: float, C: float) -> int:
    """The m' of `partial` for any k; `bounds.hybrid` has it for the k of its choice."""
    r = C * float(np.sort(s)[::-1][k:].sum())
    return max(1, math.ceil((2 * r * min(1, r) + 2 / 3 * eps * r) / eps**2 * math.log(16 * sites / delta)))


def promised(
    layer: Layer, one: Sensitivity, C: float, split: Split, eps: float, c: Tensor, seed: int
) -> dict[str, Any]:
    """Draw as the bound says, and count the violations of every promise."""
    s, name = one.values.numpy(), f"{layer.name} {split.delta} {split.sample} {eps}"
    m = sample_complexity(eps, one.mass, one.sites, split.draw, C)
    unique = float(expected_unique(m, s / s.sum()))
    size = max(1, round(unique))
    best, half = hybrid(s, eps, one.sites, split.draw, C), len(s) // 2
    more = rest_draws(s, half, eps, one.sites, split.draw, C)
    ways: dict[str, Callable[[np.random.Generator], Selection]] = {
        "rand": lambda rng: select.rand(s, m, rng),
        "partial": lambda rng: select.partial(s, best.k, max(1, best.draws), rng),
        "partial_half": lambda rng: select.partial(s, half, more, rng),
        "pivotal": lambda rng: select.pivotal(s, size, rng),
    }
    row: dict[str, Any] = {"m": m, "expected_unique": unique, "unique_share": unique / len(s), "size": size}
    for way, choose in ways.items():
        scales = drawn(len(s), choose, seed, f"{name} {way}")
        row[way] = verdict(errors(c, scales), eps, split.delta, split.delta)
        row[way]["mean_kept"] = float((scales > 0).sum(1).mean())
    row["partial"] |= {"k": best.k, "m": best.draws}
    row["partial_half"] |= {"k": half, "m": more}
    row["derand"] = derand(s, size, C, c, split, eps)
    row["derand_for_eps"] = derand(s, sure_size(s, C, eps), C, c, split, eps)
    return row


def sure_size(s: Array, C: float, eps: float) -> int:
    """The fewest channels, largest first, for which `derand` promises eps."""
    sums = C * np.cumsum(np.sort(s))  # of the smallest 1, 2, ...
    return max(1, len(s) - int((sums <= eps).sum()))


def derand(s: Array, size: int, C: float, c: Tensor, split: Split, eps: float) -> dict[str, Any]:
    """Count the violations of the promise of `derand`, and for comparison those of the promise of `rand`."""
    chosen = select.derand(s, size)
    dropped = sorted(set(range(len(s))) - set(chosen.kept))
    bound = derandomized(s[dropped], C)
    row = verdict(signed_errors(c, dropped), bound, split.level + split.certificate, split.delta)
    row["limit"] = bound if math.isfinite(bound) else "infinite"
    scales = np.zeros((len(c), len(s)))
    scales[:, chosen.kept] = chosen.scales
    return row | {"size": size, "violations_of_eps": int((errors(c, scales) > eps).sum())}


def smallest(layer: Layer, s: Array, split: Split, eps: float, c: Tensor, seed: int) -> int | None:
    """The fewest draws whose violations stay within delta and one draw less has more; None beyond a million."""

    def enough(m: int) -> bool:
        scales = drawn(len(s), lambda rng: select.rand(s, m, rng), seed, f"{layer.name} {split.sample} search")
        return bool((errors(c, scales) > eps).mean() <= split.delta)

    low, high = 0, 32
    while not enough(high):
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def needed(
    layer: Layer, one: Sensitivity, C: float, split: Split, eps: float, search: Tensor, check: Tensor, seed: int
) -> dict[str, Any] | None:
    """The smallest m that would have done, tried again on fresh points beside the other ways at the same size."""
    s, name = one.values.numpy(), f"{layer.name} {split.delta} {split.sample} {eps} check"
    m = smallest(layer, s, split, eps, search, seed)
    if m is None:
        return None
    unique = float(expected_unique(m, s / s.sum()))
    size = max(1, round(unique))
    row: dict[str, Any] = {"m": m, "expected_unique": unique, "unique_share": unique / len(s), "size": size}
    scales = drawn(len(s), lambda rng: select.rand(s, m, rng), seed, f"{name} rand")
    row["rand"] = {"violations": int((errors(check, scales) > eps).sum())}
    scales = drawn(len(s), lambda rng: select.pivotal(s, size, rng), seed, f"{name} pivotal")
    row["pivotal"] = {"violations": int((errors(check, scales) > eps).sum())}
    row["derand"] = derand(s, size, C, check, split, eps)
    return row


def examine(
    layer: Layer, found: dict[int, Sensitivity], ratios: dict[int, Array], images: Images, seed: int
) -> dict[str, Any]:
    """Everything about one layer."""
    started = time.perf_counter()
    search, check = (layer.contributions(block) for block in images.blocks[-2:])
    fresh = iter(images.blocks[:-2])
    rows, samples = [], {}
    for sample, one in found.items():
        parts = images.train[:sample].split(DRAWS)
        by_hand = np.max([shares(layer.contributions(part)).max(0) for part in parts], axis=0)
        samples[str(sample)] = {
            "mass": one.mass,
            "least": float(one.values.min()),
            "silent": int((one.values == 0).sum()),
            "saturated": int((one.values > 1 - 1e-12).sum()),
            "off_by": float(np.abs(by_hand - one.values.numpy()).max()),  # against the plain formula
            "ratio_infinite": int(np.isinf(ratios[sample]).sum()),
        }
    for split in SPLITS:
        one = found[split.sample]
        C = excess(ratios[split.sample], split.level, split.certificate)  # infinite: too often a silent channel spoke
        for eps in EPS:
            c = layer.contributions(next(fresh))
            over = shares(c)
            with np.errstate(divide="ignore", invalid="ignore"):
                rho = np.where(over > 0, over / one.values.numpy(), 0).max(1)
            finite = math.isfinite(C)
            row: dict[str, Any] = {
                **asdict(split),
                "eps": eps,
                "C": C if finite else "infinite",
                "rank": order_statistic(len(ratios[split.sample]), split.level, split.certificate),
                "beyond_C": int((rho > C).sum()),
                "bound": promised(layer, one, C, split, eps, c, seed) if finite else None,
                "needed": needed(layer, one, C, split, eps, search, check, seed),
            }
            row["ratio"] = row["bound"]["m"] / row["needed"]["m"] if row["bound"] and row["needed"] else None
            rows.append(row)
    return {
        "layer": layer.name,
        "consumer": layer.consumer,
        "units": layer.units,
        "sites": one.sites,
        "samples": samples,
        "rows": rows,
        "seconds": round(time.perf_counter() - started, 1),
    }


def settings(seed: int) -> dict[str, Any]:
    """What a record must agree on for its layers to be taken over."""
    return {
        "seed": seed,
        "draws": DRAWS,
        "eps": list(EPS),
        "splits": [asdict(split) for split in SPLITS],
        "error_rate": ERROR_RATE,
        "held_out": mnist.VALIDATION,
        "versions": {"python": platform.python_version(), **versions("secateur", "torch", "numpy", "scipy")},
    }


def write(rows: list[dict[str, Any]], seed: int) -> None:
    """Write the record with the layers that are done."""
    names = [f"{network}.{group}" for network, groups in LAYERS.items() for group in groups]
    record = {
        "what": "violations of the per-layer promise in 1,000 draws, each with a test image of its own",
        "promise": "|zhat - z| <= eps (z+ + z-) for all outputs and patches, except with probability delta",
        "split": "delta = draw + level + certificate: the draw fails though rho(x) <= C; rho(x) > C; C too small",
        "broken": "if P(Bin(draws, allowed) >= violations) < error_rate",
        **settings(seed),
        "layers": sorted(rows, key=lambda row: names.index(row["layer"])),
    }
    write_whole(RECORD, json.dumps(record, indent=1) + "\n")


def recorded(seed: int) -> list[dict[str, Any]]:
    """The layers of the record, if it was made with these settings."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record["layers"] if all(record.get(key) == value for key, value in settings(seed).items()) else []


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """The promise, and how loose it is."""
    first = _table(
        "Violations in 1,000 draws with the m of the bound",
        "U: channels expected to stay, of n. half: partial, n/2 kept for sure. derand: its own promise",
        ("layer", "n", "S", "delta", "eps", "C", "m", "U", "rand", "partial", "half", "pivotal", "derand"),
    )
    second = _table(
        "How loose: the least m that would have done, its U, and the m of the bound over it",
        "error: what the bound gave. sure: channels derand needs. Right: violations at the least m",
        ("layer", "S", "delta", "eps", "U", "error", "sure", "least", "its U", "ratio", "rand", "pivotal", "derand"),
    )
    for one in rows:
        name = one["layer"].replace("lenet300100", "300-100")
        for row in one["rows"]:
            bound, need = row["bound"], row["needed"]
            head = [str(row[key]) for key in ("sample", "delta", "eps")]
            left, right, loose = ["inf", "-", "-", *"-----"], ["-"] * 3, ["-"] * 6
            if bound:
                unique = f"{bound['expected_unique']:.1f}"
                ways = ("rand", "partial", "partial_half", "pivotal", "derand")
                left = [f"{row['C']:.2f}", str(bound["m"]), unique, *(_mark(bound[way]) for way in ways)]
                right = [unique, f"{bound['rand']['error_quantile']:.3f}", str(bound["derand_for_eps"]["size"])]
            if need:
                seen = [need["rand"]["violations"], need["pivotal"]["violations"], need["derand"]["violations_of_eps"]]
                ratio = f"{row['ratio']:.0f}" if bound else "-"
                loose = [str(need["m"]), f"{need['expected_unique']:.1f}", ratio, *map(str, seen)]
            first.add_row(name, str(one["units"]), *head, *left)
            second.add_row(name, *head, *right, *loose)
        for table in (first, second):
            table.add_section()
    return [first, second]


def _table(title: str, caption: str, headings: tuple[str, ...]) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "layer" else "right", no_wrap=True)
    return table


def _mark(found: dict[str, Any]) -> str:
    return f"{found['violations']}" if found["holds"] else f"[red]{found['violations']} broken[/red]"


def main() -> None:
    """Examine every layer, write the record after each, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mnist.add_data_option(parser)
    parser.add_argument("--weights", type=Path, required=True, help="folder with NETWORK-seedK.safetensors")
    parser.add_argument("--only", help="one layer, such as lenet5.fc1")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the split and the draws")
    parser.add_argument("--again", action="store_true", help="do not go on from the record")
    args = parser.parse_args()
    prepare()
    images = Images.load(args.data, args.seed)
    done = [] if args.again else recorded(args.seed)
    for network, groups in LAYERS.items():
        have = {row["layer"] for row in done}
        open_ = [g for g in groups if f"{network}.{g}" not in have and args.only in (None, f"{network}.{g}")]
        if not open_:
            continue
        model = NETWORKS[network]()
        model.load_state_dict(load_file(args.weights / f"{network}-seed{args.seed}.safetensors"))
        model = model.double().eval()
        graph = sc.trace(model, images.train[:1])
        found, ratios = {}, {}
        for sample in sorted({split.sample for split in SPLITS}):
            found[sample] = measure(model, graph, [((images.train[:sample],), {})])
            ratios[sample] = exceedance(model, graph, [((images.validation,), {})], found[sample])
        for group in open_:
            layer = Layer(model, network, group, groups[group], len(found[sample][group].values))
            of_group = {sample: one[group] for sample, one in found.items()}
            row = examine(layer, of_group, {n: one[group].numpy() for n, one in ratios.items()}, images, args.seed)
            done.append(row)
            write(done, args.seed)
            print(f"{layer.name} -> {layer.consumer}: {row['seconds']} s", flush=True)
    for table in tables(done):
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
