"""Free memory: as the system reports it, under limits of the process and of its group, or a guess; errors."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from secateur.errors import SecateurError
from secateur.network import memory
from secateur.network.memory import UNKNOWN, free_memory, megabytes, memory_errors, out_of_memory, room

CPU = torch.device("cpu")


def test_some_memory_is_free_and_no_more_than_there_is() -> None:
    assert 0 < free_memory(CPU) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_system_that_does_not_report_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(memory, "PROC", tmp_path)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory(CPU) <= pages  # by sysconf
    monkeypatch.setattr(os, "sysconf", refuse)
    assert free_memory(CPU) == UNKNOWN and room(None) == UNKNOWN // 2 and room(5) == 5


@pytest.mark.parametrize(
    ("limit", "used", "stat"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ],
    ids=["version 2", "version 1"],
)
def test_the_limit_of_a_container(
    limit: str, used: str, stat: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text("5000000\n")
    (tmp_path / used).write_text("3000000\n")
    (tmp_path / limit).with_name("memory.stat").write_text(f"anon 7\n{stat} 1000\nother_{stat} 9\n")
    assert free_memory(CPU) == 2_001_000
    (tmp_path / used).write_text("9000000\n")
    assert free_memory(CPU) == 0
    (tmp_path / limit).write_text("max\n")
    assert free_memory(CPU) > 5_000_000


def test_the_limit_of_the_process() -> None:
    code = (
        "import resource, torch; from secateur.network.memory import free_memory; cpu = torch.device('cpu');"
        "torch.set_num_threads(1);"  # another one would take memory of its own
        f"resource.setrlimit(resource.RLIMIT_AS, ({4 << 30}, {resource.RLIM_INFINITY}));"
        "before = free_memory(cpu); kept = torch.ones(1 << 28, dtype=torch.uint8); print(before, free_memory(cpu))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 0 < after < before < 4 << 30
    assert before - after == pytest.approx(1 << 28, rel=0.05)


def test_an_allocation_that_fails_is_reported_with_its_size_and_a_remedy() -> None:
    with pytest.raises(SecateurError, match=r"memory ran out at a request for 4,398,046,511,104 MB; .* MB more now"):
        with memory_errors():
            torch.empty(1 << 62, dtype=torch.uint8)
    with pytest.raises(SecateurError, match="memory ran out; ") as caught, memory_errors():
        try:
            raise MemoryError
        except MemoryError as error:
            raise SecateurError("the network could not run", remedy="give other batches") from error
    assert "memory=" in str(caught.value.remedy) and "give other batches" not in str(caught.value)


CONVOLUTION = """
import resource, torch
from torch.nn.functional import conv2d
from secateur.network.memory import memory_errors
torch.set_num_threads(1)
x, weight = torch.ones(8, 16, 16, 16), torch.ones(16, 16, 3, 3)
pages = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (pages, pages))
with memory_errors():
    conv2d(x, weight)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is of Linux")
def test_a_convolution_that_does_not_say_that_memory_ran_out_is_reported_too() -> None:
    done = subprocess.run([sys.executable, "-c", CONVOLUTION], capture_output=True, text=True)
    assert "SecateurError: memory: memory ran out" in done.stderr, done.stderr


def test_where_memory_is_left_such_an_error_passes() -> None:
    assert out_of_memory(RuntimeError("could not create a primitive")) is None


@pytest.mark.parametrize("error", [ValueError("x"), SecateurError("y"), RuntimeError("shapes cannot be multiplied")])
def test_other_errors_pass(error: Exception) -> None:
    assert out_of_memory(error) is None
    with pytest.raises(type(error)) as caught, memory_errors():
        raise error
    assert caught.value is error


def test_bytes_as_text() -> None:
    assert [megabytes(n) for n in (0, 1 << 18, 10 << 20, 3 << 30)] == ["0 MB", "0.25 MB", "10 MB", "3,072 MB"]


HEAPS = """
import resource, sys, threading
from pathlib import Path
import torch
from secateur.network import memory

def used():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() >> 20

memory.SHORT = int(sys.argv[1])
threading.stack_size(1 << 20)
with memory.memory_errors():
    before, kept, ready, go = used(), [], threading.Barrier(9), threading.Event()

    def work():
        kept.append([bytearray(1000) for _ in range(10)])
        ready.wait()
        go.wait()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for one in threads:
        one.start()
    ready.wait()
    print(used() - before)
    go.set()
    torch.empty(16 << 20, dtype=torch.uint8)  # raises the size up to which glibc keeps what is freed
    before, arrays, between = used(), [], []
    for _ in range(20):
        arrays.append(torch.empty(8 << 20, dtype=torch.uint8))
        between.append(bytearray(100_000))
    del arrays
    print(used() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="heaps of glibc")
def test_where_memory_is_short_freed_arrays_and_threads_take_none() -> None:
    def grown(short: int) -> list[int]:
        command = [sys.executable, "-c", HEAPS, str(short)]
        return list(map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()))

    threads, arrays = grown(0)
    assert threads >= 6 * 60 and arrays >= 100
    threads, arrays = grown(1 << 60)
    assert threads < 64 and arrays < 50


def test_errors_that_name_each_other_as_their_cause_are_read_once() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert memory.out_of_memory(one) is None
    one.__cause__, other.__cause__ = other, MemoryError()
    assert memory.out_of_memory(one) is not None
