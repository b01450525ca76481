"""How tokens are divided, and what processes need of one another: against a mask of all pairs, in this process."""

import itertools

import pytest
import torch

from posenc import Positions
from posenc.distributed.sharding import Needs
from posenc.positions.layout import ORDERS, Layout, indices
from posenc.positions.tiles import Visibility, visible

TEXTS = {
    "one text": Positions.arange(17, start=5),
    "packed": Positions.packed([5, 3, 9, 2]),
    "rows packed": Positions.packed([[5, 7], [12], [1, 2, 3]]),
    "padded": Positions.padded(torch.arange(20) % torch.tensor([[3], [7], [11]]) != 1),
    "chunks": Positions.arange(20).in_chunks(6),
    "nanoseconds": Positions(
        torch.arange(6)[None],
        order=1_700_000_000_000_000_000 + torch.tensor([[0, 5, 9, 0, 3, 0]]),
        document=torch.tensor([[2**40, 2**40, 2**40, 7, 7, -1]]),
    ),
    "far apart": Positions(torch.arange(4)[None], order=torch.tensor([[-(2**60), -(2**60) + 2, 2**60, 2**60 + 4]])),
    "prefix": Positions(torch.arange(9)[None], order=torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4, 5]])),
}
VISIBILITIES = (
    Visibility(True),
    Visibility(False),
    Visibility(True, 3),
    Visibility(False, 2, 4),
    Visibility(False, 5, -2),
    Visibility(True, 6, -3),
)


@pytest.mark.parametrize("order", ORDERS)
def test_every_token_is_held_once(order: str) -> None:
    for tokens, world in itertools.product((0, 1, 5, 12, 37), (1, 2, 3, 4, 8)):
        layout = Positions.arange(tokens).layout
        held = indices(layout, world, order)
        assert len(held) == world
        assert torch.cat(held).sort().values.tolist() == list(range(tokens))


def test_orders_are_what_their_names_say() -> None:
    layout = Positions.arange(12).layout
    assert [x.tolist() for x in indices(layout, 3, "contiguous")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [x.tolist() for x in indices(layout, 3, "zigzag")] == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]
    assert [x.tolist() for x in indices(layout, 3, "striped")] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    packed = Positions.packed([4, 2, 6]).layout
    assert [x.tolist() for x in indices(packed, 2, "documents")] == [[0, 1, 2, 3, 6, 7, 11], [4, 5, 8, 9, 10]]
    whole = Positions.packed([4, 4, 4, 4]).layout
    assert [x.tolist() for x in indices(whole, 2, "documents")] == [
        [0, 1, 2, 3, 8, 9, 10, 11],
        [4, 5, 6, 7, 12, 13, 14, 15],
    ]
    with pytest.raises(ValueError, match="order='documents' needs one row"):
        indices(Layout(4), 2, "documents")


@pytest.mark.parametrize("text", TEXTS)
def test_needs_are_those_of_a_mask_of_all_pairs(text: str) -> None:
    positions = TEXTS[text]
    for order, world in itertools.product(ORDERS, (1, 2, 3)):
        if order == "documents" and positions.rows > 1:
            continue
        shards = [positions[index] for index in indices(positions.layout, world, order)]
        for visibility in VISIBILITIES:
            needs = Needs(shards, visibility)
            for i, j in itertools.product(range(world), repeat=2):
                mask = visible(shards[i], shards[j], visibility)
                seen = torch.ones(1, len(shards[i]), len(shards[j]), dtype=torch.bool) if mask is None else mask
                seen = (seen & (shards[i].document != -1)[:, :, None]).expand(positions.rows, -1, -1)
                keys = seen.any(0).any(0).nonzero()[:, 0]
                assert needs.keys(i, j) == (slice(int(keys[0]), int(keys[-1]) + 1) if len(keys) else None)
                assert needs.pairs(i, j) == int(seen.sum())


def test_a_shard_keeps_the_place_of_its_tokens() -> None:
    shard = Positions.arange(8, start=3).shard((1, 2))
    assert shard.coords.tolist() == [[5, 6, 7, 8]]
    assert shard.order.tolist() == [[5, 6, 7, 8]]
    assert Positions.arange(8).shard((0, 1), order="contiguous").lengths.tolist() == [8]
    for part in (shard, shard[1:], shard.shift(2), shard.in_chunks(2)):
        with pytest.raises(ValueError, match="a shard does not know the length of its text"):
            _ = part.lengths
