"""The header of a file is checked against the file before it is used."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from torch import Tensor

import secateur as sc
from secateur.storage import container
from secateur.storage.container import assemble, pack, parse, read_header, read_tensors

TENSORS = {
    "b": torch.arange(3.0),
    "a": torch.ones(2, 2, dtype=torch.float16),
    "flag": torch.tensor([True, False]),
    "one": torch.tensor(7),
    "none": torch.zeros(0, 5),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "a.safetensors").write_bytes(pack(TENSORS, {"x": "1"}))
    return tmp_path / "a.safetensors"


def equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == wanted[name].dtype and torch.equal(found[name], wanted[name]) for name in wanted
    )


def test_packed_tensors_are_read_back(path: Path) -> None:
    header = read_header(path)
    container.check_metadata(path, header)
    assert equal(read_tensors(path, header), TENSORS) and header.metadata["x"] == "1"
    assert header.tensors["a"].shape == (2, 2) and header.tensors["a"].dtype == torch.float16


def test_equal_content_gives_equal_bytes_that_safetensors_can_read(tmp_path: Path) -> None:
    notes = {"x": "1", "y": 'a "ü"', "z": "3" * 100, "secateur": "1"}
    made = {pack(TENSORS, notes) for _ in range(20)}
    assert len(made) == 1
    (tmp_path / "a.safetensors").write_bytes(made.pop())
    with safetensors.safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert notes.items() <= file.metadata().items()
        assert equal({name: file.get_tensor(name) for name in file.keys()}, TENSORS)


def rewritten(path: Path, change: Any) -> Path:
    """Replace the header of the file; its length is correct."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    text = change(header)
    text = (text if isinstance(text, str) else json.dumps(header)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])
    return path


def offsets(header: Any, name: str, begin: int, end: int) -> None:
    header[name]["data_offsets"] = [begin, end]


HOSTILE: dict[str, tuple[Any, str]] = {
    "huge shape": (lambda h: h["b"].update(shape=[2**40, 2**40]), "of shape"),
    "shape that overflows to the right size": (lambda h: h["b"].update(shape=[2**62 + 3, 4]), "of shape"),
    "many axes": (lambda h: h["b"].update(shape=[3] + [1] * 100), "invalid shape"),
    "negative shape": (lambda h: h["b"].update(shape=[-1, -3]), "invalid shape"),
    "shape of strings": (lambda h: h["b"].update(shape=["3"]), "invalid shape"),
    "shape of booleans": (lambda h: h["b"].update(shape=[True, 3]), "invalid shape"),
    "shape with a fraction": (lambda h: h["b"].update(shape=[3.0]), "invalid shape"),
    "no shape": (lambda h: h["b"].pop("shape"), "expected dtype, shape and data_offsets"),
    "extra field": (lambda h: h["b"].update(note=1), "expected dtype, shape and data_offsets"),
    "unknown type": (lambda h: h["b"].update(dtype="OBJECT"), "unknown tensor type OBJECT"),
    "type that is a list": (lambda h: h["b"].update(dtype=["F32"]), "unknown tensor type"),
    "overlap": (lambda h: offsets(h, "b", *h["one"]["data_offsets"]), "of shape|begins at"),
    "gap": (lambda h: h.pop("b"), "begins at|bytes of tensors"),
    "out of range": (lambda h: offsets(h, "b", 10**9, 10**9 + 12), "begins at"),
    "backwards": (lambda h: offsets(h, "b", 12, 0), "of shape"),
    "negative": (lambda h: offsets(h, "b", -12, 0), "invalid data_offsets"),
    "three offsets": (lambda h: h["b"].update(data_offsets=[0, 1, 2]), "invalid data_offsets"),
    "tensor that is a list": (lambda h: h.update(b=[]), "expected dtype, shape and data_offsets"),
    "name with control characters": (lambda h: h.update({"\x1b[2J": h.pop("b")}), "not a valid name"),
    "long name": (lambda h: h.update({"n" * 5000: h.pop("b")}), "not a valid name"),
    "broken name": (lambda h: h.update({"\ud800": h.pop("b")}), "not a valid name"),
    "metadata that are not strings": (lambda h: h.update(__metadata__={"x": 1}), "map names to strings"),
    "metadata that are a list": (lambda h: h.update(__metadata__=[]), "map names to strings"),
    "key twice": (lambda h: json.dumps(h)[:-1] + ',"b":{}}', "'b' is given twice"),
    "deep header": (lambda h: "[" * 10**6 + "]" * 10**6, "nested|more than"),
    "deep within bounds of brackets": (lambda h: "[" * 1000 + "]" * 1000, "nested more than 32 deep"),
    "many brackets": (lambda h: "[" + "[]," * (10**6 + 1) + "[]]", "more than 1000000"),
    "many keys": (lambda h: "{" + ",".join(f'"{i}":0' for i in range(10**6)) + "}", "more than 1000000|expected dtype"),
    "many quotes": (lambda h: '"' * (4 * 10**6 + 2), "more than 4000000 quotes"),
    "many numbers": (lambda h: "[" + "0," * (4 * 10**6 + 1) + "0]", "more than 1000000"),
    "not finite": (lambda h: '{"b": NaN}', "not a finite number"),
    "a list": (lambda h: "[1]", "not a JSON object"),
    "nothing": (lambda h: "", "Expecting value"),
    "unterminated string": (lambda h: '{"b', "Unterminated string"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_headers(path: Path, what: str) -> None:
    change, wanted = HOSTILE[what]
    started = time.perf_counter()
    with pytest.raises(sc.SecateurError, match=wanted) as caught:
        read_header(rewritten(path, change))
    assert "is not a valid safetensors file" in str(caught.value) and caught.value.remedy
    assert len(str(caught.value)) < 600 and str(caught.value).replace("\n  remedy", "").isprintable()
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**40, container.HEADER_LIMIT + 1, 10**6])
def test_a_header_larger_than_the_file(path: Path, count: int) -> None:
    path.write_bytes(count.to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(sc.SecateurError, match=f"expected a header of {count} bytes"):
        read_header(path)


def test_a_header_larger_than_allowed_is_not_read(path: Path) -> None:
    with path.open("r+b") as file:
        file.write((2**30).to_bytes(8, "little"))
        file.truncate(2**31)  # mostly a hole
    started = time.perf_counter()
    with pytest.raises(sc.SecateurError, match="are allowed"):
        read_header(path)
    assert time.perf_counter() - started < 1


def test_bytes_too_many_or_too_few(path: Path) -> None:
    data = path.read_bytes()
    for other in (data + b"\0", data[:-1], data[:7], b""):
        path.write_bytes(other)
        with pytest.raises(sc.SecateurError, match="is not a valid safetensors file"):
            read_header(path)


def test_booleans_are_zero_or_one(path: Path) -> None:
    header = read_header(path)
    data = bytearray(path.read_bytes())
    data[len(header.raw) + header.tensors["flag"].begin] = 7
    path.write_bytes(data)
    with pytest.raises(sc.SecateurError, match="flag has booleans other than 0 and 1"):
        read_tensors(path, read_header(path), check=False)


def test_a_file_that_changes_between_header_and_tensors(path: Path) -> None:
    header = read_header(path)
    for other in (pack(TENSORS, {"x": "2"}), path.read_bytes() + b"x", path.read_bytes()[:-1]):
        path.write_bytes(other)
        with pytest.raises(sc.SecateurError, match="has changed while it was read"):
            read_tensors(path, header)


def test_content_that_could_not_be_read_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="not a valid name"):
        pack({"a\nb": torch.zeros(1)}, {})
    with pytest.raises(ValueError, match="type C64"):
        pack({"a": torch.zeros(1, dtype=torch.complex64)}, {})
    monkeypatch.setattr(container, "HEADER_LIMIT", 1000)
    with pytest.raises(ValueError, match="1000 are allowed"):
        pack({}, {"x": "y" * 1000})


def test_assembling_again_recomputes_the_checksums(path: Path) -> None:
    data = path.read_bytes()
    end = len(read_header(path).raw)
    header = json.loads(data[8:end])
    header["__metadata__"] |= {"x": "2", "tensor_checksum": "", "metadata_checksum": ""}
    path.write_bytes(assemble(header, data[end:]))
    container.check_metadata(path, read_header(path))
    assert read_header(path).metadata["x"] == "2" and equal(read_tensors(path, read_header(path)), TENSORS)


def test_json_is_parsed_as_the_standard_library_parses_it() -> None:
    """Random JSON: the result equals json.loads, or the depth, counted slowly, is above the limit."""

    def value(depth: int) -> Any:
        kind = generator.randrange(7 if depth else 5)
        if kind >= 5:
            inner = [value(depth - 1) for _ in range(generator.randrange(4))]
            return inner if kind == 5 else {f'k{i}"[{{\\': part for i, part in enumerate(inner)}
        return [None, True, generator.random(), generator.randrange(-9, 9), 'a"]}\\[{ü\n'][kind]

    def nested(part: Any) -> int:
        inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else None
        return 0 if inner is None else 1 + max(map(nested, inner), default=0)

    generator, refused = random.Random(0), 0
    for _ in range(300):
        made = value(4)
        for _ in range(generator.randrange(40)):
            made = [made]
        text = json.dumps(made, ensure_ascii=generator.random() < 0.5)
        if nested(made) > container.DEPTH_LIMIT:
            refused += 1
            with pytest.raises(ValueError, match="nested"):
                parse(text)
        else:
            assert parse(text) == made
    assert refused > 20
