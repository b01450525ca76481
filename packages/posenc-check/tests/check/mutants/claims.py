"""Windows, sinks, weights that sum to one, sides and directions: as claimed, and not."""

from typing import Any

import torch
from torch import Tensor

from posenc_check import Attention, Rotary
from tests.check.mutants import Mutant

WINDOW = 4


class Local:
    """Causal attention to itself and the 3 tokens before it, with ALiBi of one slope. Queries are the last keys."""

    window, sinks = WINDOW, 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        new, all_so_far = query.size(2), key.size(2)
        q, k = torch.arange(all_so_far - new, all_so_far)[:, None], torch.arange(all_so_far)
        scores = query @ key.mT / query.size(-1) ** 0.5 + self.bias(q, k)
        return self.weigh(scores, self.sees(q, k)).to(value) @ value

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return -0.25 * (q - k).abs()

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & ((q - k < self.window) | (k < self.sinks))

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.where(seen.any(-1, keepdim=True), weights, 0.0)


def attend(made: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return made(query, key, value)


# -- twins that look wrong ---------------------------------------------------------------------------------------------


class Streaming(Local):
    """StreamingLLM: the first two tokens stay, and are as far away as their slot in a cache that keeps 6."""

    sinks = 2

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        slots = torch.where(k < self.sinks, (q - k).clamp(max=self.window + self.sinks - 1) - k, q - k)
        return -0.25 * slots.abs()


class BothWays(Local):
    """ModernBERT's local layers, of a bidirectional encoder."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return ((q - k).abs() < self.window) | (k < self.sinks)


class LearnedSink(Local):
    """gpt-oss: a learned logit takes a share of every row, so the rest does not sum to one."""

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
        sink = torch.full_like(scores[..., :1], 0.5)
        return torch.cat((scores, sink), -1).softmax(-1)[..., :-1]


class Chunked(Local):
    """Llama 4: tokens see their own chunk of 4, up to themselves."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q // 4 == k // 4)


class Scaled(Local):
    """Scores grow with the logarithm of the tokens so far (scalable softmax)."""

    window = 10_000

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        return super().weigh(scores * seen.sum(-1, keepdim=True).log().clamp(min=0.5), seen)


class Alibi(Local):
    """ALiBi without a window."""

    window = 10_000


def turn(rate: float, x: Tensor, positions: Tensor) -> Tensor:
    """Halves are pairs; positions (rows, 1, tokens, 1)."""
    angle = positions.double() * rate ** torch.arange(x.size(-1) // 2).double()
    (left, right), cos, sin = x.chunk(2, -1), angle.cos(), angle.sin()
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1).to(x.dtype)


# -- bugs: windows -----------------------------------------------------------------------------------------------------


class CausalOnBothSides(Local):
    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() < self.window


# -- bugs: weights and sides -------------------------------------------------------------------------------------------


class BiasAfterSoftmax(Alibi):
    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        far = -0.01 * torch.arange(scores.size(-1)).flip(0)
        return super().weigh(scores, seen) + far * seen


class LopsidedAlibi(Local):
    """What is after a token is rewarded."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return -0.25 * (q - k)

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() >= 0


class Encoder(LopsidedAlibi):
    """ALiBi to both sides."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        return -0.25 * (q - k).abs()


def a_rate(rate: float = 0.5) -> float:
    return rate


def forward(rate: float, x: Tensor, positions: Tensor) -> Tensor:
    return turn(rate, x, positions[:, None, :, None])


def backward(rate: float, x: Tensor, positions: Tensor) -> Tensor:
    return turn(rate, x, -positions[:, None, :, None])


# -- subjects ----------------------------------------------------------------------------------------------------------


def local(build: Any, **claims: Any) -> Attention:
    return Attention(**{"build": build, "call": attend, "causal": True, "window": WINDOW, **claims})


def whole(build: Any, **claims: Any) -> Attention:
    return Attention(**{"build": build, "call": attend, "causal": True, **claims})


def rotation(call: Any, **claims: Any) -> Rotary:
    return Rotary(build=a_rate, call=call, layout="half", relative=True, **claims)


CORRECT = (
    local(Local, normalized=True),
    local(Streaming, sinks=2, normalized=True),
    local(BothWays, causal=False, normalized=True, directed=False),
    local(LearnedSink),
    whole(Chunked, normalized=True),
    whole(Scaled, normalized=True),
    whole(Encoder, causal=False, directed=False, normalized=True),
    rotation(forward, direction="forward"),
    rotation(backward, direction="backward"),
)
MUTANTS = (
    Mutant("a causal window on both sides", local(CausalOnBothSides), 19, 5),
    Mutant("ALiBi after the softmax", whole(BiasAfterSoftmax, normalized=True), 19, 16),
    Mutant("ALiBi that rewards what comes after", whole(LopsidedAlibi, causal=False, directed=False), 19, 16),
    Mutant("a rotation backward", rotation(backward, direction="forward"), 15, 8),
)
