"""A download resumes where it was cut and is checked; an error says how to do it by hand."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from secateur.data import dataset
from secateur.data.fetch import File, fetch, md5
from secateur.errors import SecateurError

CONTENT = bytes(range(256)) * 4000
SUM = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serve CONTENT; close the connection early or ignore ranges on request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cuts: list[int] = []  # how many bytes the next answers have; then answers are complete
        self.ranges = True
        self.content = CONTENT
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.asked.append(wanted)
        if self.path != "/file":
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranges else 0
        total = len(self.server.content)
        if start >= total:
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def refusal(files: list[File], root: Path, download: bool = True) -> str:
    with pytest.raises(SecateurError) as caught:
        fetch(files, root, download)
    return str(caught.value)


def test_a_file_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        fetch([File("set/raw/x.gz", SUM, (server.url,))], tmp_path)
    assert (tmp_path / "set/raw/x.gz").read_bytes() == CONTENT
    assert server.asked == [None]
    assert [path.name for path in (tmp_path / "set/raw").iterdir()] == ["x.gz"]


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 50_000]
    fetch([File("x", SUM, (server.url,))], tmp_path)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_run_resumes(server: Server, tmp_path: Path) -> None:
    server.cuts = [100_000, 0]
    text = refusal([File("x", SUM, (server.url,))], tmp_path)
    assert "the connection was cut" in text
    assert (tmp_path / "x.part").stat().st_size == 100_000
    fetch([File("x", SUM, (server.url,))], tmp_path)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=100000-"
    assert not (tmp_path / "x.part").exists()


def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "x.part").write_bytes(CONTENT[:1000])
    fetch([File("x", SUM, (server.url,))], tmp_path)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_complete_part_is_only_renamed(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(CONTENT)
    fetch([File("x", SUM, (server.url,))], tmp_path)
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize("rest", [b"another file", CONTENT + b"more"])
def test_a_part_of_another_file_is_discarded(server: Server, tmp_path: Path, rest: bytes) -> None:
    (tmp_path / "x.part").write_bytes(rest)
    fetch([File("x", SUM, (server.url,))], tmp_path)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_wrong_checksum(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>sign in first</html>"
    text = refusal([File("x", SUM, (server.url,))], tmp_path)
    assert f"instead of {SUM}, and was removed" in text
    assert list(tmp_path.iterdir()) == []


def test_the_next_address(server: Server, tmp_path: Path) -> None:
    fetch([File("x", SUM, (server.url + "-gone", server.url))], tmp_path)
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_no_such_file(server: Server, tmp_path: Path) -> None:
    text = refusal([File("x", SUM, (server.url + "-gone",))], tmp_path)
    assert "HTTP Error 404" in text
    assert len(server.asked) == 1


def test_no_network(server: Server, tmp_path: Path) -> None:
    free = server.url.replace(str(server.server_port), "1")
    text = refusal([File("set/x", SUM, (free,)), File("set/y", "0" * 32, (free,))], tmp_path)
    assert f"{free} could not be downloaded" in text
    assert f"put these files into {tmp_path} by hand" in text
    assert f"set/x (md5 {SUM}), from {free}" in text and f"set/y (md5 {'0' * 32})" in text


def test_nothing_is_downloaded_without_permission(tmp_path: Path) -> None:
    assert "2 data files are missing" in refusal([File(n, SUM, ("http://no.host/",)) for n in "xy"], tmp_path, False)
    (tmp_path / "x").touch()
    assert "1 data file is missing" in refusal([File(n, SUM, ("http://no.host/",)) for n in "xy"], tmp_path, False)
    fetch([File("x", SUM, ())], tmp_path, download=False)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("mnist", ["MNIST/raw/t10k-images-idx3-ubyte.gz (md5 9fb629c4189551a2d022fa330f9573f3)", "t10k-labels"]),
        ("fashion-mnist", ["FashionMNIST/raw/t10k-labels-idx1-ubyte.gz (md5 bb300cfdad3c16e7a12a480ee83cd310)"]),
        ("cifar10", ["cifar-10-python.tar.gz (md5 c58f30108f718f92721af3b95e74349a)"]),
    ],
)
def test_each_data_set_says_what_to_put_where(name: str, files: list[str], tmp_path: Path) -> None:
    with pytest.raises(SecateurError) as caught:
        dataset(name, "test", tmp_path, download=False)
    assert all(
        file in str(caught.value) for file in [*files, str(tmp_path), "https://" if name != "fashion-mnist" else ""]
    )


def test_checksum(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert md5(tmp_path / "x") == "900150983cd24fb0d6963f7d28e17f72"
