"""What a short call of attention costs over PyTorch's, and a training step over NoPE's.

    python research/benchmarks/overhead.py

Calls are taken in turns of random order, on one thread, and their times are of this process alone, so that a busy
machine is as slow for all of them. Each figure is the median over the rounds, and the interval that it is known to lie
in.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

import torch
from torch import Tensor
from torch.nn import functional as F

from posenc import T5, ALiBi, Positions, RoPE
from posenc.models import ForwardPass
from posenc_lab.compare.compare import build_model
from posenc_lab.compare.tasks import configured
from posenc_lab.compare.train import loss_of, optimizer_for, step_of
from posenc_lab.kit.turns import orders, ratios, spread

BATCH, HEADS, TOKENS, HEAD_DIM = 1, 4, 64, 32
REPEATS, CALLS, STEPS = 10, 200, 60
SCHEMES = {"alibi": ALiBi(HEADS), "rope": RoPE(HEAD_DIM), "t5": T5(HEADS)}


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


def fastest(seconds: list[float]) -> float:
    """The time that one round in twenty stays below: a busy machine slows it least."""
    return sorted(seconds)[len(seconds) // 20]


def calls(trains: bool) -> None:
    """Prints what a layer of a model costs over PyTorch's attention, in milliseconds."""
    query, key, value = (torch.randn(BATCH, HEADS, TOKENS, HEAD_DIM, requires_grad=trains) for _ in range(3))

    def work(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], object]:
        if not trains:
            return lambda: attend(query, key, value)
        return lambda: torch.autograd.grad(attend(query, key, value).sum(), (query, key, value))

    passes = {name: ForwardPass(scheme, Positions.arange(TOKENS)) for name, scheme in SCHEMES.items()}
    works = {name: work(step.attention) for name, step in passes.items()}
    works["plain"] = work(partial(F.scaled_dot_product_attention, is_causal=True))
    with torch.set_grad_enabled(trains):
        times = in_turns(works, CALLS, REPEATS)
    kind = "and its gradient" if trains else "alone"
    print(f"a call of {TOKENS} tokens {kind}, PyTorch's: {1e3 * spread(times['plain'])[0]:.3f} ms")
    for name in SCHEMES:
        over = spread([mine - plain for mine, plain in zip(times[name], times["plain"], strict=True)])
        least = fastest(times[name]) - fastest(times["plain"])
        told = (1e3 * each for each in (*over, least))
        print("  {} over it: {:.3f} ms ({:.3f} to {:.3f}); of the fastest rounds {:.3f} ms".format(name, *told))


def steps() -> None:
    """Prints what a training step of the demo's model costs over that of NoPE."""
    config = configured({})
    tokens = torch.randint(256, (config.batch_size, config.train_length + 1))
    works: dict[str, Callable[[], object]] = {}
    for name in ("nope", *SCHEMES):
        torch.manual_seed(0)
        model = build_model(config, name, 0)
        works[name] = partial(step_of, model, optimizer_for(model, config), tokens, config, loss_of)
    times = in_turns(works, STEPS, 1)
    print(f"a training step of the demo's model, NoPE: {1e3 * spread(times['nope'])[0]:.1f} ms")
    for name in SCHEMES:
        print("  {} times that: {:.3f} ({:.3f} to {:.3f})".format(name, *ratios(times[name], times["nope"])))


if __name__ == "__main__":
    torch.set_num_threads(1)
    calls(trains=False)
    calls(trains=True)
    steps()
