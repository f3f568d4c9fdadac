"""The site, made by `make docs`: the pages as they are, with navigation and references that are made when it is built.

Nothing that is generated lies beside the pages, so they read as well in any viewer of Markdown.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from typer.testing import CliRunner

import secateur
from secateur.cli import COMMANDS, app

project = "secateur"
copyright = author = "The secateur authors"
version = release = secateur.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"secateur {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
highlight_language = "none"  # tables and printed outputs; code says what it is
myst_heading_anchors = 3
add_module_names = False
autodoc_typehints_format = "short"
maximum_signature_line_length = 100

NAVIGATION = {
    "Guides": ["start", "prune", "compare", "inspect", "export", "bench", "experiments", "torch-pruning"],
    "Concepts": ["concepts", "method", "repair", "guarantee", "certificates", "trace", "plan"],
    "Reference": ["reference", "commands", "methods", "files", "coverage", "quality"],
}
KINDS = {
    "Functions": ("autofunction", inspect.isfunction),
    "Classes": ("autoclass", inspect.isclass),
    "Modules": ("automodule", inspect.ismodule),
}
BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PARAMETER = re.compile(r"^([a-zC]\w*(?:, \w+)*): ", re.MULTILINE)
# What a browser would fetch by itself: scripts, styles, fonts, pictures. A link that is only followed is not.
FETCHED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc="?(?:https?:)?//|<link\b[^>]*\bhref="?(?:https?:)?//""")
FETCHED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")


def navigation() -> Iterator[str]:
    """The pages, for the bar at the side."""
    for caption, pages in NAVIGATION.items():
        yield f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n"
        yield from pages
        yield "```"


def reference() -> Iterator[str]:
    """Every public name, from its docstring."""
    left = {name: getattr(secateur, name) for name in secateur.__all__}
    for kind, (directive, belongs) in KINDS.items():
        yield f"\n## {kind}\n"
        for name in [name for name, value in left.items() if belongs(value)]:
            members = "" if kind == "Functions" else "\n   :members:"
            yield f"```{{eval-rst}}\n.. {directive}:: secateur.{name}{members}\n```"
            del left[name]
    if left:
        raise SphinxError(f"public, but neither function nor class nor module: {', '.join(left)}")


def commands() -> Iterator[str]:
    """What every command says under --help, 80 columns wide."""
    runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})
    for name in [None, *(command.__name__ for command in COMMANDS)]:
        words = [*([name] if name else []), "--help"]
        shown = runner.invoke(app, words, prog_name="secateur", catch_exceptions=False)
        if shown.exit_code:
            raise SphinxError(f"secateur {' '.join(words)} failed: {shown.output}")
        text = "\n".join(line.rstrip() for line in shown.output.strip("\n").splitlines())
        yield f"\n## secateur {name or ''}\n\n```text\n{text}\n```"


GENERATED = {"index": navigation, "reference": reference, "commands": commands}


def add_generated(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is generated at the end of its page."""
    if page in GENERATED:
        source[0] += "\n".join(["", *GENERATED[page](), ""])


def as_restructured(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn backticks into code, or a link to a public name, and `name: meaning` lines into a list."""
    paragraphs = "\n".join(lines).split("\n\n")
    for i, text in enumerate(paragraphs):
        if not text.startswith(">>>"):
            text = BACKTICKS.sub(linked, text)
            if PARAMETER.match(text):
                text = PARAMETER.sub(r"- ``\1``: ", text).replace("\n    ", "\n  ")
            paragraphs[i] = text
    lines[:] = "\n\n".join(paragraphs).split("\n")


def linked(code: re.Match[str]) -> str:
    public = code[1].partition(".")[0] in secateur.__all__
    return f":py:obj:`{code[1]} <secateur.{code[1]}>`" if public else f"``{code[1]}``"


def without_objects(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """A default that is a function has no name worth showing."""
    return signature and re.sub(r"<function [^>]*>+", "...", signature), result


def check_offline(app: Sphinx, failure: Exception | None) -> None:
    """The site must work without a network: no page and no style may fetch anything."""
    if failure:
        return
    for file in sorted(Path(app.outdir).rglob("*")):
        fetched = {".html": FETCHED, ".css": FETCHED_BY_STYLE}.get(file.suffix)
        found = fetched and fetched.search(file.read_text())
        if found:
            raise SphinxError(f"{file} fetches from elsewhere: {found[0]}")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_generated)
    app.connect("autodoc-process-docstring", as_restructured)
    app.connect("autodoc-process-signature", without_objects)
    app.connect("build-finished", check_offline)
