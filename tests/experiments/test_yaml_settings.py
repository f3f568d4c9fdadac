"""Settings from YAML: filled in, merged, and refused with their line."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from secateur.errors import SecateurError, UsageError
from secateur.experiments.yaml_settings import Located, fill, merge, override, read_yaml


@dataclass(frozen=True)
class Inner:
    lr: float = 0.1
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise UsageError(f"lr is {self.lr}", remedy="use a number above 0")


@dataclass(frozen=True)
class Outer:
    name: str
    epochs: int = 1
    kind: Literal["sgd", "adam"] = "sgd"
    clip: float | None = None
    quick: bool = False
    inner: Inner = field(default_factory=Inner)
    other: Inner = Inner(lr=0.7)


def read(tmp_path: Path, text: str) -> Located:
    (tmp_path / "a.yaml").write_text(text)
    return read_yaml(tmp_path / "a.yaml")


def test_fields_are_filled_in(tmp_path: Path) -> None:
    tree = read(
        tmp_path, "name: x\nepochs: 3\nkind: adam\nclip: 1e-4\nquick: true\ninner: {lr: 1, milestones: [2, 5]}\n"
    )
    assert fill(Outer, tree) == Outer("x", 3, "adam", 1e-4, True, Inner(1.0, (2, 5)))
    assert fill(Outer, read(tmp_path, "name: x\nclip: null\n")) == Outer("x")


def test_defaults_can_come_from_an_instance(tmp_path: Path) -> None:
    base = Outer("x", 3, inner=Inner(0.5, (7,)))
    assert fill(Outer, read(tmp_path, "epochs: 9\ninner: {lr: 0.2}\n"), defaults=base) == Outer(
        "x", 9, inner=Inner(0.2, (7,))
    )
    nested = fill(Outer, read(tmp_path, "name: x\nother: {milestones: [3]}\n"))
    assert nested.other == Inner(0.7, (3,))  # a nested mapping keeps the other values of the field's own default


@pytest.mark.parametrize(
    ("text", "where", "cause", "remedy"),
    [
        ("name: x\nepoch: 3\n", "a.yaml:2", "there is no setting 'epoch'", "did you mean 'epochs'"),
        ("name: x\nzzz: 3\n", "a.yaml:2", "there is no setting 'zzz'", "use one of name, epochs"),
        ("name: x\nepochs: many\n", "a.yaml:2", "epochs is 'many'", "a whole number"),
        ("name: x\nepochs: 2.5\n", "a.yaml:2", "epochs is 2.5", "a whole number"),
        ("name: x\nepochs: true\n", "a.yaml:2", "epochs is True", "a whole number"),
        ("name: x\n\nkind: rmsprop\n", "a.yaml:3", "kind is 'rmsprop'", "'sgd' or 'adam'"),
        ("name: x\nclip: high\n", "a.yaml:2", "clip is 'high'", "a number or null"),
        ("name: x\nquick: 1\n", "a.yaml:2", "quick is 1", "true or false"),
        ("name: x\ninner:\n  lr: 0.1\n  milestones: [1, a]\n", "a.yaml:4", "milestones is 'a'", "a whole number"),
        ("name: x\ninner:\n  lr: -1\n", "a.yaml:3", "lr is -1.0", "above 0"),
        ("name: x\ninner: 3\n", "a.yaml:2", "inner is 3", "a mapping"),
        ("name: x\ninner: {milestones: 3}\n", "a.yaml:2", "milestones is 3", "a list of whole numbers"),
        ("name: 3\n", "a.yaml:1", "name is 3", "a string"),
        ("epochs: 3\n", "a.yaml:1", "name is missing", "add name"),
        ("- 1\n", "a.yaml:1", "Outer is [1]", "a mapping"),
    ],
)
def test_mistakes_are_reported_with_their_line(tmp_path: Path, text: str, where: str, cause: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        fill(Outer, read(tmp_path, text))
    assert caught.value.layer == where and cause in caught.value.cause and remedy in str(caught.value.remedy)


@pytest.mark.parametrize("text", ["a: [1, 2\n", "a: b: c\n", "\t x\n", "a: 1\na: 2\n", "[" * 1500])
def test_invalid_yaml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"a\.yaml"):
        read(tmp_path, text)


BOMB = "a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (BOMB, "the alias *a0"),
        ("a: &a [*a]\n", "the alias *a"),
        ("[" * 17 + "]" * 17, "nested more than 16 deep"),
        ("[" * 30_000, "nested more than 16 deep"),
        ("a:\n" + "- 1\n" * 3_000, "more than 2,000 values"),
        ("# x\n" * 20_000, "more than 65,536 bytes"),
        ("a: " + "9" * 5_000, "more than 2,000 letters"),
        ("a: 2001-13-45\n", "not valid YAML"),
    ],
)
def test_a_file_that_would_take_long_to_read_is_refused_at_once(tmp_path: Path, text: str, cause: str) -> None:
    started = time.process_time()
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert cause in caught.value.cause and caught.value.remedy and str(caught.value.layer).startswith("a.yaml")
    assert time.process_time() - started < 1


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "[" * 16 + "]" * 16).plain()
    assert len(read(tmp_path, "a:\n" + "- 1\n" * 1_997).plain()["a"]) == 1_997
    assert read(tmp_path, "a: " + "x" * 2_000).plain() == {"a": "x" * 2_000}


def test_numbers_too_large_for_a_float_are_refused_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a.yaml:2: clip is 999"):
        fill(Outer, read(tmp_path, f"name: x\nclip: {'9' * 400}\n"))


def test_a_tag_builds_no_object(tmp_path: Path) -> None:
    assert read(tmp_path, "name: !!python/object/apply:os.system ['true']\n").plain() == {"name": ["true"]}
    with pytest.raises(UsageError):
        read(tmp_path, "name: !!python/name:os.system x\n")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    assert read(tmp_path, "").plain() == {}


def test_changes_are_merged_into_the_base(tmp_path: Path) -> None:
    base, changes = (
        read(tmp_path, text) for text in ("name: x\ninner: {lr: 1, milestones: [1]}\n", "inner: {lr: 2}\n")
    )
    assert merge(base, changes).plain() == {"name": "x", "inner": {"lr": 2, "milestones": [1]}}


def test_assignments_change_the_tree(tmp_path: Path) -> None:
    tree = override(read(tmp_path, "name: x\n"), ["inner.lr=2e-3", "inner.milestones=[3, 4]", "epochs=5"])
    assert fill(Outer, tree) == Outer("x", 5, inner=Inner(2e-3, (3, 4)))
    with pytest.raises(UsageError) as caught:
        fill(Outer, override(tree, ["inner.rate=3"]))
    assert caught.value.layer == "--set inner.rate"


@pytest.mark.parametrize("text", ["epochs", "=3", "a..b=3", "a=[1"])
def test_invalid_assignments_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        override(Located({}, "x"), [text])
