"""Records and rows of the benchmarks: what they say about their making, and which rows are kept."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import pytest

import environment
import history
from environment import Rows, as_text, command_line, provenance, write_record

FIELDS = ["commit", "date", "command", "versions", "machine"]


def test_a_record_says_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    write_record("certificates", {"what": "a test", "rows": [{"n": 1}]}, command="python benchmarks/certificates.py")
    record = json.loads((tmp_path / "certificates.json").read_text())
    assert list(record)[:5] == FIELDS
    assert record["what"] == "a test"
    assert record["rows"] == [{"n": 1}]
    assert record["commit"] == history.head()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["date"])
    assert record["versions"].keys() == {"python", "secateur", "torch", "numpy", "scipy"}
    assert record["machine"].keys() == {"cpu", "cores", "memory_gb", "os"}
    assert record["machine"]["cores"] == os.cpu_count()


def test_a_record_names_no_host_and_no_folder() -> None:
    text = json.dumps(provenance("quality", command_line("quality", ["--data", str(Path.home() / "data")])))
    assert str(Path.home()) not in text
    assert not platform.node() or not re.search(rf"\b{re.escape(platform.node())}\b", text)


def test_data_must_not_replace_the_provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match="keys of the provenance: commit, versions"):
        write_record("certificates", {"versions": {}, "commit": "0", "rows": []})
    assert not list(tmp_path.iterdir())


def test_commits_of_earlier_runs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "RESULTS", tmp_path)

    def commits(*given: str | None) -> Any:
        write_record("certificates", {}, commits=given)
        return json.loads((tmp_path / "certificates.json").read_text()).get("commits")

    now = environment.COMMIT
    assert commits(now, now) is None
    assert commits("0123456789", now) == sorted(["0123456789", now], key=str)
    assert commits("0123456789") == ["0123456789"]
    assert commits(None, "0123456789") == ["0123456789", None]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], ""),
        (["--data", "/some/where", "--repeats", "0"], " --data DIR --repeats 0"),
        (["--runs=/some/where", "--only", "x"], " --runs=DIR --only x"),
        (["--only", "timm:res2*"], " --only timm:res2*"),
    ],
)
def test_a_command_is_shown_without_folders(words: list[str], shown: str) -> None:
    assert command_line("quality", words) == f"python benchmarks/quality.py{shown}"


def test_records_have_a_line_for_each_row() -> None:
    rows = [{"a": number / 3, "b": [1, 2], "c": None} for number in range(3)]
    record = {"what": "x", "empty": [], "none": {}, "rows": rows, "nested": {"deep": {"a": 1}, "flat": 2}}
    text = as_text(record)
    assert json.loads(text) == record
    assert all(f"  {json.dumps(row)}" in text for row in rows)
    assert len(text.splitlines()) == 14


def test_rows_say_which_run_measured_them(tmp_path: Path) -> None:
    rows = Rows("train_speed", root=tmp_path)
    assert rows.read() == []
    assert rows.add({"n": 1}).keys() == {"n", "commit"}
    rows.add({"n": 2})
    lines = [json.loads(line) for line in rows.path.read_text().splitlines()]
    assert list(lines[0]["run"])[:5] == FIELDS
    assert lines[1:] == [{"n": 1}, {"n": 2}]
    Rows("train_speed", root=tmp_path).add({"n": 3})
    assert [row["n"] for row in rows.read()] == [1, 2, 3]
    assert rows.path.read_text().count('"run"') == 2
    assert rows.read("none") == []


def test_a_line_cut_short_loses_no_other(tmp_path: Path) -> None:
    rows = Rows("train_speed", root=tmp_path)
    rows.add({"n": 1})
    with rows.path.open("a") as file:
        file.write('{"n": 2, "accur')
    later = Rows("train_speed", root=tmp_path)
    later.add({"n": 3})
    assert [row["n"] for row in later.read()] == [1, 3]
    assert rows.path.read_text().count('\n{"run"') == 1


def test_rows_of_other_settings_are_passed_over(tmp_path: Path) -> None:
    Rows("train_speed", {"eps": (0.5, 0.25)}, root=tmp_path).add({"n": 1})
    Rows("train_speed", {"eps": (0.5,)}, root=tmp_path).add({"n": 2})
    assert [row["n"] for row in Rows("train_speed", {"eps": (0.5, 0.25)}, root=tmp_path).read()] == [1]
    assert Rows("train_speed", root=tmp_path).read() == []


def test_current_rows_are_those_of_unchanged_code(tmp_path: Path) -> None:
    """In a repository whose measured folder changed between two runs; rows without a commit are never current."""

    def commit(content: str) -> str:
        path = tmp_path / "src" / "secateur" / "training" / "loop.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        history.git(tmp_path, "add", "--all")
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        history.git(tmp_path, *identity, "commit", "--quiet", "--message", content)
        return str(history.head(tmp_path))

    history.git(tmp_path, "init", "--quiet")
    old, new = commit("first"), commit("second")
    runs = [(old, {}), (new, {}), (new, {"modified": ["src/secateur/training/loop.py"]}), (None, {})]
    rows = Rows("train_speed", root=tmp_path)
    rows.path.parent.mkdir(parents=True)
    lines = [line for number, (c, more) in enumerate(runs) for line in ({"run": {"commit": c, **more}}, {"n": number})]
    rows.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["n"] for row in rows.read()] == [0, 1, 2, 3]
    assert [row["commit"] for row in rows.read()] == [old, new, None, None]
    assert [row["n"] for row in rows.read("current")] == [1]


def test_remarks_of_the_runs_that_are_used(tmp_path: Path) -> None:
    rows = Rows("train_speed", root=tmp_path)
    rows.path.parent.mkdir(parents=True)
    runs = [{"commit": "a", "remarks": ["busy"]}, {"commit": "b", "remarks": ["quiet"]}, {"commit": "c"}]
    rows.path.write_text("".join(json.dumps({"run": run}) + "\n" for run in runs))
    assert rows.remarks({"b", "c"}) == ["quiet"]
