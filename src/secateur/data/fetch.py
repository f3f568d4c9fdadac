"""Downloads that resume where they stopped, with checksums."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from secateur.errors import SecateurError, first_line

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 18


@dataclass(frozen=True)
class File:
    """A file of a data set: its path below the data root, its checksum and its addresses."""

    path: str
    md5: str
    urls: tuple[str, ...]


def fetch(files: list[File], root: Path, download: bool = True) -> None:
    """Download missing files; if that fails, raise an error that says how to get them by hand.

    A file is written as `NAME.part`, checked, then renamed. If several processes share the folder, let one download
    first.
    """
    missing = [file for file in files if not (root / file.path).is_file()]
    if not missing:
        return
    problem = f"{len(missing)} data file{'s are' if len(missing) > 1 else ' is'} missing"
    if download:
        problem = next(filter(None, (_fetch_one(file, root / file.path) for file in missing)), "")
        if not problem:
            return
    still = [file for file in missing if not (root / file.path).is_file()]
    raise SecateurError(
        problem,
        remedy="\n    ".join(
            [f"put these files into {root} by hand, or set SECATEUR_DATA to another folder:"]
            + [f"{file.path} (md5 {file.md5}), from {' or '.join(file.urls)}" for file in still]
        ),
    )


def _fetch_one(file: File, target: Path) -> str:
    """Try every address; return the problem with the last one, or an empty string."""
    problem = f"there is no address for {file.path}"
    part = target.with_name(target.name + ".part")
    for url in file.urls:
        try:
            part.parent.mkdir(parents=True, exist_ok=True)
            resumed = part.exists()
            _download(url, part)
            if resumed and md5(part) != file.md5:  # the existing part belonged to another file
                part.unlink()
                _download(url, part)
            found = md5(part)
            if found == file.md5:
                os.replace(part, target)
                return ""
            part.unlink()
            problem = f"the file from {url} has the md5 {found} instead of {file.md5}, and was removed"
        except (OSError, http.client.HTTPException) as error:  # urllib's errors are OSErrors
            problem = f"{url} could not be downloaded: {first_line(error)}"
    return problem


def _download(url: str, part: Path) -> None:
    """Complete the file, with a new connection after each that was cut but brought some bytes."""
    while True:
        before = _size(part)
        try:
            if _continue(url, part):
                return
            problem: Exception = ConnectionError("the connection was cut")
        except urllib.error.HTTPError:
            raise  # trying again would not help
        except (OSError, http.client.HTTPException) as error:
            problem = error
        if _size(part) <= before:
            raise problem


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _continue(url: str, part: Path) -> bool:
    """Request the rest of the file once; return whether it is complete."""
    start = _size(part)
    headers = {"User-Agent": "secateur", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:  # there are no more bytes: the file is complete, or another one
            return True
        raise
    with answer:
        goes_on = answer.status == 206 and re.match(rf"bytes {start}-", answer.headers.get("Content-Range", ""))
        expected = answer.headers.get("Content-Length")
        received = 0
        with part.open("ab" if goes_on else "wb") as out:
            while block := answer.read(CHUNK):
                out.write(block)
                received += len(block)
    return expected is None or received >= int(expected)


def md5(path: Path) -> str:
    """Return the checksum of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
