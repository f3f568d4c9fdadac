"""The live page: served on this machine only, read only, updated while files appear."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from secateur.report.live import Follower, serve
from support.browser import Watched, running
from support.written_sweeps import step, write, write_sweep


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_sweep(tmp_path / "run")


def ask(address: str, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_only_the_page_and_its_data_are_served(folder: Path) -> None:
    with serve([folder]) as address:
        assert urlsplit(address).hostname == "127.0.0.1"
        status, text = ask(address, "/")
        assert status == 200 and b"data-live" in text and b"connect-src &#39;self&#39;" in text.replace(b"'", b"&#39;")
        for path in ("/recipe.json", "/../recipe.json", "/%2e%2e/recipe.json", "/data.json/x"):
            assert ask(address, path)[0] == 404
        assert {ask(address, "/", method)[0] for method in ("POST", "PUT", "DELETE")} == {501}
        assert ask(address, "/", host="example.org")[0] == 403
        other = socket.gethostbyname(socket.gethostname())
        if not other.startswith("127."):
            with pytest.raises(OSError), socket.create_connection((other, urlsplit(address).port or 0), timeout=2):
                pass
    with pytest.raises(OSError):
        ask(address, "/")


def test_news_are_sent_once(folder: Path) -> None:
    with serve([folder]) as address:
        first = json.loads(ask(address, "/data.json")[1])
        assert first["status"] == "finished" and first["blocks"] and "<main" in first["html"]
        again = json.loads(ask(address, f"/data.json?stamp={first['stamp']}")[1])
        assert again == {"stamp": first["stamp"], "status": "finished"}
        (folder / "network-0/0-method/step-03.json").unlink()
        news = json.loads(ask(address, f"/data.json?stamp={first['stamp']}")[1])
        assert news["stamp"] != first["stamp"] and news["status"] == "live" and "not there yet" in news["html"]


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    follower = Follower([tmp_path / "later"])
    assert follower.unfinished() and follower.read()[1][0].kind == "waiting"
    write_sweep(tmp_path / "later")
    assert not follower.unfinished() and follower.read()[1][0].kind == "sweep"


def test_the_page_follows_and_keeps_what_the_reader_did(folder: Path) -> None:
    shutil.rmtree(folder / "network-1")
    with running() as browser, serve([folder]) as address:
        tab = Watched(browser)
        shown = tab.open(address)
        shown.wait_for_function("() => document.querySelector('#status').textContent === 'live'")
        shown.fill("#r1-runs-runs-1 input[type=search]", "pfp")
        shown.locator("#r1-size-params-1 .legend button", has_text="ft").click()
        assert shown.inner_text("#r1-runs-runs-1 .count") == "3 of 6 rows"
        write(folder, "network-1/0-method/step-01.json", step(1, "pfp", 1, 0.3, 0.9, 0.9))
        shown.wait_for_function("() => document.querySelector('#r1-runs-runs-1 .count').textContent === '4 of 7 rows'")
        assert shown.locator("#r1-size-params-1 .legend button[aria-pressed=false]").inner_text() == "ft"
        assert shown.locator("#r1-size-params-1 .drawing").count() == 1
        assert tab.problems == [] and all(url.startswith((address, "data:")) for url in tab.requests)


def test_the_page_says_when_the_server_has_ended(folder: Path) -> None:
    with running() as browser:
        tab = Watched(browser)
        with serve([folder]) as address:
            tab.open(address)
        tab.page.wait_for_function("() => document.querySelector('#status').textContent.startsWith('ended')")
