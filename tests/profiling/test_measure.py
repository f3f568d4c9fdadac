"""Tables are measured from networks of random sizes; multiples are found from the times of kernels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import secateur as sc
from secateur.profiling.measure import fastest, free_multiples, measure_torch, most_liked, preferred_multiple
from secateur.profiling.stopwatch import layer_times


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Conv2d(3, 96, 3), nn.Conv2d(96, 96, 3), nn.Conv2d(96, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.third(self.second(self.first(x).relu()).relu())  # type: ignore[no-any-return]


def test_a_table_predicts_networks_that_it_has_not_seen() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = Wide().eval(), torch.rand(1, 3, 32, 32)
    graph = sc.trace(model, x)
    table = measure_torch(model, graph, x, seconds=1.0)
    assert [one.weight for one in table.segments] == ["first.weight", "second.weight", "third.weight"]
    assert table.networks >= 8 and table.error < 0.2
    kept = {"first": range(32), "second": range(64)}
    small = sc.cut(model, sc.Plan.keeping(graph, kept))
    before, after = layer_times([model, small], x, 15)
    real = sum(after.values()) / sum(before.values())
    predicted = table.part({"first.weight": (32, 3), "second.weight": (64, 32), "third.weight": (4, 64)})
    assert abs(predicted - real) < 0.15  # on a busy machine, too


def test_multiples_from_times() -> None:
    steps = {64: 1.0, 63: 1.0, 61: 0.99, 57: 1.02, 49: 1.0, 33: 0.75}  # blocks of 16
    assert free_multiples(steps) == [2, 4, 8, 16]
    line = {size: size / 64 for size in steps}  # every channel counts; 63 of 64 is within the noise
    assert free_multiples(line) == [2]
    assert free_multiples({**steps, 63: 0.9}) == []
    assert most_liked([[2, 4, 8], [2, 4], [2, 4, 8, 16]]) == 8
    assert most_liked([[], [2], []]) == most_liked([]) == 1


def test_the_multiple_of_a_network_is_measured() -> None:
    torch.set_num_threads(1)
    model, x = Wide().eval(), torch.rand(1, 3, 32, 32)
    times = {name: 1.0 for name, _ in model.named_parameters() if name.endswith("weight")}
    assert preferred_multiple(model, x, times) in (1, 2, 4, 8, 16, 32)


def test_the_shortest_time_counts() -> None:
    calls = []
    found = fastest({0: lambda: calls.append(0), 1: lambda: calls.append(1)}, seconds=0.0, least=3)
    assert calls == [0, 1] * 3 and all(0 <= one < 0.1 for one in found.values())
