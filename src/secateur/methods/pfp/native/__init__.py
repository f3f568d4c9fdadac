"""C++ that is compiled on first use, if there is a compiler; all of it has a slower equivalent in torch."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

FLAGS = (
    "-O3", "-march=native", "-std=c++11", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti",
    "-fno-math-errno", "-fno-trapping-math", "-ffinite-math-only", "-fno-signed-zeros",
)  # fmt: skip
OFF = "SECATEUR_NO_COMPILER"  # set this environment variable to run without the C++


@cache
def library(name: str) -> ctypes.CDLL | str:
    """Return the compiled library of `name.cpp`, or the reason why there is none.

    It is kept in the user's cache folder under a hash of the source, the flags and the processor, so that another
    version or machine compiles its own.
    """
    if os.environ.get(OFF):
        return f"{OFF} is set"
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return "there is no C++ compiler"
    source = resources.files(__package__).joinpath(f"{name}.cpp").read_text()
    key = "\n".join([source, *FLAGS, compiler, platform.machine(), _processor()])
    path = _folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        if not path.exists():
            _compile(compiler, source, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        return f"{compiler} failed: {error}"


def _compile(compiler: str, source: str, path: Path) -> None:
    """Compile to a temporary file and rename it, so that another process never sees an incomplete library."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        text, compiled = Path(folder, "source.cpp"), Path(folder, "compiled.so")
        text.write_text(source)
        subprocess.run([compiler, *FLAGS, "-o", str(compiled), str(text)], check=True, capture_output=True, timeout=120)
        os.replace(compiled, path)


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "secateur"


def _processor() -> str:
    """Return a description of the processor: -march=native depends on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "model name", "Features"))}))
