"""Settings from YAML: filled in, laid over each other, and refused with the line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from secateur.errors import SecateurError, UsageError
from secateur.settings import Entry, fill, merge, override, read_yaml


@dataclass(frozen=True)
class Inner:
    lr: float = 0.1
    milestones: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise UsageError(f"lr is {self.lr}", remedy="give a number above 0")


@dataclass(frozen=True)
class Outer:
    name: str
    epochs: int = 1
    kind: Literal["sgd", "adam"] = "sgd"
    clip: float | None = None
    quick: bool = False
    inner: Inner = field(default_factory=Inner)


def read(tmp_path: Path, text: str) -> Entry:
    (tmp_path / "a.yaml").write_text(text)
    return read_yaml(tmp_path / "a.yaml")


def test_fields_are_filled_in(tmp_path: Path) -> None:
    tree = read(
        tmp_path, "name: x\nepochs: 3\nkind: adam\nclip: 1e-4\nquick: true\ninner: {lr: 1, milestones: [2, 5]}\n"
    )
    assert fill(Outer, tree) == Outer("x", 3, "adam", 1e-4, True, Inner(1.0, (2, 5)))
    assert fill(Outer, read(tmp_path, "name: x\nclip: null\n")) == Outer("x")


def test_defaults_can_be_another_ones_values(tmp_path: Path) -> None:
    base = Outer("x", 3, inner=Inner(0.5, (7,)))
    assert fill(Outer, read(tmp_path, "epochs: 9\ninner: {lr: 0.2}\n"), defaults=base) == Outer(
        "x", 9, inner=Inner(0.2, (7,))
    )


@pytest.mark.parametrize(
    ("text", "where", "cause", "remedy"),
    [
        ("name: x\nepoch: 3\n", "a.yaml:2", "there is no setting 'epoch'", "did you mean 'epochs'"),
        ("name: x\nzzz: 3\n", "a.yaml:2", "there is no setting 'zzz'", "there is: name, epochs"),
        ("name: x\nepochs: many\n", "a.yaml:2", "epochs is 'many'", "a whole number"),
        ("name: x\nepochs: 2.5\n", "a.yaml:2", "epochs is 2.5", "a whole number"),
        ("name: x\nepochs: true\n", "a.yaml:2", "epochs is True", "a whole number"),
        ("name: x\n\nkind: rmsprop\n", "a.yaml:3", "kind is 'rmsprop'", "'sgd' or 'adam'"),
        ("name: x\nclip: high\n", "a.yaml:2", "clip is 'high'", "a number or nothing"),
        ("name: x\nquick: 1\n", "a.yaml:2", "quick is 1", "true or false"),
        ("name: x\ninner:\n  lr: 0.1\n  milestones: [1, a]\n", "a.yaml:4", "milestones is 'a'", "a whole number"),
        ("name: x\ninner:\n  lr: -1\n", "a.yaml:3", "lr is -1.0", "above 0"),
        ("name: x\ninner: 3\n", "a.yaml:2", "inner is 3", "a mapping"),
        ("epochs: 3\n", "a.yaml:1", "name is missing", "add name"),
        ("- 1\n", "a.yaml:1", "Outer is [1]", "a mapping"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, where: str, cause: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        fill(Outer, read(tmp_path, text))
    assert caught.value.layer == where and cause in caught.value.cause and remedy in str(caught.value.remedy)


@pytest.mark.parametrize("text", ["a: [1, 2\n", "a: b: c\n", "\t x\n", "a: 1\na: 2\n", "[" * 5000])
def test_what_is_not_yaml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"a\.yaml"):
        read(tmp_path, text)


def test_a_tag_builds_no_object(tmp_path: Path) -> None:
    assert read(tmp_path, "name: !!python/object/apply:os.system ['true']\n").plain() == {"name": ["true"]}
    with pytest.raises(UsageError):
        read(tmp_path, "name: !!python/name:os.system x\n")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecateurError, match="cannot be read"):
        read_yaml(tmp_path / "none.yaml")


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    assert read(tmp_path, "").plain() == {}


def test_changes_are_laid_over_the_base(tmp_path: Path) -> None:
    base, changes = (
        read(tmp_path, text) for text in ("name: x\ninner: {lr: 1, milestones: [1]}\n", "inner: {lr: 2}\n")
    )
    assert merge(base, changes).plain() == {"name": "x", "inner": {"lr": 2, "milestones": [1]}}


def test_assignments_are_laid_over_the_tree(tmp_path: Path) -> None:
    tree = override(read(tmp_path, "name: x\n"), ["inner.lr=2e-3", "inner.milestones=[3, 4]", "epochs=5"])
    assert fill(Outer, tree) == Outer("x", 5, inner=Inner(2e-3, (3, 4)))
    with pytest.raises(UsageError) as caught:
        fill(Outer, override(tree, ["inner.rate=3"]))
    assert caught.value.layer == "--set inner.rate"


@pytest.mark.parametrize("text", ["epochs", "=3", "a..b=3", "a=[1"])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        override(Entry({}, "x"), [text])
