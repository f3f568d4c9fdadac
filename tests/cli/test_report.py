"""`secateur report`: in the terminal, as a page, live."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.request
from pathlib import Path

import pytest

from support.command_line import run, shell, width
from support.written_sweeps import write_sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "runs")


def test_a_page_of_several_sources(folder: Path, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    result = run("report", folder, small, "--out", out, "--title", "Both")
    assert result.exit_code == 0 and f"Saved: {out}" in result.stdout
    text = out.read_text()
    assert "<title>Both</title>" in text and "small.safetensors" in text
    result = run("report", folder, "--out", out)
    assert result.exit_code == 2 and "--force" in result.stderr
    result = run("report", folder, "--out", out, "--force", "--json")
    assert json.loads(result.stdout)["sources"] == [{"source": str(folder), "kind": "sweep"}]


def test_the_table_of_a_sweep_in_the_terminal(folder: Path) -> None:
    result = run("report", folder)
    assert result.exit_code == 0 and "smallest network within" in result.stdout and width(result) <= 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "there is no run in nowhere"),
        (["nowhere", "--out", "page.html"], "there is no nowhere"),
        (["{small}"], "--out page.html"),
        (["{folder}", "{folder}"], "do not fit a terminal"),
        (["{folder}", "--live", "--json"], "--live serves a page"),
        (["{folder}", "--live"], "nothing is at work there"),
        (["{folder}", "--out", "missing/page.html"], "there is no folder"),
    ],
)
def test_wrong_calls(folder: Path, small: Path, words: list[str], message: str) -> None:
    result = run("report", *(word.format(folder=folder, small=small) for word in words))
    assert result.exit_code == 2 and message in " ".join(result.stderr.split())


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="there is no folder in which nobody can write")
def test_a_folder_in_which_nobody_can_write(folder: Path) -> None:
    result = run("report", folder, "--out", "/proc/page.html")
    assert result.exit_code in (1, 2) and "writ" in result.stderr and "remedy" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_no_permission_to_write(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    result = run("report", folder, "--out", tmp_path / "closed" / "page.html")
    assert result.exit_code == 2 and "is not writable" in result.stderr


def test_live_until_ctrl_c(folder: Path) -> None:
    (folder / "network-0" / "original.json").unlink()
    process = shell("report", folder, "--live")
    try:
        assert process.stderr
        line = process.stderr.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert address, line
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            assert b"secateur" in answer.read()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0 and "ended" in err
