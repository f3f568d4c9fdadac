"""A progress bar on the standard error stream, or none."""

from __future__ import annotations

import pytest

from secateur.progress import bar


@pytest.mark.parametrize("show", [True, False])
def test_the_bar_shows_on_stderr_only(
    show: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    with bar("fitting layers", 3, show) as advance:
        for _ in range(3):
            advance()
    out, err = capsys.readouterr()
    assert out == "" and ("fitting layers" in err and "3/3" in err) == show


def test_an_error_passes_through() -> None:
    with pytest.raises(ZeroDivisionError), bar("fitting layers", 3, True) as advance:
        advance()
        raise ZeroDivisionError
