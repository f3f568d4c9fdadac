"""The version, the citation, the changelog and the package metadata agree with each other."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import yaml

from secateur._version import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_names_this_version() -> None:
    assert citation()["version"] == __version__


def test_the_changelog_opens_with_this_version_and_its_date() -> None:
    newest = re.findall(r"^## \[(.+?)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == (__version__, str(citation()["date-released"]))


def test_the_version_is_set_in_one_file_only() -> None:
    set_in = [
        path.name for path in (ROOT / "src").rglob("*.py") if re.search(r"^__version__ =", path.read_text(), re.M)
    ]
    assert set_in == ["_version.py"]
    assert PROJECT["dynamic"] == ["version"]


def test_the_changelog_names_modules_that_exist() -> None:
    """The newest section may have a table of modules that moved: old path, new paths."""
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1]
    cells = re.findall(r"^\| `.+` \| (.+) \|$", newest, re.MULTILINE)
    names = re.findall(r"`([\w.]+)`", " ".join(cells))
    assert [name for name in names if importlib.util.find_spec(f"secateur.{name}") is None] == []


def test_every_address_is_in_the_same_repository() -> None:
    repository = citation()["repository-code"]
    assert all(address.startswith(repository) for address in PROJECT["urls"].values())


def citation() -> dict[str, object]:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())
