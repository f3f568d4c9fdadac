"""Cuts, masks and their verification: what is preserved, what is refused, and the state of the optimizer."""

from __future__ import annotations

import copy
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.channels.graph import Output
from secateur.surgery.verify import relative_difference, tolerance_for
from support.cases import IMAGE, Net, build
from support.oracles import naive_cut


def planned(name: str, kept: float = 0.5):
    network, example = build(name)
    return network, example, sc.random_plan(sc.trace(network, example), kept=kept)


def test_the_original_is_unchanged() -> None:
    network, _, plan = planned("residual")
    before = copy.deepcopy(network.state_dict())
    small = sc.cut(network, plan)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert network.a.out_channels == 8


def test_a_cut_preserves_class_modes_flags_dtype_and_hooks() -> None:
    network, example, plan = planned("norms_by_channel")
    seen = []
    network[2].register_forward_hook(lambda *_: seen.append(1))
    network[0].weight.requires_grad_(False)
    network[0].weight.no_weight_decay = True
    network.train()
    network[3].eval()
    small = sc.cut(network, plan)
    assert type(small) is type(network)
    assert small.training and not small[3].training
    assert not small[0].weight.requires_grad and small[0].bias.requires_grad
    assert small[0].weight.no_weight_decay
    assert small[0].weight.dtype == torch.float64
    small(example)
    assert seen == [1]


def test_a_cut_preserves_tied_weights() -> None:
    network, _, plan = planned("tied_weights")
    small = sc.cut(network, plan)
    assert small.b.weight is small.c.weight
    assert small.b.weight.shape == (4, 4, 1, 1)


def test_a_cut_preserves_channels_last() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 3)).to(memory_format=torch.channels_last)
    small = sc.cut(network, sc.random_plan(sc.trace(network, torch.zeros(1, 3, 8, 8))))
    assert small[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_mask_has_the_original_shapes() -> None:
    network, _, plan = planned("residual")
    masked = sc.mask(network, plan)
    assert [p.shape for p in masked.parameters()] == [p.shape for p in network.parameters()]
    removed = sorted(set(range(8)) - set(plan.kept[sc.Slot("d.weight", 1)]))
    assert masked.d.weight[:, removed].abs().max() == 0 and network.d.weight[:, removed].abs().max() > 0


def test_verify_detects_a_wrong_cut() -> None:
    network, example, plan = planned("residual")
    wrong = list(plan.kept[sc.Slot("d.weight", 1)])
    wrong[0] = next(i for i in range(8) if i not in wrong)
    broken = replace(plan, kept={**plan.kept, sc.Slot("d.weight", 1): tuple(sorted(wrong))})
    assert sc.verify(network, plan, example) <= 1e-9
    assert sc.verify(network, broken, example) > 1e-3
    with pytest.raises(sc.SecateurError, match="differs from the masked one"):
        sc.verify(network, broken, example, tolerance=1e-9)


def test_verify_distinguishes_rounding_from_an_error() -> None:
    network, example, plan = planned("residual")
    with pytest.raises(sc.SecateurError, match="differs from the masked one"):
        sc.verify(network, plan, example, tolerance=-1.0)  # no network can meet it
    assert sc.verify(network.float(), plan, example.float(), tolerance=-1.0) < 1e-5  # right in double precision


def test_verify_takes_batches_with_labels() -> None:
    network, example, plan = planned("residual")
    batches = [(example, torch.tensor([0, 1])), (example * 2, torch.tensor([1, 0]))]
    assert sc.verify(network, plan, batches) <= 1e-9
    with pytest.raises(sc.SecateurError, match="no data"):
        sc.verify(network, plan, [])


def test_nan_outputs_are_refused() -> None:
    network, example, plan = planned("residual")
    with pytest.raises(sc.SecateurError, match="NaN or infinite"):
        sc.verify(network, plan, example * float("nan"))


def test_the_difference_is_relative_to_the_largest_value() -> None:
    assert relative_difference(torch.tensor([1.0, 4.5]), torch.tensor([1.0, 5.0])) == pytest.approx(0.1)
    assert relative_difference({"a": torch.zeros(2)}, {"a": torch.zeros(2)}) == 0
    assert relative_difference(torch.tensor([float("nan"), 1.0]), torch.ones(2)) == float("inf")


def test_the_tolerance_depends_on_the_precision() -> None:
    assert tolerance_for(nn.Linear(2, 2)) == 1e-4
    assert tolerance_for(nn.Linear(2, 2).double()) == 1e-9


def optimizers(network: nn.Module) -> list[torch.optim.Optimizer]:
    groups = [{"params": [network.a.weight], "lr": 0.5}, {"params": [network.c.weight, network.d.bias]}]
    return [
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW(groups, lr=0.01),
        torch.optim.RMSprop(network.parameters(), momentum=0.9),
    ]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_an_optimizer_keeps_its_state(kind: int) -> None:
    network, example, plan = planned("residual")
    optimizer = optimizers(network)[kind]
    for _ in range(3):
        optimizer.zero_grad()
        network(example).square().sum().backward()
        optimizer.step()
    small = sc.cut(network, plan)
    carried = sc.cut_optimizer(optimizer, network, small, plan)
    names = {id(p): name for name, p in network.named_parameters()}
    for old_group, new_group in zip(optimizer.param_groups, carried.param_groups, strict=True):
        assert old_group["lr"] == new_group["lr"]
        for old, new in zip(old_group["params"], new_group["params"], strict=True):
            name = names[id(old)]
            assert new is small.get_parameter(name)
            for key, state in optimizer.state[old].items():
                found = carried.state[new][key]
                expected = naive_cut(state, name, plan) if isinstance(state, torch.Tensor) and state.dim() else state
                assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected)), (name, key)
    before = small.a.weight.clone()
    small(example).square().sum().backward()
    carried.step()
    assert not torch.equal(before, small.a.weight)


def test_an_optimizer_of_another_model_is_refused() -> None:
    network, _, plan = planned("residual")
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(sc.SecateurError, match="has no counterpart in the cut network"):
        sc.cut_optimizer(other, network, sc.cut(network, plan), plan)


def test_factored_optimizer_state_is_refused() -> None:
    network, example, plan = planned("residual")
    optimizer = torch.optim.Adafactor(network.parameters())
    network(example).sum().backward()
    optimizer.step()
    with pytest.raises(sc.SecateurError, match="build a new Adafactor"):
        sc.cut_optimizer(optimizer, network, sc.cut(network, plan), plan)


@pytest.mark.parametrize("act", [sc.cut, sc.mask])
class TestRefusals:
    def test_an_empty_plan(self, act) -> None:
        network, _, plan = planned("residual", kept=1.0)
        self.refused(act, network, plan, "removes nothing")

    def test_a_plan_for_another_network(self, act) -> None:
        _, _, plan = planned("residual")
        self.refused(act, build("plain")[0], plan, "another network")

    def test_a_plan_that_was_applied_already(self, act) -> None:
        network, _, plan = planned("residual")
        self.refused(act, sc.cut(network, plan), plan, "another network")

    def test_an_index_out_of_range(self, act) -> None:
        network, _, plan = planned("residual")
        slot = sc.Slot("d.weight", 1)
        self.refused(
            act, network, replace(plan, kept={**plan.kept, slot: (0, 99)}), "d.weight: index 99 is out of range"
        )

    def test_a_repeated_index(self, act) -> None:
        network, _, plan = planned("residual")
        slot = sc.Slot("d.weight", 1)
        self.refused(act, network, replace(plan, kept={**plan.kept, slot: (0, 0)}), "out of range or repeated")

    def test_a_layer_that_would_be_empty(self, act) -> None:
        network, _, plan = planned("residual")
        slot = sc.Slot("d.weight", 1)
        self.refused(
            act, network, replace(plan, kept={**plan.kept, slot: ()}), r"d\.weight: the plan would empty axis 1"
        )

    def refused(self, act, network: nn.Module, plan: sc.Plan, message: str) -> None:
        before = copy.deepcopy(network.state_dict())
        with pytest.raises(sc.SecateurError, match=message) as caught:
            act(network, plan)
        assert caught.value.remedy
        assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    network, _, plan = planned("plain")
    network.memory = threading.Lock()
    with pytest.raises(sc.SecateurError, match="cannot be copied"):
        sc.cut(network, plan)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("output", ["module", "graph"])
def test_old_weight_norm_hooks_are_cut(output: Output) -> None:
    network, example = build("residual")
    nn.utils.weight_norm(network.a)
    graph = sc.trace(network, example, output=output)
    assert {group.name for group in graph.prunable} == {"a", "b"}
    plan = sc.random_plan(graph)
    assert sc.verify(network, plan, example) <= 1e-9
    small = sc.cut(network, plan)
    if output == "module":
        assert small.a.out_channels == small.a.weight.shape[0] == small.a.weight_v.shape[0] == 4


def test_a_random_forward_is_named_as_the_cause() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.b(F.dropout(m.a(x)))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    plan = sc.random_plan(sc.trace(network, IMAGE.float()))
    with pytest.raises(sc.SecateurError, match="forward is random") as caught:
        sc.verify(network, plan, IMAGE.float(), tolerance=1e-4)
    assert "training=self.training" in str(caught.value)


def test_a_cut_can_be_cut_again() -> None:
    network, example, plan = planned("option_a_shortcut")
    small = sc.cut(network, plan)
    again = sc.random_plan(sc.trace(small, example), kept=0.5, seed=3)
    assert sc.verify(small, again, example) <= 1e-9


def test_a_plan_can_be_applied_to_another_copy() -> None:
    network, example, plan = planned("residual")
    small = sc.cut(network, plan)
    fresh, _ = build("residual")
    replayed = sc.cut(fresh, sc.Plan.from_json(plan.to_json()))
    replayed.load_state_dict(small.state_dict())
    assert torch.equal(replayed(example), small(example))


def test_half_precision_stays_half_precision() -> None:
    network = Net(lambda m, x: m.b(F.relu(m.a(x))), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).half()
    plan = sc.random_plan(sc.trace(network, IMAGE.half()))
    assert {p.dtype for p in sc.cut(network, plan).parameters()} == {torch.float16}
