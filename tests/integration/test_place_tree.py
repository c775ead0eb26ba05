"""ClientPlaceTree from Python: coordinates, leaders, messages, the printed form."""

from __future__ import annotations

import pytest

import widestream as ws
from widestream.errors import InvalidArgumentError
from widestream.job import Mesh


def test_places_have_coordinates_and_leaders():
    tree = ws.ClientPlaceTree(Mesh(dp=2, cp=2, tp=2, pp=2), broadcast_at=["tp"])
    assert tree.world == 16
    assert [place.rank for place in tree.places] == list(range(16))
    place = tree.place(11)
    assert (place.pp, place.dp, place.cp, place.tp) == (1, 0, 1, 1)
    assert (place.fetches, place.leader, place.first_stage, place.last_stage) == (False, 10, False, True)
    assert tree.ranks_of_dp(1) == [4, 5, 6, 7, 12, 13, 14, 15]
    assert tree.fetching_ranks_of_dp(1) == [4, 6, 12, 14]
    assert tree.groups()[:2] == [[0, 1], [2, 3]]


def test_dp_follows_from_the_world():
    assert ws.ClientPlaceTree(Mesh(tp=2), world=6).fetching_ranks_of_dp(2) == [4, 5]
    assert ws.ClientPlaceTree(Mesh(dp_shard=2), world=4).world == 4


@pytest.mark.parametrize(
    ("mesh", "world", "parts"),
    [
        ({"dp": 2, "tp": 2}, 6, ["is 4 ranks", "the trainer runs 6", "set mesh.dp to 3"]),
        ({"tp": 4}, 6, ["is 4 ranks", "the trainer runs 6", "change cp, tp or pp"]),
        ({"ep": 4}, 6, ["mesh.ep: found 4"]),
        ({"dp_replicate": 4}, 6, ["mesh.dp_replicate: found 4"]),
    ],
)
def test_another_world_is_refused_with_the_fix(mesh, world, parts):
    with pytest.raises(InvalidArgumentError) as error:
        ws.ClientPlaceTree(Mesh(**mesh), world=world)
    for part in parts:
        assert part in str(error.value)


def test_it_prints_who_needs_what():
    text = str(ws.ClientPlaceTree(Mesh(dp=1, cp=2, pp=2)))
    assert "stage 0 (tokens), slice 1 of 2, rank 1" in text
    assert "stage 1 (labels), slice 0 of 2, rank 2" in text
    assert repr(ws.ClientPlaceTree(Mesh())) == "<ClientPlaceTree world 1 = dp 1 * cp 1 * tp 1 * pp 1, ep 1, vpp 1>"


def test_a_rank_outside_the_world_is_an_index_error():
    for rank in (-1, 2):
        with pytest.raises(IndexError, match="world of 2"):
            ws.ClientPlaceTree(Mesh(dp=2)).place(rank)
