"""The code in the README and in the docs runs, and prints what the page shows.

UPDATE_DOCS=1 pytest -n 0 tests/test_docs.py      # write what is printed into the pages instead
DOCS_DATA=DIR pytest -n 0 tests/test_docs.py      # run the CIFAR-10 tutorial on real data and weights in DIR
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from torch import Tensor

import secateur as sc
from secateur import embedded
from secateur.embedded import digits, lenet5
from secateur.experiments import recipe
from secateur.zoo.libraries import library, missing_operators
from secateur.zoo.names import build
from support import notebooks
from support.docs_snippets import (
    PAGES,
    ROOT,
    Snippet,
    agrees,
    nearly_agrees,
    run_command,
    run_python,
    same_words,
    snippets,
    write_file,
    write_shown,
)

# torch's exporters use what torch or Python have deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

REPOSITORY = "https://github.com/secateur/secateur/blob/main/"  # where links of the README lead
TUTORIAL = "tutorial-cifar.md"
REAL_DATA = os.environ.get("DOCS_DATA")
# Names that the reader of a page brings along.
BROUGHT = {
    "README.md": {
        "model": lenet5,
        "images": lambda: few_digits("calibration")[0],
        "build_original_model": lambda: lenet5,
    },
}
# These pages see 64 of the 512 calibration digits and 500 of the 2,000 test digits here, so only words are compared.
FEW_DIGITS = {"README.md"}
# Replacements in pages that would take long.
SHORTER = {
    "experiments.md": {"epochs=182": "epochs=1", "milestones=(91, 136)": "milestones=()"},
    TUTORIAL: {} if REAL_DATA else {"epochs=5, lr=0.02": "epochs=1, lr=1e-9"},  # on noise: the networks must not part
    "export.md": {  # without a C++ compiler; tests/storage/test_export.py compiles for real
        "torch.compile(res.model)": 'torch.compile(res.model, backend="eager")'
    },
}
# Pages that run on noise in the layout of CIFAR-10, so only words are compared.
STAND_INS = {"experiments.md", *([] if REAL_DATA else [TUTORIAL])}
# Commands that are not run, and why.
TRAINS = "trains for minutes to hours; tests/cli/test_runs.py has a small recipe"
NOT_RUN = {
    (
        "experiments.md",
        "secateur sweep lenet5-quick --data DIR # train, prune and retrain; writes runs/lenet5-quick",
    ): TRAINS,
    ("experiments.md", "secateur report runs/lenet5-quick # the results so far"): TRAINS,
    ("report.md", "secateur report runs/lenet5-quick small.safetensors --out both.html --force"): TRAINS,
    (
        "experiments.md",
        "secateur reproduce table-lenet --plan # what is left to run, and how long it takes on this machine",
    ): TRAINS,
    ("experiments.md", "secateur reproduce table-lenet --runs runs # run or resume it, then write the table"): TRAINS,
    ("experiments.md", "secateur reproduce all --quick # miniatures of all of them"): TRAINS,
    (
        "experiments.md",
        "secateur reproduce table-lenet --from results/reproduction # the same, but run only what is not stored there",
    ): TRAINS,
    ("reproduction.md", "secateur reproduce table-lenet --plan # what is missing, and how long it takes"): TRAINS,
    (
        "reproduction.md",
        "secateur reproduce table-lenet --runs runs --from results/reproduction # run what is missing, write the table",
    ): TRAINS,
    ("experiments.md", "secateur train resnet20 --set train.epochs=20 --out runs/short"): TRAINS,
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
    if name in STAND_INS:
        monkeypatch.setenv("SECATEUR_DATA", str(tmp_path))
        write_cifar(tmp_path)
        write_resnet20(tmp_path / "weights")
    elif name == TUTORIAL and REAL_DATA:
        monkeypatch.setenv("SECATEUR_DATA", REAL_DATA)
        (tmp_path / "weights").symlink_to(Path(REAL_DATA, "weights"))
    if name in FEW_DIGITS:
        monkeypatch.setattr(embedded, "digits", few_digits)
    names = {"__name__": "__main__", **{key: make() for key, make in BROUGHT.get(name, {}).items()}}
    code = [snippet for snippet in snippets(PAGES[name]) if snippet.kind == "python"]
    for long in SHORTER.get(name, {}):
        assert any(long in snippet.text for snippet in code), f"{long!r} is no longer on the page"
    printed = {snippet: run_python(shorter(snippet, name), PAGES[name], names) for snippet in code}
    check_shown(name, printed)
    for comment in re.findall(r"print\(.*\) +# (\d.*)", "".join(snippet.text for snippet in code)):
        assert comment in "".join(printed.values())


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
    check_shown(name, {snippet: run_command(snippet) for snippet in ours})
    for snippet in code:
        if snippet.words[0] != "secateur":
            check_program(snippet.words)


@pytest.mark.parametrize("name", ["tutorial-notebook.ipynb"])
def test_notebooks(name: str, tmp_path: Path) -> None:
    """The stored outputs have the same words and figures as those of a run."""
    path = ROOT / "docs" / name
    run = notebooks.execute(path, tmp_path)
    if os.environ.get("UPDATE_DOCS"):
        notebooks.write(path, run)
    stored = notebooks.shown(notebooks.read(path))
    assert len(stored) >= 8 and stored.count("figure") >= 3
    for expected, found in zip(stored, notebooks.shown(run), strict=True):
        assert same_words(expected, found)


@pytest.mark.parametrize("name", page_params("yaml"))
def test_recipes(name: str, tmp_path: Path) -> None:
    for snippet in snippets(PAGES[name]):
        if snippet.kind == "yaml":
            (tmp_path / "mine.yaml").write_text(snippet.text)
            assert recipe.read(tmp_path / "mine.yaml").name == "mine"


def test_commands_that_are_not_run_are_on_their_page() -> None:
    there = {(name, snippet.text) for name, path in PAGES.items() for snippet in snippets(path)}
    assert set(NOT_RUN) <= there


@pytest.mark.parametrize("name", PAGES)
def test_links(name: str) -> None:
    for target in links(PAGES[name]):
        path, _, anchor = target.removeprefix(REPOSITORY).partition("#")
        if re.match(r"\w+:", path):
            continue
        file = (PAGES[name].parent / path).resolve() if path else PAGES[name]
        assert file.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name} links to {target}"


@pytest.mark.parametrize("name", PAGES)
def test_modules_and_files_that_a_page_names_exist(name: str) -> None:
    text = PAGES[name].read_text()
    for path in re.findall(r"`(secateur(?:\.\w+)+)", text):
        pkgutil.resolve_name(path)
    for path in re.findall(r"`(?:python )?((?:benchmarks|results|tests|src)/[\w./]+)", text):
        assert (ROOT / path).exists(), f"{name} names {path}"


def test_the_readme_works_on_pypi_too() -> None:
    """Whose page has no files beside it: every link and every image is an address."""
    assert all(re.match("https://", target) for target in links(PAGES["README.md"]))
    images = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", PAGES["README.md"].read_text())
    assert images and all(one.startswith("https://raw.githubusercontent.com/secateur/secateur/main/") for one in images)
    assert all((ROOT / one.partition("/main/")[2]).exists() for one in images)
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"].startswith(REPOSITORY) and REPOSITORY.startswith(urls["Homepage"])


def test_every_page_can_be_reached_from_the_index() -> None:
    linked = {target.partition("#")[0] for target in links(PAGES["index.md"])}
    assert {name for name, path in PAGES.items() if path.parent.name == "docs"} - {"index.md"} <= linked


@pytest.mark.parametrize(
    "fence", ["```sh\nsecateur inspect \\\n  x\nsecateur doctor\n```", "    secateur inspect x\n    secateur doctor"]
)
def test_snippets_are_found(fence: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(
        f"```python\n# a.py\nx = 1\n```\n\n    not output\n\n```python\nprint(x)\n```\n\ntext\n\n```text\n1\n```\n\n"
        f"{fence}\n\n```text timings\n2 ms\n```\n"
    )
    file, code, inspect, doctor = snippets(tmp_path / "page.md")
    assert [s.kind for s in (file, code, inspect, doctor)] == ["file", "python", "command", "command"]
    assert [s.shown for s in (file, code, inspect, doctor)] == [None, "1\n", None, "2 ms\n"]
    assert [s.timings for s in (code, doctor)] == [False, True]
    assert (inspect.text, doctor.text) == ("secateur inspect x", "secateur doctor")


@pytest.mark.parametrize(
    "text", ["```perl\nprint 1\n```", "```text\n1\n```", "```sh\nmake\n```\n```text\n1\n```\n```text\n2\n```"]
)
def test_blocks_that_are_neither_code_nor_output_are_errors(text: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(ValueError, match=r"page\.md:"):
        snippets(tmp_path / "page.md")


def test_code_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="secateur inspect zoo:nothing"):
        run_command(Snippet("command", "secateur inspect zoo:nothing", 1))
    with pytest.raises(ZeroDivisionError):
        run_python(Snippet("python", "1 / 0", 1), tmp_path / "page.md", {})
    with pytest.raises(AssertionError):
        check_program(["make", "coffee"])


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a  b\nc", "a b c\n"),
        ("group\n─────\nconv1", "group ── conv1"),
        ("1,024 samples, to 1e-07", "1,030 samples, to 3.2e-07"),
        ("first ...\nlast", "first of\nmany\nlast"),
        ("...: 3.5 s", "net: 3.51 s"),
    ],
)
def test_output_agrees(shown: str, printed: str) -> None:
    assert agrees(shown, printed)


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("a b", "a b c"),
        ("conv1 20", "conv2 20"),
        ("4 of 5", "5 of 5"),
        ("1,024 samples", "1,124 samples"),
        ("first ...\nlast", "first of\nmany"),
        ("to 0.1", "to -"),
    ],
)
def test_output_does_not_agree(shown: str, printed: str) -> None:
    assert not agrees(shown, printed)


def test_timings_agree_whatever_they_are() -> None:
    assert agrees("99.1 % in 12.3 ms (1 to 2) of conv1", "99.2 % in 0.4 ms (8 to 90) of conv1", timings=True)
    assert agrees("1.3 times as fast", "no measurable gain: 1.1 times as fast", timings=True)
    assert not agrees("99.1% in 12.3 ms", "89.1% in 12.3 ms", timings=True)
    assert not agrees("12.3 ms of conv1", "12.3 ms of conv2", timings=True)
    assert not agrees("12.3 ms", "12.3 s", timings=True)


def test_measurements_agree_if_they_are_near() -> None:
    assert nearly_agrees("fc1  500 483 3.9e-06", "fc1  500 478 3.39e-06")
    assert nearly_agrees("fc1 20 -\nfc2 8 0.1", "fc2 9 0.12\nfc1 20 -")
    assert nearly_agrees("0.25; 7 lost, 1 gained", "0.35; 8 lost, 2 gained")
    assert nearly_agrees("70% in 1.3 s", "65% in 9 s", timings=True)
    assert not nearly_agrees("fc1 500 483", "fc1 500 183")
    assert not nearly_agrees("divergence 3.9e-06", "divergence 3.9e-04")
    assert not nearly_agrees("conv1 20", "conv2 20")
    assert not nearly_agrees("70% in 1.3 s", "30% in 1.3 s", timings=True)


def test_words_are_the_same_whatever_the_numbers_are() -> None:
    assert same_words("ft 20 of 30 (99.1%)\npfp 50 %", "pfp 1 %\nft - of 5e-9 (1%)")
    assert not same_words("20 channels", "20 units")
    assert not same_words("20 channels", "20 channels left")


def test_shown_output_that_is_wrong_is_an_error_or_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1)\n```\n\n```text\n2\n```\n\n```python\nprint(3)\n```\n\n```text\n4\n5\n```\nend\n"
    )
    monkeypatch.setitem(PAGES, page.name, page)
    one, three = snippets(page)
    monkeypatch.delenv("UPDATE_DOCS", raising=False)
    with pytest.raises(AssertionError, match="shows"):
        check_shown(page.name, {one: "1\n", three: "3\n"})
    monkeypatch.setenv("UPDATE_DOCS", "1")
    check_shown(page.name, {one: "1\n1\n", three: "3\n"})
    assert page.read_text() == (
        "```python\nprint(1)\n```\n\n```text\n1\n1\n```\n\n```python\nprint(3)\n```\n\n```text\n3\n```\nend\n"
    )


def few_digits(part: Literal["test", "calibration"]) -> tuple[Tensor, Tensor]:
    images, labels = digits(part)
    count = {"calibration": 64, "test": 500}[part]
    return images[:count], labels[:count]


def shorter(snippet: Snippet, name: str) -> Snippet:
    text = snippet.text
    for long, short in SHORTER.get(name, {}).items():
        text = text.replace(long, short)
    return replace(snippet, text=text)


def check_shown(name: str, printed: dict[Snippet, str]) -> None:
    """Fail if a page shows other output than was printed; with UPDATE_DOCS, write the printed output into the page."""
    wrong = {}
    update = bool(os.environ.get("UPDATE_DOCS"))  # to exactly what is printed here
    for snippet, text in printed.items():
        if snippet.shown is None:
            continue
        if name in FEW_DIGITS | STAND_INS:
            right = same_words(snippet.shown, text)
        elif snippet.measured and not update:
            right = nearly_agrees(snippet.shown, text, timings=snippet.timings)
        else:
            right = agrees(snippet.shown, text, timings=snippet.timings)
        if not right:
            wrong[snippet] = text
    if wrong and update:
        write_shown(PAGES[name], wrong)
        return
    for snippet, text in wrong.items():
        raise AssertionError(f"{name}, line {snippet.line}, shows:\n{snippet.shown}\nand prints:\n{text}")


def check_program(words: list[str]) -> None:
    """Fail if a command of another program asks for a target, file or extra that does not exist; it is not run."""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[:2] == ["pip", "install"], words
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.fullmatch(r"(?:\.|secateur)(?:\[(\w+)\])?", words[2])
        assert named and (named[1] is None or named[1] in extras), words


def links(page: Path) -> list[str]:
    tokens = [child for token in MarkdownIt().parse(page.read_text()) for child in token.children or []]
    return [str(token.attrs["href"]) for token in tokens if token.type == "link_open"]


def anchors(page: Path) -> set[str]:
    tokens = MarkdownIt().parse(page.read_text())
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.fixture(scope="session")
def pruned_lenet(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """Return a function that makes the file `secateur prune zoo:lenet5` writes, which several pages start from."""
    made = tmp_path_factory.mktemp("pruned") / "small.safetensors"
    res = sc.prune(lenet5(), digits("calibration")[0], {"params": "30%"})
    sc.save(made, res, architecture="zoo:lenet5")
    return lambda path: os.link(made, path)


def bring_files(folder: Path) -> None:
    """Write the files that commands read: a network with its weights, images, data, and the repository's own."""
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
    """Write noise in the layout of CIFAR-10: 40 images for training and 400 for testing."""
    (root / "cifar-10-batches-py").mkdir()
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        count = 400 if name == "test_batch" else 8
        pixels = np.random.default_rng(number).integers(0, 256, (count, 3072), dtype=np.uint8)
        content = {b"labels": [label % 10 for label in range(count)], b"data": pixels}
        (root / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(content, protocol=4))


def write_resnet20(folder: Path) -> None:
    """Write random weights in the form of the published ResNet20: a checkpoint with names from nn.DataParallel."""
    folder.mkdir()
    state = {f"module.{name}": value for name, value in build("zoo:resnet20").state_dict().items()}
    torch.save({"state_dict": state}, folder / "resnet20-12fca82f.th")


def test_the_script_for_yolo(tmp_path: Path) -> None:
    """Prune, train, validate and export a YOLO; only where ultralytics is installed."""
    pytest.importorskip("ultralytics")
    library("torchvision")
    if missing_operators():
        pytest.skip("torchvision has no compiled operators, which the validation of ultralytics needs")
    words = [sys.executable, ROOT / "docs" / "prune_yolo.py", "--out", tmp_path / "yolo"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # several threads of several tests would wait for each other
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False, env=one_thread)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "verified: True" in done.stdout and "mAP50 after training" in done.stdout
    assert (tmp_path / "yolo" / "pruned.onnx").exists()


@pytest.mark.parametrize("package", ["segmentation_models_pytorch", "timm", "lightning"])
def test_the_scripts_for_training_loops(package: str, tmp_path: Path) -> None:
    """Train, prune, train on and export; only where the package is installed."""
    if any(importlib.util.find_spec(one) is None for one in (package, "timm")):
        pytest.skip(f"{package} is not installed")
    name = "prune_smp.py" if package.startswith("seg") else "prune_timm.py"
    words = [sys.executable, ROOT / "docs" / name, "--out", tmp_path / "out", "--epochs", "1"]
    words += ["--lightning"] if package == "lightning" else []
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # several threads of several tests would wait for each other
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False, env=one_thread)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "trained on: " in done.stdout and (tmp_path / "out" / "pruned.onnx").exists()
