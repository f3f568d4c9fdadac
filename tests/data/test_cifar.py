"""CIFAR-10 is read from its pickles, in a folder or in the archive, without running code."""

from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from secateur.data import dataset
from secateur.data.cifar import read_batch
from secateur.errors import SecateurError

NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]


def batch(number: int, count: int = 8) -> dict[bytes, Any]:
    pixels = np.random.default_rng(number).integers(0, 256, (count, 3072), dtype=np.uint8)
    return {b"batch_label": b"one", b"labels": [(number + i) % 10 for i in range(count)], b"data": pixels}


def make(root: Path) -> dict[str, dict[bytes, Any]]:
    made = {name: batch(number) for number, name in enumerate(NAMES)}
    (root / "cifar-10-batches-py").mkdir(parents=True)
    for name, content in made.items():
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol=4))
    return made


def test_the_folder(tmp_path: Path) -> None:
    made = make(tmp_path)
    data = dataset("cifar10", "train+validation", tmp_path)
    assert data.images.shape == (40, 3, 32, 32) and data.augment == "pad-crop-flip"
    second = made["data_batch_2"]
    assert data.images[9, 1, 2, 3] == second[b"data"][1, 1024 + 2 * 32 + 3]  # red, green, blue; each row by row
    assert data.targets[8:16].tolist() == second[b"labels"]
    assert len(dataset("cifar10", "train", tmp_path)) == 36
    assert len(dataset("cifar10", "validation", tmp_path)) == 4
    assert torch.equal(
        dataset("cifar10", "test", tmp_path).images.view(8, -1), torch.tensor(made["test_batch"][b"data"])
    )


def test_the_archive(tmp_path: Path) -> None:
    make(tmp_path / "made")
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data/cifar-10-python.tar.gz", "w:gz") as archive:
        for name in reversed(NAMES):  # in any order
            archive.add(tmp_path / "made/cifar-10-batches-py" / name, f"cifar-10-batches-py/{name}")
    for part in ("train", "test"):
        packed, plain = dataset("cifar10", part, tmp_path / "data"), dataset("cifar10", part, tmp_path / "made")
        assert torch.equal(packed.images, plain.images) and torch.equal(packed.targets, plain.targets)
    content = (tmp_path / "data/cifar-10-python.tar.gz").read_bytes()
    (tmp_path / "data/cifar-10-python.tar.gz").write_bytes(content[: len(content) // 2])
    with pytest.raises(SecateurError, match="cannot be read as CIFAR-10"):
        dataset("cifar10", "train", tmp_path / "data")


def test_an_archive_of_something_else(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar-10-python.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("readme"), io.BytesIO())
    with pytest.raises(SecateurError, match="there is no data_batch_1 in it"):
        dataset("cifar10", "train", tmp_path)


def test_a_batch_as_python_2_wrote_it() -> None:
    """Protocol 2 with byte strings and the names of numpy 1, written by hand."""
    raw = bytes(range(256)) * 12
    old = (
        b"\x80\x02}q\x00(U\x04dataq\x01cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87R"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\nq\x04U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T\x00\x0c\x00\x00" + raw + b"tbU\x06labelsq\x05]K\x07au."
    )
    images, labels = read_batch(io.BytesIO(old), "old")
    assert images.flatten().numpy().tobytes() == raw and labels.tolist() == [7]


class Trap:
    """An object that writes a file when it is unpickled."""

    def __init__(self, call: Any, *values: Any) -> None:
        self.call, self.values = call, values

    def __reduce__(self) -> Any:
        return self.call, self.values


@pytest.mark.parametrize("place", ["data", "labels", "beside", "whole"])
def test_a_hostile_file_runs_no_code(tmp_path: Path, place: str) -> None:
    ran = tmp_path / "ran"
    trap = Trap(exec, f"open({str(ran)!r}, 'w').close()")
    content: Any = trap if place == "whole" else {**batch(0), place.encode(): trap}
    text = pickle.dumps(content)
    pickle.loads(text)
    assert ran.exists()  # the trap works
    ran.unlink()
    with pytest.raises(SecateurError, match=r"it uses builtins\.exec"):
        read_batch(io.BytesIO(text), "hostile")
    assert not ran.exists()


@pytest.mark.parametrize("call", [getattr, eval, __import__, np.load, np.fromfile, torch.load])
def test_only_arrays_are_unpickled(call: Any) -> None:
    with pytest.raises(SecateurError, match="it uses"):
        read_batch(io.BytesIO(pickle.dumps(Trap(call, "x", "y"))), "hostile")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({b"labels": [1]}, "KeyError"),
        ([1, 2], "TypeError"),
        ({**batch(0), b"labels": [1, 2]}, "its data is uint8 of shape"),
        ({**batch(0), b"labels": [10] * 8}, "from 0 to 9"),
        ({**batch(0), b"labels": [-1] * 8}, "from 0 to 9"),
        ({**batch(0), b"labels": [0.5] * 8}, "from 0 to 9"),
        ({**batch(0), b"data": np.zeros((8, 3072), np.float32)}, "its data is float32"),
        ({**batch(0), b"data": np.zeros((8, 99), np.uint8)}, "of shape"),
        ({**batch(0), b"data": b"pixels"}, "AttributeError"),
    ],
)
def test_invalid_contents_are_refused(content: Any, words: str) -> None:
    with pytest.raises(SecateurError, match=words):
        read_batch(io.BytesIO(pickle.dumps(content)), "batch")


def test_a_truncated_batch(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "cifar-10-batches-py/test_batch"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(SecateurError, match="test_batch cannot be read as CIFAR-10"):
        dataset("cifar10", "test", tmp_path)
