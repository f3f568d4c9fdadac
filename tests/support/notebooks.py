"""Run a notebook in a kernel of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def read(path: Path) -> Any:
    """Return a notebook with its stored outputs."""
    return pytest.importorskip("nbformat").read(path, as_version=4)


def execute(path: Path, folder: Path) -> Any:
    """Return the notebook with the outputs of a run in a folder; an error in a cell is an error here."""
    client = pytest.importorskip("nbclient").NotebookClient
    notebook = read(path)
    client(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def write(path: Path, notebook: Any) -> None:
    """Store the outputs of a run, without times and without what a progress bar leaves behind."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if not _is_empty(one)]
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}
    pytest.importorskip("nbformat").write(notebook, path)


def shown(notebook: Any) -> list[str]:
    """Return the words of every output, `figure` for a picture."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", ()) if not _is_empty(one)]
    return [_text(one) for one in outputs]


def _text(output: Any) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return "figure"
    text = output.get("text") or data.get("text/html") or data.get("text/plain") or ""
    return re.sub(r"<style.*?</style>|<[^>]*>", " ", "".join(text), flags=re.DOTALL)


def _is_empty(output: Any) -> bool:
    """Whether an output shows nothing: a progress bar that has disappeared, or a log of the kernel itself."""
    return output.get("name") == "stderr" or output.get("data", {}).get("text/html") == ""
