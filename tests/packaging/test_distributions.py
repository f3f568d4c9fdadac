"""The sdist holds everything the tests need, and the wheel built from it runs beside its dependencies alone."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from secateur._version import __version__

ROOT = Path(__file__).parents[2]
NAME = f"secateur-{__version__}"
# Reads every kind of data file in the package, and prints where the package is.
READ_DATA_FILES = """
from importlib.resources import files
import secateur
from secateur.embedded import digits, lenet5
from secateur.experiments import recipe

assert len(digits("test")[0]) == 2000 and lenet5()
assert {"lenet5-quick", "resnet20"} <= {recipe.read(name).name for name in recipe.names()}
assert files("secateur.methods.pfp.native").joinpath("shares.cpp").is_file()
assert files("secateur").joinpath("py.typed").is_file()
print(secateur.__file__)
"""


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist and unpack it."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), cwd=ROOT)
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / NAME


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    """Build the wheel from the sdist."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", cwd=sdist)
    return sdist / "dist" / f"{NAME}-py3-none-any.whl"


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, with links to its declared dependencies and to nothing else.

    torch is too large to install again.
    """
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    pip(folder, "install", "--no-deps", "--no-index", str(wheel))
    site = Path(run(folder / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (installed,) = importlib.metadata.distributions(name="secateur", path=[str(site)])
    for path in {path for dependency in dependencies(installed) for path in top_level(dependency)}:
        (site / path.name).symlink_to(path)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = {path.relative_to(ROOT / "src") for path in (ROOT / "src" / "secateur").rglob("*") if path.is_file()}
    assert packed == {path.as_posix() for path in source if "__pycache__" not in path.parts}


def test_the_installed_package_has_its_dependencies_and_data_files(environment: Path) -> None:
    pip(environment, "check")
    assert run(environment / "bin" / "python", "-c", READ_DATA_FILES).startswith(str(environment))


def test_the_installed_command_prunes_a_network(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin" / "secateur"
    assert run(command, "--version").startswith(f"secateur {__version__}, torch ")
    options = "--data embedded:digits --samples 16 --method ft --params 50% --out small.safetensors"
    run(command, "prune", "zoo:lenet5", *options.split(), cwd=tmp_path)
    assert (tmp_path / "small.safetensors").is_file()


def test_the_tests_run_from_the_sdist(sdist: Path) -> None:
    """pytest imports every test file, so none misses a module; it then runs the few that -k selects."""
    chosen = ("-k", "test_errors or test_plan or test_embedded")
    summary = run(sys.executable, "-m", "pytest", "-q", "-n", "0", *chosen, cwd=sdist).splitlines()[-1]
    assert " passed" in summary and " deselected" in summary


def test_packages_that_only_extras_need_are_left_out() -> None:
    found = {dependency.name for dependency in dependencies(distribution("secateur"))}
    assert {"torch", "typer", "sympy"} <= found  # sympy: because torch needs it
    assert found.isdisjoint({"pytest", "timm", "torchvision"})


def dependencies(package: Distribution) -> list[Distribution]:
    """Return what a package requires here, directly or through others, without its extras."""
    found: dict[str, Distribution] = {}
    queue = [package]
    while queue:
        for requirement in map(Requirement, queue.pop().requires or []):
            if requirement.name not in found and (requirement.marker is None or requirement.marker.evaluate()):
                found[requirement.name] = distribution(requirement.name)
                queue.append(found[requirement.name])
    return list(found.values())


def top_level(package: Distribution) -> Iterator[Path]:
    """Yield the files and folders that a package has in site-packages."""
    for file in package.files or []:
        if file.parts[0] not in ("..", "__pycache__"):
            yield Path(str(package.locate_file(file.parts[0])))


def pip(environment: Path, *arguments: str) -> None:
    run(sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), *arguments)


def run(program: str | Path, *arguments: str, cwd: Path | None = None) -> str:
    """Return the output of a program that must succeed. It imports secateur from `cwd` if there is a `src` in it."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    if cwd and (cwd / "src").is_dir():
        variables["PYTHONPATH"] = str(cwd / "src")
    command = [str(program), *arguments]
    done = subprocess.run(command, cwd=cwd, env={**variables, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
