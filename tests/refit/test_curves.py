"""Divergence curves: against slow refits on the raw rows, on every wiring, leaving the network as it was."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.network.batches import calls
from secateur.network.divergence import output_divergence
from secateur.refit import curves as module
from secateur.refit.curves import Curve, curves, scaled
from secateur.refit.elimination import Consumer, Order, eliminate
from secateur.refit.least_squares import sample_positions
from secateur.surgery.rewrite import runnable
from support.cases import CASES, Net, build

WIRINGS = [
    "residual", "option_a_shortcut", "dense_concat", "glu", "pixel_unshuffle", "flatten_to_linear",
    "linear_to_transposed", "transposed_many_groups", "transposed_few_groups", "few_wide_groups", "many_narrow_groups",
    "depthwise_with_multiplier", "tied_weights", "called_twice", "squeeze_excite", "two_inputs_dict_output",
    "one_and_three_dimensions", "transformer_block", "part_without_gradients", "repeated_channels",
]  # fmt: skip


def measured(
    network: nn.Module, data: Any, *, output: Any = "module", example: Any = None, **options: Any
) -> dict[str, Curve]:
    batches = list(calls(data, example=example))
    graph = sc.trace(network, example if example is not None else batches[0][0], output=output)
    kept = {group.name: range(group.size) for group in graph.prunable}
    return curves(runnable(network, graph), graph, batches, kept, **options)


def samples_like(example: Any, count: int = 20) -> Any:
    """Random samples of the example's kind."""
    source = torch.Generator().manual_seed(1)
    parts = example if isinstance(example, tuple) else (example,)
    return tuple(torch.randn(count, *part.shape[1:], generator=source).double() for part in parts)


@pytest.mark.parametrize("name", WIRINGS)
def test_wirings_have_rising_curves(name: str) -> None:
    network, example = build(name)
    found = measured(network, samples_like(example), example=example)
    assert {group: len(curve.removed) for group, curve in found.items()} == CASES[name].module
    for curve in found.values():
        assert sorted(curve.removed) == list(range(len(curve.removed))) and len(curve.divergence) == len(curve.removed)
        assert (
            curve.divergence[0] == 0 and (curve.divergence.diff() >= 0).all() and torch.isfinite(curve.divergence).all()
        )
        assert curve.divergence.dtype == torch.float64 and curve.divergence[-1] > 0


@pytest.mark.parametrize("name", ["option_a_shortcut", "split_by_literal_widths", "weight_standardised"])
def test_programs_have_curves_too(name: str) -> None:
    network, example = build(name)
    found = measured(network, samples_like(example), output="graph", example=example)
    assert {group: len(curve.removed) for group, curve in found.items()} == CASES[name].graph


def test_a_group_that_no_layer_consumes_has_none() -> None:
    network, example = build("bare_matrices")
    assert measured(network, example) == {}


def two_layers(outputs: int = 4) -> tuple[Any, Tensor]:
    torch.manual_seed(3)
    network = Net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Linear(5, 8), b=nn.Linear(8, outputs)).double()
    return network, torch.randn(60, 5).double()


def parts_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """The samples that are fitted, and every fourth, which is for the trials."""
    held = torch.arange(len(x)) % 4 == 3
    return x[~held], x[held]


@torch.no_grad()
def slow_divergence(network: Any, seen: Tensor, held: Tensor, gone: list[int]) -> float:
    """Return the output divergence on some samples after the second layer is fitted without these units on others.

    The fit is by least squares on the rows, with the ridge towards the old weights as rows of its own.
    """

    def rows(x: Tensor) -> Tensor:
        return torch.cat([F.relu(network.a(x)), torch.ones(len(x), 1).double()], 1)

    stays = [i for i in range(network.b.in_features + 1) if i not in gone]
    old = torch.cat([network.b.weight, torch.zeros(len(network.b.weight), 1).double()], 1)
    inputs = rows(seen)[:, stays]
    eye = (module.RIDGE * inputs.square().sum() / len(stays)).sqrt() * torch.eye(len(stays)).double()
    wanted = torch.cat([rows(seen) @ old.T, eye @ old[:, stays].T])
    fitted = torch.linalg.lstsq(torch.cat([inputs, eye]), wanted).solution
    return output_divergence([rows(held)[:, stays] @ fitted + network.b.bias], [network(held)])


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("gone", [4, 6])  # half, and 85 % of 8
def test_the_divergence_of_a_group_is_what_a_slow_trial_finds(outputs: int, gone: int) -> None:
    network, _ = two_layers(outputs)
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1)).double()  # all in one batch
    curve = measured(network, x)["a"]
    wanted = slow_divergence(network, *parts_of(x), list(curve.removed[:gone]))
    assert float(curve.divergence[gone]) == pytest.approx(wanted, rel=1e-6)


def test_a_layer_with_more_inputs_than_there_are_samples_is_not_taken_to_lose_nothing() -> None:
    torch.manual_seed(0)
    network: Any = Net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Linear(60, 60), b=nn.Linear(60, 1)).double()
    x, fresh = torch.randn(40, 60).double(), torch.randn(1000, 60).double()
    curve = measured(network, x)["a"]
    seen, _ = parts_of(x)
    gone = list(curve.removed[:30])
    wanted = slow_divergence(network, seen, fresh, gone)
    assert slow_divergence(network, seen, seen, gone) < 0.1 * wanted  # so it looks on the samples that were fitted
    assert 0.5 * wanted < float(curve.divergence[30]) < 2 * wanted


def test_a_layer_with_too_many_inputs_replaces_each_unit_by_its_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 4)
    network, _ = two_layers(1)
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(1)).double()
    curve = measured(network, x)["a"]
    with torch.no_grad():
        fitted, held = (F.relu(network.a(part)) for part in parts_of(x))
        assert curve.removed == tuple((fitted * network.b.weight).var(0).argsort().tolist())
        for gone in (4, 6):
            replaced = held.clone()
            replaced[:, curve.removed[:gone]] = fitted.mean(0)[list(curve.removed[:gone])]
            wanted = output_divergence([network.b(replaced)], [network.b(held)])
            assert float(curve.divergence[gone]) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("memory", [100_000, 2_000, 1])
def test_with_little_memory_groups_are_measured_in_portions(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_weights(run: Any, batches: Any, layers: Any, seed: int, each: Any, device: Any) -> dict[str, Tensor]:
        for number, batch in enumerate(batches):
            run(batch, each(number))
        return {}

    monkeypatch.setattr(module, "fisher_weights", no_weights)  # they depend on the batches

    def run(m: Net, x: Tensor) -> Tensor:
        return m.d(F.relu(m.c(F.relu(m.b(F.relu(m.a(x)))))))

    layers = {"a": nn.Linear(5, 9), "b": nn.Linear(9, 8), "c": nn.Linear(8, 7), "d": nn.Linear(7, 3)}
    network, x = Net(run, **layers).double(), torch.randn(96, 5).double()
    graph = sc.trace(network, x[:1])
    kept = {group.name: range(group.size) for group in graph.prunable}
    study = module._Study(network, graph, [((x,), {})], 0, memory)
    portions = study.portions(kept)
    assert [group for portion in portions for group in portion] == list(graph.prunable)
    assert len(portions) == (1 if memory == 100_000 else 3)
    whole, pieces = (curves(network, graph, [((x,), {})], kept, memory=bytes_) for bytes_ in (1 << 30, memory))
    for name, one in whole.items():  # a layer without positions has the same rows in every portion
        assert pieces[name].removed == one.removed
        torch.testing.assert_close(pieces[name].divergence, one.divergence, rtol=0.3, atol=0)  # labels differ


def test_curves_go_through_the_trials_and_never_fall() -> None:
    order = Order((4, 3, 2, 1, 0), torch.tensor([0.0, 1.0, 2.0, 4.0, 8.0]).double())
    assert scaled(order, {1: 1.0, 3: 16.0}).divergence.tolist() == pytest.approx([0, 1, 4, 16, 32])
    assert scaled(order, {1: 10.0, 3: 4.0}).divergence.tolist() == pytest.approx([0, 10, 10, 10, 10])
    assert scaled(order, {2: 6.0}).divergence.tolist() == pytest.approx([0, 3, 6, 12, 24])
    assert scaled(order, {2: 0.0, 3: math.inf}).divergence.tolist() == order.errors.tolist()


def test_the_order_is_that_of_the_elimination_with_fisher_weights() -> None:
    network, x = two_layers(1)  # with one output no weight can change the order
    hidden = torch.cat([F.relu(network.a(x)), torch.ones(60, 1).double()], 1).detach()
    hidden, _ = parts_of(hidden)
    weight = torch.cat([network.b.weight, torch.zeros(1, 1)], 1).detach()
    consumer = Consumer(hidden.T @ hidden / len(hidden), weight, tuple((unit,) for unit in range(8)))
    assert measured(network, x)["a"].removed == eliminate([consumer], module.RIDGE).removed


def test_an_output_that_nothing_depends_on_does_not_count() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.c(F.relu(m.b(F.relu(m.a(x)))))

    network = Net(run, a=nn.Linear(5, 8), b=nn.Linear(8, 6), c=nn.Linear(6, 3)).double()
    with torch.no_grad():
        network.c.weight[:, :3] = 0
        network.b.weight[:3] *= 1000  # loud, but unheard
        network.b.weight[3:, 4:] = 0  # so of a only the first four are heard
    curve = measured(network, torch.randn(80, 5).double())["a"]
    assert set(curve.removed[:4]) == {4, 5, 6, 7} and float(curve.divergence[4]) < 1e-3 * float(curve.divergence[-1])


def test_the_units_left_are_counted_among_themselves() -> None:
    network, x = two_layers()
    graph = sc.trace(network, x)
    masked = sc.mask(network, sc.Plan.keeping(graph, {"a": [1, 4, 5, 7]}))
    found = curves(masked, graph, [((x,), {})], {"a": [1, 4, 5, 7]})["a"]
    assert sorted(found.removed) == [0, 1, 2, 3] and len(found.divergence) == 4


def test_a_group_with_one_unit_has_nothing_to_lose() -> None:
    network = nn.Sequential(nn.Linear(3, 1), nn.Linear(1, 2)).double()
    graph = sc.trace(network, torch.randn(2, 3).double())
    assert curves(network, graph, [((torch.randn(9, 3).double(),), {})], {"0": [0]}) == {}


def test_the_seed_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network, x = (
        nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 4, 3, stride=2)).double(),
        torch.randn(6, 3, 15, 15).double(),
    )
    monkeypatch.setattr(module, "sample_positions", lambda n, rows, *others: sample_positions(n, 60, *others))
    one, same, other = (measured(network, x, seed=seed)["0"] for seed in (1, 1, 2))
    assert (
        one.removed == same.removed
        and torch.equal(one.divergence, same.divergence)
        and not torch.equal(one.divergence, other.divergence)
    )


@pytest.mark.parametrize("grad", [True, False])
def test_the_network_is_left_as_it_was(grad: bool) -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(True), nn.Flatten(), nn.Linear(96, 4)
    ).double()
    network.train()[1].eval()
    network[0].weight.requires_grad_(False)
    network[4].weight.grad = torch.ones_like(network[4].weight)
    before = copy.deepcopy(network)
    with torch.set_grad_enabled(grad):
        found = measured(network, torch.randn(9, 3, 6, 6).double())
    assert found.keys() == {"0"} and torch.is_grad_enabled()
    for (name, one), other in zip(network.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(one, other) and one.requires_grad == other.requires_grad, name
        assert one.grad is None if name != "4.weight" else torch.equal(one.grad, torch.ones_like(one))
    assert all(torch.equal(a, b) for a, b in zip(network.buffers(), before.buffers(), strict=True))
    assert [m.training for m in network.modules()] == [m.training for m in before.modules()]


class Words(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.table = kind, nn.Embedding(10, 6)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        x = self.b(F.relu(self.a(self.table(x)))).mean(1)
        kinds = {
            "tensor": x,
            "dict": {"scores": x, "best": x.argmax(1)},
            "tuple": (x, [x[:, 0], x.sum()]),
            "best": x.argmax(1),
        }
        return kinds[self.kind]


@pytest.mark.parametrize("kind", ["tensor", "dict", "tuple"])
def test_whole_numbers_in_and_anything_out(kind: str) -> None:
    words = torch.randint(0, 10, (30, 7))
    found = measured(Words(kind), words)
    assert {"a", "table"} >= found.keys() >= {"a"} and all(
        torch.isfinite(curve.divergence).all() for curve in found.values()
    )
    wanted = measured(Words(kind).requires_grad_(False), words)
    assert wanted.keys() == found.keys()


@pytest.mark.parametrize("frozen", [True, False])
def test_a_forward_without_gradients_or_without_numbers_out(frozen: bool) -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        with torch.no_grad():
            return m.b(F.relu(m.a(x)))

    parts = {"a": nn.Linear(5, 8), "b": nn.Linear(8, 3)}
    network = Net(run, **parts).requires_grad_(not frozen)
    assert measured(network, torch.randn(20, 5)).keys() == {"a"}
    network = Net(lambda m, x: m.b(F.relu(m.a(x))).argmax(1), **parts).requires_grad_(not frozen)
    graph = sc.trace(Net(lambda m, x: m.b(F.relu(m.a(x))), **parts), torch.randn(2, 5))
    assert curves(network, graph, [((torch.randn(20, 5),), {})], {"a": range(8)}).keys() == {"a"}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_halves(kind: torch.dtype) -> None:
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4))
    x = torch.randn(200, 3, 6, 6) * 30  # sums of squares beyond what a half can hold
    half, single = measured(network.to(kind), x.to(kind))["0"], measured(network.float(), x)["0"]
    assert torch.isfinite(half.divergence).all() and half.divergence[-1] > 0
    assert half.removed[-1] == single.removed[-1]


@pytest.mark.parametrize("sample", [2, 3])  # fitted, and held out
def test_values_that_are_not_finite_are_refused(sample: int) -> None:
    network, x = two_layers()
    x[sample, 2] = -torch.inf  # which data may have, for masks
    with pytest.raises(sc.SecateurError, match=r"b: \d+ of \d+ values of .*its input are NaN or infinite"):
        measured(network, x)


def test_dead_channels_go_first_and_cost_no_more_than_the_ridge() -> None:
    network, x = two_layers()
    with torch.no_grad():
        network.a.weight[2] = 0
        network.a.bias[2] = -1
    curve = measured(network, x)["a"]
    assert curve.removed[0] == 2 and float(curve.divergence[1]) < module.RIDGE * float(curve.divergence[-1])


def test_trials_take_enough_samples_from_small_batches() -> None:
    network, x = two_layers()
    whole = measured(network, x)["a"]
    single = measured(network, list(x.split(1)))["a"]
    assert single.removed == whole.removed
    torch.testing.assert_close(
        single.divergence, whole.divergence, rtol=0.3, atol=0
    )  # labels are sampled batch by batch


def test_the_moments_of_all_patches_are_those_of_the_rows() -> None:
    """Where correlations at all shifts take less work than rows, they give the same sums."""
    network = Net(lambda m, x: m.b(F.relu(m.a(x))).mean((2, 3)), a=nn.Conv2d(2, 6, 3), b=nn.Conv2d(6, 5, 3, padding=1))
    x = torch.randn(40, 2, 9, 9).double()
    graph = sc.trace(network.double(), x[:1])
    study = module._Study(network, graph, [((x,), {})], 0, 1 << 30)
    study.measure(graph.prunable, fisher=False)
    layer = study.layers["b.weight"]
    with torch.no_grad():
        patches = F.unfold(F.relu(network.a(parts_of(x)[0])), 3, padding=1).movedim(1, -1).flatten(0, 1)
    rows = torch.cat([patches, torch.ones(len(patches), 1).double()], 1)
    assert layer.rows == len(rows) == 30 * 49
    torch.testing.assert_close(layer.grams[0], rows.T @ rows)


def test_sampled_positions_are_as_many_as_wanted_and_differ() -> None:
    source = torch.Generator().manual_seed(0)
    assert sample_positions(10, 1000, 100, source).tolist() == list(range(10))
    assert len(sample_positions(10, 1, 100, source)) == 1
    counts = torch.zeros(10)
    for _ in range(2000):
        found = sample_positions(10, 300, 100, source)
        assert len(found) == 3 and (found.diff() > 0).all()
        counts[found] += 1
    # Each is binomial(2000, 0.3), deviation 20.5: all within 5 deviations but once in 170,000 runs.
    assert (counts - 600).abs().max() < 5 * 20.5


def test_output_divergence_by_hand() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[0.2, 0.2, 0.6]]).double()
    wanted = sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p[0], q[0], strict=True))
    assert output_divergence([q.log() + 5], [p.log()]) == pytest.approx(wanted)
    x, y = torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])
    assert output_divergence([y], [x]) == pytest.approx(1 / 25)
    assert output_divergence([y, q.log()], [x, p.log()]) == pytest.approx((1 / 25 + wanted) / 2)
    assert output_divergence([x], [x]) == output_divergence([p], [p]) == output_divergence([], []) == 0
    assert output_divergence([x * torch.nan], [x]) == output_divergence([p * torch.inf], [p]) == math.inf
    assert output_divergence([torch.full((1000,), 100.0).half()], [torch.full((1000,), 50.0).half()]) == pytest.approx(
        1
    )
