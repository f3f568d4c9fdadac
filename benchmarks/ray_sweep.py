"""Run a small sweep on Ray, kill the worker of its first task, and compare with the same sweep in this process.

python benchmarks/ray_sweep.py          # needs ray; writes results/ray_sweep.json
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from environment import RESULTS, options, prepare, tests_on_path, write_record


def main() -> None:
    """Sweep twice and compare the result files."""
    options(__doc__).parse_args()
    prepare(1)
    tests_on_path()
    import ray

    from secateur.experiments.sweep import prepare as prepare_run
    from secateur.experiments.sweep import sweep
    from support.small_runs import Fragile, fingerprints, small, write_digits

    on_ray = sys.modules["secateur.experiments.sweep"]._on_ray
    paths = os.pathsep.join(filter(None, [str(RESULTS.parent / "tests"), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data, recipe = write_digits(root / "data"), small(root / "recipe")
        torch.set_num_threads(1)
        sweep(recipe, root / "local", data_root=data)
        prepare_run(recipe, root / "ray", resume=False)
        environment = {"env_vars": {"PYTHONPATH": paths}}
        started = time.perf_counter()
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env=environment)
        try:
            on_ray([Fragile(recipe, 0, None, root / "ray", data)], None, lambda name: None)
            killed = (root / "ray" / "died-0").exists()
            sweep(recipe, root / "ray", engine="ray", resume=True, data_root=data)
        finally:
            ray.shutdown()
        seconds = time.perf_counter() - started
        same = fingerprints(root / "local") == fingerprints(root / "ray")
    record = {
        "what": "a sweep of two networks on Ray whose first worker was killed, against one in a single process",
        "worker_killed": killed,
        "same": same,
        "seconds_on_ray": round(seconds, 1),
    }
    write_record("ray_sweep", record)
    print(f"worker killed: {killed}, same result files: {same}, {seconds:.0f} s on Ray")
    sys.exit(0 if killed and same else 1)


if __name__ == "__main__":
    main()
