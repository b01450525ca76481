"""What short calls of attention and half precision cost over PyTorch's, and a training step over NoPE's.

    python research/benchmarks/overhead.py

Calls are taken in turns of random order, on one thread, and their times are of this process alone, so that a busy
machine is as slow for all of them. Each figure is the median over the rounds, and the interval that it is known to lie
in.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import T5, ALiBi, NoPE, Positions, RoPE, Shaw, TransformerXL
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.tasks import configured
from posenc_lab.compare.train import loss_of, optimizer_for, step_of
from posenc_lab.kit.interleaving import orders, ratios, spread

HEADS, HEAD_DIM, STEPS = 8, 64, 60
SCHEMES = {
    "nothing added": NoPE(),
    "RoPE": RoPE(HEAD_DIM),
    "ALiBi": ALiBi(HEADS),
    "T5": T5(HEADS),
    "Shaw": Shaw(HEAD_DIM, 16),
    "Transformer-XL": TransformerXL(HEADS, HEAD_DIM),
}
# Queries, keys, whether it is a training step, rounds, and calls in each.
SHORT = {
    "forward, 16 tokens": (16, 16, False, 60, 40),
    "forward, 64 tokens": (64, 64, False, 60, 40),
    "training step, 64 tokens": (64, 64, True, 60, 20),
    "one query, 512 keys": (1, 512, False, 60, 40),
    "one query, 4,096 keys": (1, 4096, False, 60, 20),
}
HALF = list(itertools.product((torch.bfloat16, torch.float16), (512, 2048), (True, False)))


def in_turns(works: Mapping[str, Callable[[], object]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """The seconds of a core that a call of each takes, round by round."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for order in islice(orders(tuple(works), seed=0), rounds + rounds // 10):
        for name in order:
            begin = time.process_time()
            for _ in range(repeats):
                works[name]()
            times[name].append((time.process_time() - begin) / repeats)
    return {name: seconds[rounds // 10 :] for name, seconds in times.items()}


def calls(
    queries: int,
    keys: int,
    trains: bool,
    rounds: int,
    repeats: int,
    dtype: torch.dtype,
    is_causal: bool,
    names: Sequence[str],
) -> str:
    """PyTorch's time in microseconds and, of each scheme, the time relative to it and the microseconds above it."""
    query = torch.randn(1, HEADS, queries, HEAD_DIM, dtype=dtype, requires_grad=trains)
    key, value = (torch.randn(1, HEADS, keys, HEAD_DIM, dtype=dtype, requires_grad=trains) for _ in range(2))
    line = Positions.arange(keys)
    of_queries = line if queries == keys else line[keys - queries :]

    def work(attend: Callable[[], Tensor]) -> Callable[[], object]:
        return (lambda: torch.autograd.grad(attend().sum(), (query, key, value))) if trains else attend

    is_triangle = is_causal and queries == keys
    works = {"plain": work(lambda: F.scaled_dot_product_attention(query, key, value, is_causal=is_triangle))}
    with torch.set_grad_enabled(trains):
        for name in names:
            if name != "RoPE" or queries == keys:  # cached keys are rotated already
                encoding = SCHEMES[name](of_queries, line)
                works[name] = work(partial(posenc.attention, query, key, value, encoding, is_causal=is_causal))
        times = in_turns(works, rounds, repeats)
    found = [f"PyTorch {1e6 * spread(times['plain'])[0]:,.0f} us"]
    for name in (name for name in names if name in works):
        over = spread([mine - plain for mine, plain in zip(times[name], times["plain"], strict=True)])[0]
        found.append(f"{name} {ratios(times[name], times['plain'])[0]:.2f} ({1e6 * over:,.0f})")
    return ", ".join(found)


def steps() -> None:
    """Prints what a training step of the demo's model costs over that of NoPE."""
    config = configured({})
    tokens = torch.randint(256, (config.batch_size, config.train_length + 1))
    works: dict[str, Callable[[], object]] = {}
    for name in ("nope", "alibi", "rope", "t5"):
        torch.manual_seed(0)
        model = build_model(config, name, 0)
        works[name] = partial(step_of, model, optimizer_for(model, config), tokens, config, loss_of)
    times = in_turns(works, STEPS, 1)
    print(f"a training step of the demo's model, NoPE: {1e3 * spread(times['nope'])[0]:.1f} ms")
    for name in ("alibi", "rope", "t5"):
        print("  {} times that: {:.3f} ({:.3f} to {:.3f})".format(name, *ratios(times[name], times["nope"])))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for what, (queries, keys, trains, rounds, repeats) in SHORT.items():
        print(f"{what}: {calls(queries, keys, trains, rounds, repeats, torch.float32, True, tuple(SCHEMES))}")
    for dtype, tokens, is_causal in HALF:
        seen = "causal" if is_causal else "both directions"
        found = calls(tokens, tokens, True, 3, 1, dtype, is_causal, ("RoPE",))
        print(f"training step, {dtype}, {tokens:,} tokens, {seen}: {found}")
    steps()
