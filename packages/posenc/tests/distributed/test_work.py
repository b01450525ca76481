"""What processes compute and send, counted by hand. test_attention.py counts the bytes of real processes."""

from typing import Any

from posenc import Chunk, Positions
from posenc.distributed.counts import MessageSizes, Work, count
from posenc.distributed.sharding import Needs, mask_of
from posenc.positions.layout import Order, indices

# Eight tokens of two processes, in zigzag: 0, 1, 6, 7 and 2, 3, 4, 5. Two heads of queries, one of keys; a token's keys
# and values have 2 x 4 numbers of two bytes.
TEXT = Positions.arange(8)


def work(whole: Positions, world: int, order: Order = "zigzag", *, method: str, window: Any = None) -> Work:
    shards = [whole[index] for index in indices(whole.layout, world, order)]
    sizes = MessageSizes(whole.rows, 2, 1, 4, 4, rows=whole.rows)
    return count(Needs(shards, *mask_of(True, window)), [len(shard) for shard in shards], sizes, method)


def test_gather_sends_all_keys_and_returns_gradients_in_single_precision() -> None:
    pairs = [2 * (1 + 2 + 7 + 8), 2 * (3 + 4 + 5 + 6)]
    found = work(TEXT, 2, method="gather")
    assert (found.scores, found.sent, found.sent_back) == (tuple(pairs), (4 * 8 * 2,) * 2, (4 * 8 * 4,) * 2)
    # Collectives send tensors of equal sizes: seven tokens are four and three.
    assert work(Positions.arange(7), 2, "contiguous", method="gather").sent == (4 * 16,) * 2


def test_a_ring_sends_what_is_seen_twice_and_gradients_home() -> None:
    found = work(TEXT, 2, method="ring")
    # Tokens 2 to 5 see 0 and 1 of the first process; 6 and 7 see all of the second.
    assert found.sent == (2 * 16, 4 * 16)
    assert found.sent_back == (2 * 16 + 4 * 32, 4 * 16 + 2 * 32)
    window = work(TEXT, 2, "contiguous", method="ring", window=3)
    assert window.sent == (2 * 16, 0)
    assert window.scores == (2 * (1 + 2 + 3 + 3), 2 * 12)
    chunks = work(TEXT, 2, "contiguous", method="ring", window=Chunk(4))
    assert (chunks.scores, chunks.sent, chunks.sent_back) == ((20, 20), (0, 0), (0, 0))


def test_rows_of_positions_are_the_batch() -> None:
    rows = Positions.packed([[3, 5], [8]])
    assert sum(work(rows, 2, "contiguous", method="ring").scores) == 2 * (6 + 15 + 36)
