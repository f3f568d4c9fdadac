"""Sensitivities: equal to those found by masking all other channels of a layer, on every kind of wiring."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

import secateur as sc
from secateur.errors import UsageError
from secateur.methods.pfp import native
from secateur.methods.pfp.sensitivity import exceedance, measure
from secateur.network.batches import calls
from secateur.network.examples import call_arguments
from secateur.surgery.rewrite import runnable
from support.cases import CASES, Net, build

KINDS = ["max", "mean", "rms", "q0.6"]
READABLE = [name for name, case in CASES.items() if case.module]
IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def telling() -> nn.Module:
    """A network whose sensitivities differ: few outputs and positions, so that no channel has one to itself."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 12, 6),
        nn.ReLU(),
        nn.Conv2d(12, 9, 2),
        nn.Flatten(),
        nn.Linear(36, 8),
        nn.Tanh(),
        nn.Linear(8, 2),
    )
    return nn.Sequential(*layers).double().eval()


def test_the_telling_network_tells() -> None:
    values = torch.cat(list(sc.sensitivity(telling(), IMAGES).values()))
    assert len(values) == 29 and ((values > 0.05) & (values < 0.95)).sum() > 20


def by_masking(model: nn.Module, graph: sc.ChannelGraph, example: Any) -> dict[str, dict[sc.Slot, Tensor]]:
    """For every group and layer that consumes it the shares [units, sites].

    Every layer runs with the weights of one unit at a time, and is compared with the sums over all units.
    """
    inputs: list[tuple[nn.Module, Tensor]] = []
    handles = [
        module.register_forward_pre_hook(lambda m, args: inputs.append((m, args[0])))
        for module in model.modules()
        if isinstance(module, _ConvNd | nn.Linear)
    ]
    args, kwargs = call_arguments(example)
    with torch.no_grad():
        model(*args, **kwargs)
    for handle in handles:
        handle.remove()
    found: dict[str, dict[sc.Slot, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    for layer, x in inputs:
        for slot in {slot for group in graph.prunable for slot in group.consumes}:
            if model.get_parameter(slot.parameter) is not layer.weight:
                continue
            units = _units(graph, slot)
            c = torch.stack([_alone(layer, x, slot.axis, indices) for _, _, indices in units])
            plus, minus = c.clamp(min=0).sum(0), (-c).clamp(min=0).sum(0)
            shares = torch.where(c > 0, c / plus, torch.where(c < 0, -c / minus, 0.0)).flatten(1)
            for group in graph.prunable:
                at = [number for number, (owner, _, _) in enumerate(units) if owner == group.name]
                if at:
                    found[group.name][slot].append(shares[at])
    return {name: {slot: torch.cat(parts, 1) for slot, parts in slots.items()} for name, slots in found.items()}


def summed_up(slots: dict[sc.Slot, Tensor], kind: str) -> list[float]:
    """The statistic of each unit, the largest over the layers."""
    how = {"max": lambda g: g.amax(1), "mean": lambda g: g.mean(1), "rms": lambda g: g.square().mean(1).sqrt()}[kind]
    return torch.stack([how(shares) for shares in slots.values()]).amax(0).tolist()


def _units(graph: sc.ChannelGraph, slot: sc.Slot) -> list[tuple[str, int, list[int]]]:
    found, free = [], set(range(graph.shapes[slot.parameter][slot.axis]))
    for group in graph.groups:
        for unit, indices in enumerate(group.indices[group.slots.index(slot)] if slot in group.slots else ()):
            found.append((group.name, unit, list(indices)))
            free -= set(indices)
    return found + [("", 0, [index]) for index in free]


def _alone(layer: nn.Module, x: Tensor, axis: int, indices: list[int]) -> Tensor:
    """The output of the layer from some of its channels alone, without bias."""
    weight, bias = layer.weight, layer.bias
    only = torch.zeros_like(weight)
    at = torch.tensor(indices)
    only.index_copy_(axis, at, weight.detach().index_select(axis, at))
    del layer._parameters["weight"], layer._parameters["bias"]
    layer.weight, layer.bias = only, None
    with torch.no_grad():
        out = layer(x)
    del layer.weight, layer.bias
    layer.weight, layer.bias = weight, bias
    return out


@pytest.mark.parametrize("name", READABLE)
def test_every_wiring(name: str) -> None:
    model, example = build(name)
    graph = sc.trace(model, example)
    computed = any(isinstance(m, nn.MultiheadAttention) or hasattr(m, "parametrizations") for m in model.modules())
    shares = {} if computed else by_masking(model, graph, example)  # a weight that is computed cannot be zeroed
    for kind in ("max", "mean", "rms"):
        found = sc.sensitivity(model, example, graph=graph, kind=kind)
        for group in graph.prunable:
            if group.name in shares and any(summed_up(shares[group.name], "max")):
                assert found[group.name].tolist() == pytest.approx(summed_up(shares[group.name], kind), abs=1e-9)


def test_the_outputs_of_each_group_of_a_layer_are_sites() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(6, 8, 2, groups=2).double()
    model = nn.Sequential(nn.Conv2d(3, 6, 3).double(), layer)
    means = []
    for x, weight in zip(model[0](IMAGES).chunk(2, 1), layer.weight.chunk(2), strict=True):
        half = nn.ConvTranspose2d(3, 4, 2).double()
        half.weight = nn.Parameter(weight)
        c = torch.stack([_alone(half, x, 0, [j]) for j in range(3)])
        share = torch.where(c > 0, c / c.clamp(min=0).sum(0), c / c.clamp(max=0).sum(0)).nan_to_num()
        means.append(share.flatten(1).mean(1))
    found = sc.sensitivity(model, IMAGES, kind="mean")["0"]  # channels j and 3 + j go together
    torch.testing.assert_close(found, (means[0] + means[1]) / 2, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", ["q0.1", "q0.5", "q.8", "q0.99"])
def test_a_quantile_is_one_of_the_largest_shares_of_the_samples(kind: str) -> None:
    model, count = telling(), len(IMAGES)
    graph = sc.trace(model, IMAGES[:1])
    each = [by_masking(model, graph, image[None]) for image in IMAGES]
    found = sc.sensitivity(model, IMAGES, graph=graph, kind=kind)
    level = min(1.0, np.ceil(float(kind[1:]) * (count + 1)) / count)
    for name, values in found.items():
        largest = np.array([summed_up(one[name], "max") for one in each])
        assert values.tolist() == pytest.approx(np.quantile(largest, level, axis=0, method="inverted_cdf"), abs=1e-12)


def test_few_samples_of_a_layer_count_as_much_as_the_many_of_another() -> None:
    """A group that a large and a small layer consume: the mean is over the sites of one, not of both."""
    torch.manual_seed(0)

    def run(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(m.a(x))
        return m.b(x), m.c(x.mean((2, 3)))

    parts = {"a": nn.Conv2d(3, 5, 3), "b": nn.Conv2d(5, 40, 1), "c": nn.Linear(5, 1)}
    model = Net(run, **parts).double().eval()
    with torch.no_grad():
        model.b.weight[:, 0] *= 1e-9
        model.c.weight[:, 1:] *= 1e-9
    for kind in ("mean", "rms"):
        assert float(sc.sensitivity(model, IMAGES, kind=kind)["a"][0]) > 0.999


@pytest.mark.parametrize(
    "kind", ["", "median", "q", "q0", "q0.0", "q1", "q1.0", "q-0.5", "q1e-3", "q1/2", "Q0.5", None]
)
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    model = telling()
    with pytest.raises(UsageError, match=r"the kind of sensitivity is .*\n.*max, mean, rms"):
        sc.sensitivity(model, IMAGES, kind=kind)
    with pytest.raises(UsageError, match="the kind of sensitivity is"):
        measure(model, sc.trace(model, IMAGES[:1]), calls(IMAGES), kind=kind)


@pytest.mark.parametrize("seed", range(8))
def test_the_dropped_sensitivities_bound_the_error(seed: int) -> None:
    """With b the sum of the dropped sensitivities: mean error <= b of mean, and so on; see docs/method.md."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    act = (nn.ReLU(), nn.Tanh())[seed % 2]
    model = nn.Sequential(nn.Conv2d(3, 16, 3), act, nn.Conv2d(16, 6, (1, 3)[seed // 2 % 2])).double()
    images = torch.randn(12, 3, 8, 8, generator=generator, dtype=torch.float64)
    graph = sc.trace(model, images[:1])
    with torch.no_grad():
        a = act(model[0](images))
        c = torch.stack([_alone(model[2], a, 1, [j]) for j in range(16)])
    size = c.abs().sum(0)
    kinds = {
        kind: sc.sensitivity(model, images, graph=graph, kind=kind)["0"] for kind in ("max", "mean", "rms", "q0.7")
    }
    for kept in (4, 8, 12, 15):
        for kind, s in kinds.items():
            dropped = s.argsort(descending=True)[kept:] if seed % 3 else torch.randperm(16, generator=generator)[kept:]
            bound = float(s[dropped].sum()) * (1 + 1e-12)
            error = c[dropped].sum(0).abs() / size  # |zhat - z| / (z+ + z-) at every site
            if kind == "max":
                assert error.max() <= bound
            elif kind == "mean":
                assert 0 < error.mean() <= bound
            elif kind == "rms":
                assert 0 < error.square().mean().sqrt() <= bound
            else:  # each dropped channel may break it at 3 of 10 samples, and in 12 samples at no more than 2
                assert (error.flatten(1).amax(1) > bound).sum() <= 0.3 * len(dropped) * 12
                shares = torch.where(c > 0, c / c.clamp(min=0).sum(0), c / c.clamp(max=0).sum(0)).nan_to_num()
                above = shares.flatten(2).amax(2) > s[:, None] * (1 + 1e-12)
                assert (above.sum(1) <= 2).all()
                assert (error.flatten(1).amax(1)[~above[dropped].any(0)] <= bound).all()


def test_kinds_are_in_order() -> None:
    mean, rms, most = (
        torch.cat(list(sc.sensitivity(telling(), IMAGES, kind=k).values())) for k in ("mean", "rms", "max")
    )
    assert (0 < mean).all() and (mean < rms).all() and (rms < most).all()


def test_bare_weights_and_programs_are_measured_too() -> None:
    model = Net(
        lambda m, x: F.conv2d(F.relu(F.conv2d(x, m.a)), m.b * m.gain),
        a=nn.Parameter(torch.randn(6, 3, 1, 1).double()),
        b=nn.Parameter(torch.randn(4, 6, 1, 1).double()),
        gain=nn.Parameter(torch.tensor(2.0).double()),
    )
    plain = nn.Sequential(nn.Conv2d(3, 6, 1, bias=False), nn.ReLU(), nn.Conv2d(6, 4, 1, bias=False)).double()
    plain[0].weight, plain[2].weight = model.a, model.b
    wanted = sc.sensitivity(plain, IMAGES)["0"]
    assert torch.equal(sc.sensitivity(model, IMAGES)["a"], wanted)
    torch.testing.assert_close(sc.sensitivity(model, IMAGES, output="graph")["a"], wanted, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[6], [1, 5], [2, 2, 2], [1] * 6])
def test_batches_of_any_size_give_the_same(sizes: list[int], kind: str) -> None:
    model = telling()
    whole = sc.sensitivity(model, IMAGES, kind=kind)
    parts = sc.sensitivity(model, (batch for batch in IMAGES.split(sizes)), kind=kind)
    for name, values in whole.items():
        torch.testing.assert_close(values, parts[name], rtol=1e-12, atol=0)


def test_more_samples_only_raise_it_and_labels_do_not_matter() -> None:
    model = telling()
    few, all_of_them = (sc.sensitivity(model, [(IMAGES, torch.arange(6))], samples=samples) for samples in (2, None))
    assert all((few[name] <= all_of_them[name] * (1 + 1e-12)).all() for name in few)  # batches of other sizes round
    assert any((few[name] < all_of_them[name]).any() for name in few)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_near_double(kind: str) -> None:
    model = telling()
    exact = sc.sensitivity(model, IMAGES, kind=kind)
    near = sc.sensitivity(model.float(), IMAGES.float(), kind=kind)
    for name, values in exact.items():
        torch.testing.assert_close(values, near[name], rtol=1e-4, atol=1e-4)
        assert near[name].dtype == torch.float64


def test_the_model_is_left_as_it_was() -> None:
    model, _ = build("norms_by_channel")
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    sc.sensitivity(model, IMAGES, example=IMAGES[:2])
    assert model.training and all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_group_that_only_training_uses_is_left_out() -> None:
    def run(m: Net, x: Tensor) -> Any:
        x = F.relu(m.a(x))
        return (m.b(x), m.d(F.relu(m.c(x)))) if m.training else m.b(x)

    parts = {"a": (3, 4), "b": (4, 2), "c": (4, 6), "d": (6, 2)}
    model = Net(run, **{name: nn.Conv2d(*widths, 1) for name, widths in parts.items()}).double().eval()
    assert set(sc.sensitivity(model, IMAGES)) == {"a"}


def test_sites_samples_and_mass() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.Flatten(), nn.Linear(20, 2))
    model = model.double()
    graph = sc.trace(model, IMAGES[:1])
    found = measure(model, graph, calls([IMAGES[:4], IMAGES[4:]]))
    assert found["0"].sites == 5 * 2 * 2 and found["2"].sites == 2 and found["0"].samples == 6
    assert found["0"].mass == pytest.approx(float(found["0"].values.sum()))
    for kind in KINDS:
        other = measure(model, graph, calls([IMAGES[:4], IMAGES[4:]]), kind=kind)["0"]
        assert (other.kind, other.sites, other.samples) == (kind, 5 * 2 * 2, 6)
    assert found["0"].kind == "max"


def test_exceedance_is_the_largest_ratio_of_each_sample() -> None:
    model = telling()
    graph = sc.trace(model, IMAGES[:1])
    found = measure(model, graph, calls(IMAGES[:3]))
    ratios = exceedance(model, graph, calls(IMAGES), found)
    for name, one in found.items():
        for sample, ratio in enumerate(ratios[name].tolist()):
            alone = sc.sensitivity(model, IMAGES[sample : sample + 1], graph=graph)[name]
            assert ratio == pytest.approx(float((alone / one.values).nan_to_num().max()))
        assert ratios[name][:3].max() == pytest.approx(1.0)


def test_exceedance_is_about_the_largest_only() -> None:
    model = telling()
    graph = sc.trace(model, IMAGES[:1])
    found = measure(model, graph, calls(IMAGES), kind="mean")
    with pytest.raises(UsageError, match="of kind mean"):
        exceedance(model, graph, calls(IMAGES), found)


def test_batches_without_samples_are_no_data() -> None:
    model = telling()
    graph = sc.trace(model, IMAGES[:1])
    for kind in KINDS:
        with pytest.raises(sc.SecateurError, match="there is no data"):
            measure(model, graph, [((IMAGES[:0],), {})], kind=kind)


class Explodes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0.0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "there is no data"),
        (torch.zeros(0, 3, 8, 8), "there is no data"),
        (torch.zeros(2, 4, 8, 8), r"could not run on a batch of shape \[\(2, 4, 8, 8\)\]"),
        (torch.full((2, 3, 8, 8), float("nan")), "NaN or infinite values in samples 0, 1 of batch 0"),
        (torch.full((2, 3, 8, 8), float("inf")), "NaN or infinite values in samples 0, 1 of batch 0"),
        (3, "expected a tensor or an iterable of batches, got a value of type int"),
        (["words"], "expected a batch of tensors, got no tensor"),
        (IMAGES.split(2), "one batch, or several"),
    ],
)
def test_data_that_cannot_be_used_is_refused(data: Any, text: str) -> None:
    model = Net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(4, 2, 1))
    with pytest.raises(sc.SecateurError, match=text):
        sc.sensitivity(model, data, example=None if isinstance(data, tuple) else torch.zeros(1, 3, 8, 8))


def test_activations_that_explode_name_the_layer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Explodes(), nn.Conv2d(4, 2, 1)).double()
    with pytest.raises(sc.SecateurError, match=r"2: .* values of its input are NaN or infinite"):
        sc.sensitivity(model, IMAGES)


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_compiler_the_result_is_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = telling()
    fast = sc.sensitivity(model, IMAGES, kind=kind)
    native.library.cache_clear()
    monkeypatch.setenv(native.OFF, "1")
    slow = sc.sensitivity(model, IMAGES, kind=kind)
    native.library.cache_clear()
    for name, values in fast.items():
        torch.testing.assert_close(values, slow[name], rtol=1e-12, atol=0)


def test_the_progress_bar_goes_to_the_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    model = telling()
    sc.sensitivity(model, IMAGES, progress=True)
    assert capsys.readouterr().out == ""


RANK = """
import sys, torch, torch.distributed as dist, secateur as sc
from test_sensitivity import KINDS, telling
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=int(sys.argv[2]), world_size=2)
images = torch.load(f"{sys.argv[1]}/images.pt")
found = {kind: sc.sensitivity(telling(), [images[:5], images[5:]], kind=kind) for kind in KINDS}
torch.save(found, f"{sys.argv[1]}/{sys.argv[2]}.pt")
dist.destroy_process_group()
"""


def test_two_processes_give_the_result_of_one(tmp_path: Path) -> None:
    torch.save(IMAGES, tmp_path / "images.pt")
    (tmp_path / "rank.py").write_text(RANK)
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    ranks = [
        subprocess.Popen(
            [sys.executable, tmp_path / "rank.py", tmp_path, rank], env={**os.environ, "PYTHONPATH": paths}
        )
        for rank in ("0", "1")
    ]
    assert [process.wait(120) for process in ranks] == [0, 0]
    for kind in KINDS:
        wanted = sc.sensitivity(telling(), IMAGES, kind=kind)
        for rank in ("0", "1"):
            found = torch.load(tmp_path / f"{rank}.pt")[kind]
            for name, values in wanted.items():
                torch.testing.assert_close(found[name], values, rtol=1e-12, atol=0)


def test_runnable_is_the_model_or_its_program() -> None:
    model, example = build("residual")
    assert runnable(model, sc.trace(model, example)) is model
    program = runnable(model, sc.trace(model, example, output="graph"))
    leaves = [pytree.tree_leaves(network(example)) for network in (model, program)]
    for one, other in zip(*leaves, strict=True):
        torch.testing.assert_close(one, other)
