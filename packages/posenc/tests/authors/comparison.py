"""posenc's numbers for the cases of ``numbers.json``, by the same inputs."""

import inspect
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import (
    KERPLE,
    MLA,
    T5,
    TUPE,
    ALiBi,
    AxialRoPE,
    CoPE,
    DeBERTa,
    DualChunk,
    DynamicNTK,
    FoPE,
    FoX,
    LieRE,
    Llama3,
    LongRoPE,
    MixedRoPE,
    NTKAware,
    PositionInterpolation,
    Positions,
    QueryScale,
    RePo,
    ReRoPE,
    Resonance,
    RIFLEx,
    RoPE,
    RoPE3D,
    Scheme,
    SelfExtend,
    Sinusoidal,
    SoftClipping,
    StickBreaking,
    Swin,
    SwinV2,
    TransformerXL,
    XPos,
    YaRN,
)

DOUBLE = torch.float64
NUMBERS = Path(__file__).parent / "numbers.json"


class Error(NamedTuple):
    """The largest difference from the authors' numbers, the largest of these, and how many there are."""

    worst: float
    largest: float
    count: int


def entries() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return found


@torch.no_grad()
def errors(name: str, entry: dict[str, Any]) -> list[Error]:
    """One for each case."""
    found = []
    for case in entry["cases"]:
        theirs = torch.tensor(case["numbers"], dtype=DOUBLE)
        mine = thin(of(name)(**case["given"]))
        assert mine.shape == theirs.shape, (name, mine.shape, theirs.shape)
        found.append(Error((mine - theirs).abs().max().item(), theirs.abs().max().item(), len(theirs)))
    return found


def of(name: str) -> Callable[..., Tensor]:
    """What computes the numbers of an entry."""
    return getattr(sys.modules[__name__], name)  # type: ignore[no-any-return]


def known() -> set[str]:
    """The names of the functions below: those that compute numbers of entries."""
    here = vars(sys.modules[__name__])
    hidden = {"entries", "errors", "of", "known", "thin", "wave", "rotated", "weights", "cosines", "projected"}
    return {name for name, x in here.items() if inspect.isfunction(x) and x.__module__ == __name__} - hidden


def wave(*shape: int, seed: int = 0) -> Tensor:
    """Inputs of some size that look like nothing in particular: the same numbers that the authors' code was given."""
    n = torch.arange(1, math.prod(shape) + 1, dtype=DOUBLE)
    return (1.5 * torch.sin(n * (1.37 + 0.61 * seed) + 0.01 * n * n)).float().double().reshape(shape)


def thin(x: Tensor, most: int = 96) -> Tensor:
    """Every k-th number, so that at most so many are kept."""
    flat = x.double().flatten()
    return flat[:: max(1, math.ceil(flat.numel() / most))]


def rotated(scheme: Scheme, positions: Positions, x: Tensor) -> Tensor:
    """Queries (batch, heads, tokens, channels)."""
    return scheme(positions, dtype=DOUBLE).rotate_query(x)


def weights(scheme: Scheme, q: Tensor, k: Tensor) -> Tensor:
    """The weights of causal attention: its output with the values 1 and 0."""
    n = k.size(2)
    ones = torch.eye(n, dtype=DOUBLE).expand(1, k.size(1), n, n)
    return posenc.attention(q, k, ones, scheme(Positions.arange(n), dtype=DOUBLE), is_causal=True, backend="reference")


def cosines(scaling: Any, dim: int, base: float, n: int) -> Tensor:
    return RoPE(dim, base, scaling=scaling)(Positions.arange(n), dtype=DOUBLE).cos_sin()[0]


def projected(n: int, heads: int, kv: int, d: int) -> list[Tensor]:
    """The query, key and value of a layer of Llama."""
    each = enumerate((heads, kv, kv), 1)
    return [wave(1, n, count * d, seed=seed).view(1, n, count, d).transpose(1, 2) for seed, count in each]


# -- of each entry -----------------------------------------------------------------------------------------------------


def whisper(dim: int, length: int, base: float) -> Tensor:
    return Sinusoidal(dim, base, "tensor2tensor").table(Positions.arange(length), DOUBLE)


def mae(dim: int, side: int) -> Tensor:
    columns_first = Positions(Positions.grid(side, side).coords.flip(-1))
    return Sinusoidal(dim, layout="concatenated", axes=2).table(columns_first, DOUBLE)


def transformer_xl(heads: int, d: int, dim: int, n: int, memory: int) -> Tensor:
    scheme = TransformerXL(heads, d, dim).double()
    scheme.projection.copy_((wave(heads * d, dim, seed=2) / 3).view(heads, d, dim))
    scheme.content_bias.copy_(wave(heads, d, seed=5))
    scheme.position_bias.copy_(wave(heads, d, seed=6))
    before = wave(memory, 1, dim, seed=4) if memory else torch.empty(0, 1, dim, dtype=DOUBLE)
    x = torch.cat((before, wave(n, 1, dim, seed=3)))[:, 0] @ (wave(3 * heads * d, dim, seed=1) / 3).mT
    q, k, v = (part.unflatten(-1, (heads, d)).transpose(0, 1)[None] for part in x.chunk(3, -1))
    whole = Positions.arange(memory + n)
    encoding = scheme(whole[memory:], whole, dtype=DOUBLE)
    return posenc.attention(q[:, :, memory:], k, v, encoding, is_causal=True).transpose(1, 2)


def gpt_neox(dim: int, n: int, base: float) -> Tensor:
    return rotated(RoPE(dim, base), Positions.arange(n), wave(1, 1, n, dim))


def llama3(dim: int, n: int, base: float, scaled: bool) -> Tensor:
    rope = RoPE(dim, base, "interleaved", scaling=Llama3() if scaled else None)
    return rotated(rope, Positions.arange(n), wave(1, 1, n, dim))


def llama4(dim: int, n: int, factor: float, high: float) -> Tensor:
    rope = RoPE(dim, 500_000.0, "interleaved", scaling=Llama3(factor, 8192, 1.0, high))
    return rotated(rope, Positions.arange(n), wave(1, 1, n, dim))


def llama4_temperature(length: int, strength: float, n: int) -> Tensor:
    scheme = QueryScale("llama4", length=length, strength=strength)
    return rotated(scheme, Positions.arange(n), torch.ones(1, 1, n, 1, dtype=DOUBLE))


def deepseek_v3(dim: int, n: int, original: int, factor: float) -> Tensor:
    scaling = YaRN(factor, original, attention_factor=1.0) if n > original else None
    return rotated(MLA(2 * dim, dim, scaling=scaling), Positions.arange(n), wave(1, 1, n, dim))


def dinov3(d: int, h: int, w: int) -> Tensor:
    scheme = AxialRoPE(d, "dinov3").eval()
    return rotated(scheme, scheme.grid(h, w), wave(1, 1, h * w, d))


def alibi(heads: int) -> Tensor:
    return torch.tensor(ALiBi(heads).slopes, dtype=DOUBLE)


def cope(d: int, n: int, places: int, nodiv: bool) -> Tensor:
    scheme = CoPE(d, places, scaled=not nodiv).double()
    scheme.e.copy_(wave(d, places, seed=4).mT)
    q, k = wave(2, 1, 1, n, d)
    return weights(scheme, q, k)


def kerple(form: Any, n: int) -> Tensor:
    scheme = KERPLE(3, form).double()
    scheme.p.copy_(wave(3, seed=1) + 1)
    scheme.a.copy_(wave(3, seed=2))
    zeros = torch.zeros(1, 3, n, 1, dtype=DOUBLE)
    return (wave(1, 3, n, n, seed=3) + posenc.logits(zeros, zeros, scheme(Positions.arange(n), dtype=DOUBLE))).tril()


def xpos(d: int, n: int, base: float) -> Tensor:
    q, k = wave(2, 1, 1, n, d)
    scheme = XPos(d, scale_base=base, layout="interleaved")
    return posenc.logits(q, k, scheme(Positions.arange(n), dtype=DOUBLE)).tril()


def rope_axial(d: int, h: int, w: int, base: float) -> Tensor:
    return rotated(AxialRoPE(d, "index", base), Positions.grid(h, w), wave(1, 1, h * w, d))


def rope_mixed(d: int, h: int, w: int, heads: int) -> Tensor:
    scheme = MixedRoPE(d, heads).double()
    scheme.frequencies.copy_(wave(2, heads, d // 2, seed=2))
    return rotated(scheme, Positions.grid(h, w), wave(1, heads, h * w, d))


def swin(h: int, w: int, heads: int) -> Tensor:
    scheme = Swin((h, w), heads).double()
    scheme.weight.copy_(wave(*scheme.weight.shape, seed=1))
    q, k, _ = wave(1, h * w, 3, heads, 4).permute(2, 0, 3, 1, 4)
    return posenc.logits(q, k, scheme(Positions.grid(h, w), dtype=DOUBLE))


def swin_v2(h: int, w: int, heads: int, trained: Any) -> Tensor:
    scheme = SwinV2((h, w), heads, trained).double()
    scheme.tau.copy_(wave(heads, seed=1) + 3.8)
    scheme.inner.weight.copy_(wave(512, 2, seed=2))
    scheme.inner.bias.copy_(wave(512, seed=3))
    scheme.outer.weight.copy_(wave(heads, 512, seed=4) / 20)
    x = wave(h * w, heads * 4) @ wave(3 * heads * 4, heads * 4, seed=5).mT
    q, k, _ = x.view(1, h * w, 3, heads, 4).permute(2, 0, 3, 1, 4)
    return posenc.logits(q, k, scheme(Positions.grid(h, w), dtype=DOUBLE))


def tupe(heads: int, d: int, n: int) -> Tensor:
    """Rows 0 and 1 of their table also give the two numbers for [CLS]."""
    scheme = TUPE(heads, d, 16, untie_cls=True).double()
    rows = wave(17, heads * d, seed=1)
    scheme.embedding.weight.copy_(rows[1:])
    for seed, layer in enumerate((scheme.query, scheme.key)):
        layer.weight.copy_(wave(heads * d, heads * d, seed=2 + seed))
        layer.bias.copy_(wave(heads * d, seed=4 + seed))
    both = F.layer_norm(rows[:2], (heads * d,))
    of_query, of_key = (layer(both).view(2, heads, d) for layer in (scheme.query, scheme.key))
    scheme.theta.copy_((of_query * of_key).sum(-1) * scheme.scale)
    zeros = torch.zeros(1, heads, n, d, dtype=DOUBLE)
    return posenc.logits(zeros, zeros, scheme(Positions.arange(n), dtype=DOUBLE))


def deberta(heads: int, d: int, n: int, distances: int, buckets: int) -> Tensor:
    how: Any = {} if buckets < 0 else {"num_buckets": buckets, "clamp": "distance"}
    scheme = DeBERTa(heads, d, max_distance=distances, **how).double()
    scheme.relative.rows.weight.copy_(wave(2 * scheme.span, heads * d, seed=6))
    for seed, layer in enumerate((scheme.query, scheme.key)):
        layer.weight.copy_(wave(heads * d, heads * d, seed=1 + seed) / 2)
        layer.bias.copy_(wave(heads * d, seed=3 + seed))
    x = wave(1, n, heads * d, seed=5)
    q, k = (layer(x).unflatten(-1, (heads, d)).transpose(1, 2) for layer in (scheme.query, scheme.key))
    scores = posenc.logits(q, k, scheme(Positions.arange(n), dtype=DOUBLE))
    return scores - scores.amax(-1, keepdim=True)


def lie_re(h: int, w: int, block: int, training: int) -> Tensor:
    scheme = LieRE(16, 2, block, extent=training - 1).double()
    scheme.generators.copy_(wave(*scheme.generators.shape, seed=1) / scheme.extent)
    steps = torch.tensor([(training - 1) * side / training / (side - 1) for side in (h, w)], dtype=DOUBLE)
    positions = Positions(Positions.grid(h, w).coords * steps)
    turn: Any = scheme.rotation(positions, DOUBLE).query
    return turn.matrices  # type: ignore[no-any-return]


def yarn(dim: int, length: int, factor: float, base: float, n: int) -> Tensor:
    return cosines(YaRN(factor, length), dim, base, n)


def dynamic_yarn(dim: int, length: int, n: int, factor: float) -> Tensor:
    return cosines(YaRN(factor, length, dynamic=True), dim, 10_000.0, n)


def ntk_by_parts(dim: int, length: int, factor: float, n: int) -> Tensor:
    return cosines(NTKAware(factor, length), dim, 10_000.0, n)


def dynamic_ntk(dim: int, length: int, factor: float, n: int) -> Tensor:
    return cosines(DynamicNTK(factor, length), dim, 10_000.0, n)


def ntk(dim: int, factor: float, n: int) -> Tensor:
    return cosines(NTKAware(factor), dim, 10_000.0, n)


def linear(dim: int, factor: float, n: int) -> Tensor:
    return cosines(PositionInterpolation(factor), dim, 10_000.0, n)


def re_rope(n: int, heads: int, kv: int, d: int, window: int, trained: int, leak: int) -> Tensor:
    q, k, _ = projected(n, heads, kv, d)
    scheme = ReRoPE(d, window, leak=0.0 if leak == 1 else 1 / leak)
    return weights(scheme + QueryScale("rerope", length=trained), q, k)


leaky_re_rope = re_rope


def self_extend(n: int, heads: int, kv: int, d: int, group: int, window: int, trained: int) -> Tensor:
    q, k, _ = projected(n, heads, kv, d)
    scheme: Scheme = SelfExtend(d, group, window)
    return weights(scheme + QueryScale("rerope", length=trained) if trained > 0 else scheme, q, k)


def dual_chunk(n: int, heads: int, kv: int, d: int, trained: int) -> Tensor:
    q, k, v = projected(n, heads, kv, d)
    scheme = DualChunk(d, trained * 3 // 4, trained // 8) + QueryScale("chunkllama", length=trained)
    return posenc.attention(q, k, v, scheme(Positions.arange(n), dtype=DOUBLE), is_causal=True)[:, :, -1]


def t5(buckets: int, most: int, both: bool, n: int) -> Tensor:
    """A table of the buckets' own numbers."""
    scheme = T5(1, buckets, most, both).double()
    scheme.weight.copy_(torch.arange(buckets)[:, None])
    query, keys = Positions(torch.zeros(1, 1, dtype=torch.int64)), Positions(torch.arange(-n, n + 1)[None])
    zeros = torch.zeros(1, 1, 2 * n + 1, 1, dtype=DOUBLE)
    return posenc.logits(zeros[:, :, :1], zeros, scheme(query, keys, dtype=DOUBLE))


def fairseq(dim: int, length: int) -> Tensor:
    return Sinusoidal(dim, layout="tensor2tensor").table(Positions.arange(length, start=2), DOUBLE)


def stick_breaking(n: int, d: int, own: bool) -> Tensor:
    """The output, and what remains of the stick."""
    q, k, v = wave(3, 1, 2, n, d)
    encoding = StickBreaking(sees_itself=own)(Positions.arange(n), dtype=DOUBLE)
    out, lse = posenc.attention(q, k, v, encoding, is_causal=True, return_lse=True)
    return torch.cat((out.flatten(), (1 - lse.exp()).flatten()))


def eva(d: int, side: int, trained: int) -> Tensor:
    scheme = AxialRoPE(d, "eva", extent=(trained, trained))
    return rotated(scheme, scheme.grid(side, side), wave(1, 1, side * side, d))


def perception_encoder(d: int, h: int, w: int) -> Tensor:
    scheme = AxialRoPE(d, "pe")
    return rotated(scheme, scheme.grid(h, w, prefix=1), wave(1, 1, h * w + 1, d))


def longrope(dim: int, length: int, most: int) -> Tensor:
    factors = [1 + 0.37 * k for k in range(dim // 2)]
    return cosines(LongRoPE(factors, factors, length, most / length), dim, 10_000.0, 40)


def wan(d: int, f: int, h: int, w: int) -> Tensor:
    return rotated(RoPE3D(d), Positions.grid(h, w, frames=f), wave(1, 1, f * h * w, d))


def fox(n: int, m: int, d: int) -> Tensor:
    q, k, v = wave(3, 1, 2, n, d)
    gates = wave(1, 2, n, seed=7)
    whole = Positions.arange(n)
    of_queries, of_keys = {"forgotten": gates[:, :, n - m :]}, {"forgotten": gates}
    encoding = FoX(2)(whole[n - m :], whole, dtype=DOUBLE).with_projected(of_queries, of_keys)
    return posenc.attention(q[:, :, n - m :], k, v, encoding, is_causal=True, scale=0.5)


def cable(n: int, heads: int, d: int) -> Tensor:
    """With the identity as projection of the output."""
    dim = heads * d
    x = wave(1, n, dim)
    q, k, v = (
        F.linear(x, wave(3 * dim, dim, seed=1) / 3, wave(3 * dim, seed=2) / 3)
        .view(1, n, 3, heads, d)
        .permute(2, 0, 3, 1, 4)
    )
    softened = F.linear(x, wave(heads, dim, seed=3) / 3, wave(heads, seed=4)).transpose(1, 2)
    encoding = FoX(heads)(Positions.arange(n), dtype=DOUBLE).with_projected({"forgotten": -softened})
    return posenc.attention(q, k, v, encoding, is_causal=True, scale=1.0).transpose(1, 2).reshape(1, n, dim)


def clipped(dim: int, base: float, n: int) -> Tensor:
    return cosines(SoftClipping(pairs=20), dim, base, n)


def resonance(dim: int, base: float, n: int) -> Tensor:
    return cosines(Resonance(), dim, base, n)


def resonance_yarn(dim: int, length: int, factor: float, n: int) -> Tensor:
    return cosines(Resonance(YaRN(factor, length)), dim, 10_000.0, n)


def riflex(dim: int, base: float, seen: int, length: int, n: int) -> Tensor:
    return cosines(RIFLEx(length, repeats_at=seen), dim, base, n)


def repo(n: int, heads: int, d: int, base: float) -> Tensor:
    dim = heads * d
    x, rows = wave(1, n, dim), dim // 8
    gate, content = (F.linear(x, wave(rows, dim, seed=seed) / 3) for seed in (1, 2))
    z = F.linear(F.silu(gate) * content, wave(heads, rows, seed=3)).transpose(1, 2)
    encoding = RePo(heads, d, base)(Positions.arange(n), dtype=DOUBLE).with_projected({"position": z})
    return encoding.rotate_query(wave(1, heads, n, d, seed=4))


def vllm(length: int, lengths: list[int]) -> Tensor:
    """The factor of the last query of each text."""
    scheme = QueryScale("qwen2_5_1m", length=length)
    context = posenc.Context(lengths=torch.tensor(lengths))
    rows = Positions.arange(1).expand(len(lengths))
    return scheme(rows, dtype=DOUBLE, context=context).rotate_query(torch.ones(len(lengths), 1, 1, 1, dtype=DOUBLE))


def fope(heads: int, d: int, length: int, base: float, n: int) -> Tensor:
    """With the number of pairs of their code."""
    kept = FoPE(heads, d, length, base).series
    scheme = FoPE(heads, d, length, base, series=min(kept, d // 4)).double()
    scheme.coefficients.copy_(wave(*scheme.coefficients.shape, seed=2))
    return rotated(scheme, Positions.arange(n), wave(1, heads, n, d))
