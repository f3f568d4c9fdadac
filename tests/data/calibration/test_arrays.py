"""Calibration data from files of arrays."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from secateur.data.calibration import read_batches
from support.calibration_cases import SHAPE, joined, refusal

RANDOM = np.random.default_rng(0)
SAMPLES = RANDOM.random((10, *SHAPE), dtype=np.float32)
LABELS = np.arange(10)


def written(folder: Path, form: str, x: Any, y: Any) -> Path:
    """Write a file of samples, with labels if there are any."""
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
    path = written(tmp_path, form, SAMPLES, LABELS if labelled else None)
    data = read_batches(str(path), shape=SHAPE, batch=4)
    assert [len(batch[0] if labelled else batch) for batch in data] == [4, 4, 2]
    assert (data.samples, len(data), data.labelled, data.origin) == (10, 3, labelled, str(path))
    assert torch.equal(joined(data), torch.from_numpy(SAMPLES))
    if labelled:
        assert torch.cat([y for _, y in data]).tolist() == LABELS.tolist()


def test_a_random_choice_depends_on_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, "named-npz", SAMPLES, LABELS)
    picks = []
    for seed in (0, 0, 1):
        data = read_batches(str(path), shape=SHAPE, samples=6, seed=seed)
        chosen = torch.cat([y for _, y in data])
        assert data.samples == 6 == len(set(chosen.tolist()))
        assert torch.equal(joined(data), torch.from_numpy(SAMPLES)[chosen])
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


def test_grey_samples_may_have_no_channel_axis(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SAMPLES[:, 0])
    assert torch.equal(
        joined(read_batches(str(tmp_path / "x.npy"), shape=(1, 4, 5)))[:, 0], torch.tensor(SAMPLES[:, 0])
    )


def test_an_ambiguous_layout_is_not_changed(tmp_path: Path) -> None:
    cube = RANDOM.random((2, 3, 3, 3), dtype=np.float32)
    np.save(tmp_path / "x.npy", cube)
    assert np.array_equal(joined(read_batches(str(tmp_path / "x.npy"), shape=(3, 3, 3))), cube)


def test_vectors(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SAMPLES.reshape(10, -1))
    assert joined(read_batches(str(tmp_path / "x.npy"), shape=(60,), mean=0.5, std=2)).shape == (10, 60)


@pytest.mark.parametrize(("mean", "std"), [(0.5, 0.25), ([0.1, 0.2, 0.3], [1, 2, 4]), ((0.1, 0.2, 0.3), 2)])
def test_arrays_are_normalised_on_request(tmp_path: Path, mean: Any, std: Any) -> None:
    np.save(tmp_path / "x.npy", SAMPLES)
    data = read_batches(str(tmp_path / "x.npy"), shape=SHAPE, mean=mean, std=std)
    means, stds = (np.broadcast_to(np.array(v, dtype=np.float64), 3) for v in (mean, std))
    for sample, original in zip(joined(data), SAMPLES):
        for channel in range(3):
            assert np.allclose(sample[channel], (original[channel] - means[channel]) / stds[channel], atol=1e-6)
    assert "scaled by mean" in data.origin


class Harmful:
    """An object that runs code when it is unpickled."""

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
    path = written(tmp_path, form, SAMPLES, LABELS)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "cannot be read" in refusal(path)


@pytest.mark.parametrize(
    ("array", "part"),
    [
        (SAMPLES[:, :, :3], "has shape (3, 3, 5), the network's input has (3, 4, 5)"),
        (SAMPLES[:, 0], "has shape (4, 5), the network's input has (3, 4, 5)"),
        (SAMPLES[:0], "has no samples"),
        (np.float32(1), "has no samples"),
        (SAMPLES.astype(np.int64), "torch.int64, whose scale is not known"),
        (SAMPLES > 0.5, "torch.bool"),
        (SAMPLES.astype(complex), "torch.complex128"),
        (np.array(["a", "b"]), "expected an array of numbers"),
        (np.zeros(3, dtype=[("x", "f4")]), "expected an array of numbers"),
    ],
)
def test_unsuitable_arrays_are_refused(tmp_path: Path, array: Any, part: str) -> None:
    np.save(tmp_path / "x.npy", array)
    assert part in refusal(tmp_path / "x.npy")


def test_files_without_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    for thing, part in [({}, "holds NoneType"), ([1, 2], "holds int"), ("text", "holds str"), ({"x": 3}, "holds int")]:
        torch.save(thing, path)
        assert part in refusal(path)
    torch.save((torch.rand(4, *SHAPE), torch.arange(3)), path)
    assert "4 samples and labels of shape (3,)" in refusal(path)
    torch.save({"labels": torch.arange(4)}, path)
    assert "(array 'labels')" in refusal(path)


def test_nan_and_infinity_are_refused(tmp_path: Path) -> None:
    samples = SAMPLES.copy()
    samples[3, 0, 1, 2] = np.nan
    np.save(tmp_path / "x.npy", samples)
    assert "in sample 3\n" in refusal(tmp_path / "x.npy")
    samples[7] = np.inf
    np.save(tmp_path / "x.npy", samples.transpose(0, 2, 3, 1))
    assert "in samples 3, 7\n" in refusal(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.full((10, *SHAPE), 1e300))
    assert "in samples 0, 1, 2, 3, 4 and 5 more" in refusal(tmp_path / "x.npy")


def test_invalid_values_have_their_index_in_the_file(tmp_path: Path) -> None:
    samples = SAMPLES.copy()
    samples[6] = np.nan
    np.save(tmp_path / "x.npy", samples)
    texts = [refusal(tmp_path / "x.npy", samples=9, seed=seed) for seed in range(3)]
    assert all("in sample 6\n" in text for text in texts)


def test_a_network_takes_the_batches(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", SAMPLES)
    outputs = [nn.Conv2d(3, 2, 3)(batch) for batch in read_batches(str(tmp_path / "x.npy"), shape=SHAPE)]
    assert outputs[0].shape == (10, 2, 2, 3)
