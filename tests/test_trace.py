"""What trace says: groups, names, reasons, notes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cases import IMAGE, Net, build
from torch import Tensor, nn

import secateur as sc
from secateur.errors import UsageError


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
    assert reason.op == "aten.layer_norm" and reason.source.startswith("cases.py:")


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


def test_keep_says_when_a_pattern_matches_nothing() -> None:
    network, example = build("residual")
    with pytest.raises(UsageError, match=r"'layer9' matches no layer") as caught:
        sc.trace(network, example, keep=["layer9"])
    assert "nearest" in str(caught.value)


def test_unused_parameters_are_listed_and_left() -> None:
    network, example = build("plain")
    network.spare = nn.Conv2d(8, 9, 1).double()
    graph = sc.trace(network, example)
    assert graph.unused == ("spare.weight", "spare.bias")
    small = sc.cut(network, sc.random_plan(graph))
    assert small.spare.weight.shape == (9, 8, 1, 1)


def test_a_training_only_head_is_cut_along() -> None:
    network, example = build("auxiliary_head_in_training")
    small = sc.cut(network, sc.random_plan(sc.trace(network, example)))
    assert small.aux.in_channels == 4
    out, aux = small.train()(example)
    assert out.shape[1] == 5 and aux.shape[1] == 4


def test_a_network_that_does_not_train_on_the_example_says_so() -> None:
    def run(m: Net, x: Tensor) -> Tensor:
        if m.training:
            raise RuntimeError("training needs targets")
        return m.b(m.a(x))

    network = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 5, 1)).eval()
    graph = sc.trace(network, IMAGE.float())
    assert "only evaluation is covered" in graph.notes[0]
    assert graph["a"].prunable


def test_a_data_dependent_branch_is_refused_by_line(capfd: pytest.CaptureFixture[str]) -> None:
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


def test_an_example_of_the_wrong_shape_is_refused() -> None:
    network, _ = build("plain")
    with pytest.raises(sc.SecateurError, match=r"remedy.*shape"):
        sc.trace(network, torch.zeros(1, 4, 8, 8, dtype=torch.float64))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(bad: float) -> None:
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
def test_wrappers_are_seen_through_and_put_back(wrap) -> None:
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


def test_trace_leaves_mode_and_buffers_alone() -> None:
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
