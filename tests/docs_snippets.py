"""The code in the README and the docs: found, and run in order as a reader would.

    python tests/docs_snippets.py docs/prune.md      # what its Python prints, to bring the page up to date

Fenced Python is run; if it opens with a comment such as `# network.py`, it is that file. Of indented code, and of
fences for the shell, a paragraph that opens with the name of a program is commands; any other is what the code before
it shows.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from markdown_it import MarkdownIt
from typer.testing import CliRunner

from secateur.cli import app

ROOT = Path(__file__).parents[1]
PAGES = {path.name: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))}
PROGRAMS = ("secateur", "python", "make", "pip", "torchrun")
SHELL = ("console", "sh", "bash", "shell")


@dataclass(frozen=True)
class Snippet:
    """A piece of code on a page, and what the page shows below it."""

    kind: Literal["python", "file", "yaml", "command"]
    text: str
    line: int
    shown: str = ""

    @property
    def words(self) -> list[str]:
        """Of a command."""
        return shlex.split(self.text, comments=True)


@cache
def snippets(page: Path) -> tuple[Snippet, ...]:
    """All code of a page, in order.

    >>> [snippet.words[1] for snippet in snippets(PAGES["README.md"]) if snippet.kind == "command"]
    """
    found: list[Snippet] = []
    for token in MarkdownIt().parse(page.read_text()):
        if token.type not in ("fence", "code_block"):
            continue
        line, language = (token.map or [0])[0] + (token.type == "fence"), token.info.strip()
        if language == "python":
            found.append(Snippet("file" if _file(token.content) else "python", token.content, line))
        elif language == "yaml":
            found.append(Snippet("yaml", token.content, line))
        elif language in ("", "text", *SHELL):
            for paragraph in re.split(r"\n\s*\n", token.content):
                commands = list(_commands(paragraph, line))
                found += commands
                if not commands and found:
                    found[-1] = replace(found[-1], shown=f"{found[-1].shown}{paragraph}\n")
        else:
            raise ValueError(f"{page}:{line}: nobody knows how to run {language!r}")
    return tuple(found)


def write_file(snippet: Snippet, folder: Path) -> None:
    (folder / _file(snippet.text)).write_text(snippet.text)


def run_python(snippet: Snippet, page: Path, names: dict[str, Any]) -> str:
    """What it prints; what it defines is in `names` afterwards. Errors point to the line of the page."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile("\n" * snippet.line + snippet.text, str(page), "exec"), names)
    return printed.getvalue()


def run_command(snippet: Snippet) -> str:
    """What a command of ours prints, 80 columns wide; it must end well."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, snippet.words[1:], catch_exceptions=False)
    assert result.exit_code == 0, f"{snippet.text}\n{result.output}"
    return result.stdout


def _file(text: str) -> str:
    name = re.match(r"# (\w+\.py)\n", text)
    return name[1] if name else ""


def _commands(paragraph: str, line: int) -> Iterator[Snippet]:
    if paragraph.split(maxsplit=1)[:1] and paragraph.split()[0] in PROGRAMS:
        for command in paragraph.replace("\\\n", " ").strip().splitlines():
            yield Snippet("command", " ".join(command.split()), line)


if __name__ == "__main__":
    path, names = Path(sys.argv[1]).resolve(), {"__name__": "__main__"}
    with TemporaryDirectory() as folder, chdir(folder):
        for snippet in snippets(path):
            if snippet.kind == "python":
                print(f"{path.name}, line {snippet.line}:", run_python(snippet, path, names), sep="\n")
