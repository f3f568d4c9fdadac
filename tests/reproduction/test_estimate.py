"""What is left to run, and its estimated time."""

from __future__ import annotations

from pathlib import Path

import pytest

from secateur.experiments import recipe as recipes
from secateur.reproduction.estimate import Speed, in_words, tasks
from support.reproduced_runs import write_run
from support.small_runs import write_digits


def test_only_what_is_missing_is_listed(tmp_path: Path) -> None:
    recipe = recipes.read("lenet5-quick", ["methods=[pfp, ft]", "networks=2", "targets=[0.5, 0.7]"])
    data = write_digits(tmp_path / "data")
    assert [(task.network, task.method, task.left) for task in tasks(recipe, tmp_path / "none", data)] == [
        (0, None, 1), (1, None, 1), (0, "pfp", 2), (0, "ft", 2), (1, "pfp", 2), (1, "ft", 2),
    ]  # fmt: skip
    folder = write_run(tmp_path, "lenet5-quick", [(1.0, 1.0)], {"pfp": [[(0.5, 1, 1)], [(0.7, 1, 1)]]})
    left = tasks(recipe, folder, data)
    wanted = [(0, None), (1, None), (0, "ft"), (1, "pfp"), (1, "ft")]  # ft needs the original, which is not stored
    assert [(task.network, task.method) for task in left] == wanted
    assert all(task.seconds is not None and task.seconds > 0 for task in left)
    assert tasks(recipes.read("lenet5-quick", ["targets=[0.5, 0.7]"]), folder, data) == []


def test_more_epochs_take_more_time(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    short, long = (
        tasks(recipes.read("lenet5-quick", [f"train.epochs={n}", "train.milestones=[]"]), tmp_path / "x", data)[0]
        for n in (1, 500)
    )
    assert short.seconds is not None and long.seconds is not None and long.seconds > 20 * short.seconds


def test_without_data_the_time_is_unknown(tmp_path: Path) -> None:
    found = tasks(recipes.read("lenet5-quick"), tmp_path / "runs", tmp_path)
    assert {task.seconds for task in found} == {None} and in_words(None) == "unknown"


def test_recipes_of_one_network_are_timed_once(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    one, other = (Speed.of(recipes.read(name), data) for name in ("lenet5-quick", "lenet5"))
    assert one is not None and other is not None and one.times is other.times


def test_tracing_is_estimated_from_a_small_network(tmp_path: Path) -> None:
    data = write_digits(tmp_path / "data")
    small, large = (
        Speed.of(recipes.read("lenet300100", [f"network={name}"]), data) for name in ("zoo:lenet300100", "zoo:lenet5")
    )
    assert small is not None and large is not None and 0 < small.times.trace < large.times.trace


def test_data_that_comes_later_is_found(tmp_path: Path) -> None:
    assert Speed.of(recipes.read("lenet5-quick"), tmp_path / "data") is None
    assert Speed.of(recipes.read("lenet5-quick"), write_digits(tmp_path / "data")) is not None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "5 s"), (90, "1.5 min"), (5400, "1.5 h"), (172800, "2.0 days"), (3.6e11, "11,415.5 years")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
