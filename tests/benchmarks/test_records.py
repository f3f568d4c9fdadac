"""The records in results/: each says how it was made, belongs to a script, and the pages are made from them."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import coverage_page
import families
import quality_page
import recovery_page
import reproduction
import sections
import speed_page
import tasks_page
from catalogue import BENCHMARKS, BY_NAME
from environment import Rows, as_text, read_record
from history import ROOT, TAKEN_APART, path_of

RECORDS = sorted((ROOT / "results").glob("*.json"))
STORED = sorted((ROOT / "results" / "reproduction").glob("*.json"))
PARTIAL = sorted((ROOT / "results" / "partial").glob("*.jsonl"))
ROWS = {  # where the rows are in a record, and what identifies a row
    "quality": ("records", ("network", "method", "budget", "repeat")),
    "few_samples": ("rows", ("network", "budget", "samples", "seed", "variant")),
    "coverage": ("records", ("network", "tool")),
    "recovery": ("records", ("network", "budget", "start", "teacher", "epochs", "samples", "recover", "trial")),
    "sensitivity_kinds": ("rows", ("repeat", "method", "budget", "repair")),
    "families": ("records", ("network", "tool")),
    "int8": ("rows", ("network", "variant", "kind")),
    "detectors": ("rows", ("network",)),
    "tasks": ("records", ("network", "method", "budget", "after")),
    "guarantee": ("layers", ("layer",)),
    "effort": ("rows", ("network", "effort")),
    "little_memory": ("rows", ("network", "limit_mb")),
    "train_lenets": ("networks", ("network", "seed")),
}
SCRIPTS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))


def check_provenance(found: dict[str, Any], packages: tuple[str, ...]) -> None:
    """What is not known is null, and then a note says so."""
    assert re.fullmatch(r"[0-9a-f]{10}", found["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found["date"])
    assert re.match(r"python benchmarks/\w+\.py|secateur \w+", found["command"])
    for field in ("versions", "machine"):
        values = [found[field]] if found[field] is None else found[field].values()
        assert None not in values or f"{field}: " in found["note"]
    if found["versions"] is not None and "note" not in found:
        assert {"python", "secateur", "torch", "numpy", *packages} <= found["versions"].keys()


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_says_how_it_was_made(path: Path) -> None:
    text = path.read_text()
    record = json.loads(text)
    check_provenance(record, BY_NAME[path.stem].packages)
    assert text == as_text(record) + "\n"
    assert all(re.fullmatch(r"[0-9a-f]{10}", commit) for commit in record.get("commits", ()))


@pytest.mark.parametrize("path", PARTIAL, ids=lambda path: path.stem)
def test_rows_belong_to_a_run(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert "run" in lines[0]
    for line in lines:
        if "run" in line:
            check_provenance(line["run"], BY_NAME[path.stem].packages)


@pytest.mark.parametrize("path", [*RECORDS, *PARTIAL, *STORED], ids=lambda path: path.name)
def test_no_record_names_a_folder_of_a_machine(path: Path) -> None:
    assert not re.search(r"/(work|tmp|root|home|Users)/", path.read_text())


def test_every_record_has_a_benchmark_and_every_benchmark_a_record() -> None:
    assert {path.stem for path in RECORDS} == BY_NAME.keys()
    assert len(BY_NAME) == len(BENCHMARKS)
    assert {path.stem for path in PARTIAL} <= BY_NAME.keys()


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_a_benchmark_measures_code_that_exists(benchmark: Any) -> None:
    assert all((ROOT / path_of(name)).exists() for name in benchmark.measures)


def test_code_that_does_not_exist_cannot_be_measured() -> None:
    with pytest.raises(LookupError, match=r"secateur\.no_such_part"):
        path_of("secateur.no_such_part")
    assert all((ROOT / folder).is_dir() for folder in TAKEN_APART.values())


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_can_be_imported(name: str) -> None:
    assert importlib.import_module(name).__file__ == str(ROOT / "benchmarks" / f"{name}.py")


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda benchmark: benchmark.name)
def test_a_script_writes_its_own_record(benchmark: Any) -> None:
    tree = ast.parse((ROOT / "benchmarks" / f"{benchmark.name}.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    named = {
        (call.func.id, ast.literal_eval(call.args[0])) for call in calls if call.func.id in ("write_record", "Rows")
    }
    assert ("write_record", benchmark.name) in named
    assert {name for _, name in named} == {benchmark.name}


@pytest.mark.parametrize("name", [path.stem for path in PARTIAL if path.stem in ROWS])
def test_a_record_has_the_last_row_of_each_kind(name: str) -> None:
    rows, key = ROWS[name]
    settings = json.loads((ROOT / f"results/partial/{name}.jsonl").read_text().splitlines()[0])["run"].get("settings")
    last = {tuple(row[part] for part in key): row for row in Rows(name, settings).read()}
    record = read_record(name)
    found = {tuple(row[part] for part in key): row for row in record[rows]}
    assert found.keys() == last.keys()
    for one in found:
        assert {part: value for part, value in found[one].items() if part != "section"} == last[one]
    assert set(record.get("commits", [record["commit"]])) == {row["commit"] for row in last.values()}


def test_the_page_of_quality_is_made_from_the_records() -> None:
    assert (ROOT / "docs" / "quality.md").read_text() == quality_page.page()


def test_the_measurements_of_retraining_are_made_from_the_record() -> None:
    assert recovery_page.PAGE.read_text() == recovery_page.page()


def test_the_section_on_speed_is_made_from_the_records() -> None:
    assert speed_page.PAGE.read_text() == speed_page.page()
    assert speed_page.FIGURE.exists() == (speed_page.FIGURE.name in speed_page.section())


def test_the_page_of_coverage_is_made_from_the_record() -> None:
    assert (ROOT / "docs" / "coverage.md").read_text() == coverage_page.page(read_record("coverage"))


def test_the_page_of_families_is_made_from_the_record() -> None:
    assert families.PAGE.read_text() == families.page(read_record("families"))


@pytest.mark.parametrize("name", sections.SECTIONS)
def test_the_tables_of_int8_and_detectors_are_made_from_the_records(name: str) -> None:
    assert (sections.DOCS / sections.SECTIONS[name][0]).read_text() == sections.page(name)


def test_the_page_of_tasks_is_made_from_the_record() -> None:
    assert tasks_page.PAGE.read_text() == tasks_page.page(read_record("tasks"))


def test_the_page_of_the_reproduction_is_made_from_its_records() -> None:
    assert reproduction.PAGE.read_text() == reproduction.page()
    assert [path.stem for path in STORED] == read_record("reproduction")["stored"]
