"""A saved network comes back bit by bit, or the error says what is wrong with the file or the model."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch
import torch.nn.functional as F
from cases import IMAGE, Net, build
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import secateur as sc
from secateur.checkpoint import load, read_info, read_plan, save

INPUT = IMAGE.float()


def normed() -> nn.Module:
    return Net(
        lambda m, x: m.b(F.relu(m.n(m.a(x)) * m.scale)),
        a=nn.Conv2d(3, 8, 1),
        n=nn.BatchNorm2d(8),
        scale=torch.rand(8, 1, 1),
        b=nn.Conv2d(8, 5, 1),
    )


def tied() -> nn.Module:
    network = Net(
        lambda m, x: m.d(F.relu(m.c(F.relu(m.b(F.relu(m.a(x))))))),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 8, 1, bias=False),
        c=nn.Conv2d(8, 8, 1, bias=False),
        d=nn.Conv2d(8, 5, 1),
    )
    network.c.weight = network.b.weight
    return network


def literal() -> nn.Module:
    return Net(
        lambda m, x: m.b(torch.cat([part.relu() for part in m.a(x).split([3, 5], 1)], 1)),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 5, 1),
    )


class Counting(nn.Module):
    """A module whose state is more than tensors."""

    def get_extra_state(self) -> Any:
        return {"calls": 3}


def last(network: nn.Module) -> nn.Module:
    return network.to(memory_format=torch.channels_last)


def trained(
    make: Callable[[], nn.Module], output: Any = "module", example: Tensor = INPUT
) -> tuple[nn.Module, sc.Plan]:
    """A network that was cut and then given other values, as retraining does."""
    network = make().to(example.dtype)
    plan = sc.random_plan(sc.trace(network, example, output=output))
    small = sc.cut(network, plan)
    for tensor in small.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor))
        else:
            tensor.fill_(7)
    return small, plan


def same(one: nn.Module, other: nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    pairs = [(mine[name], theirs[name]) for name in mine]
    return mine.keys() == theirs.keys() and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    small, plan = trained(normed)
    save(tmp_path / "small.safetensors", small, plan)
    return tmp_path / "small.safetensors"


def refusal(path: Path, make: Callable[[], nn.Module] = normed) -> str:
    with pytest.raises(sc.SecateurError) as caught:
        load(path, make())
    assert caught.value.remedy
    return str(caught.value)


def altered(path: Path, change: Callable[[dict[str, Tensor]], Any] = lambda _: None, **metadata: str | None) -> Path:
    """The same file with other tensors or other metadata."""
    with safetensors.safe_open(path, "pt") as file:
        found = {key: value for key, value in ({**file.metadata(), **metadata}).items() if value is not None}
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, found)
    return path


@pytest.mark.parametrize(
    ("make", "output", "example"),
    [
        (normed, "module", INPUT),
        (normed, "module", IMAGE),
        (normed, "graph", INPUT),
        (tied, "module", INPUT),
        (tied, "graph", IMAGE),
        (lambda: last(normed()), "module", INPUT),
        (lambda: last(normed()), "graph", INPUT),
        (lambda: nn.DataParallel(normed()), "module", INPUT),
    ],
)
def test_a_round_trip(tmp_path: Path, make: Callable[[], nn.Module], output: Any, example: Tensor) -> None:
    small, plan = trained(make, output, example)
    save(tmp_path / "small.safetensors", small, plan)
    original = make()
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    back = load(tmp_path / "small.safetensors", original)
    assert same(small, back)
    assert type(back) is type(small)
    assert torch.equal(small.eval()(example), back.eval()(example))
    assert read_plan(tmp_path / "small.safetensors") == plan
    assert all(torch.equal(before[name], tensor) for name, tensor in original.state_dict().items())
    assert os.listdir(tmp_path) == ["small.safetensors"]


def test_sizes_written_into_forward(tmp_path: Path) -> None:
    small, plan = trained(literal, "graph")
    save(tmp_path / "small.safetensors", small, plan)
    back = load(tmp_path / "small.safetensors", literal())
    assert same(small, back) and torch.equal(small(INPUT), back(INPUT))


@pytest.mark.parametrize("name", ["layer_scale_and_buffer", "weight_standardised", "option_a_shortcut"])
def test_networks_cut_as_graphs(tmp_path: Path, name: str) -> None:
    small, plan = trained(lambda: build(name)[0], "graph", IMAGE)
    save(tmp_path / "small.safetensors", small, plan)
    back = load(tmp_path / "small.safetensors", build(name)[0])
    assert same(small, back) and torch.equal(small(IMAGE), back(IMAGE))


def test_a_tied_tensor_is_stored_once(tmp_path: Path) -> None:
    small, plan = trained(tied)
    save(tmp_path / "small.safetensors", small, plan)
    assert "c.weight" in small.state_dict() and "c.weight" not in load_file(tmp_path / "small.safetensors")
    back = load(tmp_path / "small.safetensors", tied())
    assert back.c.weight is back.b.weight


def test_views_of_one_memory(tmp_path: Path) -> None:
    def make() -> nn.Module:
        network = normed()
        memory = torch.rand(12)
        network.register_buffer("whole", memory)
        network.register_buffer("part", memory[3:6])
        network.register_buffer("turned", memory.view(3, 4).T)
        return network

    small, plan = trained(make)
    save(tmp_path / "small.safetensors", small, plan)
    assert same(small, load(tmp_path / "small.safetensors", make()))


@pytest.mark.parametrize(
    ("kind", "output"),
    [(torch.float16, "module"), (torch.bfloat16, "module"), (torch.float64, "module"), (torch.float16, "graph")],
)
def test_the_type_is_that_of_the_file(tmp_path: Path, kind: torch.dtype, output: Any) -> None:
    small, plan = trained(normed, output)
    save(tmp_path / "small.safetensors", small.to(kind), plan)
    original = normed()
    back = load(tmp_path / "small.safetensors", original)
    assert same(small, back) and back.a.weight.dtype == kind and original.a.weight.dtype == torch.float32


def test_mixed_types_need_a_model_that_has_them(tmp_path: Path) -> None:
    def make() -> nn.Module:
        network = normed()
        network.n.double()
        return network

    small, plan = trained(normed)
    small.n.double()
    save(tmp_path / "small.safetensors", small, plan)
    assert "it has type torch.float64, the network torch.float32" in refusal(tmp_path / "small.safetensors")
    assert same(small, load(tmp_path / "small.safetensors", make()))


def test_what_prune_gives_can_be_saved(tmp_path: Path) -> None:
    small, plan = trained(normed)
    path = tmp_path / "small.safetensors"
    save(path, SimpleNamespace(model=small, plan=plan, info={"model": "mine", "macs": [10, 5]}), info={"note": None})
    versions = {"secateur": sc.__version__, "torch": str(torch.__version__)}
    assert read_info(path) == {"model": "mine", "macs": [10, 5], "note": None, "versions": versions}
    assert same(small, load(path, normed()))
    save(path, SimpleNamespace(model=small, plan=plan))
    assert read_info(path) == {"versions": versions}


@pytest.mark.parametrize("result", [normed(), SimpleNamespace(model=normed()), {"model": 1}, None])
def test_what_cannot_be_saved(tmp_path: Path, result: Any) -> None:
    with pytest.raises(sc.SecateurError, match="has no cut network and plan"):
        save(tmp_path / "small.safetensors", result)
    assert not os.listdir(tmp_path)


def test_the_network_must_be_the_one_of_the_plan(tmp_path: Path) -> None:
    _, plan = trained(normed)
    with pytest.raises(sc.SecateurError, match=r"leaves 4 along axis 0, the tensor has shape \(8"):
        save(tmp_path / "small.safetensors", normed(), plan)
    with pytest.raises(sc.SecateurError, match="removes nothing"):
        save(tmp_path / "small.safetensors", normed(), sc.Plan((), {}, (), {}, {}))


def test_a_missing_folder_or_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    small, plan = trained(normed)
    with pytest.raises(sc.SecateurError, match=r"there is no folder .*nowhere"):
        save(tmp_path / "nowhere" / "small.safetensors", small, plan)
    (tmp_path / "taken").mkdir()
    with pytest.raises(sc.SecateurError, match="cannot be written"):
        save(tmp_path / "taken", small, plan)
    assert os.listdir(tmp_path) == ["taken"]


def test_a_link_stays_a_link(saved: Path) -> None:
    link = saved.parent / "link.safetensors"
    link.symlink_to(saved)
    small, plan = trained(normed)
    save(link, small, plan)
    assert link.is_symlink() and same(small, load(saved, normed()))


@pytest.mark.parametrize("stage", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file(
    saved: Path, stage: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise error

    before = saved.read_bytes()
    small, plan = trained(tied)
    monkeypatch.setattr(os, stage, failing)
    with pytest.raises(sc.SecateurError if isinstance(error, OSError) else KeyboardInterrupt):
        save(saved, small, plan)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


@pytest.mark.parametrize("thing", ["complex", "sparse", "meta", "state", "info", "nan"])
def test_what_cannot_be_written_leaves_the_old_file(saved: Path, thing: str) -> None:
    before = saved.read_bytes()
    small, plan = trained(normed)
    info: dict[str, object] = {}
    if thing == "complex":
        small.register_buffer("odd", torch.zeros(2, dtype=torch.complex128))
    elif thing == "sparse":
        small.register_buffer("odd", torch.eye(2).to_sparse())
    elif thing == "meta":
        small.register_buffer("odd", torch.zeros(2, device="meta"))
    elif thing == "state":
        small.odd = Counting()
    elif thing == "info":
        info = {"path": saved}
    else:
        info = {"loss": float("nan")}
    with pytest.raises(sc.SecateurError) as caught:
        save(saved, small, plan, info=info)
    assert caught.value.remedy
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_the_rights_of_a_new_file_are_the_usual_ones(saved: Path) -> None:
    (saved.parent / "plain").touch()
    assert saved.stat().st_mode == (saved.parent / "plain").stat().st_mode


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(share * len(data))])
    assert "not a whole safetensors file" in refusal(saved)
    for read in (read_plan, read_info):
        with pytest.raises(sc.SecateurError, match="not a whole safetensors file"):
            read(saved)


@pytest.mark.parametrize(
    "data", [b"garbage", b"\xff" * 100, b"PK\x03\x04" + bytes(100), b"\x10" + bytes(7) + b"{" * 16]
)
def test_garbage(saved: Path, data: bytes) -> None:
    saved.write_bytes(data)
    assert "not a whole safetensors file" in refusal(saved)


def test_files_of_others(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.safetensors")
    assert "there is no file" in refusal(tmp_path)
    save_file(normed().state_dict(), tmp_path / "plain.safetensors")
    assert "not one of secateur's" in refusal(tmp_path / "plain.safetensors")


def test_a_newer_format(saved: Path) -> None:
    assert "has version '99' of the format, this secateur reads '1'" in refusal(altered(saved, secateur="99"))


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"schema": 1}', "[" * 100_000])
def test_a_damaged_plan(saved: Path, text: str | None) -> None:
    assert f"{saved} is damaged" in refusal(altered(saved, plan=text))


def test_a_plan_that_asks_for_the_impossible(saved: Path) -> None:
    plan = json.loads(read_plan(saved).to_json())
    plan["output"], plan["example"] = "graph", {"shape": [1, 3, 8, 8], "dtype": "load"}
    assert "cannot be followed on this model" in refusal(altered(saved, plan=json.dumps(plan)))


@pytest.mark.parametrize("text", [None, "", "[1]", "null"])
def test_a_damaged_info(saved: Path, text: str | None) -> None:
    with pytest.raises(sc.SecateurError, match="is damaged: its info"):
        read_info(altered(saved, info=text))


@pytest.mark.parametrize("text", [None, "[]", '{"x": "nowhere"}', '{"x": ["a.bias"]}', '{"a.bias": "b.bias"}'])
def test_damaged_aliases(saved: Path, text: str | None) -> None:
    assert f"{saved} is damaged" in refusal(altered(saved, aliases=text))


def test_another_model(saved: Path) -> None:
    assert "the plan is for another network" in refusal(saved, tied)

    def wider() -> nn.Module:
        network = normed()
        network.b = nn.Conv2d(8, 6, 1)
        return network

    assert "another network" in refusal(saved, wider)


def test_other_tensors_than_the_model_has(saved: Path) -> None:
    data = saved.read_bytes()

    def again(change: Callable[[dict[str, Tensor]], Any]) -> str:
        saved.write_bytes(data)
        return refusal(altered(saved, change))

    assert "a.bias: " in again(lambda t: t.pop("a.bias")) and "the file has no such tensor" in refusal(saved)
    assert "the network has no such tensor" in again(lambda t: t.update(extra=torch.rand(2)))
    assert "it has shape (3,), the network (4,)" in again(lambda t: t.update({"a.bias": torch.rand(3)}))
    text = again(lambda t: t.update({"n.num_batches_tracked": torch.tensor(1, dtype=torch.int32)}))
    assert "it has type torch.int32, the network torch.int64" in text


def test_ties_that_only_one_side_has(tmp_path: Path) -> None:
    def loose() -> nn.Module:
        network = tied()
        network.c.weight = nn.Parameter(torch.rand(8, 8, 1, 1))
        return network

    path = tmp_path / "small.safetensors"
    small, plan = trained(tied)
    save(path, small, plan)
    altered(path, lambda t: t.update({"c.weight": t["b.weight"].clone()}), aliases="{}")
    assert "tied to b.weight in the network only" in refusal(path, tied)
    small, plan = trained(loose)
    save(path, small, plan)
    altered(path, lambda t: t.pop("c.weight"), aliases='{"c.weight": "b.weight"}')
    assert "tied to b.weight in the file only" in refusal(path, loose)


def test_a_model_without_values(saved: Path) -> None:
    assert "no values of its own" in refusal(saved, lambda: normed().to("meta"))
