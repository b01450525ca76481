"""The prices of methods, and what "auto" takes. test_work.py counts pairs and bytes by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from posenc import NoPE, Positions
from posenc.distributed.choice import choose, refusals
from posenc.distributed.cost import H100, Machine, Sample, Sizes, price
from posenc.distributed.needs import Needs
from posenc.positions.orders import ORDERS, indices
from posenc.positions.tiles import Visibility

# Seconds are bytes and FLOPs; two devices a node.
TOY = Machine("toy", flops=1.0, link=1.0, network=0.5, per_node=2, memory=1e9, latency=0.0)
CAUSAL = Visibility(True)


def divided(text: Positions, world: int, order: str) -> Any:
    """What prices read of a `Sharding`, without processes."""
    held = indices(text.layout, world, order)
    counts = tuple(len(index) for index in held)
    return SimpleNamespace(whole=text, world=world, indices=held, counts=counts, across=None, within=None)


def needs(text: Positions, world: int, order: str = "contiguous") -> Needs:
    return Needs([text[index] for index in indices(text.layout, world, order)], CAUSAL)


@pytest.mark.parametrize("order", ORDERS)
def test_a_sample_of_a_short_text_is_exact_and_of_a_long_one_near(order: str) -> None:
    for text in (Positions.arange(100, start=3), Positions.packed([10, 30, 50]), Positions.arange(2)):
        for visibility in (CAUSAL, Visibility(False), Visibility(True, 7)):
            held = indices(text.layout, 4, order)
            sample, exact = Sample(text, held, visibility), Needs([text[index] for index in held], visibility)
            assert len(sample) == 4
            for i in range(4):
                for j in range(4):
                    assert (sample.keys(i, j), sample.pairs(i, j)) == (exact.keys(i, j), exact.pairs(i, j))
    long = Positions.arange(100_000)
    sample = Sample(long, indices(long.layout, 4, order), CAUSAL)
    pairs = sum(sample.pairs(i, j) for i in range(4) for j in range(4)) * sample.times**2
    assert pairs == pytest.approx(100_000 * 100_001 / 2, rel=4 * sample.times / 100_000 * 4)


def test_times_by_hand() -> None:
    """Four tokens, two each: pairs 3, and 4 + 3. A pair takes 2 x 2 FLOPs; a token has two numbers of a byte."""
    of_text = needs(Positions.arange(4), 2)
    forward = Sizes(1, 1, 1, 1, 1, itemsize=1, trains=False)
    both = Sizes(1, 1, 1, 1, 1, itemsize=1)
    assert price(of_text, [2, 2], forward, "gather", TOY).seconds == 7 * 4 + 4
    assert price(of_text, [2, 2], forward, "ring", TOY).seconds == 7 * 4  # the keys travel meanwhile
    # Backward 2.5 times as long, and gradients of two tokens in four bytes, which a ring sends while it computes again.
    assert price(of_text, [2, 2], both, "gather", TOY).seconds == 7 * 4 * 3.5 + 4 + 16
    assert price(of_text, [2, 2], both, "ring", TOY).seconds == 7 * 4 * 4.5
    two_heads = Sizes(1, 2, 2, 1, 1, itemsize=1, trains=False)
    # Of two tokens one head's query, key and value, and two other tokens' output; ten pairs.
    assert price(needs(Positions.arange(4), 1), [2, 2], two_heads, "ulysses", TOY).seconds == 2 * 3 + 2 + 10 * 4
    # On two nodes keys take longer than pairs: of a process's first two steps, 4 bytes at half speed.
    slow = Machine("slow", flops=100.0, link=1.0, network=0.5, per_node=1, memory=1e9, latency=0.0)
    assert price(of_text, [2, 2], forward, "ring", slow).seconds == pytest.approx(4 / 0.5 + 4 * 4 / 100)


def test_ring_and_ulysses_together_by_hand() -> None:
    """Two groups of two processes, of four tokens each; a head of two in each process, of 4 + 4 numbers."""
    sizes = Sizes(1, 2, 2, 4, 4)
    found = price(needs(Positions.arange(8), 2), [2] * 4, sizes, "ring", TOY)
    assert found.scores == (10, 10, 26, 26)
    exchanged = 2 * (4 + 8) + 2 * 4
    keys = 4 * 8
    assert found.sent == (2 * (exchanged + keys),) * 2 + (2 * exchanged,) * 2
    assert found.sent_back == (2 * (exchanged + keys),) * 2 + (2 * exchanged + 4 * keys,) * 2


def test_auto_takes_the_fastest_that_fits() -> None:
    def taken(tokens: int, kv_heads: int, visibility: Visibility = CAUSAL, trains: bool = True, **options: Any) -> Any:
        sizes = Sizes(1, 32, kv_heads, 128, 128, trains=trains)
        sharding = divided(Positions.arange(tokens), 8, options.pop("order", "zigzag"))
        refused = refusals(NoPE()(Positions.arange(2)), sharding, sizes, options.pop("dropout_p", 0.0))
        return choose(sharding, sizes, visibility, None, refused, **options)

    # Whole rows of heads are even, and less is sent than by gathering; a ring computes more in the backward pass.
    assert taken(2**17, 8).method == "ulysses"
    few_heads = taken(2**17, 4)
    assert few_heads.method == "gather"
    assert few_heads.refusals == {
        "ulysses": "an exchange of heads needs at least one head of keys for each of 8 processes, got 4"
    }
    long = taken(2**20, 4)
    assert long.method == "ring"
    assert long.refusals["gather"] == "keys and values of 32 layers would take 68.7 GB of 20"
    assert taken(2**20, 4, trains=False).method == "ring"
    assert "gather" not in taken(2**20, 4, trains=False).refusals
    assert taken(2**17, 4, Visibility(True, 255), order="contiguous").method == "ring"  # sends 255 keys
    assert "ring" in taken(2**17, 4, dropout_p=0.1).refusals
    tiny = Machine("tiny", H100.flops, H100.link, H100.network, 8, memory=1e6)
    assert taken(2**17, 4, machine=tiny).why == "it holds the fewest keys and values, 2.15 GB in 32 layers"
    alone = choose(divided(Positions.arange(4), 1, "zigzag"), Sizes(1, 1, 1, 1, 1), CAUSAL)
    assert (alone.method, alone.why) == ("gather", "there is one process")


def test_prices_are_printed() -> None:
    sharding = divided(Positions.arange(64), 2, "zigzag")
    said = str(choose(sharding, Sizes(1, 2, 1, 8, 8), CAUSAL, None, {"ulysses": "few heads"}))
    assert said.splitlines()[0] == "gather: the fastest by the model of time (H100, nodes of 8)"
    assert "price of ring: 2.08e+03 scores, " in said
    assert said.splitlines()[-1] == "not ulysses: few heads"
