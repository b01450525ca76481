"""Decoding against a cache that processes hold together: the same as against one that a process holds alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from posenc import CoPE, FoX, Positions, Schedule, StickBreaking
from posenc.distributed import ShardedCache, Sharding, sharded
from posenc.models import Decoder, KVCache
from tests.distributed.models import DIM, HEADS, LAYERS, SCHEMES, TOKENS
from tests.rounding import of_sums

ROWS: dict[str, Callable[[], Any]] = {
    "stick breaking": lambda: StickBreaking(),
    "fox and cope": lambda: FoX(HEADS) + CoPE(DIM // HEADS, 8),
}


def decodes(_: None) -> list[str]:
    """What is wrong with decoding against a cache that processes hold together: a prompt read in parallel, steps of one
    and of several tokens, rows of unequal lengths, drafts that are dropped, and a second prompt read in parallel."""
    wrong = []
    texts = {
        "one": Positions.arange(TOKENS),
        "unequal": Positions.padded(torch.arange(TOKENS) >= torch.tensor([[6], [0]])),
        "packed": Positions.packed([9, 20]),
    }
    for n, (name, build) in enumerate((SCHEMES | ROWS).items()):
        for turn, (text, prompt) in enumerate(texts.items()):
            if name == "rope by length" and text == "packed":
                continue  # a row of several documents has no length
            if (n + dist.get_world_size() - turn) % 3 == 0:
                continue
            torch.manual_seed(0)
            model = Decoder(32, DIM, LAYERS, HEADS, position=build()).double().eval()
            tokens = torch.randint(32, (2, TOKENS + 17))
            order = ("zigzag", "striped", [*torch.randperm(TOKENS).tensor_split(dist.get_world_size())])[(n + turn) % 3]
            cache, alone = ShardedCache(), KVCache()

            def both(at: int, new: int, divided: Any = None) -> None:
                """Reads new tokens: on all processes, or each its part of them."""
                positions = prompt if at == 0 else alone.positions.following(new)  # noqa: B023
                mine = tokens[:, at : at + new]  # noqa: B023
                expected = model(mine, positions=positions, cache=alone)  # noqa: B023
                if divided is None:
                    found = model(mine, positions=positions, cache=cache)  # noqa: B023
                else:
                    sharding = Sharding(positions, order=divided)
                    with sharded(sharding, "gather" if at or name in ("cope", *ROWS) else "ring"):  # noqa: B023
                        found = model(sharding.shard(mine), positions=sharding.positions, cache=cache)  # noqa: B023
                    found = sharding.gather(found)
                if (found - expected).abs().max() > of_sums(torch.float64, DIM * TOKENS * LAYERS, expected, 32):
                    wrong.append(f"{name}, {text}: {new} tokens at {at}")  # noqa: B023

            with torch.no_grad():
                both(0, TOKENS, order)
                for at, new in ((TOKENS, 1), (TOKENS + 1, 1), (TOKENS + 2, 4)):
                    both(at, new)
                for one in (cache, alone):
                    one.crop(TOKENS + 3)  # three of a draft of four are dropped
                both(TOKENS + 3, 2)
                both(TOKENS + 5, 7, "contiguous")
                both(TOKENS + 12, 1)
                cache.crop(TOKENS - 4)  # also of a prompt
                if isinstance(model.trunk.schedule, Schedule):  # one with windows goes back to its last pass alone
                    alone.crop(0)
                    model(tokens[:, : TOKENS - 4], positions=prompt[: TOKENS - 4], cache=alone)
                alone.crop(TOKENS - 4)
                both(TOKENS - 4, 2)
            held = torch.tensor(len(cache))
            dist.all_reduce(held)
            if int(held) != TOKENS - 2 or len(cache.positions) != TOKENS - 2:
                wrong.append(f"{name}, {text}: {int(held)} tokens are held, not {TOKENS - 2}")
    for name, call in (
        ("evict", lambda: cache.evict(1, 1)),
        ("select", lambda: cache.select(torch.tensor([0]))),
        ("cat", lambda: KVCache.cat([cache])),
    ):
        with pytest.raises(ValueError, match=f"^{name} is not supported by a ShardedCache, whose tokens are divided"):
            call()
    return wrong
