"""The code on the pages of the documentation: find it, run it, and compare what it prints with what the page shows.

A page is plain Markdown. The language of a fenced block says what it is:

- `python`: run, in order, in one namespace. A block whose first line is a comment such as `# network.py` is that file.
- `sh`: one command per line, run in order. Indented lines that begin with the name of a program are commands too.
- `text`: what the Python block or the command before it prints. Words must be equal; line breaks, spaces and ruled
  lines are ignored. Numbers may differ by 5 % or 1e-6, as rounding on another machine makes them, and `...` stands for
  anything. After `text timings` only percentages are compared, and the verdict of `sc.bench` is ignored. After
  `text measured` lines may be in another order, and numbers may differ by half or by 2: rounding on another machine
  decides between channels of nearly equal importance, and everything measured after that choice differs.
- `yaml`: a recipe.

Any other indented block, and a fence without a language, is neither run nor compared.
"""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from markdown_it import MarkdownIt
from typer.testing import CliRunner

from secateur.cli import app

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))}
PROGRAMS = ("secateur", "python", "make", "pip", "torchrun")
SHELL = ("sh", "console", "bash", "shell")
NUMBER = r"(?<![A-Za-z_.\d])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?"
RELATIVE, ABSOLUTE, HALF = 0.05, 1e-6, 0.5  # tolerances for numbers
VERDICT = "(?:no measurable gain|slower): "


@dataclass(frozen=True)
class Snippet:
    """A piece of code on a page, and the output that the page shows for it."""

    kind: Literal["python", "file", "yaml", "command"]
    text: str
    line: int  # lines above the code
    shown: str | None = None
    shown_lines: tuple[int, int] = (0, 0)  # of the output on the page, without its fences
    timings: bool = False
    measured: bool = False

    @property
    def words(self) -> list[str]:
        """The words of a command."""
        return shlex.split(self.text, comments=True)


def snippets(page: Path) -> tuple[Snippet, ...]:
    """Return all code of a page, in order.

    >>> [snippet.words[1] for snippet in snippets(PAGES["README.md"]) if snippet.kind == "command"]
    """
    found: list[Snippet] = []
    for token in MarkdownIt().parse(page.read_text()):
        if token.type not in ("fence", "code_block"):
            continue
        start, end = token.map or (0, 0)
        line, (language, *options) = start + (token.type == "fence"), token.info.split() or [""]
        if language == "python":
            found.append(Snippet("file" if _file(token.content) else "python", token.content, line))
        elif language == "yaml":
            found.append(Snippet("yaml", token.content, line))
        elif language == "text" and {"timings", "measured"}.issuperset(options):
            if not found or found[-1].kind not in ("python", "command") or found[-1].shown is not None:
                raise ValueError(f"{page.name}:{line}: there is no code before this output")
            how = {option: True for option in options}
            found[-1] = replace(found[-1], shown=token.content, shown_lines=(line, end - 1), **how)
        elif language in SHELL or not token.info:
            found += _commands(token.content, line, every=language in SHELL)
        else:
            raise ValueError(f"{page.name}:{line}: unknown kind of block {token.info!r}")
    return tuple(found)


def write_file(snippet: Snippet, folder: Path) -> None:
    """Write a block that is a file into a folder, under the name in its first line."""
    (folder / _file(snippet.text)).write_text(snippet.text)


def run_python(snippet: Snippet, page: Path, names: dict[str, Any]) -> str:
    """Return what the code prints; `names` is its namespace. Errors point to the line of the page."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile("\n" * snippet.line + snippet.text, str(page), "exec"), names)
    return printed.getvalue()


def run_command(snippet: Snippet) -> str:
    """Return what a command of ours prints, 80 columns wide; its exit code must be 0."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, snippet.words[1:], catch_exceptions=False)
    assert result.exit_code == 0, f"{snippet.text}\n{result.output}"
    return result.stdout


def agrees(shown: str, printed: str, *, timings: bool = False) -> bool:
    """Return whether the shown output is the printed one, as the module's docstring defines it.

    >>> agrees("accuracy 99.25 % in ... s", "accuracy  99.20 % in 3.1 s")
    True
    """
    pattern, expected = "", list[float]()
    for piece in re.split(rf"({NUMBER} ?%|{NUMBER}|\.\.\.)", _squeezed(shown, timings)):
        if piece == "...":
            pattern += ".*?"
        elif not (number := re.match(NUMBER, piece)):
            pattern += re.escape(piece)
        elif timings and not piece.endswith("%"):
            pattern += NUMBER
        else:
            pattern += f"({NUMBER}){re.escape(piece[number.end() :])}"
            expected.append(_value(number[0]))
    match = re.fullmatch(pattern, _squeezed(printed, timings))
    return match is not None and all(
        math.isclose(a, _value(b), rel_tol=RELATIVE, abs_tol=ABSOLUTE) for a, b in zip(expected, match.groups())
    )


def nearly_agrees(shown: str, printed: str, *, timings: bool = False) -> bool:
    """Return whether two outputs of measurements agree, as the module's docstring defines it.

    >>> nearly_agrees("ft 98 of 100\\npfp 60.1 of 100", "pfp 58.6 of 100\\nft 97 of 100")
    True
    """
    number = rf"({NUMBER}) ?%" if timings else f"({NUMBER})"
    pairs = [sorted(map(_value, re.findall(number, _squeezed(text, timings)))) for text in (shown, printed)]
    return same_words(shown, printed) and all(
        math.isclose(a, b, rel_tol=HALF, abs_tol=2 if max(a, b) >= 1 else ABSOLUTE) for a, b in zip(*pairs)
    )


def same_words(shown: str, printed: str) -> bool:
    """Return whether two outputs have the same words, whatever their numbers and the order of their lines.

    >>> same_words("ft 91.4 % pfp 90.2 %", "pfp - % ft 10 %")
    True
    """

    def words(text: str) -> list[str]:
        return sorted(re.sub(rf"{NUMBER}|^-$", "0", word) for word in _squeezed(text, timings=True).split())

    return words(shown) == words(printed)


def write_shown(page: Path, outputs: dict[Snippet, str]) -> None:
    """Put what was printed into the page, in place of what it shows now; the path of the folder becomes `...`."""
    lines = page.read_text().splitlines()
    for snippet, printed in sorted(outputs.items(), key=lambda one: one[0].line, reverse=True):
        first, last = snippet.shown_lines
        text = printed.strip("\n").replace(str(Path.cwd()), "...")
        lines[first:last] = [line.rstrip() for line in text.splitlines()]
    page.write_text("\n".join(lines) + "\n")


def _file(text: str) -> str:
    name = re.match(r"# (\w+\.py)\n", text)
    return name[1] if name else ""


def _commands(block: str, line: int, *, every: bool) -> Iterator[Snippet]:
    for paragraph in re.split(r"\n\s*\n", block):
        words = paragraph.split()
        if words and (every or words[0] in PROGRAMS):
            for command in paragraph.replace("\\\n", " ").strip().splitlines():
                yield Snippet("command", " ".join(command.split()), line)


def _squeezed(text: str, timings: bool) -> str:
    return " ".join(re.sub(f"─+|{VERDICT}" if timings else "─+", " ", text).split())


def _value(number: str) -> float:
    return float(number.replace(",", ""))
