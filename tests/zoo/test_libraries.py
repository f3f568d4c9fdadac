"""torchvision and timm are imported, also where torchvision's compiled operators are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from secateur.errors import SecateurError
from secateur.zoo.libraries import library, matching_pair

# What a torchvision without its compiled operators does when it is imported.
WITHOUT_OPERATORS = """
import torch
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets.new_empty(0))
torch.library.register_fake("torchvision::{other}")(lambda dets, scores, iou_threshold: dets.new_empty(0))
name = "fake"
"""
SCRIPT = """
from secateur.zoo import libraries
assert not libraries.missing_operators()
print(libraries.library("torchvision").name, sorted(libraries._declared))
print(libraries.missing_operators())
"""


def in_process(folder: Path, source: str) -> subprocess.CompletedProcess[str]:
    """Run the script beside a torchvision with this source."""
    (folder / "torchvision.py").write_text(source)
    (folder / "torchvision-0.1.dist-info").mkdir()
    (folder / "torchvision-0.1.dist-info" / "METADATA").write_text("Name: torchvision\nVersion: 0.1\n")
    start = f"import sys; sys.path.insert(0, {str(folder)!r})\n"
    return subprocess.run([sys.executable, "-c", start + SCRIPT], capture_output=True, text=True, check=False)


def test_operators_that_only_detection_needs_are_declared(tmp_path: Path) -> None:
    result = in_process(tmp_path, WITHOUT_OPERATORS.format(other="qnms"))
    assert result.returncode == 0, result.stderr
    names, note = result.stdout.splitlines()
    assert names == "fake ['nms', 'qnms']"
    assert note.startswith(f"torchvision 0.1 has no compiled operators for torch {torch.__version__}")


def test_other_operators_are_not_declared(tmp_path: Path) -> None:
    result = in_process(tmp_path, WITHOUT_OPERATORS.format(other="deform_conv2d"))
    assert result.returncode == 1
    assert "operator torchvision::deform_conv2d does not exist" in result.stderr
    assert f"remedy: install a matching pair: {matching_pair()}" in result.stderr


def test_a_package_without_torchvision_in_its_error_keeps_its_own_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crooked.py").write_text("raise ValueError('bad build')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SecateurError, match="bad build") as caught:
        library("crooked")
    assert "matching pair" not in str(caught.value)


@pytest.mark.parametrize(
    ("torch_version", "pair"),
    [
        ("2.13.0+cpu", "'torch==2.13.*' 'torchvision==0.28.*'"),
        ("2.9.1", "'torch==2.9.*' 'torchvision==0.24.*'"),
        ("2.10.0a0+git1", "'torch==2.10.*' 'torchvision==0.25.*'"),
        ("3.0.0", "'torch==3.0.*' 'torchvision'"),
    ],
)
def test_the_command_for_a_matching_pair(torch_version: str, pair: str) -> None:
    assert matching_pair(torch_version) == f"pip install --force-reinstall {pair}"
