"""Every snippet of the README and the docs runs, and prints what the page shows where that can be known."""

from __future__ import annotations

import os
import pickle
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from docs_snippets import PAGES, ROOT, Snippet, run_command, run_python, snippets, write_file
from markdown_it import MarkdownIt
from torch import Tensor

import secateur as sc
from secateur import embedded, recipe
from secateur.embedded import digits, lenet5

# torch's exporters use what torch or Python have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

# Names that the reader of a page brings along.
BROUGHT = {
    "README.md": {
        "model": lenet5,
        "images": lambda: few_digits("calibration")[0],
        "build_original_model": lambda: lenet5,
    },
}
# Where a page takes long, what is changed to run it here. These see 64 of the 512 digits, and 500 of the 2,000:
FEW_DIGITS = {"README.md", "bench.md", "certificates.md", "export.md", "files.md", "methods.md", "prune.md", "start.md"}
SHORTER = {
    "README.md": {"sc.latency(small, example)": "sc.latency(small, example, runs=2)"},
    "method.md": {'"derand" else 5)': '"derand" else 1)'},  # one seed instead of five
    "experiments.md": {"epochs=182": "epochs=1", "milestones=(91, 136)": "milestones=()"},  # and 36 images for CIFAR-10
    "export.md": {
        "torch.compile(res.model)": 'torch.compile(res.model, backend="eager")'
    },  # no C++; test_export has it
}
# Commands that are not run, and why.
TRAINS = "trains for minutes to hours; tests/cli/test_runs.py has a small recipe"
NOT_RUN = {
    ("README.md", "secateur inspect torchvision:resnet18"): "docs/inspect.md has it too",
    (
        "experiments.md",
        "secateur sweep lenet5-quick --data DIR # train, prune and retrain; writes runs/lenet5-quick",
    ): TRAINS,
    ("experiments.md", "secateur report runs/lenet5-quick # what was found so far"): TRAINS,
    ("experiments.md", "secateur train resnet20 --set train.epochs=20 --out runs/short"): TRAINS,
}
# What of the shown output must be printed, by page: not times, and no figures of a default that may change.
SHOWN = {
    "bench.md": r"zoo:lenet5 +\S+ k +\S+ M",
    "concepts.md": r"\w+: \d+ channels.*",
    "inspect.md": r".+",
    "method.md": r"eps \d.*",
    "plan.md": r".+",
    "start.md": r"(group|conv\d|fc\d) .*",
    "torch-pruning.md": r".+",
}
NETWORK = """
from torch import nn

def make():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(16, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )

make_network = make
"""
BATCHES = """
import torch

def batches():
    return [(torch.rand(8, 3, 32, 32), torch.zeros(8))]
"""


def page_params(kind: str) -> list[str]:
    return [name for name, path in PAGES.items() if any(snippet.kind == kind for snippet in snippets(path))]


@pytest.mark.parametrize("name", page_params("python"))
def test_python(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "experiments.md":
        write_cifar(tmp_path)
        monkeypatch.setenv("SECATEUR_DATA", str(tmp_path))
    if name in FEW_DIGITS:
        monkeypatch.setattr(embedded, "digits", few_digits)
    names = {"__name__": "__main__", **{key: make() for key, make in BROUGHT.get(name, {}).items()}}
    code = [snippet for snippet in snippets(PAGES[name]) if snippet.kind == "python"]
    for long in SHORTER.get(name, {}):
        assert any(long in snippet.text for snippet in code), f"{long!r} is no longer on the page"
    printed = "".join(run_python(shorter(snippet, name), PAGES[name], names) for snippet in code)
    check_shown(name, code, printed)
    for comment in re.findall(r"print\(.*\) +# (\d.*)", "".join(snippet.text for snippet in code)):
        assert comment in printed


@pytest.mark.parametrize("name", page_params("command"))
def test_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruned_lenet: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = [snippet for snippet in snippets(PAGES[name]) if snippet.kind == "command"]
    ours = [s for s in code if s.words[0] == "secateur" and (name, s.text) not in NOT_RUN]
    if name in FEW_DIGITS:
        monkeypatch.setattr(embedded, "digits", few_digits)
    if ours:
        bring_files(tmp_path)
    if not any("--out small.safetensors" in snippet.text for snippet in ours):
        pruned_lenet(tmp_path / "small.safetensors")
    for snippet in snippets(PAGES[name]):
        if snippet.kind == "file":
            write_file(snippet, tmp_path)
    check_shown(name, code, "".join(run_command(snippet) for snippet in ours))
    for snippet in code:
        if snippet.words[0] != "secateur":
            check_program(snippet.words)


@pytest.mark.parametrize("name", page_params("yaml"))
def test_recipes(name: str, tmp_path: Path) -> None:
    for snippet in snippets(PAGES[name]):
        if snippet.kind == "yaml":
            (tmp_path / "mine.yaml").write_text(snippet.text)
            assert recipe.read(tmp_path / "mine.yaml").name == "mine"


def test_what_is_not_run_is_there() -> None:
    there = {(name, snippet.text) for name, path in PAGES.items() for snippet in snippets(path)}
    assert set(NOT_RUN) <= there


@pytest.mark.parametrize("name", PAGES)
def test_links(name: str) -> None:
    for target in links(PAGES[name]):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert file.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name} links to {target}"


def test_every_page_can_be_reached() -> None:
    linked = {target.partition("#")[0] for target in links(PAGES["index.md"])}
    assert {name for name, path in PAGES.items() if path.parent.name == "docs"} - {"index.md"} <= linked


@pytest.mark.parametrize("text", ["", "a line\n", "    secateur inspect x\n    secateur doctor\n\n    shown\n"])
def test_snippets_are_found(text: str, tmp_path: Path) -> None:
    fence = "```python\n# a.py\nx = 1\n```\n\n    output\n\n```python\nprint(x)\n```\n"
    (tmp_path / "page.md").write_text(f"{fence}\ntext\n\n{text}")
    found = snippets(tmp_path / "page.md")
    assert [(s.kind, s.shown) for s in found[:2]] == [("file", "output\n\n"), ("python", "")]
    assert [(s.text, s.shown) for s in found[2:]] == (
        [("secateur inspect x", ""), ("secateur doctor", "shown\n\n")] if "secateur" in text else []
    )


def test_what_cannot_be_run_is_seen(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```perl\nprint 1\n```\n")
    with pytest.raises(ValueError, match="perl"):
        snippets(tmp_path / "page.md")
    with pytest.raises(AssertionError, match="secateur inspect zoo:nothing"):
        run_command(Snippet("command", "secateur inspect zoo:nothing", 1))
    with pytest.raises(ZeroDivisionError):
        run_python(Snippet("python", "1 / 0", 1), tmp_path / "page.md", {})
    with pytest.raises(AssertionError):
        check_program(["make", "coffee"])
    with pytest.raises(AssertionError):
        check_shown("plan.md", [Snippet("python", "print(1)", 1, shown="2\n")], "1\n")


def few_digits(part: Literal["test", "calibration"]) -> tuple[Tensor, Tensor]:
    images, labels = digits(part)
    count = {"calibration": 64, "test": 500}[part]
    return images[:count], labels[:count]


def shorter(snippet: Snippet, name: str) -> Snippet:
    text = snippet.text
    for long, short in SHORTER.get(name, {}).items():
        text = text.replace(long, short)
    return Snippet(snippet.kind, text, snippet.line)


def check_shown(name: str, code: list[Snippet], printed: str) -> None:
    """Whatever the page shows and can be known beforehand was printed; spaces may differ."""
    lines = [line.strip() for snippet in code for line in snippet.shown.splitlines()]
    for line in lines:
        known = re.match(SHOWN.get(name, r"$."), line)
        assert known is None or squeezed(known[0]) in squeezed(printed), f"{name} shows: {line}\n{printed}"


def check_program(words: list[str]) -> None:
    """Programs other than ours are not run; what they are asked for must be there."""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[:2] == ["pip", "install"], words
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.fullmatch(r"(?:\.|secateur)(?:\[(\w+)\])?", words[2])
        assert named and (named[1] is None or named[1] in extras), words


def squeezed(text: str) -> str:
    return " ".join(text.split())


def links(page: Path) -> list[str]:
    tokens = [child for token in MarkdownIt().parse(page.read_text()) for child in token.children or []]
    return [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]


def anchors(page: Path) -> set[str]:
    tokens = MarkdownIt().parse(page.read_text())
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.fixture(scope="session")
def pruned_lenet(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """The file that several pages go on from, as `secateur prune zoo:lenet5` writes it."""
    made = tmp_path_factory.mktemp("pruned") / "small.safetensors"
    res = sc.prune(lenet5(), digits("calibration")[0][:64], {"params": "30%"})
    sc.save(made, res, architecture="zoo:lenet5")
    return lambda path: os.link(made, path)


def bring_files(folder: Path) -> None:
    """What commands read: a network of the reader's with its weights, pictures, data, and the repository's files."""
    (folder / "src").symlink_to(ROOT / "src")
    (folder / "path" / "to").mkdir(parents=True)
    for path in (folder / "network.py", folder / "path" / "to" / "network.py"):
        path.write_text(NETWORK)
    (folder / "data.py").write_text(BATCHES)
    names: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(NETWORK, names)
    torch.save(names["make"]().state_dict(), folder / "weights.pt")
    write_photos(folder / "photos")


def write_photos(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder.mkdir()
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 256, (80, 70, 3), dtype=np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")


def write_cifar(root: Path) -> None:
    """Noise in the layout of CIFAR-10, eight images a file."""
    (root / "cifar-10-batches-py").mkdir()
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 3072), dtype=np.uint8)
        content = {b"labels": list(range(8)), b"data": pixels}
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol=4))
