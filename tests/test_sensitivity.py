"""Sensitivities: equal to what silencing every other channel of a layer shows, on every kind of wiring."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import CASES, Net, build
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree

import secateur as sc
from secateur import native
from secateur.batches import calls
from secateur.program import call_arguments
from secateur.sensitivity import exceedance, measure, runnable

READABLE = [name for name, case in CASES.items() if case.module]
IMAGES = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def telling() -> nn.Module:
    """A network whose sensitivities differ: few outputs and patches, so that no channel has one to itself."""
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


def by_silencing(model: nn.Module, graph: sc.ChannelGraph, example: Any) -> dict[str, list[float]]:
    """Run every layer with the weights of one unit at a time, and compare with the sums over all units."""
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
    best = {group.name: [0.0] * group.size for group in graph.prunable}
    for layer, x in inputs:
        for slot in {slot for g in graph.prunable for slot, r in zip(g.slots, g.reads, strict=True) if r}:
            if model.get_parameter(slot.parameter) is not layer.weight:
                continue
            units = _units(graph, slot)
            c = torch.stack([_alone(layer, x, slot.axis, indices) for _, _, indices in units])
            plus, minus = c.clamp(min=0).sum(0), (-c).clamp(min=0).sum(0)
            shares = torch.where(c > 0, c / plus, torch.where(c < 0, -c / minus, 0.0)).flatten(1).amax(1)
            for (owner, unit, _), share in zip(units, shares.tolist(), strict=True):
                if owner in best:
                    best[owner][unit] = max(best[owner][unit], share)
    return best


def _units(graph: sc.ChannelGraph, slot: sc.Slot) -> list[tuple[str, int, list[int]]]:
    found, free = [], set(range(graph.shapes[slot.parameter][slot.axis]))
    for group in graph.groups:
        for unit, indices in enumerate(group.indices[group.slots.index(slot)] if slot in group.slots else ()):
            found.append((group.name, unit, list(indices)))
            free -= set(indices)
    return found + [("", 0, [index]) for index in free]


def _alone(layer: nn.Module, x: Tensor, axis: int, indices: list[int]) -> Tensor:
    """What the layer computes from some of its channels alone, without bias."""
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
    found = sc.sensitivity(model, example, graph=graph)
    if any(isinstance(m, nn.MultiheadAttention) or hasattr(m, "parametrizations") for m in model.modules()):
        wanted = dict.fromkeys(found)  # layers whose weight is computed cannot be silenced this way
    else:
        wanted = by_silencing(model, graph, example)
    for group in graph.prunable:
        if wanted.get(group.name) and any(wanted[group.name]):
            assert found[group.name].tolist() == pytest.approx(wanted[group.name], abs=1e-9)


def test_bare_weights_and_programs_are_read_too() -> None:
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


@pytest.mark.parametrize("sizes", [[6], [1, 5], [2, 2, 2], [1] * 6])
def test_batches_of_any_size_give_the_same(sizes: list[int]) -> None:
    model = telling()
    whole = sc.sensitivity(model, IMAGES)
    parts = sc.sensitivity(model, (batch for batch in IMAGES.split(sizes)))
    for name, values in whole.items():
        torch.testing.assert_close(values, parts[name], rtol=1e-12, atol=0)


def test_more_points_only_raise_it_and_labels_do_not_matter() -> None:
    model = telling()
    few, all_of_them = (sc.sensitivity(model, [(IMAGES, torch.arange(6))], points=points) for points in (2, None))
    assert all((few[name] <= all_of_them[name]).all() for name in few)
    assert any((few[name] < all_of_them[name]).any() for name in few)


def test_single_precision_is_near_double() -> None:
    model = telling()
    exact = sc.sensitivity(model, IMAGES)
    near = sc.sensitivity(model.float(), IMAGES.float())
    for name, values in exact.items():
        torch.testing.assert_close(values, near[name], rtol=1e-4, atol=1e-4)
        assert near[name].dtype == torch.float64


def test_the_model_is_left_as_it_was() -> None:
    model, _ = build("norms_by_channel")
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    sc.sensitivity(model, IMAGES, example=IMAGES[:2])
    assert model.training and all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_group_that_only_training_reads_is_left_out() -> None:
    def run(m: Net, x: Tensor) -> Any:
        x = F.relu(m.a(x))
        return (m.b(x), m.d(F.relu(m.c(x)))) if m.training else m.b(x)

    parts = {"a": (3, 4), "b": (4, 2), "c": (4, 6), "d": (6, 2)}
    model = Net(run, **{name: nn.Conv2d(*widths, 1) for name, widths in parts.items()}).double().eval()
    assert set(sc.sensitivity(model, IMAGES)) == {"a"}


def test_what_is_known_beside_the_values() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2), nn.Flatten(), nn.Linear(20, 2))
    model = model.double()
    graph = sc.trace(model, IMAGES[:1])
    found = measure(model, graph, calls([IMAGES[:4], IMAGES[4:]]))
    assert found["0"].sites == 5 * 2 * 2 and found["2"].sites == 2 and found["0"].points == 6
    assert found["0"].mass == pytest.approx(float(found["0"].values.sum()))


def test_exceedance_is_the_largest_ratio_of_each_point() -> None:
    model = telling()
    graph = sc.trace(model, IMAGES[:1])
    found = measure(model, graph, calls(IMAGES[:3]))
    ratios = exceedance(model, graph, calls(IMAGES), found)
    for name, one in found.items():
        for point, ratio in enumerate(ratios[name].tolist()):
            alone = sc.sensitivity(model, IMAGES[point : point + 1], graph=graph)[name]
            assert ratio == pytest.approx(float((alone / one.values).nan_to_num().max()))
        assert ratios[name][:3].max() == pytest.approx(1.0)


class Explodes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 0.0


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ([], "there is no data"),
        (torch.zeros(0, 3, 8, 8), "there is no data"),
        (torch.zeros(2, 4, 8, 8), r"could not run on a batch of shape \[\(2, 4, 8, 8\)\]"),
        (torch.full((2, 3, 8, 8), float("nan")), "b: .* NaN or infinite"),
        (torch.full((2, 3, 8, 8), float("inf")), "b: .* NaN or infinite"),
        (3, "the data is a int"),
        (["words"], "holds no tensor"),
        (IMAGES.split(2), "one batch, or several"),
    ],
)
def test_data_that_cannot_be_used_is_refused(data: Any, text: str) -> None:
    model = Net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(4, 2, 1))
    with pytest.raises(sc.SecateurError, match=text):
        sc.sensitivity(model, data, example=None if isinstance(data, tuple) else torch.zeros(1, 3, 8, 8))


def test_activations_that_explode_name_the_layer() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Explodes(), nn.Conv2d(4, 2, 1)).double()
    with pytest.raises(sc.SecateurError, match=r"2: .* values that it reads are NaN or infinite"):
        sc.sensitivity(model, IMAGES)


def test_without_a_compiler_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = telling()
    fast = sc.sensitivity(model, IMAGES)
    native.library.cache_clear()
    monkeypatch.setenv(native.OFF, "1")
    slow = sc.sensitivity(model, IMAGES)
    native.library.cache_clear()
    for name, values in fast.items():
        torch.testing.assert_close(values, slow[name], rtol=1e-12, atol=0)


def test_the_progress_bar_goes_to_the_error_stream(capsys: pytest.CaptureFixture[str]) -> None:
    model = telling()
    sc.sensitivity(model, IMAGES, progress=True)
    assert capsys.readouterr().out == ""


RANK = """
import sys, torch, torch.distributed as dist, secateur as sc
from test_sensitivity import telling
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meet", rank=int(sys.argv[2]), world_size=2)
images = torch.load(f"{sys.argv[1]}/images.pt")
found = sc.sensitivity(telling(), [images[:5], images[5:]])
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
    wanted = sc.sensitivity(telling(), IMAGES)
    for rank in ("0", "1"):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, values in wanted.items():
            torch.testing.assert_close(found[name], values, rtol=1e-12, atol=0)


def test_runnable_is_the_model_or_its_program() -> None:
    model, example = build("residual")
    assert runnable(model, sc.trace(model, example)) is model
    program = runnable(model, sc.trace(model, example, output="graph"))
    leaves = [pytree.tree_leaves(network(example)) for network in (model, program)]
    for one, other in zip(*leaves, strict=True):
        torch.testing.assert_close(one, other)
