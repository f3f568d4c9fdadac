"""An optional package is imported, or the error says how to install it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from secateur.errors import SecateurError
from secateur.optional import require


def test_an_installed_package_is_imported() -> None:
    assert require("math", install="python") is math


def test_a_missing_package_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        SecateurError, match=r"^no_such_package is not installed\n  remedy: pip install 'secateur\[x\]'$"
    ):
        require("no_such_package", install="'secateur[x]'")
    (tmp_path / "needs_another.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SecateurError, match=r"^no_such_package is not installed"):
        require("needs_another", install="it")


def test_a_broken_package_is_distinguished_from_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('built for another torch')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SecateurError, match="installed but cannot be imported: RuntimeError: built for") as caught:
        require("broken_package", install="it")
    assert "pip install --force-reinstall it" in str(caught.value.remedy) and "broken_package" not in sys.modules
