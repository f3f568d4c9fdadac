"""Records say how their networks were made."""

from __future__ import annotations

from secateur import __version__
from secateur.experiments.protocol import learning_rate_decay, origin, protocol, targets, training
from secateur.experiments.recipe import read


def test_the_protocol_of_the_paper_in_words() -> None:
    found = protocol(read("lenet5"), "pfp")
    epochs = "40 epochs, batch 64, sgd 0.01, momentum 0.9, weight decay 0.0001, x0.1 after 25, 35"
    assert found == {
        "original": f"trained on mnist: {epochs}",
        "pruned": "in a cascade, each target from the last network; 256 calibration samples; not repaired; targets are "
        "of the params; derand, delta 1e-12, C 1.0",
        "retrained": epochs,
        "differs": "",
        "secateur": __version__,
    }


def test_what_the_methods_and_a_recipe_change_is_said() -> None:
    recipe = read("lenet300100", ["retrain.epochs=0", "weights=some.pt", "resource=macs"])
    found = protocol(recipe, "residual")
    assert found["original"] == "weights some.pt" and found["retrained"] == "not retrained"
    pruned = "in one shot, from the original; 256 calibration samples; repaired; targets are of the macs"
    assert found["pruned"] == pruned
    assert protocol(read("lenet5-quick"), "ft")["differs"] == read("lenet5-quick").differs != ""
    assert origin(recipe)["original"] == "weights some.pt"


def test_learning_rates_and_targets() -> None:
    vgg = read("vgg16")
    assert learning_rate_decay(vgg.train) == "x0.5 every 30"
    assert "Nesterov momentum 0.9" in training(read("wrn16-8").train, 128)
    assert training(read("deepknight").train, 32).startswith("100 epochs, batch 32, adam 0.0001, weight decay")
    assert targets(vgg) == "hyperharmonic, alpha 1.5, 10 steps"
    assert targets(read("lenet5-quick")) == "50%, 70%, 80%, 87%, 92%"
