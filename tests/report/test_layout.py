"""Where the layers of a network are drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from secateur.report.layout import placed

networks = st.integers(1, 30).flatmap(
    lambda count: st.tuples(
        *(
            st.lists(st.integers(0, max(0, place - 1)), max_size=3, unique=True) if place else st.just([])
            for place in range(count)
        )
    )
)


@given(networks)
def test_every_edge_goes_down_and_no_two_layers_share_a_place(inputs: tuple[list[int], ...]) -> None:
    found = placed([{"inputs": one} for one in inputs])
    assert all(found[source]["row"] < one["row"] for one in found for source in one["inputs"])
    places = [(one["row"], one["lane"]) for one in found]
    assert len(set(places)) == len(places)


def test_a_residual_block() -> None:
    found = placed([{"inputs": []}, {"inputs": [0]}, {"inputs": [1]}, {"inputs": [2, 0]}, {"inputs": [3]}])
    assert [one["row"] for one in found] == [0, 1, 2, 3, 4] and {one["lane"] for one in found} == {0.0}


def test_branches_stand_beside_each_other() -> None:
    found = placed([{"inputs": []}, {"inputs": [0]}, {"inputs": [0]}, {"inputs": [1, 2]}])
    assert [one["lane"] for one in found] == [0.0, -0.5, 0.5, 0.0]
