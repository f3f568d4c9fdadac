"""Pruning from model to result: a smaller network that equals the masked one, and its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur as sc
from secateur import tables
from secateur.embedded import digits, lenet5
from secateur.storage.checkpoint import read_info
from secateur.training import recovery


@pytest.fixture(scope="module")
def pruned() -> sc.Pruned:
    return sc.prune(lenet5(), digits("calibration"), {"params": "25%"}, samples=128, method="pfp")


def test_the_result_is_smaller_verified_and_works(pruned: sc.Pruned) -> None:
    images, labels = digits("test")
    assert pruned.after.params <= 0.25 * pruned.before.params
    assert pruned.after == sc.cost(pruned.model, images[:1])
    assert pruned.verification < 1e-5 and pruned.samples == 128
    with torch.no_grad():
        assert (pruned.model(images).argmax(1) == labels).float().mean() > 0.9


def test_the_plan_replays(pruned: sc.Pruned) -> None:
    again = sc.cut(lenet5(), sc.Plan.from_json(pruned.plan.to_json()))
    for (name, one), (_, other) in zip(pruned.model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_the_original_is_untouched() -> None:
    model = lenet5().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    res = sc.prune(model, digits("calibration"), {"params": "25%"}, samples=16, method="pfp", select="pivotal")
    assert model.training and res.model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_summary_shows_groups_costs_verification_and_notes(pruned: sc.Pruned) -> None:
    lines = pruned.summary().splitlines()
    assert lines[0].split() == ["group", "before", "after", "mass", "eps", "dropped"]
    assert [line.split()[0] for line in lines[2:5]] == ["conv1", "conv2", "fc1"]
    text = " ".join(pruned.summary().split())
    assert "parameters 431.1 k " in text and " PR 7" in text and "Verified: the cut network equals" in text
    assert all(f"Note: {note}" in text for note in pruned.notes)
    assert max(map(len, lines)) <= 100


def test_the_info_is_plain_data(pruned: sc.Pruned) -> None:
    info = json.loads(json.dumps(pruned.info, allow_nan=False))
    assert info["before"]["params"] == 431_080 and info["select"] == "derand"
    assert [group["name"] for group in info["groups"]] == ["conv1", "conv2", "fc1"]


def test_a_result_is_saved_and_loaded(pruned: sc.Pruned, tmp_path: Path) -> None:
    sc.save(tmp_path / "small.safetensors", pruned)
    small = sc.load(tmp_path / "small.safetensors", lenet5())
    images, _ = digits("test")
    with torch.no_grad():
        assert torch.equal(small(images[:50]), pruned.model(images[:50]))


@pytest.mark.parametrize("method", ["pfp", "residual", "ft"])
def test_the_file_has_the_score_of_every_channel(method: str, tmp_path: Path) -> None:
    res = sc.prune(lenet5(), digits("calibration"), {"params": "50%"}, samples=32, method=method)
    sc.save(tmp_path / "small.safetensors", res)
    scores = read_info(tmp_path / "small.safetensors")["scores"]
    assert {name: len(numbers) for name, numbers in scores.items()} == {"conv1": 20, "conv2": 50, "fc1": 500}
    for row in res.rows:
        order = sorted(range(row.before), key=lambda unit: scores[row.name][unit])
        kept = res.plan.kept.get(sc.Slot(f"{row.name}.weight", 0), range(row.before))
        assert set(order[row.before - row.after + 1 :]) <= set(kept), row.name  # of equal numbers either may stay


def test_nothing_to_remove_gives_a_copy() -> None:
    model = lenet5()
    res = sc.prune(model, digits("calibration"), {"params": "100%"}, samples=16)
    assert res.model is not model and res.verification == 0 and res.after == res.before
    assert all(row.after == row.before for row in res.rows)


@pytest.mark.parametrize("method", ["pfp", "residual"])
def test_groups_that_evaluation_does_not_read_stay_whole(tmp_path: Path, method: str) -> None:
    class WithAuxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(1, 8, 5), nn.Linear(8, 10)
            self.c, self.d = nn.Linear(8, 6), nn.Linear(6, 10)

        def forward(self, x: torch.Tensor) -> Any:
            x = torch.relu(self.a(x)).mean((2, 3))
            return (self.b(x), self.d(torch.relu(self.c(x)))) if self.training else self.b(x)

    res = sc.prune(WithAuxiliary(), digits("calibration"), {"params": "80%"}, samples=16, method=method)
    assert {row.name: row.after for row in res.rows}["c"] == 6
    assert any("c: no layer that" in note for note in res.notes)
    assert len(res.model.train()(digits("test")[0][:4])) == 2
    sc.save(tmp_path / "small.safetensors", res)


def test_more_than_one_device_type_is_not_assumed() -> None:
    double = lenet5().double()
    images = digits("calibration")[0].double()
    res = sc.prune(double, images, {"macs": "50%"}, samples=32)
    assert res.verification < 1e-12 and next(res.model.parameters()).dtype == torch.float64


LIMITED = """
import resource, sys
from pathlib import Path
import torch
from torch import nn
import secateur as sc

torch.set_num_threads(1)
torch.manual_seed(0)

def block(a, b):
    return nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()

layers = *block(3, 32), *block(32, 32), *block(32, 32), *block(32, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten()
model, images = nn.Sequential(*layers, nn.Linear(32, 10)).eval(), torch.randn(96, 3, 96, 96)
sc.trace(model, images[:1, :, :16, :16])  # loads the rest of torch
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (int(sys.argv[1]) << 20),) * 2)
try:
    res = sc.prune(model, images, {"macs": "50%"}, samples=48)
    print(res.after.macs / res.before.macs <= 0.5, res.repair is not None, *res.notes)
except sc.SecateurError as error:
    print(error)
"""


def limited(megabytes: int) -> str:
    """Prune in a process that may use this much more memory; a batch alone would take 450 MB with its gradients."""
    command = [sys.executable, "-c", LIMITED, str(megabytes)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # libgomp ends the process if it cannot start another
    return subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread).stdout


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits on memory are those of Linux")
def test_under_a_limit_on_memory_batches_are_smaller() -> None:
    assert limited(350).startswith("True True")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits on memory are those of Linux")
def test_too_little_memory_is_reported_with_the_settings_that_lower_it() -> None:
    printed = limited(20)
    assert (
        printed.startswith("memory: memory ran out")
        and "remedy: lower memory= (bytes; on the command line --memory, MB), use fewer" in printed
    )


WIDE = """
import resource, sys
from pathlib import Path
import torch
from torch import nn
import secateur as sc

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 5000), nn.ReLU(), nn.Linear(5000, 10)).eval()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
sc.trace(model, torch.randn(1, 8))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20),) * 2)
try:
    sc.prune(model, torch.randn(64, 8), {"macs": "50%"})
except sc.SecateurError as error:
    print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits on memory are those of Linux")
def test_what_cannot_fit_is_refused_at_once_with_its_size() -> None:
    command = [sys.executable, "-c", WIDE]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=one_thread).stdout
    assert printed.startswith("memory: the second moments of the 5,000 inputs of 2 and their inverse take about 477 MB")
    assert "this process may use" in printed and "keep=" in printed and "pfp, ft" in printed


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits on memory are those of Linux")
def test_a_repair_that_cannot_fit_is_left_out_at_once_with_its_size() -> None:
    program = WIDE.replace('{"macs": "50%"})', '{"macs": "80%"}, method="ft", repair=True)')
    program = program.replace("    sc.prune(", "    res = sc.prune(").replace("except", "    print(*res.notes)\nexcept")
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=one_thread
    ).stdout
    assert "not repaired: memory: refitting the " in printed and " inputs of 2 takes about" in printed
    assert "allow more memory, or leave the repair out" in printed


@pytest.mark.parametrize("effort", ["quick", "default", "thorough"])
def test_effort_decides_about_trials_and_recovery(effort: Any) -> None:
    images = digits("calibration")[0][:128]
    res = sc.prune(lenet5(), images, {"params": "40%"}, samples=64, effort=effort)
    stages = {row["stage"]: row for row in res.profile}
    assert all(row["seconds"] >= 0 and row["cpu_seconds"] >= 0 for row in res.profile)
    assert {"trace", "moments", "elimination", "cut and verify", "repair: solve", "agreement"} <= stages.keys()
    assert ("trials: estimates" in stages) == (effort == "quick")  # six trials are few enough to be run
    assert ("recovery" in stages) == (effort == "thorough")
    assert any("recovered: output divergence" in note for note in res.notes) == (effort == "thorough")
    assert res.agreement is not None and res.agreement.samples == (32 if effort == "thorough" else 64)  # half chose
    assert recovery.SEEN not in res.notes
    assert res.repair is not None and res.settings is not None and res.settings.effort == effort
    assert "profile" not in res.info and "elimination" in tables.plain(res.profile_table())


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(sc.UsageError, match=r"(?s)effort is 'slow'.*quick, default, thorough"):
        sc.PruneSettings(effort="slow")  # type: ignore[arg-type]


class WithFeatures(nn.Module):
    """Class scores, and beside them the feature map that they are computed from; and a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3), nn.Conv2d(16, 16, 3)
        self.head, self.spare = nn.Linear(16, 5), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        features = self.second(self.first(x).relu()).relu()
        return self.head(features.mean((2, 3))), [features]


def test_free_outputs_are_pruned_compared_certified_and_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network, x = WithFeatures().eval(), torch.randn(96, 1, 10, 10)
    with pytest.raises(sc.SecateurError, match="cannot be met"):
        sc.plan(network, x[:64], budget={"params": "10%"})
    res = sc.prune(network, x, budget={"params": "10%"}, samples=64, free_outputs=[1])
    scores, (features,) = res.model(x)
    assert scores.shape == (96, 5) and features.shape[1] < 16
    assert res.repair is not None and res.agreement is not None and res.agreement.same is not None
    assert "1 layer never runs and stays as it is: spare" in res.summary()
    sc.save(tmp_path / "small.safetensors", res)
    loaded = sc.load(tmp_path / "small.safetensors", WithFeatures()).eval()
    assert torch.equal(loaded(x)[0], scores)
    assert sc.certify(network, loaded, torch.randn(64, 1, 10, 10))["disagreement"].samples == 64
    found = sc.compare(network, x, {"params": ["50%"]}, ["ft", "residual"], free_outputs=[1])
    assert all(row.value is not None for row in found.rows)
    with pytest.raises(sc.UsageError, match="were settled when the graph was traced"):
        sc.prune(network, x, budget={"params": "50%"}, free_outputs=[1], graph=sc.trace(network, x[:1]))


class Segmenter(nn.Module):
    """A small U-Net: two scales and a skip connection; one map of scores for three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.below = nn.Conv2d(1, 12, 3, 1, 1), nn.Conv2d(12, 16, 3, 2, 1)
        self.up, self.last = nn.ConvTranspose2d(16, 12, 2, 2), nn.Conv2d(24, 3, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.first(x).relu()
        return self.last(torch.cat([skip, self.up(self.below(skip).relu()).relu()], 1))


def test_maps_of_scores_are_pruned_by_pixels() -> None:
    torch.manual_seed(0)
    network, x = Segmenter().eval(), torch.randn(96, 1, 8, 8)
    res = sc.prune(network, x, {"macs": "60%"}, samples=64, task="segmentation")
    assert res.model(x).shape == (96, 3, 8, 8) and res.repair is not None
    assert res.agreement is not None and res.agreement.pixels is not None and res.agreement.same is None
    assert "of the pixels" in res.summary() and res.info["settings"]["task"] == "segmentation"
    other = sc.prune(network, x, {"macs": "60%"}, samples=64)
    assert other.agreement is not None and other.agreement.pixels is None
    found = sc.compare(network, x, {"macs": ["60%"]}, ["ft", "residual"], task="segmentation", samples=48)
    assert all(row.value is not None for row in found.rows)
    with pytest.raises(sc.UsageError, match="needs output='module'"):
        sc.prune(network, x, {"macs": "60%"}, task="segmentation", output="graph")
    with pytest.raises(sc.UsageError, match="expected maps of scores"):
        sc.prune(lenet5(), digits("calibration")[0], {"macs": "60%"}, task="segmentation")


def test_the_share_of_pixels_is_that_of_label_maps() -> None:
    torch.manual_seed(0)
    network, x = Segmenter().eval(), torch.randn(40, 1, 8, 8)
    res = sc.prune(network, x, {"macs": "60%"}, samples=30, task="segmentation")
    unused = torch.randperm(40, generator=torch.Generator().manual_seed(0))[30:]
    same = network(x[unused]).argmax(1) == res.model(x[unused]).argmax(1)
    assert res.agreement is not None and res.agreement.pixels == pytest.approx(float(same.double().mean()))
