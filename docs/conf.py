"""Settings of the documentation site that `make docs` builds.

The pages are plain Markdown. The navigation bar, the Python reference and the command line reference are generated
during the build, so the pages also read well in any Markdown viewer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.writers.html5 import HTML5Translator
from typer.testing import CliRunner

import secateur
from secateur._version import __version__
from secateur.cli import COMMANDS, app

project = "secateur"
copyright = author = "The secateur authors"
version = release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"secateur {version}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
highlight_language = "none"  # tables and printed output; blocks of code name their language
myst_heading_anchors = 3
add_module_names = False
default_role = "py:obj"  # `name` in a docstring is code, and a link where it names something on the page
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # the attributes of a class as one list
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
maximum_signature_line_length = 100
myst_enable_extensions = ["dollarmath"]
html_math_renderer = "mathml"
nb_execution_mode = "off"  # tests/test_docs.py runs the notebook and compares its outputs

NAVIGATION = {
    "Start here": ["start", "tutorial-notebook", "tutorial-cifar", "concepts"],
    "Guides": [
        "prune",
        "retraining",
        "inspect",
        "parts",
        "yolo",
        "training-loops",
        "compare",
        "certificates",
        "theory",
        "export",
        "bench",
        "latency",
        "experiments",
        "report",
        "torch-pruning",
    ],
    "Reference": ["reference", "commands", "methods", "plan", "limits", "files", "glossary"],
    "Background": [
        "architecture",
        "trace",
        "repair",
        "method",
        "guarantee",
        "results",
        "reproduction",
        "quality",
        "tasks",
        "coverage",
        "families",
    ],
}
MODULES = ("methods", "data", "zoo")  # public modules beside those in `secateur.__all__`
# Addresses that a browser fetches by itself: scripts, styles, fonts, images. Plain links are not among them.
FETCHED = re.compile(r"""<(?:script|img|iframe)\b[^>]*\bsrc="?(?:https?:)?//|<link\b[^>]*\bhref="?(?:https?:)?//""")
FETCHED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?(?:https?:)?//""")


def navigation() -> Iterator[str]:
    """Yield the tables of contents that make up the navigation bar."""
    for caption, pages in NAVIGATION.items():
        yield f"\n```{{toctree}}\n:caption: {caption}\n:hidden:\n"
        yield from pages
        yield "```"


def reference() -> Iterator[str]:
    """Yield the documentation of every public name, taken from its docstring."""
    public = {name: getattr(secateur, name) for name in secateur.__all__ if name != "__version__"}
    functions = [name for name, value in public.items() if inspect.isfunction(value)]
    classes = [name for name, value in public.items() if inspect.isclass(value)]
    modules = [name for name, value in public.items() if inspect.ismodule(value)]
    if others := public.keys() - {*functions, *classes, *modules}:
        raise SphinxError(f"public names that are neither functions, classes nor modules: {', '.join(sorted(others))}")
    yield "\n## Functions\n"
    yield from (f"```{{eval-rst}}\n.. autofunction:: secateur.{name}\n```" for name in functions)
    yield "\n## Classes\n"
    yield from (f"```{{eval-rst}}\n.. autoclass:: secateur.{name}\n   :members:\n```" for name in classes)
    for name in [*modules, *MODULES]:
        path = getattr(secateur, name).__name__  # of schedule: secateur.experiments.schedule
        options = f":members:\n   :exclude-members: {','.join(public)}"  # these are above
        yield f"\n## secateur.{name}\n\n```{{eval-rst}}\n.. automodule:: {path}\n   {options}\n```"


def commands() -> Iterator[str]:
    """Yield the `--help` text of every command, 80 columns wide."""
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
    """Append the generated text to its page."""
    if page in GENERATED:
        source[0] += "\n".join(["", *GENERATED[page](), ""])


def skip_deprecated(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave old spellings out of the reference."""
    return True if (inspect.getdoc(obj) or "").startswith("Deprecated") else None


def shorten_defaults(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Replace a default that is a function by dots: its representation says nothing."""
    return signature and re.sub(r"<(function [^>]*>|factory)>?", "...", signature), result


def visit_formula(translator: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML, which browsers display without scripts."""
    block = isinstance(node, nodes.math_block)
    formula = convert(node.astext(), display="block" if block else "inline")
    translator.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def check_offline(app: Sphinx, failure: Exception | None) -> None:
    """Fail the build if a page or a style sheet fetches anything: the site must work without a network."""
    if failure:
        return
    for file in sorted(Path(app.outdir).rglob("*")):
        fetched = {".html": FETCHED, ".css": FETCHED_BY_STYLE}.get(file.suffix)
        found = fetched and fetched.search(file.read_text())
        if found:
            raise SphinxError(f"{file} fetches from elsewhere: {found[0]}")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_generated)
    app.connect("autodoc-skip-member", skip_deprecated)
    app.connect("autodoc-process-signature", shorten_defaults)
    app.connect("build-finished", check_offline)
    app.add_html_math_renderer("mathml", (visit_formula, None), (visit_formula, None))
