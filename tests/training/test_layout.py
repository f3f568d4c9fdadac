"""Another memory format during training: tried without side effects, and restored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from secateur.training.layout import channels_last, lay_out, own_layout, suits_channels_last, synchronised_norms
from support.training_cases import network, same, weights

IMAGES = (torch.randn(2, 1, 6, 6), torch.zeros(2).long())


class Viewing(nn.Module):
    """A network whose view refuses channels_last, as in many tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.conv(x)).view(-1, 64))


def test_only_networks_that_accept_channels_last() -> None:
    assert suits_channels_last(network(), IMAGES) and suits_channels_last(network(), IMAGES[0])
    assert not suits_channels_last(Viewing(), IMAGES)
    assert not suits_channels_last(nn.Linear(6, 6), IMAGES)
    assert not suits_channels_last(network(), (torch.randn(2, 36), IMAGES[1]))
    assert not suits_channels_last(network(), {"x": IMAGES[0]})


def test_the_trial_has_no_side_effects() -> None:
    for model in (network(), Viewing()):
        before, strides = weights(model), [tensor.stride() for tensor in model.state_dict().values()]
        random = torch.get_rng_state()
        suits_channels_last(model, IMAGES)
        assert same(weights(model), before) and torch.equal(torch.get_rng_state(), random)
        assert [tensor.stride() for tensor in model.state_dict().values()] == strides


def test_the_memory_format_is_restored() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    before, strides = weights(model), [tensor.stride() for tensor in model.state_dict().values()]
    parameter = model[0].weight
    with own_layout(model):
        lay_out(model)
        assert model[0].weight.stride() != strides[0]
    assert [tensor.stride() for tensor in model.state_dict().values()] == strides
    assert same(weights(model), before) and model[0].weight is parameter and parameter.is_leaf


def test_only_images_become_channels_last() -> None:
    images, labels = channels_last((torch.randn(2, 3, 4, 4), IMAGES[1]))
    assert images.stride()[1] == 1 and labels is IMAGES[1]
    assert channels_last((torch.randn(2, 3), IMAGES[1]))[0].stride() == (3, 1)
    assert channels_last(torch.randn(2, 3, 4, 4)).stride()[1] == channels_last([images])[0].stride()[1] == 1


def test_batch_norms_are_restored() -> None:
    model = network()
    norm, names = model[1], list(model.state_dict())
    with synchronised_norms(model, wanted=True):
        assert isinstance(model[1], nn.SyncBatchNorm) and model[1].weight is norm.weight
    assert model[1] is norm and list(model.state_dict()) == names
    with synchronised_norms(model, wanted=False):
        assert model[1] is norm
