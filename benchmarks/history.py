"""What git knows about the measured code: the present commit, uncommitted files, and changes since a commit."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Commits that moved or renamed code and changed no number; a record that is older stays fresh.
SAME_NUMBERS = ("df050aa", "d00d3c3")
# Files that df050aa took apart, and the folders that their pieces went to: more than git's copy detection sees.
TAKEN_APART = {
    "src/secateur/forward.py": "src/secateur/network",
    "src/secateur/program.py": "src/secateur/network",
    "src/secateur/select.py": "src/secateur/methods",
}


class UnknownCommit(LookupError):
    """The repository does not have the commit, as in a shallow clone."""


@dataclass(frozen=True)
class Change:
    """A commit that changed measured files."""

    commit: str
    subject: str
    files: tuple[str, ...]

    @property
    def same_numbers(self) -> bool:
        return self.commit.startswith(SAME_NUMBERS)


def git(root: Path, *words: str) -> str:
    """Return what a git command prints; an error of git is raised."""
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


def head(root: Path = ROOT) -> str | None:
    """Return the present commit, abbreviated; None outside a repository."""
    try:
        return git(root, "rev-parse", "--short=10", "HEAD").strip()
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None


def path_of(name: str, root: Path = ROOT) -> str:
    """Return the folder or file of a package or module, relative to the repository.

    >>> path_of("secateur.refit")
    'src/secateur/refit'
    """
    path = Path("src", *name.split("."))
    for found in (path, path.with_suffix(".py")):
        if (root / found).exists():
            return found.as_posix()
    raise LookupError(f"{name} is neither a package nor a module below src; correct the catalogue of benchmarks")


def uncommitted(measures: Sequence[str], root: Path = ROOT) -> list[str]:
    """Return the measured files that differ from the present commit, new ones included."""
    lines = git(root, "status", "--porcelain", "--untracked-files=all", "--", *(path_of(m, root) for m in measures))
    return sorted(line[3:].split(" -> ")[-1] for line in lines.splitlines())


def changes(commit: str, measures: Sequence[str], root: Path = ROOT) -> tuple[Change, ...]:
    """Return the commits after `commit` that changed measured files, the newest first.

    A file is followed through renames and copies, so that changes under its earlier names count too; a rename that
    leaves the content as it was is no change.
    """
    return _changes(commit, git(root, "rev-parse", "HEAD").strip(), tuple(measures), root)


@cache
def _changes(commit: str, last: str, measures: tuple[str, ...], root: Path) -> tuple[Change, ...]:
    try:
        git(root, "cat-file", "-e", f"{commit}^{{commit}}")
    except subprocess.CalledProcessError:
        raise UnknownCommit(commit) from None
    span = f"{commit}..{last}"
    paths = [path_of(name, root) for name in measures]
    paths += [old for old, folder in TAKEN_APART.items() if _within(folder, paths)]
    moves = git(root, "log", "--name-status", "--find-copies=30%", "--diff-filter=RC", "--format=", span)
    for line in moves.splitlines():
        _, old, new = line.split("\t")
        if _within(new, paths) and not _within(old, paths):
            paths.append(old)
    found = []
    log = git(root, "log", "--name-status", "--find-renames", "--format=%x00%h%x09%s", span, "--", *paths)
    for block in log.split("\0")[1:]:
        title, *lines = filter(None, block.splitlines())
        number, _, subject = title.partition("\t")
        files = tuple(line.split("\t")[-1] for line in lines if not line.startswith("R100"))
        if files:
            found.append(Change(number, subject, files))
    return tuple(found)


def _within(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
