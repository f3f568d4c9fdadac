"""A sweep: every network and every method of a recipe, in processes of this machine or on a Ray cluster."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from secateur.checks import known_keywords
from secateur.errors import SecateurError, UsageError
from secateur.experiments.cascade import Parts, prune_and_retrain, train_original
from secateur.experiments.lock import only_run
from secateur.experiments.recipe import Recipe, read
from secateur.optional import require
from secateur.storage.files import read_json, write_atomic

Engine = Literal["local", "ray"]
ATTEMPTS = 3  # for a task whose worker died


@dataclass(frozen=True)
class Task:
    """One network to train, or to prune with one method. Running a finished task again changes nothing."""

    recipe: Recipe
    network: int
    method: str | None
    folder: Path
    data_root: Path | None

    @property
    def name(self) -> str:
        return f"network {self.network}, {self.method or 'training'}"

    def run(self, threads: int, progress: bool = False) -> str:
        """Run the task with this number of threads, and return its name."""
        torch.set_num_threads(threads)
        data = Parts.of(self.recipe, self.data_root)
        if self.method is None:
            train_original(self.recipe, self.network, self.folder, data, progress=progress)
        else:
            prune_and_retrain(self.recipe, self.network, self.method, self.folder, data, progress=progress)
        return self.name


@known_keywords
def sweep(
    recipe: Recipe | str,
    folder: str | Path | None = None,
    *,
    engine: Engine = "local",
    resume: bool = False,
    jobs: int = 1,
    address: str | None = None,
    data_root: Path | None = None,
    progress: bool = False,
    done: Callable[[str], None] = lambda name: None,
) -> Path:
    """Train, prune and retrain every network of a recipe with every method; return the folder with the results.

    >>> sc.sweep("lenet5-quick", "runs/lenet5-quick", jobs=2)

    Args:
        recipe: a recipe, the name of one in the package, or the path of a YAML file.
        folder: where all files are written; `runs/NAME` by default.
        engine: `"local"` for processes of this machine, or `"ray"` for a Ray cluster.
        resume: continue a run in an existing folder; without it such a folder is refused. A folder in which another
            process is at work is always refused.
        jobs: number of processes on this machine, which share its cores.
        address: of a Ray cluster; by default Ray starts one on this machine.
        data_root: folder of the data sets; by default as for `secateur.data.dataset`.
        progress: show a progress bar on the standard error stream, with one process.
        done: called with the name of each finished task.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    folder = Path(folder or Path("runs") / recipe.name).resolve()
    with only_run(folder):
        prepare(recipe, folder, resume)
        Parts.of(recipe, data_root)  # missing data is reported here, before any worker starts
        for tasks in _stages(recipe, folder, data_root):
            if engine == "ray":
                _on_ray(tasks, address, done)
            elif jobs == 1:
                for task in tasks:
                    done(task.run(torch.get_num_threads(), progress))
            else:
                _on_processes(tasks, jobs, done)
    return folder


def _stages(recipe: Recipe, folder: Path, data_root: Path | None) -> list[list[Task]]:
    """Return the tasks; those of the second stage need the networks of the first."""
    return [
        [Task(recipe, number, None, folder, data_root) for number in range(recipe.networks)],
        [Task(recipe, n, method, folder, data_root) for n in range(recipe.networks) for method in recipe.methods],
    ]


def prepare(recipe: Recipe, folder: Path, resume: bool) -> None:
    """Create the folder of a run, or check that an existing one belongs to this recipe.

    Methods and networks may be added to a run: what is there is not touched.
    """
    settings = folder / "recipe.json"
    if settings.exists():
        if not resume:
            raise UsageError(f"there is already a run in {folder}", remedy="use --resume, or another folder")
        stored = read_json(settings)
        if differences := recipe.differences(stored):
            raise UsageError(
                f"the run in {folder} was started with other settings: {', '.join(differences)}",
                remedy="use another folder, or the recipe and --set values that recipe.json there has",
            )
        methods = tuple(dict.fromkeys((*stored["methods"], *recipe.methods)))
        recipe = replace(recipe, methods=methods, networks=max(stored["networks"], recipe.networks))
        if stored == json.loads(recipe.to_json()):
            return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(settings, recipe.to_json())


def _on_processes(tasks: Sequence[Task], jobs: int, done: Callable[[str], None]) -> None:
    """Run the tasks in several processes with a share of the cores each; those of a process that dies run again."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    left = list(tasks)
    for _ in range(ATTEMPTS):
        left = _round(left, jobs, threads, done)
        if not left:
            return
    raise SecateurError(
        f"a worker process died {ATTEMPTS} times, last in {', '.join(task.name for task in left)}",
        remedy="it may have run out of memory: use fewer --jobs, and --resume to continue",
    )


def _round(tasks: list[Task], jobs: int, threads: int, done: Callable[[str], None]) -> list[Task]:
    """Run the tasks; return those whose worker died."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        left = {pool.submit(task.run, threads): task for task in tasks}
        try:
            while left:
                finished, _ = wait(left, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = future.result()
                    del left[future]
                    done(name)
        except BrokenProcessPool:
            return list(left.values())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return []


def _on_ray(tasks: Iterable[Task], address: str | None, done: Callable[[str], None]) -> None:
    ray = require("ray", install="'secateur[ray]'")
    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    remote = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_run_task)
    waiting = [remote.remote(task) for task in tasks]
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        try:
            done(ray.get(ready[0]))
        except ray.exceptions.RayTaskError as error:
            raise SecateurError(str(error.cause), remedy="fix it, and use --resume to continue") from error


def _run_task(task: Task) -> str:
    return task.run(threads=1)
