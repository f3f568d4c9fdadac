"""A progress bar on the standard error stream, or none."""

from __future__ import annotations

import pytest

from secateur.progress import NotebookBar, bar, in_notebook


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


def test_a_test_is_no_notebook() -> None:
    """tests/test_docs.py runs a real one."""
    assert not in_notebook()


def test_the_bar_of_a_cell_is_updated_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(NotebookBar, "_update", lambda self, text: shown.append(text))
    made = NotebookBar("fitting <layers>", 1000)
    for done in range(1000):
        made.show(done, "loss < 1")
    assert 1 <= len(shown) < 100
    assert 'max="1000" value="0"' in shown[0] and "fitting &lt;layers&gt;" in shown[0] and "loss &lt; 1" in shown[0]
