"""Does the guarantee of the sample complexity hold on trained layers, and how loose is it?

    python benchmarks/guarantee.py --data DIR --weights DIR     # writes results/guarantee.json
    python benchmarks/guarantee.py --data DIR --weights DIR --only lenet5.fc1

For every group of the two LeNets (weights as benchmarks/train_lenets.py writes them), in double precision:

1. Sensitivities s on the first S training images.
2. C from the 6,000 validation images: the order statistic of rho(x) = max_j share_j(x) / s_j. A new image exceeds it
   with probability at most `level`, unless the validation images are untypical, with probability `certificate`.
3. m from C and the failure probability `sampling`. Then 1,000 trials: a test image that was not used before, newly
   sampled channels, and the question whether |zhat - z| <= eps (z+ + z-) for all outputs and positions.
4. The smallest sufficient m: bisection over m on 1,000 other test images, each with its own random numbers that stay
   the same for every m; the result is checked on 1,000 further images.

The guarantee fails with probability at most delta = sampling + level + certificate: the sampled channels fail for an
image with rho(x) <= C, or the image has rho(x) > C, or C is too small. The last is decided once, not for each image:
given a large enough C, the first two alone bound the share of violations. We call a guarantee broken if
P(Bin(1000, delta) >= violations) < 1e-3; if the true rate were exactly delta, one test in a thousand would call it so.

- `partial` keeps k channels and samples m' times from the rest. The theorem that chooses k mostly chooses 0, which is
  `rand`, so k = half of the channels is measured too, with the m' that belongs to it.
- `derand` has another guarantee: |zhat+ - z+| <= b z+ and the same for z-, with b = C times the sum of the dropped
  sensitivities. It samples nothing; it fails with probability at most level + certificate, and is tested against that.
  Where b <= eps it has the guarantee of the others too: the fewest channels for which that holds are recorded.
- `pivotal` has no theorem here; it is measured at the same size as the others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.nn.functional import unfold

import secateur as sc
from environment import Rows, add_data_option, add_keep_option, options, prepare, print_table, write_record
from secateur.certificates.bounds import excess, order_statistic
from secateur.data import dataset
from secateur.methods.pfp import sampling as select
from secateur.methods.pfp.bounds import derandomized, expected_unique, hybrid, sample_complexity
from secateur.methods.pfp.sampling import Array
from secateur.methods.pfp.sensitivity import Sensitivity, exceedance, measure
from secateur.methods.selection import Selection
from secateur.zoo import NETWORKS

LAYERS = {"lenet300100": {"fc1": "fc2", "fc2": "fc3"}, "lenet5": {"conv1": "conv2", "conv2": "fc1", "fc1": "fc2"}}
TRIALS = 1000
HELD_OUT = 6000  # validation images
EPS = (0.5, 0.25)
ERROR_RATE = 1e-3  # of each binomial test
MOST = 2**20  # the largest m that the search tries
CHUNK = 50  # samples whose contributions are computed together


@dataclass(frozen=True)
class Split:
    """How a failure probability is divided, and on how many samples the sensitivities are measured."""

    delta: float
    sampling: float
    level: float
    certificate: float
    samples: int


SPLITS = (
    Split(0.1, 0.05, 0.04, 0.01, 256),
    Split(0.01, 0.005, 0.004, 0.001, 256),
    Split(0.01, 0.005, 0.004, 0.001, 4096),
)


@dataclass(frozen=True)
class Images:
    """The three parts of MNIST in double precision; the test set in random order, in blocks of 1,000."""

    train: Tensor
    validation: Tensor
    blocks: tuple[Tensor, ...]

    @classmethod
    def load(cls, root: Path, seed: int) -> Images:
        """Read MNIST, split as for the training of the networks."""
        parts = (dataset("mnist", part, root, seed=seed, download=False) for part in ("train", "validation", "test"))
        train, validation, test = (
            part.scaled((0.0,), (1.0,)).inputs(torch.arange(len(part))).double() for part in parts
        )
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))
        return cls(train[: max(split.samples for split in SPLITS)], validation, test[order].split(TRIALS))


@dataclass(frozen=True)
class Layer:
    """A group of channels and the layer that consumes it."""

    model: nn.Module
    network: str
    group: str
    consumer: str
    units: int

    @property
    def name(self) -> str:
        return f"{self.network}.{self.group}"

    def contributions(self, images: Tensor) -> Tensor:
        """Return the contribution of each unit to each output and position: [samples, units, outputs, positions]."""
        layer, inputs = self.model.get_submodule(self.consumer), list[Tensor]()
        assert isinstance(layer, nn.Conv2d | nn.Linear)
        handle = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        with torch.no_grad():
            self.model(images)
        handle.remove()
        # These layers have neither padding nor stride; a flattened channel is a window of its own.
        x = unfold(inputs[0], layer.kernel_size) if isinstance(layer, nn.Conv2d) else inputs[0][..., None]
        x = x.reshape(len(x), self.units, -1, x.shape[-1])
        weight = layer.weight.detach().reshape(len(layer.weight), self.units, -1)
        return torch.cat([torch.einsum("nukp,ouk->nuop", part, weight) for part in x.split(CHUNK)])


def errors(c: Tensor, scales: Array) -> Array:
    """Return for each sample the largest |zhat - z| / (z+ + z-); each has its own scale of every unit (0: dropped)."""
    found = []
    for part, by in zip(c.split(CHUNK), torch.from_numpy(scales - 1).split(CHUNK), strict=True):
        gap, total = torch.einsum("nu,nuop->nop", by, part).abs(), part.abs().sum(1)
        found.append((gap / total.where(total > 0, 1)).flatten(1).amax(1))
    return torch.cat(found).numpy()


def shares(c: Tensor) -> Array:
    """Return for each sample the largest share of every unit in the sum of its own sign: [samples, units]."""
    found = []
    for part in c.split(CHUNK):
        signed = torch.stack([part.clamp(min=0), (-part).clamp(min=0)])
        total = signed.sum(2, keepdim=True)
        found.append((signed / total.where(total > 0, 1)).amax((0, 3, 4)))
    return torch.cat(found).numpy()


def signed_errors(c: Tensor, dropped: list[int]) -> Array:
    """Return for each sample the largest |zhat+ - z+| / z+ or |zhat- - z-| / z-, with these units dropped."""
    found = []
    for part in c.split(CHUNK):
        signed = torch.stack([part.clamp(min=0), (-part).clamp(min=0)])
        total = signed.sum(2)
        found.append((signed[:, :, dropped].sum(2) / total.where(total > 0, 1)).amax((0, 2, 3)))
    return torch.cat(found).numpy()


def sampled(units: int, choose: Callable[[np.random.Generator], Selection], seed: int, name: str) -> Array:
    """Return the scales of 1,000 selections, one for each sample; the same name gives the same random numbers."""
    scales = np.zeros((TRIALS, units))
    for number in range(TRIALS):
        chosen = choose(select.generator(seed, f"{name} {number}"))
        scales[number, chosen.kept] = chosen.scales
    return scales


def tested(found: Array, limit: float, allowed: float, delta: float) -> dict[str, Any]:
    """Count the errors above the limit, test the count, and return it with the limit that would have sufficed."""
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
    """Return the m' of `partial` for any k; `bounds.hybrid` returns it for the k of its choice."""
    r = C * float(np.sort(s)[::-1][k:].sum())
    return max(1, math.ceil((2 * r * min(1, r) + 2 / 3 * eps * r) / eps**2 * math.log(16 * sites / delta)))


def guaranteed(
    layer: Layer, one: Sensitivity, C: float, split: Split, eps: float, c: Tensor, seed: int
) -> dict[str, Any]:
    """Sample as many channels as the bound requires, and count the violations of every guarantee."""
    s, name = one.values.numpy(), f"{layer.name} {split.delta} {split.samples} {eps}"
    m = sample_complexity(eps, one.mass, one.sites, split.sampling, C)
    unique = float(expected_unique(m, s / s.sum()))
    size = max(1, round(unique))
    best, half = hybrid(s, eps, one.sites, split.sampling, C), len(s) // 2
    more = rest_draws(s, half, eps, one.sites, split.sampling, C)
    ways: dict[str, Callable[[np.random.Generator], Selection]] = {
        "rand": lambda rng: select.rand(s, m, rng),
        "partial": lambda rng: select.partial(s, best.k, max(1, best.draws), rng),
        "partial_half": lambda rng: select.partial(s, half, more, rng),
        "pivotal": lambda rng: select.pivotal(s, size, rng),
    }
    row: dict[str, Any] = {"m": m, "expected_unique": unique, "unique_share": unique / len(s), "size": size}
    for way, choose in ways.items():
        scales = sampled(len(s), choose, seed, f"{name} {way}")
        row[way] = tested(errors(c, scales), eps, split.delta, split.delta)
        row[way]["mean_kept"] = float((scales > 0).sum(1).mean())
    row["partial"] |= {"k": best.k, "m": best.draws}
    row["partial_half"] |= {"k": half, "m": more}
    row["derand"] = derand(s, size, C, c, split, eps)
    row["derand_for_eps"] = derand(s, sure_size(s, C, eps), C, c, split, eps)
    return row


def sure_size(s: Array, C: float, eps: float) -> int:
    """Return the fewest channels, largest first, for which `derand` guarantees eps."""
    sums = C * np.cumsum(np.sort(s))  # of the smallest 1, 2, ...
    return max(1, len(s) - int((sums <= eps).sum()))


def derand(s: Array, size: int, C: float, c: Tensor, split: Split, eps: float) -> dict[str, Any]:
    """Count the violations of the guarantee of `derand`, and for comparison those of the guarantee of `rand`."""
    chosen = select.derand(s, size)
    dropped = sorted(set(range(len(s))) - set(chosen.kept))
    bound = derandomized(s[dropped], C)
    row = tested(signed_errors(c, dropped), bound, split.level + split.certificate, split.delta)
    row["limit"] = bound if math.isfinite(bound) else "infinite"
    scales = np.zeros((len(c), len(s)))
    scales[:, chosen.kept] = chosen.scales
    return row | {"size": size, "violations_of_eps": int((errors(c, scales) > eps).sum())}


def smallest(layer: Layer, s: Array, split: Split, eps: float, c: Tensor, seed: int) -> int | None:
    """Return an m whose violations stay within delta while those of m - 1 do not; None beyond a million."""

    def enough(m: int) -> bool:
        scales = sampled(len(s), lambda rng: select.rand(s, m, rng), seed, f"{layer.name} {split.samples} search")
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
    """Return the smallest sufficient m, checked on new samples, beside the other ways at the same size."""
    s, name = one.values.numpy(), f"{layer.name} {split.delta} {split.samples} {eps} check"
    m = smallest(layer, s, split, eps, search, seed)
    if m is None:
        return None
    unique = float(expected_unique(m, s / s.sum()))
    size = max(1, round(unique))
    row: dict[str, Any] = {"m": m, "expected_unique": unique, "unique_share": unique / len(s), "size": size}
    scales = sampled(len(s), lambda rng: select.rand(s, m, rng), seed, f"{name} rand")
    row["rand"] = {"violations": int((errors(check, scales) > eps).sum())}
    scales = sampled(len(s), lambda rng: select.pivotal(s, size, rng), seed, f"{name} pivotal")
    row["pivotal"] = {"violations": int((errors(check, scales) > eps).sum())}
    row["derand"] = derand(s, size, C, check, split, eps)
    return row


def examine(
    layer: Layer, found: dict[int, Sensitivity], ratios: dict[int, Array], images: Images, seed: int
) -> dict[str, Any]:
    """Return everything about one layer."""
    started = time.perf_counter()
    search, check = (layer.contributions(block) for block in images.blocks[-2:])
    blocks = iter(images.blocks[:-2])
    rows, samples = [], {}
    for count, one in found.items():
        parts = images.train[:count].split(TRIALS)
        by_hand = np.max([shares(layer.contributions(part)).max(0) for part in parts], axis=0)
        samples[str(count)] = {
            "mass": one.mass,
            "least": float(one.values.min()),
            "inactive": int((one.values == 0).sum()),
            "saturated": int((one.values > 1 - 1e-12).sum()),
            "off_by": float(np.abs(by_hand - one.values.numpy()).max()),  # against the plain formula
            "ratio_infinite": int(np.isinf(ratios[count]).sum()),
        }
    for split in SPLITS:
        one = found[split.samples]
        # C is infinite if channels without sensitivity were active too often.
        C = excess(ratios[split.samples], split.level, split.certificate)
        for eps in EPS:
            c = layer.contributions(next(blocks))
            over = shares(c)
            with np.errstate(divide="ignore", invalid="ignore"):
                rho = np.where(over > 0, over / one.values.numpy(), 0).max(1)
            finite = math.isfinite(C)
            row: dict[str, Any] = {
                **asdict(split),
                "eps": eps,
                "C": C if finite else "infinite",
                "rank": order_statistic(len(ratios[split.samples]), split.level, split.certificate),
                "beyond_C": int((rho > C).sum()),
                "bound": guaranteed(layer, one, C, split, eps, c, seed) if finite else None,
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
    """Return what rows of several runs must agree on to stand in one record."""
    return {
        "seed": seed,
        "trials": TRIALS,
        "eps": list(EPS),
        "splits": [asdict(split) for split in SPLITS],
        "error_rate": ERROR_RATE,
        "held_out": HELD_OUT,
    }


def gather(rows: Rows, seed: int) -> list[dict[str, Any]]:
    """Write the record: the last row of every layer, in the order of `LAYERS`; return the rows."""
    last = {row["layer"]: row for row in rows.read()}
    names = [f"{network}.{group}" for network, groups in LAYERS.items() for group in groups]
    layers = [last[name] for name in names if name in last]
    record = {
        "what": "violations of the per-layer guarantee in 1,000 trials, each with a test image of its own",
        "guarantee": "|zhat - z| <= eps (z+ + z-) for all outputs and positions, except with probability delta",
        "split": "delta = sampling + level + certificate: the sampled channels fail though rho(x) <= C; rho(x) > C; "
        "C too small",
        "broken": "if P(Bin(trials, allowed) >= violations) < error_rate",
        **settings(seed),
        "layers": layers,
    }
    write_record("guarantee", record, commits={row["commit"] for row in layers})
    return layers


def show(rows: list[dict[str, Any]]) -> None:
    """Print the violations of every guarantee, and how loose the bound is."""
    first, second = [], []
    for one in rows:
        name = one["layer"].replace("lenet300100", "300-100")
        for row in one["rows"]:
            bound, need = row["bound"], row["needed"]
            head = [row[key] for key in ("samples", "delta", "eps")]
            left, right, loose = ["inf", "-", "-", *"-----"], ["-"] * 3, ["-"] * 6
            if bound:
                unique = f"{bound['expected_unique']:.1f}"
                ways = ("rand", "partial", "partial_half", "pivotal", "derand")
                left = [f"{row['C']:.2f}", bound["m"], unique, *(_mark(bound[way]) for way in ways)]
                right = [unique, f"{bound['rand']['error_quantile']:.3f}", bound["derand_for_eps"]["size"]]
            if need:
                checked = [need["rand"]["violations"], need["pivotal"]["violations"]]
                ratio = f"{row['ratio']:.0f}" if bound else "-"
                loose = [need["m"], f"{need['expected_unique']:.1f}", ratio, *checked]
                loose.append(need["derand"]["violations_of_eps"])
            first.append([name, one["units"], *head, *left])
            second.append([name, *head, *right, *loose])
    print_table(
        ("layer", "n", "S", "delta", "eps", "C", "m", "U", "rand", "partial", "half", "pivotal", "derand"),
        first,
        title="Violations in 1,000 trials with the m of the bound (U: expected number of kept channels, of n; "
        "half: partial with n/2 kept for certain; derand: of its own guarantee)",
        width=100,
    )
    print_table(
        ("layer", "S", "delta", "eps", "U", "error", "sure", "least", "its U", "ratio", "rand", "pivotal", "derand"),
        second,
        title="Looseness (error: observed at the m of the bound; sure: channels that derand needs; least: the smallest "
        "sufficient m; ratio: the m of the bound over it; right: violations at the least m)",
        width=100,
    )


def _mark(found: dict[str, Any]) -> str:
    return f"{found['violations']}" if found["holds"] else f"[red]{found['violations']} broken[/red]"


def main() -> None:
    """Measure every layer, write the record and print it."""
    parser = options(__doc__)
    add_data_option(parser, "MNIST/raw")
    parser.add_argument("--weights", type=Path, required=True, help="folder with NETWORK-seedK.safetensors")
    parser.add_argument("--only", help="one layer, such as lenet5.fc1")
    parser.add_argument("--seed", type=int, default=0, help="of weights, split and sampling (default: %(default)s)")
    add_keep_option(parser)
    args = parser.parse_args()
    prepare()
    images = Images.load(args.data, args.seed)
    rows = Rows("guarantee", settings(args.seed))
    done = {row["layer"] for row in rows.read(args.keep)}
    for network, groups in LAYERS.items():
        open_ = [g for g in groups if f"{network}.{g}" not in done and args.only in (None, f"{network}.{g}")]
        if not open_:
            continue
        model = NETWORKS[network]()
        model.load_state_dict(load_file(args.weights / f"{network}-seed{args.seed}.safetensors"))
        model = model.double().eval()
        graph = sc.trace(model, images.train[:1])
        found, ratios = {}, {}
        for count in sorted({split.samples for split in SPLITS}):
            found[count] = measure(model, graph, [((images.train[:count],), {})])
            ratios[count] = exceedance(model, graph, [((images.validation,), {})], found[count])
        for group in open_:
            layer = Layer(model, network, group, groups[group], len(found[count][group].values))
            of_group = {samples: one[group] for samples, one in found.items()}
            row = examine(layer, of_group, {n: one[group].numpy() for n, one in ratios.items()}, images, args.seed)
            rows.add(row)
            print(f"{layer.name} -> {layer.consumer}: {row['seconds']} s", flush=True)
    show(gather(rows, args.seed))


if __name__ == "__main__":
    main()
