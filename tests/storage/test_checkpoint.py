"""A saved network is loaded bit for bit, or the error says what is wrong with the file or the model."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import secateur as sc
from fuzz_loader import Subject, try_file
from secateur.certificates import fingerprints
from secateur.storage import container
from secateur.storage.checkpoint import load, read_info, read_plan, save
from support.cases import IMAGE, Net, build
from support.stored_networks import FOLDER, OUTPUTS, STORED, Normed, answer

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
    """Return a cut network with new weights, as after retraining, and its plan."""
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


@functools.cache
def saved_bytes() -> bytes:
    small, plan = trained(normed)
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "small.safetensors", small, plan)
        return (Path(folder) / "small.safetensors").read_bytes()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    (tmp_path / "small.safetensors").write_bytes(saved_bytes())
    return tmp_path / "small.safetensors"


def refusal(path: Path, make: Callable[[], nn.Module] = normed) -> str:
    with pytest.raises(sc.SecateurError) as caught:
        load(path, make())
    assert caught.value.remedy
    return str(caught.value)


def altered(path: Path, change: Callable[[dict[str, Tensor]], Any] = lambda _: None, **metadata: str | None) -> Path:
    """Change tensors or metadata of the file, with matching checksums."""
    with safetensors.safe_open(path, "pt") as file:
        found = {key: value for key, value in ({**file.metadata(), **metadata}).items() if value is not None}
    tensors = load_file(path)
    change(tensors)
    path.write_bytes(container.pack(tensors, found))
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


class Versioned(Normed):
    """Like torchvision's MNASNet, it checks which version of itself wrote the state."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        assert local_metadata["version"] == 2
        super()._load_from_state_dict(state, prefix, local_metadata, *rest)


def test_a_module_that_checks_its_version(tmp_path: Path) -> None:
    small, plan = trained(Versioned)
    save(tmp_path / "small.safetensors", small, plan)
    assert same(small, load(tmp_path / "small.safetensors", Versioned()))


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
def test_a_network_has_the_dtype_of_its_file(tmp_path: Path, kind: torch.dtype, output: Any) -> None:
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


VERSIONS = {"secateur": sc.__version__, "torch": str(torch.__version__), "python": platform.python_version()}


def test_an_object_with_model_and_plan_can_be_saved(tmp_path: Path) -> None:
    small, plan = trained(normed)
    path = tmp_path / "small.safetensors"
    save(path, SimpleNamespace(model=small, plan=plan, info={"model": "mine", "macs": [10, 5]}), info={"note": None})
    assert read_info(path) == {"model": "mine", "macs": [10, 5], "note": None, "versions": VERSIONS}
    assert same(small, load(path, normed()))
    save(path, SimpleNamespace(model=small, plan=plan, scores={"a": [0.5]}, certificate={"eps": 0.1}))
    assert read_info(path) == {"scores": {"a": [0.5]}, "certificate": {"eps": 0.1}, "versions": VERSIONS}


def test_sensitivities_is_a_deprecated_spelling_of_scores(tmp_path: Path) -> None:
    small, plan = trained(normed)
    path = tmp_path / "small.safetensors"
    with pytest.deprecated_call(match="scores"):
        save(path, small, plan, sensitivities={"a": [0.25]})
    assert read_info(path)["scores"] == {"a": [0.25]}
    with pytest.deprecated_call(match="`scores`"):
        save(path, SimpleNamespace(model=small, plan=plan, sensitivities={"a": [0.5]}))
    assert read_info(path)["scores"] == {"a": [0.5]}


def test_a_file_holds_scores_certificate_costs_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    network = normed()
    res = sc.prune(network, INPUT, budget={"params": "70%"}, samples=None)
    found = sc.sensitivity(network, INPUT)
    save(path, res, architecture="mine.py:make", scores=found, certificate={"delta": 1e-3, "drop": [0.01, None]})
    info = read_info(path)
    assert info["architecture"] == "mine.py:make" and info["versions"] == VERSIONS
    assert info["certificate"] == {"delta": 1e-3, "drop": [0.01, None]}
    assert info["before"] == {"params": res.before.params, "macs": res.before.macs}
    assert info["after"] == {"params": res.after.params, "macs": res.after.macs}
    assert info["samples"] == len(INPUT) and "divergence" in info["groups"][0]
    assert list(info["scores"]) == list(found)
    assert all(torch.tensor(info["scores"][name], dtype=torch.float64).equal(found[name]) for name in found)
    assert same(res.model, load(path, normed()))


def test_the_checksums_are_the_documented_ones(tmp_path: Path) -> None:
    small, plan = trained(tied)
    path = tmp_path / "small.safetensors"
    save(path, small, plan)
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    digest, kinds = hashlib.blake2b(digest_size=32), {torch.float32: "F32", torch.int64: "I64"}
    for name, tensor in sorted(load_file(path).items()):
        shape = ",".join(map(str, tensor.shape))
        digest.update(f'["{name}","{kinds[tensor.dtype]}",[{shape}]]\n'.encode())
        digest.update(tensor.numpy().tobytes())
    assert metadata["tensor_checksum"] == digest.hexdigest()
    seal = metadata.pop("metadata_checksum")
    text = ",".join(f"{json.dumps(key)}:{json.dumps(metadata[key])}" for key in sorted(metadata))
    assert seal == hashlib.blake2b(f"{{{text}}}".encode(), digest_size=32).hexdigest()


def test_equal_networks_give_equal_files(tmp_path: Path) -> None:
    small, plan = trained(normed)
    for name in "ab":
        save(tmp_path / name, small, plan, info={"ü": "note"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_repaired_network(tmp_path: Path) -> None:
    """Its weights and statistics are not those of the cut original."""

    def make() -> nn.Module:
        torch.manual_seed(3)
        return Normed().eval()

    plan = sc.random_plan(sc.trace(make(), INPUT))
    small = sc.cut(make(), plan)
    with torch.no_grad():
        small.fc.weight.add_(torch.randn_like(small.fc.weight))
        small.fc.bias.mul_(-3)
        small.n.running_mean.add_(0.5)
        small.n.running_var.mul_(1.7)
        small.n.num_batches_tracked.add_(9)
    save(tmp_path / "small.safetensors", small, plan)
    back = load(tmp_path / "small.safetensors", make())
    assert same(small, back) and torch.equal(small(INPUT), back(INPUT))
    assert not torch.equal(sc.cut(make(), plan)(INPUT), back(INPUT))


def test_a_file_that_names_its_network(tmp_path: Path) -> None:
    path = FOLDER / "named.safetensors"
    before = torch.random.get_rng_state()
    back = load(path)
    assert torch.equal(before, torch.random.get_rng_state())
    assert same(back, load(path, STORED["named"].make()))
    with pytest.raises(sc.SecateurError, match="does not say which network was cut"):
        load(FOLDER / "plain.safetensors")
    small, plan = trained(normed)
    marker = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"import pathlib\npathlib.Path({str(marker)!r}).touch()\ndef make(): ...\n")
    for name in (f"{tmp_path}/mine.py:make", "mine.py:make", "os:system", ""):
        save(tmp_path / "small.safetensors", small, plan, architecture=name)
        with pytest.raises(sc.SecateurError, match="code that a file names is never run"):
            load(tmp_path / "small.safetensors")
        assert not marker.exists()
    for name in ("zoo", "zoo:none", "zoo:lenet5", "torchvision:../x.py:make", "timm:hf-hub:a/b"):
        save(tmp_path / "small.safetensors", small, plan, architecture=name)
        with pytest.raises(sc.SecateurError, match=r"has no model|another network"):
            load(tmp_path / "small.safetensors")


@pytest.mark.parametrize("name", STORED)
def test_files_of_earlier_versions_load(name: str) -> None:
    stored = STORED[name]
    back = load(FOLDER / f"{name}.safetensors", stored.make())
    wanted = torch.tensor(json.loads(OUTPUTS.read_text())[name], dtype=stored.kind)
    # Another processor may round differently.
    rtol = 1e-10 if stored.kind == torch.float64 else 1e-4
    torch.testing.assert_close(torch.tensor(answer(stored, back), dtype=stored.kind), wanted, rtol=rtol, atol=rtol)
    assert read_info(FOLDER / f"{name}.safetensors")["note"].startswith(f"the {name} network")


def test_information_of_earlier_formats_has_todays_keys() -> None:
    """format2.safetensors is the result of a pruning job, saved by version 0.1 with `points`, `harm` and so on."""
    path = FOLDER / "format2.safetensors"
    info = read_info(path)
    assert info["samples"] == info["repair"]["samples"] == 64
    assert list(info["scores"]) == ["a", "b"] and len(info["scores"]["a"]) == 8
    assert [row["divergence"] for row in info["groups"]] == [pytest.approx(5.54e-05, rel=1e-3), 0.0]
    old = {"points", "sensitivities", "harm"}
    assert old.isdisjoint(info) and old.isdisjoint(info["repair"]) and old.isdisjoint(info["groups"][0])
    certificate = sc.Certificate.from_json(json.dumps(info["certificate"]))  # it has a schema of its own
    assert certificate.samples == 200


def test_keys_of_the_current_format_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save(path, *trained(normed), info={"points": 3, "groups": [{"harm": 1}]})
    assert read_info(path) == {"points": 3, "groups": [{"harm": 1}], "versions": VERSIONS}


def test_loading_needs_no_pickle_and_no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("called")

    for module, name in ((torch, "load"), (torch.export, "export"), (torch.fx, "symbolic_trace")):
        monkeypatch.setattr(module, name, refuse)
    for module in ("pickle", "_pickle"):
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(sys.modules[module], name, refuse)
    for name, stored in STORED.items():
        if stored.output == "module":
            load(FOLDER / f"{name}.safetensors", stored.make())


@pytest.mark.parametrize("result", [normed(), SimpleNamespace(model=normed()), {"model": 1}, None])
def test_an_object_without_network_or_plan_is_refused(tmp_path: Path, result: Any) -> None:
    with pytest.raises(sc.SecateurError, match="expected a cut network and its plan, got a"):
        save(tmp_path / "small.safetensors", result)
    assert not os.listdir(tmp_path)


def test_the_network_must_match_the_plan(tmp_path: Path) -> None:
    _, plan = trained(normed)
    with pytest.raises(sc.SecateurError, match=r"leaves shape \(4,\), the tensor has shape \(8"):
        save(tmp_path / "small.safetensors", normed(), plan)
    with pytest.raises(sc.SecateurError, match="removes nothing"):
        save(tmp_path / "small.safetensors", normed(), sc.Plan((), {}, (), {}, {}))


def test_a_missing_folder_or_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    small, plan = trained(normed)
    with pytest.raises(sc.SecateurError, match=r"there is no folder .*nowhere"):
        save(tmp_path / "nowhere" / "small.safetensors", small, plan)
    (tmp_path / "taken").mkdir()
    with pytest.raises(sc.SecateurError, match="taken is a folder"):
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


@pytest.mark.parametrize("thing", ["complex", "sparse", "meta", "state", "info", "deep", "nan", "weights", "order"])
def test_a_network_that_cannot_be_saved_leaves_the_old_file(saved: Path, thing: str) -> None:
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
    elif thing == "deep":
        info = {"lists": json.loads("[" * 40 + "]" * 40)}
    elif thing == "weights":
        small.a.weight.data[0] = float("nan")
    elif thing == "order":
        plan = dataclasses.replace(plan, kept={slot: indices[::-1] for slot, indices in plan.kept.items()})
    else:
        info = {"loss": float("nan")}
    with pytest.raises(sc.SecateurError) as caught:
        save(saved, small, plan, info=info)
    assert caught.value.remedy
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    save(tmp_path / "small.safetensors", *trained(normed))
    (tmp_path / "plain").touch()
    assert (tmp_path / "small.safetensors").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file(saved: Path, share: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(share * len(data))])
    assert "not a valid safetensors file" in refusal(saved)
    for read in (read_plan, read_info):
        with pytest.raises(sc.SecateurError, match="not a valid safetensors file"):
            read(saved)


@pytest.mark.parametrize(
    "data", [b"garbage", b"\xff" * 100, b"PK\x03\x04" + bytes(100), b"\x10" + bytes(7) + b"{" * 16]
)
def test_garbage(saved: Path, data: bytes) -> None:
    saved.write_bytes(data)
    assert "not a valid safetensors file" in refusal(saved)


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "none.safetensors")
    assert "there is no file" in refusal(tmp_path)
    save_file(normed().state_dict(), tmp_path / "plain.safetensors")
    assert "not one of secateur's" in refusal(tmp_path / "plain.safetensors")


def test_a_newer_format(saved: Path) -> None:
    assert "has version '99' of the format, this secateur reads versions up to '3'" in refusal(
        altered(saved, secateur="99")
    )


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"schema": 1}', "[" * 100_000])
def test_a_damaged_plan(saved: Path, text: str | None) -> None:
    assert f"{saved} is damaged" in refusal(altered(saved, plan=text))


def test_a_plan_with_an_unsuitable_example(saved: Path) -> None:
    plan = json.loads(read_plan(saved).to_json())
    plan["output"], plan["example"] = "graph", {"shape": [1, 4, 8, 8], "dtype": "float32"}
    assert "torch.export cannot follow it" in refusal(altered(saved, plan=json.dumps(plan)))


@pytest.mark.parametrize("text", [None, "", "[1]", "null"])
def test_a_damaged_info(saved: Path, text: str | None) -> None:
    with pytest.raises(sc.SecateurError, match="is damaged: its info"):
        read_info(altered(saved, info=text))


NASTY = {
    "a negative index": lambda p: p["axes"]["a.weight"].update({"0": [-1, 0, 1, 2]}),
    "an index out of range": lambda p: p["axes"]["a.weight"].update({"0": [0, 1, 2, 8]}),
    "indices out of order": lambda p: p["axes"]["a.weight"]["0"].reverse(),
    "an index twice": lambda p: p["axes"]["a.weight"].update({"0": [0, 1, 1, 2]}),
    "no index": lambda p: p["axes"]["a.weight"].update({"0": []}),
    "an index that is a float": lambda p: p["axes"]["a.weight"].update({"0": [0.0, 1, 2, 3]}),
    "a negative axis": lambda p: p["axes"]["a.weight"].update({"-1": [0]}),
    "an axis that does not exist": lambda p: p["axes"]["a.weight"].update({"9": [0]}),
    "an axis that is a string": lambda p: p["axes"]["a.weight"].update({"x": [0]}),
    "axes of an unknown tensor": lambda p: p["axes"].update({"../../etc/passwd": {"0": [0]}}),
    "a tensor that the network does not have": lambda p: (
        p["axes"].update({"../../etc/passwd": {"0": [0]}}),
        p["shapes"].update({"../../etc/passwd": [4]}),
    ),
    "a shape without an axis": lambda p: p["shapes"].update(ghost=[4]),
    "a huge shape": lambda p: p["shapes"].update({"a.weight": [2**62] * 4}),
    "scales of the wrong length": lambda p: p["scales"].update({"b.weight": {"1": [1.0]}}),
    "scales of an axis that is not cut": lambda p: p["scales"].update({"b.weight": {"0": [1.0]}}),
    "a mask of an axis that is not cut": lambda p: p["consumes"].append(["b.weight", 0]),
    "a mask of a list": lambda p: p["consumes"].append([["a"], 0]),
    "a scale that overflows": lambda p: p["scales"].update({"b.weight": {"1": [10**400] * 4}}),
    "a shape of many axes": lambda p: p["shapes"].update({"a.weight": [8] * 500}),
    "a mask without an axis": lambda p: p["consumes"].append(["a"]),
    "an unknown output": lambda p: p.update(output="shell"),
    "a group larger than itself": lambda p: p["groups"][0].update(size=1),
    "a group with scales of the wrong length": lambda p: p["groups"][0].update(scales=[1.0]),
    "a group without a name": lambda p: p["groups"][0].update(name=None),
    "a name with control characters": lambda p: p["groups"][0].update(name="a\x1b[2J"),
    "a huge example": lambda p: p.update(example={"shape": [10**6, 3, 1000, 1000], "dtype": "float32"}),
    "an example of many parts": lambda p: p.update(example=[{"shape": [2**27], "dtype": "float32"}] * 3),
    "an example of a strange type": lambda p: p.update(example={"shape": [1], "dtype": "load"}),
    "an example of a strange shape": lambda p: p.update(example={"shape": "8", "dtype": "float32"}),
    "an example of strange parts": lambda p: p.update(example={"call": "os.system"}),
    "an old schema": lambda p: p.update(schema=1),
    "an unknown schema": lambda p: p.update(schema=[2]),
}


@pytest.mark.parametrize("what", NASTY)
def test_a_hostile_plan(saved: Path, what: str) -> None:
    """The checksums match: the file was written like this on purpose."""
    plan = json.loads(read_plan(saved).to_json())
    NASTY[what](plan)
    text = refusal(altered(saved, plan=json.dumps(plan)))
    assert "is damaged" in text or "another network" in text
    assert text.replace("\n  remedy", "").isprintable()


@pytest.mark.parametrize("key", ["plan", "aliases", "info"])
@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "[" * 100 + "]" * 100 + "}", '{"a": ' + "9" * 5000],
)
def test_hostile_json(saved: Path, key: str, text: str) -> None:
    altered(saved, **{key: text})
    with pytest.raises(sc.SecateurError, match=f"is damaged: its {key} cannot be read"):
        {"plan": read_plan, "info": read_info, "aliases": lambda path: load(path, normed())}[key](saved)


def test_an_altered_tensor_or_metadata_is_detected(saved: Path) -> None:
    data = saved.read_bytes()
    header = container.read_header(saved)
    for name, tensor in header.tensors.items():
        place = len(header.raw) + tensor.end - 1
        saved.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert "its tensors do not match its tensor_checksum" in refusal(saved), name
    place = data.index(b"versions")
    saved.write_bytes(data[:place] + b"w" + data[place + 1 :])
    for read in (read_plan, read_info, lambda path: load(path, normed())):
        with pytest.raises(sc.SecateurError, match="its metadata do not match its metadata_checksum"):
            read(saved)


@pytest.mark.parametrize("key", ["tensor_checksum", "metadata_checksum"])
def test_a_file_without_a_checksum(saved: Path, key: str) -> None:
    with safetensors.safe_open(saved, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(saved), saved, {k: v for k, v in metadata.items() if k != key})
    assert "is damaged" in refusal(saved)
    save_file(load_file(saved), saved, {**metadata, "secateur": "1"})
    assert "is damaged" in refusal(saved)  # version 1 needs no checksum, but a wrong one is refused


def test_nan_in_the_weights(saved: Path) -> None:
    assert "NaN or infinite" in refusal(altered(saved, lambda t: t["a.weight"][0].fill_(float("nan"))))


def test_a_file_too_large_for_the_network_is_not_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    altered(saved, lambda t: t.update({"a.bias": torch.rand(10**6)}))
    monkeypatch.setattr(container, "read_tensors", lambda *_, **__: pytest.fail("read"))
    assert "it has shape (1000000,), the network (4,)" in refusal(saved)


@pytest.mark.parametrize("name", ["scales", "tied", "named", "format1", "format2", "format3"])
def test_mutated_files_are_refused_or_harmless(name: str, tmp_path: Path) -> None:
    """60 mutations of each of six files; benchmarks/fuzz_loader.py makes 10,000."""
    subject = Subject.of(name)
    outcomes = [try_file(subject, seed, tmp_path / "mutant.safetensors") for seed in range(60)]
    assert [found for found in outcomes if found.failed] == []
    assert sum(found.outcome == "refused" for found in outcomes) >= 30


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


def test_ties_that_only_the_file_or_only_the_network_has(tmp_path: Path) -> None:
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
    assert "no values (meta device)" in refusal(saved, lambda: normed().to("meta"))


IMAGES = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", ["residual", "ft"])  # with and without repair
@pytest.mark.parametrize("times", [2, 3])
def test_a_network_pruned_several_times_loads_into_the_original(tmp_path: Path, method: str, times: int) -> None:
    original, path = Normed(), tmp_path / "small.safetensors"
    model: nn.Module = original
    for _ in range(times):
        res = sc.prune(model, IMAGES, budget={"params": "75%"}, method=method)
        model = res.model
    assert (res.repair is not None) == (method == "residual")
    save(path, res)
    loaded = load(path, Normed())
    assert same(loaded, model)
    x = torch.rand(2, 3, 8, 8)
    assert torch.equal(loaded.eval()(x), model.eval()(x))
    assert {name: shape for name, shape in read_plan(path).shapes.items()} == {
        name: tuple(original.state_dict()[name].shape) for name in read_plan(path).shapes
    }


def test_a_loaded_or_copied_or_pickled_network_can_be_pruned_and_saved_again(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    save(path, sc.prune(Normed(), IMAGES, budget={"params": "75%"}))
    torch.save(copy.deepcopy(load(path, Normed())), tmp_path / "pickled")
    model = torch.load(tmp_path / "pickled", weights_only=False)
    res = sc.prune(model, IMAGES, budget={"params": "75%"})
    save(path, res.model, res.plan)
    assert same(load(path, Normed()), res.model)


def test_a_file_has_the_samples_of_every_pruning(tmp_path: Path) -> None:
    def prints(images: Tensor) -> set[str]:
        return set(fingerprints.of(images))

    path, (a, b, c) = tmp_path / "small.safetensors", IMAGES[:48].split(16)
    first = sc.prune(Normed(), a, budget={"params": "75%"})
    save(path, first.model, first.plan)  # the network alone has them too
    second = sc.prune(copy.deepcopy(load(path, Normed())), b, budget={"params": "75%"})
    assert set(fingerprints.unpack(second.fingerprints)) == prints(a) | prints(b)
    save(path, second)
    third = sc.prune(load(path, Normed()), c, budget={"params": "100%"})  # which removes nothing
    assert set(fingerprints.unpack(third.fingerprints)) == prints(a) | prints(b) | prints(c)
    assert set(fingerprints.unpack(read_info(path)["fingerprints"])) == prints(a) | prints(b)
    with pytest.raises(sc.SecateurError, match="used"):
        sc.certify(first.model, second.model, a, used=read_info(path)["fingerprints"])


def test_scales_of_several_plans_are_multiplied(tmp_path: Path) -> None:
    original = model = Normed()
    for share in (0.8, 0.7):
        graph = sc.trace(model, IMAGES[:1])
        kept = {group.name: group.kept for group in sc.random_plan(graph, kept=share).groups}
        plan = sc.Plan.keeping(graph, kept, {name: [1.5 + i for i in range(len(own))] for name, own in kept.items()})
        model = sc.cut(model, plan)
    save(tmp_path / "a", model, plan)
    assert same(load(tmp_path / "a", original), model)
    both = read_plan(tmp_path / "a")
    assert both.scales and sc.verify(original, both, IMAGES) < 1e-5


def test_a_combined_plan_may_be_given(tmp_path: Path) -> None:
    first = sc.prune(Normed(), IMAGES, budget={"params": "75%"})
    second = sc.prune(first.model, IMAGES, budget={"params": "75%"})
    save(tmp_path / "a", second.model, first.plan.then(second.plan))
    save(tmp_path / "b", second.model, second.plan)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_second_pruning_that_removes_nothing_is_saved_with_the_first_plan(tmp_path: Path) -> None:
    first = sc.prune(Normed(), IMAGES, budget={"params": "75%"})
    second = sc.prune(first.model, IMAGES, budget={"params": "100%"})
    assert not second.plan.kept
    save(tmp_path / "a", second)
    assert same(load(tmp_path / "a", Normed()), second.model) and read_plan(tmp_path / "a") == first.plan


def test_plans_that_cannot_be_combined_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    first = sc.prune(Normed(), IMAGES, budget={"params": "75%"})
    second = sc.prune(first.model, IMAGES, budget={"params": "75%"}, output="graph")
    with pytest.raises(sc.SecateurError, match=r"cut 2 times.*output='module'") as caught:
        save(tmp_path / "a", second)
    assert "prune the original once" in str(caught.value.remedy) and not (tmp_path / "a").exists()


def test_a_network_with_another_head_is_refused_because_it_would_not_load(tmp_path: Path) -> None:
    first = sc.random_plan(sc.trace(Normed(), IMAGES[:1]))
    small = sc.cut(Normed(), first)
    small.fc = nn.Linear(small.fc.in_features, 7)
    with pytest.raises(sc.SecateurError, match=r"fc.weight: the plan leaves shape \(5, 27\), .* \(7, 27\)"):
        save(tmp_path / "a", small, first)
    second = sc.random_plan(sc.trace(small, IMAGES[:1]))
    with pytest.raises(sc.SecateurError, match="cut 2 times"):
        save(tmp_path / "a", sc.cut(small, second), second)
