"""The descriptions of the paper's tables and figures."""

from __future__ import annotations

import pytest

from secateur.errors import UsageError
from secateur.experiments import recipe as recipes
from secateur.reproduction.items import names, read

NAMED = (
    "table-lenet", "table-cifar", "table-cifar-more", "table-imagenet", "fig-allocation", "fig-curves",
    "fig-derandomization", "fig-driving", "fig-imagenet-prune-only",
)  # fmt: skip


def test_every_table_and_figure_is_there() -> None:
    assert set(NAMED) <= set(names())


@pytest.mark.parametrize("name", names())
def test_its_recipes_exist_and_its_published_rows_fit(name: str) -> None:
    item = read(name)
    assert item.name == name and item.title and item.paper and item.runs
    for run in item.runs:
        for recipe in filter(None, (run.recipe, run.quick, run.short)):
            assert recipes.read(recipe).name == recipe
    labels = {run.label for run in item.runs}
    for row in item.published:
        assert row.network in labels and (row.source or row.row in item.rows)
        assert row.source or row.method in recipes.read(item.runs[0].recipe).methods


def test_the_published_values_of_the_paper() -> None:
    """Those that the method page names."""
    wanted = {
        "table-lenet": {"LeNet-300-100": (84.32, None), "LeNet-5": (92.37, None)},
        "table-cifar": {
            "ResNet20": (62.67, 45.46), "ResNet56": (88.98, 84.42), "ResNet110": (92.07, 89.76),
            "VGG16": (94.32, 85.03), "DenseNet22": (56.44, 62.66), "WRN16-8": (66.22, 64.57),
        },
        "table-imagenet": {"ResNet18": (43.80, 29.30), "ResNet50": (44.04, 30.05), "ResNet101": (50.45, 45.08)},
    }  # fmt: skip
    for name, values in wanted.items():
        found = {
            one.network: (one.pr, one.fr)
            for one in read(name).published
            if one.method == "pfp" and one.row in ("within 0.5", "within 1", "within 2")
        }
        assert found == values


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean table-lenet"):
        read("table-lenets")
