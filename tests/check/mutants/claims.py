"""Windows, sinks, weights that sum to one, sides and directions: as claimed, and not."""

from typing import Any

import torch
from torch import Tensor, nn

from posenc.tools.check import Attention, Bias, Rotary
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


def attend_at(
    made: Any, query: Tensor, key: Tensor, value: Tensor, query_positions: Tensor, key_positions: Tensor
) -> Tensor:
    return made(query, key, value, query_positions[:, None, :, None], key_positions[:, None, None, :])


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


class Longformer(BothWays):
    """The first token sees all, and is seen by all."""

    sinks = 1

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return super().sees(q, k) | (q < self.sinks)


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


class ByPosition:
    """A window over positions: across a gap it shows fewer tokens."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, q: Tensor, k: Tensor) -> Tensor:
        ahead = key.size(2) - query.size(2)
        seen = torch.ones(query.size(2), key.size(2)).tril(ahead).bool() & ((q - k).abs() < WINDOW)
        scores = query @ key.mT / query.size(-1) ** 0.5 - 0.25 * (q - k).abs()
        return scores.masked_fill(~seen, -torch.inf).softmax(-1).to(value) @ value


class NoPosition(ByPosition):
    """NoPE: takes positions as all attention of the family does."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return Alibi.weigh(Alibi(), query @ key.mT / 4, self.past(query, key)) @ value

    def past(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones(query.size(2), key.size(2)).tril(key.size(2) - query.size(2)).bool()


class TurnedValues(NoPosition):
    """Values are turned by their positions too, and what comes out is turned back."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, q: Tensor, k: Tensor) -> Tensor:
        there, here = k.mT, q
        scores = turn(0.5, query, here) @ turn(0.5, key, there).mT / 4
        return turn(0.5, Alibi.weigh(Alibi(), scores, self.past(query, key)) @ turn(0.5, value, there), -here)


def turn(rate: float, x: Tensor, positions: Tensor) -> Tensor:
    """Halves are pairs; positions (rows, 1, tokens, 1)."""
    angle = positions.double() * rate ** torch.arange(x.size(-1) // 2).double()
    (left, right), cos, sin = x.chunk(2, -1), angle.cos(), angle.sin()
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1).to(x.dtype)


# -- bugs: windows -----------------------------------------------------------------------------------------------------


class OneTooMany(Local):
    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q - k <= self.window)


class OneTooFew(BothWays):
    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() < self.window - 1


class OneSideTooFar(BothWays):
    """Half of a window, rounded: 3 before and 4 after."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k < self.window) & (k - q <= self.window)


class CausalOnBothSides(Local):
    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (q - k).abs() < self.window


class LostInDecoding(Local):
    """One new token needs no mask, it is said, and so no window."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return super().sees(q, k) if len(q) > 1 else k <= q


class SinksLostInDecoding(Streaming):
    """What has left the window is gone, sinks too."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return super().sees(q, k) & ((q - k < self.window) | (len(q) > 1))


class SinkNotKept(Streaming):
    """Keeps one of the two sinks."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & ((q - k < self.window) | (k < 1))


class BySlot(Local):
    """A rolling cache keeps as many keys as the window, in slots 0, 1, …; the query is counted by the text."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.size(2) > 1 or key.size(2) <= self.window:
            return super().__call__(query, key, value)
        q, k = torch.tensor([[key.size(2) - 1]]), torch.arange(self.window)
        key, value = key[:, :, -self.window :], value[:, :, -self.window :]
        scores = query @ key.mT / query.size(-1) ** 0.5 + self.bias(q, k)
        return self.weigh(scores, self.sees(q, k)).to(value) @ value


class SinkTwice(LearnedSink):
    """The logit of the sink is added again to what was cached with it."""

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        weights = super().weigh(scores, seen)
        return weights / (1 + 0.2 * (scores.size(-1) > scores.size(-2)))


class WindowByIndexOfTheChunk(Local):
    """The window of a chunk is counted from its own first token."""

    def sees(self, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q - q[0] - k < self.window)


# -- bugs: weights and sides -------------------------------------------------------------------------------------------


class BiasAfterSoftmax(Alibi):
    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        far = -0.01 * torch.arange(scores.size(-1)).flip(0)
        return super().weigh(scores, seen) + far * seen


class MaskedAfterwards(Alibi):
    """What is not seen takes its share first."""

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        return scores.softmax(-1) * seen


class NeverDividedByZero(Alibi):
    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        weights = scores.exp() * seen
        return weights / (weights.sum(-1, keepdim=True) + 1e-5)


class ScaledAsInTraining(Alibi):
    """Divides by what dropout keeps, and drops nothing."""

    def weigh(self, scores: Tensor, seen: Tensor) -> Tensor:
        return super().weigh(scores, seen) / 0.9


class Buckets(nn.Module):
    """A learned bias for each distance up to 8 to either side, as T5 has it in its encoder."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 17))

    def bucket(self, away: Tensor) -> Tensor:
        return away.clamp(-8, 8) + 8

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.table[:, self.bucket(key[:, None, :] - query[:, :, None])].transpose(0, 1)


class Symmetric(Buckets):
    """The side is dropped with the sign."""

    def bucket(self, away: Tensor) -> Tensor:
        return away.abs().clamp(max=8)


class LookingBack(Buckets):
    """T5's decoder: what is after a token is in the bucket of 0."""

    def bucket(self, away: Tensor) -> Tensor:
        return (-away).clamp(0, 16)


class LookingForward(LookingBack):
    """The sign is the other one, so all that is before a token is in the bucket of 0."""

    def bucket(self, away: Tensor) -> Tensor:
        return away.clamp(0, 16)


class NotYetLearned(Buckets):
    """A table of zeros, before training."""

    def __init__(self, heads: int = 3) -> None:
        super().__init__(heads)
        nn.init.zeros_(self.table)


def bias(made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
    return made(query_positions, key_positions)


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


def keys_backward(rate: float, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    return forward(rate, query, positions), backward(rate, key, positions)


# -- subjects ----------------------------------------------------------------------------------------------------------


def local(build: Any, **claims: Any) -> Attention:
    return Attention(**{"build": build, "call": attend, "causal": True, "window": WINDOW, **claims})


def whole(build: Any, **claims: Any) -> Attention:
    return Attention(**{"build": build, "call": attend, "causal": True, **claims})


def rotation(call: Any, **claims: Any) -> Rotary:
    return Rotary(build=a_rate, call=call, layout="half", relative=True, **claims)


def buckets(build: Any, **claims: Any) -> Bias:
    return Bias(build=build, call=bias, relative=True, **claims)


CORRECT = (
    local(Local, relative=True, normalized=True),
    local(Streaming, relative=True, sinks=2, normalized=True),
    local(BothWays, causal=False, relative=True, normalized=True, directed=False),
    local(Longformer, causal=False, relative=True, sinks=1),
    local(LearnedSink, relative=True),
    whole(Chunked, relative=True, normalized=True),
    whole(Scaled, relative=True, normalized=True),
    local(ByPosition, call=attend_at, relative=True, normalized=True),
    whole(NoPosition, call=attend_at, relative=True, order_free=True, normalized=True),
    whole(TurnedValues, call=attend_at, relative=True),
    whole(Encoder, causal=False, relative=True, directed=False, normalized=True),
    buckets(Buckets, directed=True),
    buckets(LookingBack, causal=True),
    buckets(NotYetLearned),
    rotation(forward, direction="forward"),
    rotation(backward, direction="backward"),
)
MUTANTS = (
    Mutant("a window of one too many", local(OneTooMany), 19, 5),
    Mutant("a window of one too few", local(OneTooFew, causal=False), 19, 5),
    Mutant("a window that is further on one side", local(OneSideTooFar, causal=False), 19, 5),
    Mutant("a causal window on both sides", local(CausalOnBothSides), 19, 5),
    Mutant("a window that decoding forgets", local(LostInDecoding), 19, 5),
    Mutant("a window counted from the chunk", local(WindowByIndexOfTheChunk), 8, 5),
    Mutant("sinks that decoding forgets", local(SinksLostInDecoding, sinks=2), 8, 5),
    Mutant("one sink of two", local(SinkNotKept, sinks=2), 19, 5),
    Mutant("a window over slots of a rolling cache", local(BySlot), 8, 5),
    Mutant("a learned sink counted twice", local(SinkTwice), 8, 5),
    Mutant("ALiBi after the softmax", whole(BiasAfterSoftmax, normalized=True), 19, 16),
    Mutant("masked after the softmax", whole(MaskedAfterwards, normalized=True), 19, 5),
    Mutant("a little something in the denominator", whole(NeverDividedByZero, normalized=True), 19, 5),
    Mutant("scaled as if by dropout", whole(ScaledAsInTraining, normalized=True), 19, 5),
    Mutant("buckets that know no side", buckets(Symmetric, directed=True), 19, 16),
    Mutant("ALiBi that rewards what comes after", whole(LopsidedAlibi, causal=False, directed=False), 19, 16),
    Mutant("buckets of a decoder that look ahead", buckets(LookingForward, causal=True), 6, 3),
    Mutant("a rotation backward", rotation(backward, direction="forward"), 15, 8),
    Mutant("keys turned backward", rotation(keys_backward, direction="forward"), 15, 8),
)
