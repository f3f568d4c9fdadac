"""benchmarks/run.py on small repositories: what makes a record stale, and what is run again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import history
from catalogue import Benchmark
from run import age, measure

REPAIR = Benchmark("repair_speed", ("secateur.refit", "secateur.pruning.budget"), "--data {data}")
CODE = "".join(f"def step_{number}(x):\n    return x * {number}\n" for number in range(20))


class Repository:
    """A git repository with two measured files, one other, and helpers to change them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "--quiet")
        for name in ("refit/repair.py", "pruning/budget.py", "report/pages.py"):
            self.write(name, CODE + f"# {name}\n")
        self.commit("The code")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        return history.git(self.root, *identity, *words)

    def write(self, name: str, content: str) -> None:
        path = self.root / "src" / "secateur" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", subject)
        return self.commit_of("HEAD")

    def commit_of(self, name: str) -> str:
        return self.git("rev-parse", "--short=10", name).strip()

    def change(self, name: str, subject: str = "Another number") -> str:
        path = self.root / "src" / "secateur" / name
        path.write_text(path.read_text().replace("x * 7\n", "x * 7.5\n", 1))
        return self.commit(subject)

    def move(self, old: str, new: str, subject: str = "Moved") -> str:
        start, end = (self.root / "src" / "secateur" / name for name in (old, new))
        end.parent.mkdir(parents=True, exist_ok=True)
        start.rename(end)
        return self.commit(subject)

    def record(self, commit: str | None, **more: Any) -> None:
        path = self.root / "results" / "repair_speed.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"commit": commit, "date": "2026-11-16T12:00:00+00:00", **more}))

    def state(self) -> tuple[str, str]:
        found = age(REPAIR, self.root)
        return found.state, found.reason


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_record_is_fresh_until_a_measured_file_changes(repository: Repository) -> None:
    repository.record(repository.commit_of("HEAD"))
    assert repository.state() == ("fresh", "no change since")
    last = repository.change("refit/repair.py", "Better repair")
    state, reason = repository.state()
    assert state == "stale"
    assert reason == f"1 commit changed refit/repair.py; the last is {last[:7]} 'Better repair'"


def test_a_change_elsewhere_leaves_a_record_fresh(repository: Repository) -> None:
    repository.record(repository.commit_of("HEAD"))
    repository.change("report/pages.py")
    assert repository.state() == ("fresh", "no change since")


def test_a_single_module_can_be_measured(repository: Repository) -> None:
    repository.record(repository.commit_of("HEAD"))
    repository.write("pruning/prune.py", CODE)
    repository.commit("Another module of the folder")
    assert repository.state()[0] == "fresh"
    repository.change("pruning/budget.py")
    assert repository.state()[0] == "stale"


def test_a_missing_record_is_missing(repository: Repository) -> None:
    assert repository.state() == ("missing", "results/repair_speed.json does not exist")


def test_a_pure_move_is_no_change(repository: Repository) -> None:
    repository.move("refit/repair.py", "repair.py", "As it was in the past")
    repository.record(repository.commit_of("HEAD"))
    repository.move("repair.py", "refit/repair.py", "Into a folder")
    assert repository.state() == ("fresh", "no change since")


def test_a_change_before_a_move_counts(repository: Repository) -> None:
    repository.move("refit/repair.py", "repair.py", "As it was in the past")
    repository.record(repository.commit_of("HEAD"))
    last = repository.change("repair.py", "Changed under its old name")
    repository.move("repair.py", "refit/repair.py", "Into a folder")
    state, reason = repository.state()
    assert state == "stale"
    assert f"changed repair.py; the last is {last[:7]} 'Changed under its old name'" in reason


def test_a_change_before_a_split_counts(repository: Repository) -> None:
    """Half of the file becomes a new one in a measured folder; the old one stays where it was."""
    repository.write("helpers.py", CODE)
    repository.commit("Helpers")
    repository.record(repository.commit_of("HEAD"))
    repository.change("helpers.py", "Before the split")
    lines = (repository.root / "src/secateur/helpers.py").read_text().splitlines(keepends=True)
    repository.write("refit/steps.py", "".join(lines[:28]))
    repository.write("helpers.py", "".join(lines[28:]))
    repository.commit("Split")
    reason = repository.state()[1]
    assert reason.startswith("2 commits changed ")
    assert "helpers.py" in reason


def test_commits_that_change_no_number_do_not_count(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repository.record(repository.commit_of("HEAD"))
    renamed = repository.change("refit/repair.py", "Other names")
    assert repository.state()[0] == "stale"
    monkeypatch.setattr(history, "SAME_NUMBERS", (renamed[:7],))
    assert repository.state() == ("fresh", f"only moved or renamed, in {renamed[:7]}")
    repository.change("pruning/budget.py", "Other numbers")
    state, reason = repository.state()
    assert state == "stale"
    assert reason.startswith("1 commit changed pruning/budget.py;")


def test_the_oldest_rows_decide(repository: Repository) -> None:
    first = repository.commit_of("HEAD")
    second = repository.change("refit/repair.py")
    repository.record(second, commits=[second])
    assert repository.state()[0] == "fresh"
    repository.record(second, commits=[first, second])
    state, reason = repository.state()
    assert state == "stale"
    assert f"since {first[:7]}, which measured the oldest rows" in reason


@pytest.mark.parametrize(
    ("commit", "reason"),
    [
        (None, "it does not say which commit measured it, or some of its rows"),
        ("0123456789", "commit 0123456789 is not in this repository"),
    ],
)
def test_a_record_without_a_known_commit_is_stale(repository: Repository, commit: str | None, reason: str) -> None:
    repository.record(commit)
    assert repository.state() == ("stale", reason)


def test_uncommitted_changes_make_a_record_stale(repository: Repository) -> None:
    repository.record(repository.commit_of("HEAD"))
    repository.write("report/pages.py", "not measured\n")
    assert repository.state()[0] == "fresh"
    repository.write("refit/new.py", "measured\n")
    assert repository.state() == ("stale", "uncommitted changes in refit/new.py")


def test_a_record_of_uncommitted_code_is_stale(repository: Repository) -> None:
    repository.record(repository.commit_of("HEAD"), modified=["src/secateur/refit/repair.py"])
    assert repository.state() == ("stale", "it was measured with uncommitted changes in refit/repair.py")


def test_a_merged_branch_counts(repository: Repository) -> None:
    repository.record(repository.commit_of("HEAD"))
    main = repository.git("branch", "--show-current").strip()
    repository.git("switch", "--quiet", "--create", "side")
    repository.change("refit/repair.py", "On a branch")
    repository.git("switch", "--quiet", main)
    repository.change("report/pages.py", "Meanwhile")
    repository.git("merge", "--quiet", "--no-edit", "side")
    state, reason = repository.state()
    assert state == "stale"
    assert reason.startswith("1 commit changed refit/repair.py;")
    assert "'On a branch'" in reason


SCRIPT = """
import json, subprocess, sys
from pathlib import Path

assert sys.argv[1] == "--data" and (Path(sys.argv[2]) / "images").exists()
commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
Path("results").mkdir(exist_ok=True)
Path("results/repair_speed.json").write_text(json.dumps({"commit": commit, "date": "2026-11-17"}))
"""


@pytest.fixture
def again(repository: Repository, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """Bring the record of a repository up to date with a script that needs data."""
    data = tmp_path_factory.mktemp("data folder")
    (data / "images").touch()
    (repository.root / "benchmarks").mkdir()
    (repository.root / "benchmarks" / "repair_speed.py").write_text(SCRIPT)

    def run(benchmark: Benchmark = REPAIR, data: Path | None = data, dry_run: bool = False) -> int:
        runs = repository.root / "runs"
        return measure([age(benchmark, repository.root)], data, runs, dry_run=dry_run, root=repository.root)

    return run


def test_a_stale_record_is_measured_again_and_a_fresh_one_is_not(
    repository: Repository, again: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    repository.record(repository.commit_of("HEAD"))
    repository.change("refit/repair.py")
    assert again() == 0
    assert repository.state()[0] == "fresh"
    capfd.readouterr()
    assert again() == 0
    assert capfd.readouterr().out == "nothing to do: the records are fresh\n"


def test_a_dry_run_prints_the_commands_and_runs_none(
    repository: Repository, again: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert again(dry_run=True) == 0
    printed = capfd.readouterr().out
    assert f"{sys.executable} benchmarks/repair_speed.py --data '" in printed
    assert repository.state()[0] == "missing"


def test_a_benchmark_that_lacks_something_is_reported(
    again: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert again(data=None) == 1
    assert "skipped: it needs --data DIR" in capfd.readouterr().out
    assert again(Benchmark("repair_speed", REPAIR.measures, packages=("numpy", "no-such-package"))) == 1
    assert "skipped: it needs the package no-such-package" in capfd.readouterr().out


def test_a_failure_is_reported(
    repository: Repository, again: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    (repository.root / "benchmarks" / "repair_speed.py").write_text("raise SystemExit(3)\n")
    assert again() == 1
    assert capfd.readouterr().out.endswith("repair_speed failed\n")


def test_a_script_that_leaves_its_record_stale_is_reported(
    repository: Repository, again: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    repository.record(repository.commit_of("HEAD"))
    repository.change("refit/repair.py")
    (repository.root / "benchmarks" / "repair_speed.py").write_text("")
    assert again() == 1
    assert "repair_speed is still stale: 1 commit changed refit/repair.py" in capfd.readouterr().out


def test_what_a_script_reads_is_made_once(
    repository: Repository, again: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    make = 'python -c \'from pathlib import Path; Path("{runs}").mkdir(); Path("{runs}/trained").touch()\''
    benchmark = Benchmark("repair_speed", REPAIR.measures, "--data {data}", before=(("{runs}/trained", make),))
    assert again(benchmark) == 0
    assert (repository.root / "runs" / "trained").exists()
    (repository.root / "results" / "repair_speed.json").unlink()
    capfd.readouterr()
    assert again(benchmark) == 0
    assert "mkdir" not in capfd.readouterr().out


def test_an_unknown_name_is_refused() -> None:
    script = history.ROOT / "benchmarks" / "run.py"
    done = subprocess.run([sys.executable, script, "--stale", "--only", "nothing"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid choice: 'nothing'" in done.stderr
