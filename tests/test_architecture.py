"""The house keeps its order: imports in layers, one door to private torch, tests beside what they test.

`pytest -s tests/test_architecture.py` prints the layers.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError
from pathlib import Path
from types import CodeType, FrameType, ModuleType

import pytest

import secateur as sc
from secateur.cli import app
from secateur.embedded import digits, lenet5
from support.small_runs import write_digits, write_recipe

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "secateur"
TESTS = ROOT / "tests"
# Names without an underscore that torch does not document.
UNDOCUMENTED = {"higher_order", "flop_registry"}
DOCUMENTED = {"os._exit"}
# Modules whose tests are in the file of another one, or that hold nothing to test.
TESTED_IN = {
    "certificates/bounds.py": "methods/pfp/test_bounds.py",
    "methods/selection.py": "methods/pfp/test_sampling.py",
    "surgery/optimizer.py": "surgery/test_cut.py",
    "surgery/verify.py": "surgery/test_cut.py",
    "training/epochs.py": "training/test_loop.py",
    "training/learner.py": "training/test_loop.py",
}
NOTHING_TO_TEST = {"_version.py": "one number, which --version prints"}
# Second test files of a module.
MORE_OF = {
    "network/test_forward.py": "network/batches.py",
    "pruning/test_tasks.py": "pruning/prune.py",
    "tracing/test_kept.py": "tracing/trace.py",
}
# Tests of the whole, not of a module.
OF_THE_WHOLE = {"test_architecture.py", "test_docs.py", "test_figures.py", "test_site.py"}
WHOLE_FOLDERS = {"benchmarks", "packaging", "properties"}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


draw = load(ROOT / "docs" / "draw_architecture.py")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return draw.imports(PACKAGE)


def test_modules_import_in_layers(imports: dict[str, set[str]]) -> None:
    found = in_layers(imports)
    for module, used in imports.items():
        assert all(height(one, found) < height(module, found) for one in used), shown(found)


def test_folders_import_in_layers(imports: dict[str, set[str]]) -> None:
    found = in_layers(draw.folders(imports))
    print("", "layers of secateur, the lowest first:", shown(found), sep="\n")
    assert {name for layer in found for name in layer} >= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert height("network", found) < height("pruning", found) < height("cli", found), shown(found)


def test_a_circle_is_found() -> None:
    graph = {"s.a.x": {"s.b.y"}, "s.b.y": set(), "s.b.z": {"s.a.x"}}
    assert in_layers(graph) == [["s.b.y"], ["s.a.x"], ["s.b.z"]]  # no circle of modules, but one of folders
    with pytest.raises(AssertionError, match=r"import each other in a circle: (a > b > a|b > a > b)"):
        in_layers(draw.folders(graph))


def test_imports_are_read_from_the_source(tmp_path: Path) -> None:
    package = write_package(
        tmp_path,
        {
            "__init__.py": "from made.a.one import f",
            "errors.py": "",
            "a/__init__.py": "",
            "a/one.py": "import os\nimport made.errors\nfrom made.b import two as renamed\nf = 1",
            "b/__init__.py": "from .two import g\nfrom .. import errors",
            "b/two.py": "def g():\n    from made.a import one\n",
        },
    )
    assert draw.imports(package) == {
        "made": {"made.a.one"},
        "made.errors": set(),
        "made.a": set(),
        "made.a.one": {"made.errors", "made.b.two"},
        "made.b": {"made.b.two", "made.errors"},
        "made.b.two": {"made.a.one"},
    }


def test_a_reduced_graph_reaches_the_same(imports: dict[str, set[str]]) -> None:
    graph = draw.folders(imports)
    few = draw.reduced(graph)
    assert all(draw.reached(few, name) == draw.reached(graph, name) for name in graph)
    for name, used in few.items():  # and no arrow can be spared
        for one in used:
            assert one not in draw.reached({**few, name: used - {one}}, name)


def test_the_picture_is_up_to_date() -> None:
    drawn = draw.svg(PACKAGE)
    assert drawn == draw.PICTURE.read_text(), "run: python docs/draw_architecture.py"
    for folder in folders():
        assert f">{folder}</text>" in drawn


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py")))
def test_a_folder_says_in_a_few_words_what_it_holds(folder: str) -> None:
    text = draw.description(PACKAGE, folder)
    assert text and len(text.split()) <= 6, f"shorten the first line of {folder}/__init__.py for the picture: {text!r}"


def test_private_torch_is_behind_one_door() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in sources()
        if path.name != "_torch.py"
        for line, name in foreign_privates(ast.parse(path.read_text()))
    }
    assert not found, "move these to secateur/_torch.py, or use a public name:\n" + "\n".join(sorted(found))


@pytest.mark.parametrize(
    "code",
    [
        "from torch.utils import _pytree",
        "from torch.utils._pytree import tree_map",
        "import torch._dynamo",
        "import torch\ntorch._C.x()",
        "from torch import nn\nnn.modules.conv._ConvNd",
        "x._version",
        "def f(x):\n    return x.y()._forward_hooks",
        "getattr(x, '_opname', None)",
        "import torch\ntorch.ops.higher_order.wrap",
        "from torch.utils.flop_counter import flop_registry",
        "from secateur.costs.cost import _hidden",
    ],
)
def test_a_private_name_is_seen(code: str) -> None:
    assert list(foreign_privates(ast.parse(code)))


def test_names_of_ones_own_may_be_private() -> None:
    code = """
from secateur._torch import pytree
from secateur._version import __version__
class A:
    _known: int
    def _f(self, other): return self._set + other._known + other._f(1) + A.__name__
    @classmethod
    def g(cls): cls._h()
    def _h(self): self._set = 1
def getattr_of(x): return getattr(x, "name")
"""
    assert not list(foreign_privates(ast.parse(code)))


def test_the_package_itself_holds_only_names() -> None:
    docstring, *statements = ast.parse((PACKAGE / "__init__.py").read_text()).body
    assert isinstance(docstring, ast.Expr) and isinstance(docstring.value, ast.Constant)
    for one in statements:
        imported = isinstance(one, ast.Import | ast.ImportFrom)
        listed = isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
        deprecated = isinstance(one, ast.FunctionDef) and one.name == "__getattr__"
        assert imported or listed or deprecated, f"secateur/__init__.py has {ast.unparse(one)}"


def test_the_public_names_are_sorted_and_complete() -> None:
    assert sc.__all__ == sorted(sc.__all__)
    body = ast.parse((PACKAGE / "__init__.py").read_text()).body
    ours = [one for one in body if isinstance(one, ast.ImportFrom) and (one.module or "").startswith("secateur")]
    imported = {alias.asname or alias.name for one in ours for alias in one.names}
    assert set(sc.__all__) == imported
    assert all(hasattr(sc, name) for name in sc.__all__)


@pytest.mark.parametrize("path", [path for path in PACKAGE.rglob("*.py") if "__all__ = " in path.read_text()], ids=str)
def test_every_list_of_public_names_names_something(path: Path) -> None:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_module_has_its_tests() -> None:
    missing = [name for name in module_files() if not any((TESTS / one).is_file() for one in mirrors(name))]
    missing = [name for name in missing if not helps_commands(name)]
    unlisted = set(missing) - TESTED_IN.keys() - NOTHING_TO_TEST.keys()
    assert not unlisted, "no test file mirrors " + ", ".join(
        f"{name} (expected tests/{mirrors(name)[0]})" for name in sorted(unlisted)
    )
    stale = (TESTED_IN.keys() | NOTHING_TO_TEST.keys()) - set(missing)
    assert not stale, f"these are gone or have a test file now; take them off the list: {sorted(stale)}"


@pytest.mark.parametrize("name", TESTED_IN)
def test_a_module_without_a_file_of_its_own_is_tested_elsewhere(name: str) -> None:
    """The named file imports it, or uses public names that it defines."""
    tree = ast.parse((TESTS / TESTED_IN[name]).read_text())
    module = module_name(name)
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    public = {one for one in sc.__all__ if getattr(getattr(sc, one), "__module__", "") == module}
    assert module in imported_modules(tree) or used & public, f"{TESTED_IN[name]} does not use {module}"


def test_every_test_file_mirrors_a_module() -> None:
    wanted = {mirror for name in module_files() for mirror in mirrors(name)}
    wanted |= {
        mirror for path in PACKAGE.glob("**/*/__init__.py") for mirror in mirrors(str(path.relative_to(PACKAGE)))
    }
    found = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    stray = {str(name) for name in found if name.parts[0] not in WHOLE_FOLDERS} - wanted - OF_THE_WHOLE
    unlisted = stray - MORE_OF.keys()
    assert not unlisted, f"these mirror no module; name them after the module that they test: {sorted(unlisted)}"
    assert stray == MORE_OF.keys() and set(MORE_OF.values()) <= set(module_files()), "MORE_OF has stale entries"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's own, while exporting
@pytest.mark.parametrize("title", ["sc.prune", "sc.load", "secateur sweep"])
def test_a_road_on_the_page_is_the_road_of_a_call(title: str, tmp_path: Path) -> None:
    """The functions that the page names are called, and for the first time in that order."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.partition(f"## The road of `{title}`")[2].partition("\n## ")[0]
    steps = re.findall(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", section)
    assert len(steps) >= 6, f"the page has no road of {title}"
    called = first_calls(ROADS[title](tmp_path))
    missing = [f"{name} in {file}" for name, file in steps if (file, name) not in called]
    assert not missing, f"{title} does not call {', '.join(missing)}"
    assert sorted(steps, key=lambda step: called.index((step[1], step[0]))) == steps


def prune_digits(folder: Path) -> Callable[[], object]:
    return lambda: sc.prune(lenet5(), digits("calibration")[0][:64], {"params": "40%"})


def load_digits(folder: Path) -> Callable[[], object]:
    path = folder / "small.safetensors"
    sc.save(path, sc.prune(lenet5(), digits("calibration")[0][:64], {"params": "40%"}), architecture="zoo:lenet5")
    return lambda: sc.load(path)


def sweep_digits(folder: Path) -> Callable[[], object]:
    recipe, data = write_recipe(folder, "train: {epochs: 1}\nretrain: {epochs: 1}\n"), write_digits(folder / "data")
    words = ["sweep", str(recipe), "--data", str(data), "--out", str(folder / "run"), "--quiet"]
    return lambda: app(words, standalone_mode=False)


ROADS = {"sc.prune": prune_digits, "sc.load": load_digits, "secateur sweep": sweep_digits}


def first_calls(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Run the work and return the functions of the package, each by file and name, in the order of their first call."""
    codes: dict[int, CodeType] = {}

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            codes.setdefault(id(frame.f_code), frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    package = Path(sc.__file__).parent  # of a wheel, if that is what is tested
    ours = [code for code in codes.values() if Path(code.co_filename).is_relative_to(package)]
    return [(Path(code.co_filename).relative_to(package).as_posix(), code.co_qualname) for code in ours]


def in_layers(graph: Mapping[str, set[str]]) -> list[list[str]]:
    try:
        return draw.layers(graph)
    except CycleError as error:
        raise AssertionError(f"these import each other in a circle: {' > '.join(reversed(error.args[1]))}") from None


def shown(found: list[list[str]]) -> str:
    return "\n".join(f"{number:3}  {', '.join(layer)}" for number, layer in enumerate(found))


def height(name: str, found: list[list[str]]) -> int:
    return next(number for number, layer in enumerate(found) if name in layer)


def folders() -> list[str]:
    return [path.parent.name for path in PACKAGE.glob("*/__init__.py")]


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def module_files() -> list[str]:
    """The modules that should have tests."""
    return [str(path.relative_to(PACKAGE)) for path in sources() if not path.name.startswith("__")]


def mirrors(name: str) -> list[str]:
    """The test files that may mirror a module, the best first: its own, or that of the whole folder it lies in.

    >>> mirrors("channels/rules/norms.py")
    ['channels/rules/test_norms.py', 'channels/test_rules.py', 'channels/rules/test_rules.py']
    """
    path = Path(name)
    found = [path.parent / f"test_{path.stem.lstrip('_')}.py"]
    if path.parent.name:
        found += [folder / f"test_{path.parent.name}.py" for folder in (path.parent.parent, path.parent)]
    return list(map(str, found))


def helps_commands(name: str) -> bool:
    """Whether a module of the command line has no command itself: it is tested through those that have."""
    commands = {command.callback.__module__ for command in app.registered_commands if command.callback}
    return name.startswith("cli/") and module_name(name) not in commands


def module_name(name: str) -> str:
    return "secateur." + name.removesuffix(".py").replace("/", ".")


def imported_modules(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def foreign_privates(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The private names of other modules and objects that a module uses.

    A private attribute belongs to the module if it defines one of that name, or sets it on `self`.
    """
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            own.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            ours = (node.module or "").startswith("secateur")
            names = [alias.name for alias in node.names] + ([] if ours else (node.module or "").split("."))
            names = [name for name in names if not (ours and name in UNDOCUMENTED)]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.Attribute) and node.attr not in own and ast.unparse(node) not in DOCUMENTED:
            names = [node.attr]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            names = [str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        for name in names:
            if (name.startswith("_") and not name.startswith("__")) or name in UNDOCUMENTED:
                yield node.lineno, name


def write_package(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / "made" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "made"
