"""Several processes prune one network: the same result as one process, and clear errors where they differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur as sc
from secateur.embedded import digits, lenet5
from secateur.network.modules import named_tensors
from secateur.network.processes import distributed
from secateur.refit import curves, least_squares, repair
from support.training_cases import in_two_processes


class Wide(nn.Module):
    """A network with values as output, and with a layer of many inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(1, 6, 3, stride=2), nn.Conv2d(6, 8, 3, stride=2)
        self.c, self.d = nn.Linear(8 * 6 * 6, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.b(torch.relu(self.a(x))))
        return torch.tanh(self.d(torch.relu(self.c(x.flatten(1))))).sum(1)


def _pruned(kind: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    model = (Wide() if kind == "wide" else lenet5()).double()  # small differences of sums stay small in the fits
    options: dict[str, Any] = {"pfp": {"method": "pfp"}, "steps": {"steps": 2, "effort": "quick"}}.get(kind, {})
    images = digits("calibration")[0][: 301 if kind == "wide" else 201].double()
    with pytest.MonkeyPatch.context() as patch:
        if kind == "wide":  # rows are kept instead of second moments
            for module in (curves, repair):
                patch.setattr(module, "LARGEST", 128)
            patch.setattr(least_squares, "DUAL_ROWS", 200)
        res = sc.prune(model, list(images.split(64)), {"params": "40%"}, samples=None, **options)
    return {
        "kept": {f"{slot.parameter}:{slot.axis}": list(units) for slot, units in res.plan.kept.items()},
        "weights": {name: tensor.detach() for name, tensor in named_tensors(res.model).items()},
        "before": res.repair.before if res.repair else 0.0,
        "divergence": res.repair.after if res.repair else 0.0,
        "layers": [(one.before, one.after) for one in res.repair.layers] if res.repair else [],
        "scores": res.scores,
        "memory": res.settings.memory if res.settings else None,
    }


@pytest.mark.parametrize("kind", ["digits", "wide", "steps", "pfp"])
def test_two_processes_return_what_one_does(kind: str, tmp_path: Path) -> None:
    alone = _pruned(kind)
    first, second = in_two_processes(_pruned, tmp_path, kind)
    for found in (first, second):
        assert found["kept"] == alone["kept"]
        torch.testing.assert_close(found["weights"], alone["weights"], rtol=1e-6, atol=1e-8)
        assert found["divergence"] == pytest.approx(alone["divergence"], rel=1e-6, abs=1e-9)
        assert found["before"] == pytest.approx(alone["before"], rel=1e-6, abs=1e-9)
        assert found["layers"] == [pytest.approx(pair, rel=1e-6) for pair in alone["layers"]]
        for name, scores in alone["scores"].items():
            assert found["scores"][name] == pytest.approx(scores, rel=1e-5, abs=1e-12)  # six digits are stored
    for name, tensor in first["weights"].items():
        assert torch.equal(tensor, second["weights"][name])


def _differing(what: str) -> str:
    torch.set_num_threads(1)
    images, model = digits("calibration")[0][:64], lenet5()
    with distributed() as process:
        if process.rank:
            if what == "samples":
                images = images + 1e-3
            elif what == "number":
                images = images[:32]
            else:
                next(iter(model.parameters())).data[0] += 1e-3
        try:
            sc.prune(model, images, {"params": "40%"}, samples=None)
        except sc.SecateurError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(("what", "named"), [("samples", "the samples"), ("number", "number"), ("weights", "weights")])
def test_processes_with_different_data_or_weights_are_refused(what: str, named: str, tmp_path: Path) -> None:
    for error in in_two_processes(_differing, tmp_path, what):
        assert "the processes differ in" in error and named in error and "same data to every process" in error
