"""An evaluation is the mean over the samples, and does not change the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import DataLoader, TensorDataset

import secateur as sc
from secateur.errors import UsageError
from secateur.network.processes import distributed
from secateur.training.evaluation import MAX_PENDING, Evaluation, evaluate
from support.training_cases import Epochs, in_two_processes, network, same, weights


def samples(count: int = 50, classes: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 1, 6, 6), torch.randint(0, classes, (count,))


def test_numpy_arrays_and_data_sets() -> None:
    model, (x, y) = network(), samples(150)
    wanted = evaluate(model, [(x, y)])
    for data in ([(x.numpy(), y.numpy())], TensorDataset(x, y)):
        found = evaluate(model, data)
        assert (found.samples, found.top1) == (150, wanted.top1) and found.loss == pytest.approx(wanted.loss, rel=1e-6)
    with pytest.raises(UsageError, match=r"TensorDataset\(x, y\) for single samples"):
        evaluate(model, (x.numpy(), y.numpy()))


def test_means_are_over_all_samples() -> None:
    model, (x, y) = network().eval(), samples()
    found = evaluate(model, list(zip(x.split(7), y.split(7))))
    scores = model(x).detach()
    ranks = (scores > scores.gather(1, y[:, None])).sum(1)
    assert found.samples == 50
    assert found.loss == pytest.approx(cross_entropy(scores, y).item(), rel=1e-5)
    assert (found.top1, found.top5) == ((ranks < 1).sum() / 50, (ranks < 5).sum() / 50)


def test_many_batches_equal_one() -> None:
    x, y = samples(3 * MAX_PENDING + 1)
    one, single = evaluate(network(), [(x, y)]), evaluate(network(), list(zip(x.split(1), y.split(1))))
    assert one.loss == pytest.approx(single.loss, rel=1e-5) and one.top1 == single.top1


def test_few_classes_have_no_top5() -> None:
    x, y = torch.randn(9, 4), torch.randint(0, 5, (9,))
    found = evaluate(nn.Linear(4, 5), [(x, y)])
    assert found.top1 is not None and found.top5 is None


def test_the_model_is_not_changed() -> None:
    model = network().train()
    model[1].eval()
    before = weights(model)
    evaluate(model, [samples()])
    assert same(weights(model), before)
    assert [module.training for module in model] == [True, False, True, True, True, True]
    with pytest.raises(RuntimeError):
        evaluate(model, [(torch.randn(2, 5, 6, 6), torch.zeros(2).long())])
    assert model[0].training and not model[1].training


@pytest.mark.parametrize("shape", [(20, 1), (20,)])
def test_targets_are_not_broadcast_in_the_squared_error(shape: tuple[int, ...]) -> None:
    model, x, y = nn.Linear(4, 1), torch.randn(20, 4), torch.randn(shape)
    found = evaluate(model, [(x, y)], loss="mse")
    assert found == Evaluation(20, pytest.approx(mse_loss(model(x)[:, 0], y.view(20)).item()))


def test_targets_of_another_shape_are_refused() -> None:
    with pytest.raises(sc.SecateurError, match=r"\(20, 3\), the targets \(20,\)"):
        evaluate(nn.Linear(4, 3), [(torch.randn(20, 4), torch.randn(20))], loss="mse")


def test_soft_and_dense_labels_have_no_accuracy() -> None:
    soft = evaluate(nn.Linear(4, 8), [(torch.randn(5, 4), torch.rand(5, 8))])
    dense = evaluate(nn.Conv2d(1, 8, 1), [(torch.randn(5, 1, 2, 2), torch.randint(0, 8, (5, 2, 2)))])
    assert (soft.top1, dense.top1) == (None, None)


def test_a_step_of_the_user() -> None:
    found = evaluate(
        nn.Bilinear(2, 3, 1),
        [{"a": torch.ones(4, 2), "b": torch.ones(4, 3)}] * 2,
        step=lambda model, batch: model(batch["a"], batch["b"]).square().mean(),
    )
    assert found.samples == 8 and found.top1 is None


@pytest.mark.parametrize("data", [Epochs(), DataLoader(TensorDataset(*samples()), batch_size=9), iter([samples()])])
def test_any_iterable_or_object_with_epochs(data: Any) -> None:
    assert evaluate(network(), data).samples in (32, 50)


def test_invalid_data_and_losses_are_refused() -> None:
    x, y = samples()
    with pytest.raises(UsageError, match=r"a tuple\n.*\[\(x, y\)\]"):
        evaluate(network(), (x, y))
    with pytest.raises(UsageError, match=r"expected a batch \(x, y\), got a Tensor"):
        evaluate(network(), [x])
    with pytest.raises(UsageError, match="loss is 'hinge'"):
        evaluate(network(), [(x, y)], loss="hinge")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"got a tensor of shape \(50,\)"):
        evaluate(network(), [x], step=lambda model, batch: model(batch).sum(1))
    with pytest.raises(UsageError, match="got a float"):
        evaluate(network(), [x], step=lambda model, batch: 1.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(sc.SecateurError, match="not one batch"):
        evaluate(network(), [])
    with pytest.raises(sc.SecateurError, match="not one batch"):
        evaluate(network(), [(x[:0], y[:0])])


def pairs(count: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    x, y = samples(count)
    return list(zip(x.split(11), y.split(11)))


def _evaluate_part() -> list[Any]:
    with distributed() as process:
        mine = pairs(33)[:1] if process.first else pairs(33)[1:]
        uneven = pairs(33) if process.first else []
        return [evaluate(network(), part).__dict__ for part in (mine, uneven)]


def test_each_process_evaluates_its_part(tmp_path: Path) -> None:
    wanted = evaluate(network(), pairs(33))
    for found in in_two_processes(_evaluate_part, tmp_path):
        for one in found:
            assert one["samples"] == 33 and one["loss"] == pytest.approx(wanted.loss)
            assert (one["top1"], one["top5"]) == (wanted.top1, wanted.top5)
