"""A sweep: every network and every method of a recipe, on this machine's processes or on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from secateur.errors import SecateurError, UsageError
from secateur.files import write_whole
from secateur.loop import Parts, prune_and_retrain, train_original
from secateur.recipe import Recipe, read

Engine = Literal["local", "ray"]
ATTEMPTS = 3  # of a task whose worker was lost


@dataclass(frozen=True)
class Task:
    """One network to train, or one to prune with one method. Doing a task again changes nothing."""

    recipe: Recipe
    network: int
    method: str | None
    folder: Path
    data_root: Path | None

    @property
    def name(self) -> str:
        return f"network {self.network}, {self.method or 'training'}"

    def run(self, threads: int, progress: bool = False) -> str:
        """Do it on so many threads; gives its name."""
        torch.set_num_threads(threads)
        data = Parts.of(self.recipe, self.data_root)
        if self.method is None:
            train_original(self.recipe, self.network, self.folder, data, progress=progress)
        else:
            prune_and_retrain(self.recipe, self.network, self.method, self.folder, data, progress=progress)
        return self.name


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
    """Train, prune and retrain all that the recipe asks for; gives the folder with the records.

    >>> sc.sweep("lenet5-quick", "runs/lenet5-quick", jobs=2)

    recipe: what `recipe.read` gave, or a name or file for it.
    folder: where everything goes; `runs/NAME` if not given.
    resume: go on with a folder that is there; without it such a folder is refused.
    jobs: processes on this machine; the cores are shared out among them.
    address: of a Ray cluster; otherwise Ray starts one on this machine.
    done: called with the name of each finished task.
    """
    recipe = recipe if isinstance(recipe, Recipe) else read(recipe)
    folder = Path(folder or Path("runs") / recipe.name).resolve()
    prepare(recipe, folder, resume)
    stages: list[list[Task]] = [
        [Task(recipe, number, None, folder, data_root) for number in range(recipe.networks)],
        [Task(recipe, n, method, folder, data_root) for n in range(recipe.networks) for method in recipe.methods],
    ]
    Parts.of(recipe, data_root)  # missing data is said here, once, before any worker starts
    for tasks in stages:
        if engine == "ray":
            _on_ray(tasks, address, done)
        elif jobs == 1:
            for task in tasks:
                done(task.run(torch.get_num_threads(), progress))
        else:
            _on_processes(tasks, jobs, done)
    return folder


def prepare(recipe: Recipe, folder: Path, resume: bool) -> None:
    """Make the folder of a run, or see that it is one of this recipe."""
    settings = folder / "recipe.json"
    if settings.exists():
        if not resume:
            raise UsageError(f"there is a run in {folder}", remedy="go on with --resume, or give another folder")
        if settings.read_text() != recipe.to_json():
            raise UsageError(
                f"the run in {folder} was started with other settings",
                remedy="give the same recipe and --set values, or another folder; recipe.json there has the old ones",
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(settings, recipe.to_json())


def _on_processes(tasks: Sequence[Task], jobs: int, done: Callable[[str], None]) -> None:
    """Several processes, each with its share of the cores; the tasks of one that dies are run again."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    left = list(tasks)
    for _ in range(ATTEMPTS):
        left = _round(left, jobs, threads, done)
        if not left:
            return
    raise SecateurError(
        f"a worker process died {ATTEMPTS} times, last in {', '.join(task.name for task in left)}",
        remedy="it may have run out of memory: use fewer --jobs; --resume goes on from here",
    )


def _round(tasks: list[Task], jobs: int, threads: int, done: Callable[[str], None]) -> list[Task]:
    """Run the tasks; give those whose worker was lost."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(task.run, threads): task for task in tasks}
        left = dict(futures)
        try:
            while left:
                finished, _ = wait(left, return_when=FIRST_COMPLETED)
                for future in finished:
                    name = future.result()
                    del left[future]
                    done(name)
        except BrokenProcessPool:
            return [task for future, task in left.items()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return []


def _on_ray(tasks: Iterable[Task], address: str | None, done: Callable[[str], None]) -> None:
    try:
        import ray
    except ImportError as error:
        raise SecateurError("Ray is not installed", remedy="pip install 'secateur[ray]'") from error
    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=False, log_to_driver=False)
    remote: Any = ray.remote(num_cpus=1, max_retries=ATTEMPTS)(_run_task)
    waiting = [remote.remote(task) for task in tasks]
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        try:
            done(ray.get(ready[0]))
        except ray.exceptions.RayTaskError as error:
            raise SecateurError(str(error.cause), remedy="mend it; --resume goes on from here") from error


def _run_task(task: Task) -> str:
    return task.run(threads=1)
