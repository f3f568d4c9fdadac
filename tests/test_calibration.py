"""Calibration data of every form become batches, or the error says what is wrong with them."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from secateur.calibration import IMAGENET, Calibration, read_batches
from secateur.errors import SecateurError, UsageError

SHAPE = (3, 4, 5)
RANDOM = np.random.default_rng(0)
POINTS = RANDOM.random((10, *SHAPE), dtype=np.float32)
LABELS = np.arange(10)


def refusal(source: Any, kind: type[SecateurError] = SecateurError, shape: tuple[int, ...] = SHAPE, **more: Any) -> str:
    with pytest.raises(SecateurError) as caught:
        read_batches(str(source), shape=shape, **more)
    assert type(caught.value) is kind
    assert caught.value.remedy
    return str(caught.value)


def joined(data: Calibration) -> Tensor:
    return torch.cat([batch[0] if data.labelled else batch for batch in data])


def written(folder: Path, form: str, x: Any, y: Any) -> Path:
    """A file of the points, and of the labels if there are any."""
    path = folder / form.replace("-", ".")
    a, b = torch.from_numpy(np.ascontiguousarray(x)), None if y is None else torch.from_numpy(y)
    if form == "plain-npy":
        np.save(path, x)
    elif form == "named-npz":
        np.savez_compressed(path, **({"labels": y} if y is not None else {}), images=x)
    elif form == "numbered-npz":
        np.savez(path, x)
    elif form == "named-safetensors":
        save_file({"x": a} | ({} if b is None else {"y": b}), path)
    elif form == "single-safetensors":
        save_file({"anything": a}, path)
    elif form == "pair-pt":
        torch.save(a if b is None else (a, b), path)
    elif form == "dict-pth":
        torch.save({"x": a, "y": b}, path)
    return path


@pytest.mark.parametrize(
    ("form", "labelled"),
    [
        ("plain-npy", False),
        ("named-npz", False),
        ("named-npz", True),
        ("numbered-npz", False),
        ("named-safetensors", False),
        ("named-safetensors", True),
        ("single-safetensors", False),
        ("pair-pt", False),
        ("pair-pt", True),
        ("dict-pth", True),
    ],
)
def test_files_of_arrays(tmp_path: Path, form: str, labelled: bool) -> None:
    path = written(tmp_path, form, POINTS, LABELS if labelled else None)
    data = read_batches(str(path), shape=SHAPE, batch=4)
    assert [len(batch[0] if labelled else batch) for batch in data] == [4, 4, 2]
    assert (data.points, len(data), data.labelled, data.origin) == (10, 3, labelled, str(path))
    assert torch.equal(joined(data), torch.from_numpy(POINTS))
    if labelled:
        assert torch.cat([y for _, y in data]).tolist() == LABELS.tolist()


def test_a_random_choice_by_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, "named-npz", POINTS, LABELS)
    picks = []
    for seed in (0, 0, 1):
        data = read_batches(str(path), shape=SHAPE, points=6, seed=seed)
        chosen = torch.cat([y for _, y in data])
        assert data.points == 6 == len(set(chosen.tolist()))
        assert torch.equal(joined(data), torch.from_numpy(POINTS)[chosen])
        picks.append(chosen.tolist())
    assert picks[0] == picks[1] != picks[2]


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (RANDOM.integers(0, 256, (6, *SHAPE), dtype=np.uint8), lambda x: x / 255),
        (RANDOM.integers(0, 256, (6, 4, 5, 3), dtype=np.uint8), lambda x: x.transpose(0, 3, 1, 2) / 255),
        (RANDOM.random((6, 4, 5, 3)), lambda x: x.transpose(0, 3, 1, 2)),
        (RANDOM.random((6, *SHAPE)).astype(">f8"), lambda x: x),
        (RANDOM.random((6, *SHAPE)).astype(np.float16), lambda x: x),
        (np.asfortranarray(RANDOM.random((6, *SHAPE))), lambda x: x),
    ],
    ids=["bytes", "bytes, channels last", "channels last", "big endian", "half", "fortran"],
)
def test_layouts_and_types(tmp_path: Path, stored: Any, wanted: Any) -> None:
    np.save(tmp_path / "x.npy", stored)
    found = joined(read_batches(str(tmp_path / "x.npy"), shape=SHAPE))
    assert found.dtype == torch.float32
    assert np.allclose(found, wanted(stored.astype(np.float64)), atol=1e-6)


def test_grey_points_need_no_axis_for_it(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", POINTS[:, 0])
    assert torch.equal(joined(read_batches(str(tmp_path / "x.npy"), shape=(1, 4, 5)))[:, 0], torch.tensor(POINTS[:, 0]))


def test_a_layout_that_could_be_both_stays(tmp_path: Path) -> None:
    cube = RANDOM.random((2, 3, 3, 3), dtype=np.float32)
    np.save(tmp_path / "x.npy", cube)
    assert np.array_equal(joined(read_batches(str(tmp_path / "x.npy"), shape=(3, 3, 3))), cube)


def test_vectors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", POINTS.reshape(10, -1))
    assert joined(read_batches(str(tmp_path / "x.npy"), shape=(60,), mean=0.5, std=2)).shape == (10, 60)


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.25), ([0.1, 0.2, 0.3], [1, 2, 4]), ((0.1, 0.2, 0.3), 2)])
def test_arrays_are_scaled_if_asked(tmp_path: Path, mean: Any, std: Any) -> None:
    np.save(tmp_path / "x.npy", POINTS)
    data = read_batches(str(tmp_path / "x.npy"), shape=SHAPE, mean=mean, std=std)
    means, stds = (np.broadcast_to(np.array(v, dtype=np.float64), 3) for v in (mean, std))
    for point, original in zip(joined(data), POINTS):
        for channel in range(3):
            assert np.allclose(point[channel], (original[channel] - means[channel]) / stds[channel], atol=1e-6)
    assert "scaled by mean" in data.origin


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"mean": [1, 2], "std": 1}, "mean has 2 numbers, the input has 3 channels"),
        ({"mean": 0, "std": [1, 2, 3, 4]}, "std has 4 numbers"),
        ({"mean": 0}, "belong together"),
        ({"std": 1}, "belong together"),
        ({"mean": 0, "std": 0}, "std is [0.0]"),
        ({"mean": float("nan"), "std": 1}, "mean is [nan]"),
        ({"points": 0}, "0 points"),
        ({"batch": 0}, "batches of 0"),
        ({"shape": ()}, "no size besides the batch"),
    ],
)
def test_wrong_requests(tmp_path: Path, more: dict[str, Any], part: str) -> None:
    np.save(tmp_path / "x.npy", POINTS)
    assert part in refusal(tmp_path / "x.npy", UsageError, **more)


@pytest.mark.parametrize("source", ["", "nowhere", "imagenet:val", "embedded:faces", "data.csv", "x.txt:make", ":"])
def test_other_sources_get_the_forms(source: str) -> None:
    text = refusal(source, UsageError)
    assert all(form in text for form in ("folder of images", ".npz", "path/to/file.py:factory", "embedded:digits"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "there is no file" in refusal(tmp_path / "x.npy", UsageError)


def test_the_embedded_digits() -> None:
    pytest.importorskip("secateur.embedded")
    data = read_batches("embedded:digits", shape=(1, 28, 28), points=50, batch=20)
    assert [tuple(x.shape) for x, _ in data] == [(20, 1, 28, 28), (20, 1, 28, 28), (10, 1, 28, 28)]
    assert (data.points, data.labelled, data.origin) == (50, True, "embedded:digits")
    assert "has shape (1, 28, 28), the network's input has (3, 32, 32)" in refusal("embedded:digits", shape=(3, 32, 32))


class Harmful:
    """What a pickle can hide."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code in a data file was run",))


def test_files_that_run_code_are_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([Harmful()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([Harmful()], dtype=object))
    torch.save([Harmful()], tmp_path / "x.pt")
    (tmp_path / "x.pth").write_bytes(pickle.dumps(Harmful()))
    for name in ("x.npy", "x.npz", "x.pt", "x.pth"):
        assert f"{name} cannot be read" in refusal(tmp_path / name)


@pytest.mark.parametrize("form", ["plain-npy", "named-npz", "named-safetensors", "pair-pt"])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.6, 0.99])
def test_truncated_files(tmp_path: Path, form: str, share: float) -> None:
    path = written(tmp_path, form, POINTS, LABELS)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "cannot be read" in refusal(path)


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (POINTS[:, :, :3], "has shape (3, 3, 5), the network's input has (3, 4, 5)"),
        (POINTS[:, 0], "has shape (4, 5), the network's input has (3, 4, 5)"),
        (POINTS[:0], "has no points"),
        (np.float32(1), "has no points"),
        (POINTS.astype(np.int64), "torch.int64, whose scale is not known"),
        (POINTS > 0.5, "torch.bool"),
        (POINTS.astype(complex), "torch.complex128"),
        (np.array(["a", "b"]), "no array of numbers"),
        (np.zeros(3, dtype=[("x", "f4")]), "no array of numbers"),
    ],
)
def test_arrays_that_are_no_points(tmp_path: Path, array: Any, part: str) -> None:
    np.save(tmp_path / "x.npy", array)
    assert part in refusal(tmp_path / "x.npy")


def test_things_that_are_no_arrays(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    for thing, part in [({}, "holds NoneType"), ([1, 2], "holds int"), ("text", "holds str"), ({"x": 3}, "holds int")]:
        torch.save(thing, path)
        assert part in refusal(path)
    torch.save((torch.rand(4, *SHAPE), torch.arange(3)), path)
    assert "4 points and labels of shape (3,)" in refusal(path)
    torch.save({"labels": torch.arange(4)}, path)
    assert "(array 'labels')" in refusal(path)


def test_unsound_values(tmp_path: Path) -> None:
    points = POINTS.copy()
    points[3, 0, 1, 2] = np.nan
    np.save(tmp_path / "x.npy", points)
    assert "in point 3\n" in refusal(tmp_path / "x.npy")
    points[7] = np.inf
    np.save(tmp_path / "x.npy", points.transpose(0, 2, 3, 1))
    assert "in points 3, 7\n" in refusal(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.full((10, *SHAPE), 1e300))
    assert "in points 0, 1, 2, 3, 4 and 5 more" in refusal(tmp_path / "x.npy")


def test_unsound_values_have_their_number_in_the_file(tmp_path: Path) -> None:
    points = POINTS.copy()
    points[6] = np.nan
    np.save(tmp_path / "x.npy", points)
    texts = [refusal(tmp_path / "x.npy", points=9, seed=seed) for seed in range(3)]
    assert all("in point 6\n" in text for text in texts)


# Factories

FILE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

X, Y = torch.arange(10.).view(10, 1, 1, 1).expand(10, 3, 4, 5), torch.arange(10)

def loader(): return DataLoader(TensorDataset(X, Y), batch_size=4)
def shuffled(): return DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
def plain(): return list(X.split(4))
def tensor(): return X
def endless():
    while True:
        yield X[:4], Y[:4]
def dicts(): return [{"pixels": X, "labels": Y, "note": "kept"}]
ready = [X]

def nothing(): return []
def empty(): return [X[:0]]
def number(): return 3
def words(): return ["ab"]
def shape(): return [X, X[:, :2]]
def unsound(): return [X[:4], X[4:] / (X[4:] - 6)]
def fails():
    yield X[:4]
    raise ValueError("the disk is gone")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(FILE)
    return tmp_path / "data.py"


@pytest.mark.parametrize(
    ("factory", "sizes", "labelled"),
    [
        ("loader", [4, 3], True),
        ("plain", [4, 3], False),
        ("tensor", [7], False),
        ("endless", [4, 3], True),
        ("ready", [7], False),
    ],
)
def test_factories(file: Path, factory: str, sizes: list[int], labelled: bool) -> None:
    data = read_batches(f"{file}:{factory}", shape=SHAPE, points=7)
    assert [len(batch[0] if labelled else batch) for batch in data] == sizes
    assert (data.points, data.labelled, data.origin) == (7, labelled, f"{file}:{factory}")
    if labelled:
        assert [tuple(y.shape) for _, y in data] == [(size,) for size in sizes]
        assert all(type(batch) is tuple for batch in data)


def test_a_factory_with_fewer_points(file: Path) -> None:
    data = read_batches(f"{file}:loader", shape=SHAPE)
    assert data.points == 10
    assert joined(data)[:, 0, 0, 0].tolist() == list(range(10))


def test_dicts_are_cut_too(file: Path) -> None:
    (batch,) = read_batches(f"{file}:dicts", shape=SHAPE, points=7)
    assert (len(batch["pixels"]), len(batch["labels"]), batch["note"]) == (7, 7, "kept")


def test_a_loader_shuffles_by_the_seed(file: Path) -> None:
    before = torch.random.get_rng_state()
    orders = [
        joined(read_batches(f"{file}:shuffled", shape=SHAPE, seed=seed))[:, 0, 0, 0].tolist() for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("factory", "kind", "part"),
    [
        ("nothing", SecateurError, "gave no batch"),
        ("empty", SecateurError, "batch 0 of "),
        ("number", SecateurError, "gave a int"),
        ("words", SecateurError, "is a str without points"),
        ("shape", SecateurError, "has shape (2, 4, 5), the network's input has (3, 4, 5)"),
        ("unsound", SecateurError, "NaN or infinite values in point 6\n"),
        ("fails", SecateurError, "ValueError: the disk is gone at "),
        ("loder", UsageError, "did you mean loader?"),
    ],
)
def test_what_is_wrong_with_a_factory(file: Path, factory: str, kind: type[SecateurError], part: str) -> None:
    assert part in refusal(f"{file}:{factory}", kind)


def test_what_is_wrong_with_a_file_of_factories(file: Path) -> None:
    assert "does not say what in it makes an iterable of batches" in refusal(file, UsageError)
    assert "folder of images" in refusal(f"{file.parent}/nowhere/zzz.py:make", UsageError)
    assert "a factory scales its own data" in refusal(f"{file}:loader", UsageError, mean=0, std=1)


# Folders of pictures


def picture(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_a_folder(tmp_path: Path) -> None:
    kinds = ["png", "bmp", "ppm", "PNG"]
    for i, kind in enumerate(kinds):
        picture(tmp_path / f"class{i % 2}" / f"{i}.{kind}", np.full((4, 5, 3), [i, 50, 100], dtype=np.uint8))
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden.png").write_text("no picture")
    data = read_batches(str(tmp_path), shape=SHAPE, batch=3)
    assert [len(batch) for batch in data] == [3, 1]
    assert (data.points, data.labelled) == (4, False)
    assert "ImageNet" in data.origin
    for point, number in zip(joined(data), [0, 2, 1, 3]):
        for channel, value in enumerate([number, 50, 100]):
            wanted = (value / 255 - IMAGENET[0][channel]) / IMAGENET[1][channel]
            assert np.allclose(point[channel], wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["jpg", "jpeg", "webp", "png"])
@pytest.mark.parametrize("size", [(40, 60), (60, 40), (32, 32), (16, 24)])
def test_pictures_are_resized_and_cropped(tmp_path: Path, kind: str, size: tuple[int, int]) -> None:
    """The middle third of the longer side is red; it fills more of the picture once the ends are cut off."""
    pixels = np.zeros((*size, 3), dtype=np.uint8)
    long = int(size[1] > size[0])
    middle = slice(size[long] // 3, 2 * size[long] // 3)
    pixels[(slice(None), middle) if long else middle] = [255, 0, 0]
    picture(tmp_path / f"a.{kind}", pixels)
    (found,) = joined(read_batches(str(tmp_path), shape=(3, 32, 32), mean=0, std=1))
    assert found.shape == (3, 32, 32)
    assert 0 <= found.min() and found.max() <= 1
    assert abs(found[0].mean() - max(size) / 3 / min(size)) < 0.05
    assert found[1:].mean() < 0.05
    assert abs(found[0].mean(1 - long)[:16].mean() - found[0].mean(1 - long)[16:].mean()) < 0.1


def test_pictures_of_the_right_size_are_left_alone(tmp_path: Path) -> None:
    pixels = RANDOM.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture(tmp_path / "a.png", pixels)
    data = read_batches(str(tmp_path), shape=SHAPE, mean=0, std=1)
    assert torch.equal(joined(data)[0], torch.from_numpy(pixels).permute(2, 0, 1) / 255)


def test_a_picture_that_is_nearly_a_line(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", np.zeros((1, 20_000, 3), dtype=np.uint8))
    assert read_batches(str(tmp_path), shape=(3, 64, 64)).points == 1


def test_grey_pictures(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", np.full((4, 5, 3), 51, dtype=np.uint8))
    picture(tmp_path / "b.png", np.full((4, 5), 51, dtype=np.uint8))
    assert torch.allclose(joined(read_batches(str(tmp_path), shape=(1, 4, 5))), torch.tensor(0.2))
    colour = joined(read_batches(str(tmp_path), shape=SHAPE, mean=0, std=1))
    assert colour.shape == (2, *SHAPE) and torch.allclose(colour, torch.tensor(0.2))


def test_a_random_choice_of_pictures(tmp_path: Path) -> None:
    for i in range(10):
        picture(tmp_path / f"{i}.png", np.full((4, 5), i, dtype=np.uint8))
    picks = [
        (joined(read_batches(str(tmp_path), shape=(1, 4, 5), points=6, seed=seed))[:, 0, 0, 0] * 255).round().tolist()
        for seed in (0, 0, 1)
    ]
    assert picks[0] == picks[1] != picks[2]
    assert all(len(set(pick)) == 6 for pick in picks)


@pytest.mark.parametrize("kind", ["jpg", "png", "webp"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
def test_truncated_pictures(tmp_path: Path, kind: str, share: float) -> None:
    picture(tmp_path / "a.png", np.zeros((4, 5, 3), dtype=np.uint8))
    bad = tmp_path / f"bad.{kind}"
    picture(bad, RANDOM.integers(0, 256, (40, 50, 3), dtype=np.uint8))
    data = bad.read_bytes()
    bad.write_bytes(data[: int(share * len(data))])
    assert f"{bad} is not a picture that can be read" in refusal(tmp_path)


def test_pictures_that_would_be_clipped(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", np.full((4, 5), 40_000, dtype=np.uint16))
    assert "more than 8 bits" in refusal(tmp_path)


def test_folders_without_use(tmp_path: Path) -> None:
    assert "there is no picture in" in refusal(tmp_path)
    assert "pictures do not fit an input of shape (60,)" in refusal(tmp_path, UsageError, shape=(60,))
    assert "pictures do not fit" in refusal(tmp_path, UsageError, shape=(4, 8, 8))


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a.png", np.zeros((4, 5, 3), dtype=np.uint8))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install pillow" in refusal(tmp_path)


def test_batches_go_into_a_network(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", POINTS)
    outputs = [nn.Conv2d(3, 2, 3)(batch) for batch in read_batches(str(tmp_path / "x.npy"), shape=SHAPE)]
    assert outputs[0].shape == (10, 2, 2, 3)
