"""One run at a time in a folder; the lock of a killed run is taken over."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fcntl", reason="this system has no such locks")

from secateur.errors import SecateurError
from secateur.experiments.lock import NAME, only_run
from support.small_runs import holder

COUNT = """
import sys, time
from pathlib import Path
from secateur.errors import SecateurError
from secateur.experiments.lock import only_run
folder, done = Path(sys.argv[1]), 0
while done < 50:
    try:
        with only_run(folder):
            number = int((folder / "count").read_text())
            time.sleep(0.0005)
            (folder / "count").write_text(str(number + 1))
            done += 1
    except SecateurError:
        pass
"""


def test_a_folder_in_use_by_another_process_is_refused_with_its_owner(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with pytest.raises(SecateurError, match="in use") as caught, only_run(tmp_path):
            pytest.fail("two processes hold the lock")
        assert f"process {process.pid} on {socket.gethostname()}, since 20" in caught.value.cause
        assert json.loads((tmp_path / NAME).read_text())["pid"] == process.pid


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / NAME).exists()
        with only_run(tmp_path):
            assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
    assert not (tmp_path / NAME).exists()


def test_the_lock_of_another_machine_is_respected(tmp_path: Path) -> None:
    owner = {"pid": 7, "host": "elsewhere", "started": "2026-01-01T00:00:00+00:00"}
    (tmp_path / NAME).write_text(json.dumps(owner))
    with pytest.raises(SecateurError, match="process 7 on elsewhere, since 2026-01-01") as caught, only_run(tmp_path):
        pytest.fail("it was taken")
    assert f"remove {tmp_path / NAME}" in str(caught.value.remedy)
    (tmp_path / NAME).unlink()
    with only_run(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00" * 100])
def test_a_damaged_lock_file_without_owner_is_taken_over(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with only_run(tmp_path):
        assert json.loads((tmp_path / NAME).read_text())["host"] == socket.gethostname()


def test_an_error_in_the_block_ends_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), only_run(tmp_path):
        raise ZeroDivisionError
    with only_run(tmp_path / "new"):
        pass
    assert not (tmp_path / NAME).exists()


def test_processes_that_compete_for_the_lock_never_hold_it_together(tmp_path: Path) -> None:
    """Two processes increase a number 50 times each; without the lock some increments would be lost."""
    (tmp_path / "count").write_text("0")
    processes = [subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert (tmp_path / "count").read_text() == "100"
