"""The report page on localhost, which follows a sweep while it works: loopback only, read only."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from secateur.errors import SecateurError
from secateur.report.blocks import Result, Words, sections
from secateur.report.page import page, update
from secateur.report.records import read_records
from secateur.report.sources import read_source

HOST = "127.0.0.1"
FOLLOWED = ("*.json", "*.jsonl", "*.safetensors")


class Follower:
    """The results of some sources, read again when a file in them has changed."""

    def __init__(self, sources: list[Path]) -> None:
        self.sources = sources
        self._lock = threading.Lock()
        self._stamp = ""
        self._results: list[Result] = []

    def read(self) -> tuple[str, list[Result]]:
        """Return a stamp of the files, and the results."""
        with self._lock:
            stamp = self._signature()
            if stamp != self._stamp:
                self._results = [self._result(source) for source in self.sources]
                self._stamp = stamp
            return self._stamp, self._results

    def unfinished(self) -> bool:
        """Return whether a sweep among the sources lacks results that its recipe asks for."""
        return any(_missing(source) for source in self.sources)

    def _signature(self) -> str:
        parts = hashlib.blake2b(digest_size=16)
        for source in self.sources:
            for pattern in FOLLOWED:
                for file in sorted(source.rglob(pattern)) if source.is_dir() else [source]:
                    try:
                        about = file.stat()
                    except OSError:  # replaced at this moment
                        continue
                    parts.update(f"{file}:{about.st_mtime_ns}:{about.st_size}\n".encode())
        return parts.hexdigest()

    def _result(self, source: Path) -> Result:
        try:
            return read_source(source)
        except SecateurError as error:  # nothing there yet
            text = Words("waiting", "", (f"Waiting: {error}",), warning=True)
            return Result("waiting", source.name, {}, sections(("summary", "Summary", [text])))


def _missing(source: Path) -> bool:
    if source.is_file():
        return False
    try:
        return bool(read_records(source).missing)
    except SecateurError:
        return True


@contextmanager
def serve(sources: list[Path]) -> Iterator[str]:
    """Serve the page of some sources on a free port of this machine; give its address.

    >>> with serve([Path("runs/lenet5")]) as address:
    ...     print(address)
    http://127.0.0.1:40321/
    """
    follower = Follower(sources)
    server = ThreadingHTTPServer((HOST, 0), _handler(follower))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(follower: Follower) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET for the page and its data, and nothing else."""

        server_version, sys_version = "secateur", ""

        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in (HOST, "localhost"):  # another name that leads here may be an attack
                self.send_error(403)
                return
            address = urlsplit(self.path)
            answers: dict[str, Callable[[], tuple[str, str]]] = {
                "/": self.page,
                "/data.json": lambda: self.data(parse_qs(address.query).get("stamp", [""])[0]),
            }
            if address.path not in answers:
                self.send_error(404)
                return
            kind, text = answers[address.path]()
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def page(self) -> tuple[str, str]:
            stamp, results = follower.read()
            return "text/html", page(results, live=stamp)

        def data(self, known: str) -> tuple[str, str]:
            stamp, results = follower.read()
            found: dict[str, Any] = {"stamp": stamp, "status": "live" if follower.unfinished() else "finished"}
            if stamp != known:
                found |= update(results)
            return "application/json", json.dumps(found, allow_nan=False)

        def log_message(self, format: str, *args: Any) -> None:
            """Stay quiet: the terminal belongs to the sweep."""

    return Handler
