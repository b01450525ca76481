"""The contract carries custom schemes: forward and backward, packed, from a cache, on the truth and by tiles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import posenc
from posenc import Positions, RoPE, Scheme
from posenc.models.cache import KVCache
from posenc.models.forward_pass import ForwardPass
from posenc.schedule import Schedule
from tests.contract import custom_schemes, oracles
from tests.contract.oracles import Numbers, Result, Where
from tests.rounding import of_sums

HEADS, KV_HEADS, WIDTH, VALUE_WIDTH = 6, 3, 4, 5
SCORE = 128.0  # no score of a trial is larger, its scheme's part included
LOTS = ((0, 4), (4, 5), (5, 9))  # in which a cache is fed
Tensors = Mapping[str, Tensor]


LINES = {"offset": Positions.arange(9, start=5), "packed": Positions.packed([[4, 5], [6, 2]])}
ROWS = {
    "right padded": Positions.padded(torch.arange(9) < torch.tensor([[9], [5]])),
    "left padded": Positions.padded(torch.arange(9) >= torch.tensor([[6], [1]])),
}


def plain(trial: "Trial", scheme: Scheme, n: Tensors, x: Positions, y: Positions, backend: str, **more: Any) -> Result:
    """attention(), as a user calls it."""
    encoding = scheme(x, y, dtype=torch.float64)
    how = {"is_causal": True, "scale": trial.scale, "backend": backend, "return_lse": True}
    return posenc.attention(n["query"], n["key"], n["value"], encoding, **how, **more)


def step_by_step(trial: "Trial", scheme: Any, step: ForwardPass, n: Tensors, backend: str) -> Any:
    """A layer's step: the output of the new tokens."""
    return step.attention(n["query"], n["key"], n["value"], scale=trial.scale, backend=backend)


@dataclass(frozen=True)
class Trial:
    """A scheme, its oracle, and how a model calls it.

    ``tokens`` are heads and width of every tensor that holds something per token. ``refused``: why no tiles, in the
    words of the error.
    """

    make: Callable[[], Scheme]
    oracle: Callable[[Numbers, Where, Where, bool], Result]
    grounds: Mapping[str, Positions]
    tokens: Mapping[str, tuple[int, ...]]
    attend: Callable[..., Result] = plain
    step: Callable[..., Tensor] = step_by_step
    scale: float | None = None
    refused: str | None = None
    window: int | None = None

    @property
    def backends(self) -> tuple[str, ...]:
        return "reference", "native" if self.refused is None else "chunked"

    def drawn(self, positions: Positions) -> dict[str, Tensor]:
        shapes = {name: (2, heads, len(positions), *width) for name, (heads, *width) in self.tokens.items()}
        return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def sized(width: int = WIDTH, value_width: int = VALUE_WIDTH, **more: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    return {"query": (HEADS, width), "key": (KV_HEADS, width), "value": (KV_HEADS, value_width), **more}


# -- calls of their own -----------------------------------------------------------------------------------------------


def path(trial: Trial, scheme: Any, n: Tensors, *given: Any) -> Result:
    query, key = scheme.widened(*(n[name] for name in ("query", "key", "w", "beta")))
    return plain(trial, scheme, {"query": query, "key": key, "value": n["value"]}, *given)


def path_step(trial: Trial, scheme: Any, step: ForwardPass, n: Tensors, backend: str) -> Tensor:
    query, key = scheme.widened(*(n[name] for name in ("query", "key", "w", "beta")))
    return step.attention(query, key, n["value"], scale=trial.scale, backend=backend)


def with_sinks(trial: Trial, scheme: Any, *given: Any) -> Result:
    return plain(trial, scheme, *given, window=trial.window, sinks=scheme.sinks)


def with_sinks_step(trial: Trial, scheme: Any, step: ForwardPass, n: Tensors, backend: str) -> Tensor:
    return step.attention(n["query"], n["key"], n["value"], sinks=scheme.sinks, backend=backend)


TRIALS = {
    "window and sinks": Trial(
        lambda: custom_schemes.RoPEWithSinks(HEADS, WIDTH, 313.0),
        partial(oracles.with_sinks, left=2, base=313.0),
        LINES,
        sized(),
        attend=with_sinks,
        step=with_sinks_step,
        window=3,
    ),
    "DAPE": Trial(
        lambda: custom_schemes.DAPE(HEADS, 3),
        partial(oracles.dape, total=HEADS),
        LINES,
        sized(),
        refused="needs whole rows",
    ),
    "PaTH": Trial(
        lambda: custom_schemes.PaTH(WIDTH),
        oracles.path,
        LINES | ROWS,
        sized(w=(KV_HEADS, WIDTH), beta=(KV_HEADS,)),
        attend=path,
        step=path_step,
        scale=WIDTH**-0.5,
        refused="needs whole rows",
    ),
}
RUNS = [
    pytest.param(trial, positions, id=f"{name}-{where}")
    for name, trial in TRIALS.items()
    for where, positions in trial.grounds.items()
]


def where(positions: Positions) -> Where:
    p = positions.expand(2)
    return Where(p.coords.tolist(), p.order.tolist(), p.document.tolist())


def truth(trial: Trial, leaves: Tensors, x: Positions, y: Positions, parameters: Tensors) -> Result:
    numbers = {name: leaf.tolist() for name, leaf in {**leaves, **parameters}.items()}
    return trial.oracle(numbers, where(x), where(y), True)


@pytest.mark.parametrize(("trial", "positions"), RUNS)
def test_output_and_every_gradient_are_the_oracles(trial: Trial, positions: Positions) -> None:
    """The slope along a direction of each leaf is that of the oracle's loss, by central differences."""
    scheme, leaves = trial.make(), trial.drawn(positions)
    parameters = dict(scheme.named_parameters())
    every = {**leaves, **parameters}
    out, lse = truth(trial, leaves, positions, positions, parameters)
    seen = None if lse is None else lse > -torch.inf
    weights, directions = torch.randn_like(out), {name: torch.randn_like(leaf) for name, leaf in every.items()}
    of_lse = None if lse is None else torch.randn_like(lse)

    def loss(out: Tensor, lse: Tensor | None) -> Tensor:
        return (out * weights).sum() + (0 if lse is None else (lse * of_lse)[seen].sum())

    step, slopes = 1e-5, {}
    with torch.no_grad():
        for name, leaf in every.items():
            ends, kept = [], leaf.clone()
            for move in (step, -step):
                leaf.copy_(kept + move * directions[name])
                ends.append(loss(*truth(trial, leaves, positions, positions, parameters)))
            leaf.copy_(kept)
            slopes[name] = (ends[0] - ends[1]) / (2 * step)
    for leaf in leaves.values():
        leaf.requires_grad_()
    for backend in trial.backends:
        made, made_lse = trial.attend(trial, scheme, leaves, positions, positions, backend)
        bound = of_sums(torch.float64, 9 + WIDTH, out, score=SCORE)
        torch.testing.assert_close(made, out, rtol=0, atol=bound, msg=lambda m, b=backend: f"{b}: {m}")
        if lse is not None:
            torch.testing.assert_close(made_lse, lse, rtol=0, atol=of_sums(torch.float64, 9 + WIDTH, 1.0, score=SCORE))
        gradients = torch.autograd.grad(loss(made, made_lse), list(every.values()))
        for (name, slope), gradient in zip(slopes.items(), gradients, strict=True):
            told = f"{backend}, gradient of {name}"
            found = (gradient * directions[name]).sum()
            # Truncation: step^2 = 1e-10 times third derivatives, up to 1e4 slopes. Rounding: 1e-13 over the step.
            torch.testing.assert_close(found, slope, rtol=1e-6, atol=1e-7, msg=lambda m, t=told: f"{t}: {m}")


@pytest.mark.parametrize(("trial", "positions"), RUNS)
@torch.no_grad()
def test_from_a_cache_every_lot_is_the_oracles(trial: Trial, positions: Positions) -> None:
    """Each lot of tokens sees itself and what the cache holds, features and lengths included."""
    for backend in trial.backends:
        scheme, leaves, cache = trial.make(), trial.drawn(positions), KVCache()
        for start, stop in LOTS:
            new = {name: leaf[:, :, start:stop] for name, leaf in leaves.items()}
            so_far = {name: new[name] if name == "query" else x[:, :, :stop] for name, x in leaves.items()}
            x, y = positions[start:stop], positions[:stop]
            schedule = Schedule([(scheme, trial.window)])
            with ForwardPass(schedule, x, cache, dtype=torch.float64) as step:
                out = trial.step(trial, scheme, step, new, backend)
            expected, _ = truth(trial, so_far, x, y, dict(scheme.named_parameters()))
            bound = of_sums(torch.float64, 9 + WIDTH, expected, score=SCORE)
            torch.testing.assert_close(out, expected, rtol=0, atol=bound)


@pytest.mark.parametrize("backend", ["reference", "native"])
@torch.no_grad()
def test_a_schedule_gives_every_layer_its_scheme_its_window_and_its_sinks(backend: str) -> None:
    """Two bases, one of them in a window, and a layer without positions; from one cache, a lot at a time."""
    near, far = RoPE(WIDTH, base=7.0), RoPE(WIDTH, base=313.0)
    schedule = Schedule([(near, 3), (far, None), (posenc.NoPE(), None), (near, 2)])
    kinds = [
        {"left": 2, "base": 7.0},
        {"left": None, "base": 313.0},
        {"left": None, "base": None},
        {"left": 1, "base": 7.0},
    ]
    trial, cache, positions = TRIALS["window and sinks"], KVCache(), LINES["packed"]
    layers = [trial.drawn(positions) | {"sinks": torch.randn(HEADS, dtype=torch.float64)} for _ in schedule]
    for start, stop in LOTS:
        with ForwardPass(schedule, positions[start:stop], cache, dtype=torch.float64) as step:
            for number, (layer, kind) in enumerate(zip(layers, kinds, strict=True)):
                new = (layer[name][:, :, start:stop] for name in ("query", "key", "value"))
                made = step.attention(*new, number, sinks=layer["sinks"], backend=backend)
                numbers = {
                    name: x.tolist() if name == "sinks" else x[:, :, :stop].tolist() for name, x in layer.items()
                }
                numbers["query"] = layer["query"][:, :, start:stop].tolist()
                expected, _ = oracles.with_sinks(
                    numbers, where(positions[start:stop]), where(positions[:stop]), True, **kind
                )
                bound = of_sums(torch.float64, 9 + WIDTH, expected, score=SCORE)
                torch.testing.assert_close(made, expected, rtol=0, atol=bound)
