"""Tracing: groups, names, reasons, notes."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import secateur as sc
from secateur.channels.graph import Output
from secateur.errors import UsageError
from secateur.zoo import NETWORKS
from support.cases import CASES, IMAGE, Net, build


def test_a_group_names_its_layers() -> None:
    network, example = build("residual")
    group = sc.trace(network, example)["a"]
    assert group.producers == ("a", "c")
    assert group.consumers == ("b", "d")
    assert group.size == 8
    where = dict(zip(group.slots, group.indices, strict=True))
    assert where[sc.Slot("d.weight", 1)] == tuple((i,) for i in range(8))
    assert where[sc.Slot("c.bias", 0)] == tuple((i,) for i in range(8))


def test_a_unit_of_a_flattened_channel_has_many_columns() -> None:
    network, example = build("flatten_to_linear")
    group = sc.trace(network, example)["a"]
    columns = dict(zip(group.slots, group.indices, strict=True))[sc.Slot("b.weight", 1)]
    assert columns == tuple(tuple(range(64 * i, 64 * i + 64)) for i in range(6))


def test_the_input_and_the_output_are_kept_with_the_reason() -> None:
    network, example = build("plain")
    graph = sc.trace(network, example)
    assert "output" in graph["b"].reasons[0].text
    reason = graph["a:input"].reasons[0]
    assert "input 'x'" in reason.text and reason.module == "a" and reason.op == "aten.conv2d"


def test_a_reason_names_op_module_and_line() -> None:
    network, example = build("layer_norm")
    (reason,) = (r for r in sc.trace(network, example)["a"].reasons if r.module == "n")
    assert reason.op == "aten.layer_norm" and reason.source.startswith("base.py:")


@pytest.mark.parametrize("pattern", ["b", "b*", "b.weight", "?"])
def test_keep_keeps_the_filters_of_a_layer(pattern: str) -> None:
    network, example = build("residual")
    graph = sc.trace(network, example, keep=[pattern])
    assert not graph["b"].prunable and f"keep={pattern!r}" in str(graph["b"].reasons)
    assert graph["a"].prunable == (pattern != "?")


def test_keep_by_prefix() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)), nn.Conv2d(4, 2, 1)
    )
    graph = sc.trace(network, torch.zeros(1, 3, 4, 4), keep=["1"])
    assert [group.name for group in graph.prunable] == ["0"]


def test_a_keep_pattern_that_matches_nothing_is_refused() -> None:
    network, example = build("residual")
    with pytest.raises(UsageError, match=r"'layer9' matches no layer") as caught:
        sc.trace(network, example, keep=["layer9"])
    assert "nearest" in str(caught.value)


def test_unused_parameters_are_listed_and_unchanged() -> None:
    network, example = build("plain")
    network.spare = nn.Conv2d(8, 9, 1).double()
    graph = sc.trace(network, example)
    assert graph.unused == ("spare.weight", "spare.bias")
    small = sc.cut(network, sc.random_plan(graph))
    assert small.spare.weight.shape == (9, 8, 1, 1)


def test_a_head_that_runs_only_in_training_is_cut() -> None:
    network, example = build("auxiliary_head_in_training")
    small = sc.cut(network, sc.random_plan(sc.trace(network, example)))
    assert small.aux.in_channels == 4
    out, aux = small.train()(example)
    assert out.shape[1] == 5 and aux.shape[1] == 4


def test_a_network_that_cannot_train_on_the_example_has_a_note() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        if m.training:
            raise RuntimeError("training needs targets")
        return m.b(m.a(x))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    graph = sc.trace(network, IMAGE.float())
    assert "only evaluation is covered" in graph.notes[0]
    assert graph["a"].prunable


def test_a_data_dependent_branch_is_refused_with_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        if x.sum() > 0:  # the line that the error must name
            x = -x
        return m.b(m.a(x))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    with pytest.raises(sc.SecateurError, match=r"branches on the values of a tensor at .*test_trace.py:\d+") as caught:
        sc.trace(network, IMAGE.float())
    assert "x.sum() > 0" in str(caught.value) and "remedy" in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_conditional_block_is_refused() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        return m.b(torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (m.a(x),)))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    with pytest.raises(sc.SecateurError, match=r"block \(cond\) that secateur cannot follow"):
        sc.trace(network, IMAGE.float())


@pytest.mark.parametrize("output", ["module", "graph"])
@pytest.mark.parametrize(
    ("example", "shown"),
    [
        (torch.zeros(1, 4, 8, 8), "4 channels"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "(uint8)"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.float64), "(float64)"),
        (torch.zeros(3, 8, 8), "(3, 8, 8)"),
        ((torch.zeros(1, 3, 8, 8), 1), "positional argument"),
    ],
    ids=["channels", "uint8", "double", "no_batch", "arguments"],
)
def test_an_example_that_forward_refuses_is_reported_with_the_error_of_forward(example, shown, output) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)).eval()
    with pytest.raises(sc.SecateurError, match="the model fails on an example") as caught:
        sc.trace(network, example, output=output)
    assert shown in str(caught.value) and "export" not in str(caught.value)


def test_a_model_without_values_is_refused() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 5, 1)).eval().to("meta")
    with pytest.raises(sc.SecateurError, match="on the meta device"):
        sc.trace(network, torch.zeros(1, 3, 8, 8))


class Detect(nn.Module):
    """A head that computes its grid on the first call, as those of YOLO do, and keeps a log."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 5, 1)
        self.shape, self.log, self.known = None, [], {"last": None}

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(F.dropout(F.relu(self.n(self.a(x))), training=self.training))
        if self.shape != x.shape:
            self.shape, self.grid = x.shape, torch.arange(x.shape[-1], dtype=x.dtype)
        self.log.append(y.mean())
        self.known["last"] = y
        return y + self.grid


class Failing(Detect):
    def forward(self, x: Tensor) -> Tensor:
        self.noise = super().forward(x) + torch.rand(1)
        raise RuntimeError("no answer")


class Branching(Detect):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if y.sum() > 0 else -y


def record(network: nn.Module) -> tuple[object, ...]:
    """Return all that tracing must leave alone, for a comparison."""
    modules = {name: {**vars(module)} for name, module in network.named_modules()}
    inside = {
        (name, key): list(value.items() if isinstance(value, dict) else value)
        for name, found in modules.items()
        for key, value in found.items()
        if isinstance(value, list | dict | set)
    }
    values = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    return modules, inside, values, torch.get_rng_state(), random.getstate(), torch.is_grad_enabled()


def assert_untouched(network: nn.Module, before: tuple[object, ...]) -> None:
    modules, inside, values, rng, python, grad = record(network)
    assert modules == before[0] and inside == before[1]
    assert all(torch.equal(values[name], tensor) for name, tensor in before[2].items())
    assert torch.equal(rng, before[3]) and python == before[4] and grad == before[5]
    copy.deepcopy(network)


@pytest.mark.parametrize("name", CASES)
def test_tracing_leaves_every_network_as_it_was(name: str) -> None:
    network, example = build(name)
    network.train()
    next(iter(network.modules())).register_forward_hook(lambda *_: None)
    before = record(network)
    sc.trace(network, example)
    sc.cost(network, example)
    assert_untouched(network, before)


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "deepknight"])
def test_tracing_leaves_networks_of_the_zoo_as_they_were(name: str) -> None:
    network = NETWORKS[name]()
    before = record(network)
    for output in ("module", "graph"):
        sc.trace(network, torch.zeros(1, *network.input_shape), output=output)
    assert_untouched(network, before)


@pytest.mark.parametrize("output", ["module", "graph"])
@pytest.mark.parametrize("make", [Detect, Failing, Branching])
def test_tracing_leaves_a_network_that_assigns_attributes_as_it_was(make: type[Detect], output: Output) -> None:
    network, example = make(), IMAGE.float()
    before = record(network)
    for entry in (lambda: sc.trace(network, example, output=output), lambda: sc.cost(network, example)):
        with contextlib.nullcontext() if make is Detect else contextlib.suppress(sc.SecateurError):
            entry()
        assert_untouched(network, before)
    if make is Detect:
        network.eval()
        plan = sc.random_plan(sc.trace(network, example, output=output))
        assert sc.verify(network, plan, example) <= 1e-5
        network(example)
        assert type(network.grid) is Tensor


@pytest.mark.parametrize("shared", [True, False])
def test_two_threads_prune_at_once_as_one_after_the_other(shared: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        parts = [nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.Flatten()]
        return nn.Sequential(*parts, nn.Linear(12 * 16, 5)).eval()

    def prune(network: nn.Module) -> dict[str, Tensor]:
        return sc.prune(network, images, budget={"macs": "50%"}).model.state_dict()

    def switches() -> tuple[object, ...]:
        """Without the lock, oneDNN stayed off after a failure: other kernels, so later repairs had other weights."""
        torchs = torch.backends.mha.get_fastpath_enabled(), torch.backends.mkldnn.enabled, torch.get_default_dtype()
        modules = (
            nn.Module.__call__,
            nn.Module.__getattr__,
            torch.compiler.is_compiling(),
            torch.compiler.is_exporting(),
        )
        return *torchs, *modules, logging.root.manager.disable, list(warnings.filters), sys.stderr

    images = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    network, wanted, before = make(), prune(make()), switches()
    networks = [network if shared else make() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(prune, networks))
    for state in (*found, prune(make())):  # also one call after them, for states that threads may leave behind
        assert all(torch.equal(state[name], tensor) for name, tensor in wanted.items())
    assert switches() == before


TOGETHER = """
import hashlib, os, signal, threading
import torch
from torch import nn
import secateur as sc
from secateur.network.modules import exclusive

def prune():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3), nn.Flatten(), nn.Linear(192, 5)
    network = nn.Sequential(*layers).eval()
    images = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    state = sc.prune(network, images, budget={"macs": "50%"}).model.state_dict()
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()

def traces_slowly():
    with exclusive():
        tracing.set()
        child_is_done.wait(200)
        found.append(prune())

torch.set_num_threads(1)
found, tracing, child_is_done = [], threading.Event(), threading.Event()
threads = [threading.Thread(target=traces_slowly), threading.Thread(target=lambda: found.append(prune()))]
threads[0].start()
tracing.wait()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(200)
    os.write(writer, prune().encode())
    os._exit(0)
threads[1].start()  # waits for the first
assert os.waitpid(child, 0)[1] == 0
found.append(os.read(reader, 64).decode())
child_is_done.set()
for thread in threads:
    thread.join()
print(len(found), *{*found, prune()})
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_two_threads_two_processes_and_a_fork_give_the_same_network() -> None:
    path = os.pathsep.join(filter(None, sys.path))
    command, environment = [sys.executable, "-c", TOGETHER], {**os.environ, "PYTHONPATH": path}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    printed = [process.communicate(timeout=500)[0].split() for process in running]
    assert printed[0] == printed[1] and len(printed[0]) == 2 and printed[0][0] == "3"  # one network, made three times


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_infinite_weights_are_refused_by_name(bad: float) -> None:
    network, example = build("residual")
    plan = sc.random_plan(sc.trace(network, example))
    with torch.no_grad():
        network.b.weight[0, 0] = bad
    for attempt in (lambda: sc.trace(network, example), lambda: sc.cut(network, plan)):
        with pytest.raises(sc.SecateurError, match=r"b: 9 of 432 values of b\.weight are NaN or infinite"):
            attempt()


def test_an_unknown_output_is_refused() -> None:
    network, example = build("plain")
    with pytest.raises(UsageError, match="output is 'onnx'"):
        sc.trace(network, example, output="onnx")


@pytest.mark.parametrize("wrap", [nn.DataParallel, lambda m: torch.compile(m, backend="eager")])
def test_wrappers_are_removed_and_restored(wrap) -> None:
    network, example = build("residual")
    wrapped = wrap(network)
    graph = sc.trace(wrapped, example)
    assert [g.name for g in graph.prunable] == ["a", "b"]
    plan = sc.random_plan(graph)
    small = sc.cut(wrapped, plan)
    assert type(small) is type(wrapped)
    assert sc.verify(wrapped, plan, example) <= 1e-9


def test_a_compiled_part_of_a_network() -> None:
    network = nn.Sequential(torch.compile(nn.Conv2d(3, 8, 1), backend="eager"), nn.ReLU(), nn.Conv2d(8, 5, 1))
    graph = sc.trace(network, IMAGE.float())
    assert [g.size for g in graph.prunable] == [8]
    assert sc.verify(network, sc.random_plan(graph), IMAGE.float()) <= 1e-5


def test_trace_does_not_change_modes_and_buffers() -> None:
    network, example = build("norms_by_channel")
    network.train()
    network[1].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    sc.trace(network, example)
    assert network.training and network[3].training and not network[1].training
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_every_piece_of_a_split_keeps_a_channel() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        one, two = torch.split(m.a(x), [2, 10], 1)
        return m.b(torch.cat([F.relu(one), torch.sigmoid(two)], 1))

    network = Net(run, a=nn.Conv2d(3, 12, 1), b=nn.Conv2d(12, 5, 1)).eval()
    graph = sc.trace(network, IMAGE.float(), output="graph")
    assert [g.size for g in graph.prunable] == [2, 10]
    for seed in range(5):
        plan = sc.random_plan(graph, kept=0.1, seed=seed)
        assert sc.verify(network, plan, IMAGE.float()) <= 1e-5


class TwoOutputs(nn.Module):
    """Predictions, and beside them the feature map that the last layer consumes; and a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 12, 3, padding=1)
        self.head, self.spare = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.second(self.first(x).relu()).relu()
        return {"scores": self.head(features).mean((2, 3)), "features": features}


@pytest.mark.parametrize("output", ["module", "graph"])
def test_free_outputs_need_not_keep_their_channels(output: Output) -> None:
    network, x = TwoOutputs().eval(), torch.randn(8, 3, 8, 8)
    assert "output" in sc.trace(network, x[:1], output=output)["second"].reasons[0].text
    graph = sc.trace(network, x[:1], free_outputs=["features"], output=output)
    assert graph["second"].prunable and not graph["head"].prunable
    plan = sc.Plan.from_json(sc.random_plan(graph, kept=0.5).to_json())
    assert plan.free_outputs == graph.free_outputs == ("features",)
    assert sc.verify(network, plan, x) < 1e-5
    small = sc.cut(network, plan)(x)
    assert small["scores"].shape == (8, 4)
    assert small["features"] is None if output == "graph" else small["features"].shape == (8, 6, 8, 8)
    assert sc.repair(sc.cut(network, plan), network, x, plan)(x)["scores"].shape == (8, 4)


def test_wrong_free_outputs_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no output 'feats'"):
        sc.trace(TwoOutputs(), torch.zeros(1, 3, 8, 8), free_outputs=["feats"])
    with pytest.raises(UsageError, match="every output is free"):
        sc.trace(TwoOutputs(), torch.zeros(1, 3, 8, 8), free_outputs=["*"])


def test_layers_that_never_run_are_named() -> None:
    graph = sc.trace(TwoOutputs(), torch.zeros(1, 3, 8, 8))
    assert graph.unused_layers == ("spare",)
    assert "1 layer never runs and stays as it is: spare" in str(graph)
