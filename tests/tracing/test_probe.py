"""Groups that the model's own forward does not allow to shrink are kept, the others are not."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from support.cases import IMAGE, Net


def test_only_the_group_with_a_hard_coded_size_is_kept() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = F.relu(m.b(F.relu(m.a(x))))
        return m.d(F.relu(m.c(x.view(-1, 6 * 64))))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 6, 1), c=nn.Linear(384, 10), d=nn.Linear(10, 5)).eval()
    graph = sc.trace(network, IMAGE.float())
    assert [group.name for group in graph.prunable] == ["a", "c"]
    reason = graph["b"].reasons[0]
    assert "output='graph'" in reason.text and reason.source.startswith("test_probe.py:")


def test_a_size_that_is_hard_coded_only_in_training_is_found() -> None:
    def run(m: Net, x: Tensor) -> Any:
        x = F.relu(m.a(x))
        return (m.b(x), m.aux(x.view(-1, 8 * 64))) if m.training else m.b(x)

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1), aux=nn.Linear(512, 4)).eval()
    assert not sc.trace(network, IMAGE.float()).prunable


def test_an_op_without_a_meta_kernel_is_tested_with_numbers() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.n(m.a(x))
        if not torch.compiler.is_exporting():
            float(x.sum())  # fails on the meta device
        return m.b(x)

    network = Net(run, a=nn.Conv2d(3, 8, 1), n=nn.BatchNorm2d(8), b=nn.Conv2d(8, 5, 1)).eval()
    before = network.n.running_mean.clone()
    assert [group.name for group in sc.trace(network, IMAGE.float()).prunable] == ["a"]
    assert torch.equal(network.n.running_mean, before)


def test_a_group_whose_cut_runs_with_a_wrong_result_is_kept() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        x = m.a(x)
        even = x[:, 0 : 2 * (x.shape[1] // 2)]
        return m.b(torch.cat([even[:, x.shape[1] // 2 :], even[:, : x.shape[1] // 2]], 1))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    graph = sc.trace(network, IMAGE.float())
    for seed in range(3):
        if graph.prunable:
            assert sc.verify(network, sc.random_plan(graph, seed=seed), IMAGE.float()) < 1e-5


def test_a_random_network_is_not_tested_with_numbers() -> None:
    network = Net(lambda m, x: m.b(F.dropout(m.a(x), 0.5, True)), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    assert [group.name for group in sc.trace(network, IMAGE.float()).prunable] == ["a"]
