"""Calls at the edge of what a backend can run, and misuse that the arguments give away."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import (
    T5,
    TUPE,
    ALiBi,
    Context,
    DistanceAware,
    Learned,
    NoPE,
    Positions,
    RoPE,
    Shaw,
    Sinusoidal,
    attention,
    logits,
)
from posenc.encoding.pieces import Clock, Distance, Meeting, Value
from posenc.encoding.rotation import Rotation
from posenc.models import Decoder, ForwardPass, KVCache
from posenc.schedule import Schedule
from posenc.scheme import Scheme

HEADS, WIDTH = 4, 8


def qkv(tokens: int, heads: int = HEADS, batch: int = 1, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    return [torch.randn(batch, heads, tokens, WIDTH, dtype=dtype) for _ in range(3)]


class Clocked(Scheme):
    """A clock and nothing else (FoX)."""

    def score(self, *_: Any) -> tuple[Clock]:
        """One term."""
        return (Clock("clock"),)


# --- what fast backends leave out -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1.5, -900.0])
def test_a_clock_may_bring_back_what_a_slope_made_faint(rate: float) -> None:
    tokens = 600
    query, key, value = qkv(tokens)
    clock = torch.zeros(1, HEADS, tokens, dtype=torch.float64)
    if rate > 0:
        clock += rate * torch.arange(tokens)
    else:
        clock[..., 10] = rate
    text = Positions.arange(tokens)
    encoding = (ALiBi(HEADS, "bidirectional") + Clocked())(text).with_features({"clock": clock})
    for causal in (True, False):
        found, truth = (
            attention(query, key, value, encoding, is_causal=causal, backend=b) for b in ("native", "reference")
        )
        torch.testing.assert_close(found, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("start", [5_000_000, 2**24 - 300])
def test_large_coordinates_that_are_whole_fractions(start: int, dtype: torch.dtype) -> None:
    query, key, value = qkv(100)
    there = Positions((torch.arange(100) + start).to(dtype)[None])
    scheme = DistanceAware(HEADS).double()
    gap = Positions.cat([there[:50], there[50:].shift(100)])
    for positions in (there, gap):
        found, truth = (
            attention(query, key, value, scheme, query_positions=positions, is_causal=True, backend=b)
            for b in ("native", "reference")
        )
        torch.testing.assert_close(found, truth)


@pytest.mark.more
@pytest.mark.parametrize("window", [(4, 0), None])
def test_windows_compile(window: Any) -> None:
    query, key, value = qkv(20)
    model = Decoder(10, 16, 2, 2, position=Schedule([(RoPE(8), window), (RoPE(8, base=313.0), None)])).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return attention(q, k, v, RoPE(WIDTH), is_causal=True, window=window)

    run = torch.compile(attend, fullgraph=True, backend="eager")
    torch.testing.assert_close(run(query, key, value), attend(query, key, value))
    tokens = torch.randint(10, (1, 7))
    whole: Any = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(tokens), model(tokens))


def test_maps_that_are_functions_compile() -> None:
    """TUPE's maps are closures, of which a graph cannot tell whether two are the same."""
    x = qkv(9)[0]
    scheme = TUPE(x.size(1), x.size(-1), 16).to(x.dtype)
    run = torch.compile(lambda x: attention(x, x, x, scheme, is_causal=True), fullgraph=True, backend="eager")
    torch.testing.assert_close(run(x), attention(x, x, x, scheme, is_causal=True))


# --- misuse that the arguments give away ------------------------------------------------------------------------------


def test_a_causal_form_beside_a_mask_of_padding_is_not_a_causal_mask() -> None:
    query, key, value = qkv(6, batch=2)
    padding = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    for mask in (padding, padding.expand(2, 1, 6, 6), torch.zeros(1, 6, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"pass is_causal=True \(with or without attn_mask\)"):
            attention(query, key, value, ALiBi(HEADS), attn_mask=mask)
        attention(query, key, value, ALiBi(HEADS), attn_mask=mask, is_causal=True)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    by_mask = attention(query, key, value, ALiBi(HEADS), attn_mask=causal)
    torch.testing.assert_close(by_mask, attention(query, key, value, ALiBi(HEADS), is_causal=True))
    attention(
        query[:, :, :1],
        key,
        value,
        ALiBi(HEADS),
        query_positions=Positions.arange(1, start=2),
        key_positions=Positions.arange(6),
        attn_mask=torch.arange(6)[None] <= 2,
    )  # a cache with room left


def test_every_layer_of_a_cache_is_called_once_in_every_pass() -> None:
    query, key, value = qkv(3)
    cache = KVCache()
    text = Positions.arange(6)
    with ForwardPass(RoPE(WIDTH), text[:3], cache, dtype=torch.float64) as step:
        step.attention(query, key, value, layer=0)
        step.attention(query, key, value, layer=1)
    assert repr(cache) == "KVCache(3 tokens, 2 layers)"

    def run(positions: Positions, *layers: int) -> None:
        with ForwardPass(RoPE(WIDTH), positions, cache, dtype=torch.float64) as step:
            for layer in layers:
                step.attention(query, key, value, layer=layer)

    with pytest.raises(ValueError, match=r"layer 0 has these 3 tokens already: pass a different layer= in every"):
        run(text[3:], 0, 0)
    run(text[3:], 0)  # the pass that failed has left nothing behind
    with pytest.raises(ValueError, match=r"layer 1 holds 3 of the cache's 6 tokens: every layer must be called in"):
        run(text.following(3), 0, 1)


def test_a_forward_pass_opens_the_add_door_or_says_so() -> None:
    query, key, value = qkv(3)
    step = ForwardPass(Sinusoidal(16), Positions.arange(3))
    with pytest.raises(ValueError, match=r"was not added: call x = encoding.add\(x\), or x = step.add\(x\) with"):
        step.attention(query, key, value)
    step.add(torch.zeros(1, 3, 16))
    step.attention(query, key, value)
    layers = Schedule([(NoPE(), None), (Learned(9, 16), None)])
    with pytest.raises(ValueError, match=r"adds only the vectors of layer 0's scheme, but the scheme of layer 1 adds"):
        Decoder(10, 16, 2, 2, position=layers)
    assert (
        Decoder(10, 16, 2, 2, position=layers, inject="every_layer")(torch.zeros(1, 4, dtype=torch.int64)).size(1) == 4
    )


class Loud(Scheme):
    """A map of queries and keys that brings a factor of its own."""

    scale = 2.0  # type: ignore[assignment]

    def rotation(self, *_: Any) -> Rotation:
        """Both as they are."""
        return Rotation(lambda x: x, lambda x: x)


class Mute(Scheme):
    """One that says its factor in the rotation alone."""

    def rotation(self, *_: Any) -> Rotation:
        """Both as they are."""
        return Rotation(lambda x: x, lambda x: x, scale=2.0)


def test_what_a_rotation_brings_along_stays_with_the_pairs() -> None:
    query, key, value = qkv(5)
    encoding = Loud()(Positions.arange(5))
    turned = encoding.rotate(query, key)
    by_hand = attention(*turned, value, encoding.pairs)
    torch.testing.assert_close(by_hand, attention(query, key, value, Loud()))
    with pytest.raises(ValueError, match=r"the scale of Mute must equal that of its rotation, 2\.0, got None"):
        attention(query, key, value, Mute())
    values = RoPE(WIDTH, values=True)(Positions.arange(5))
    with pytest.raises(ValueError, match="rotates values too: call rotate_query, rotate_key and rotate_value"):
        values.rotate(query, key)


def test_a_factor_of_queries_and_keys_is_not_one_of_values() -> None:
    scheme = RoPE(WIDTH, values=True, scaling=lambda theta: (theta, 1.5))
    encoding = scheme(Positions.arange(5), dtype=torch.float64)
    (value,) = qkv(5)[:1]
    torch.testing.assert_close(encoding.rotate_output(encoding.rotate_value(value)), value)
    (query, key) = qkv(5)[:2]
    assert torch.allclose(encoding.rotate_query(query).norm(), 1.5 * query.norm())
    assert key.size(2) == 5


def test_some_heads_turn_whoever_shares_their_keys() -> None:
    query, key, value = qkv(7, heads=12)
    some = RoPE(WIDTH, heads=range(3, 9), num_heads=12)
    few = key[:, ::3], value[:, ::3]
    repeated = [x.repeat_interleave(3, 1) for x in few]
    torch.testing.assert_close(attention(query, *few, some), attention(query, *repeated, some))
    shard = some(Positions.arange(7), dtype=torch.float64, context=Context(heads=range(6, 12)))
    whole = attention(query, key, value, some)
    assert isinstance(whole, Tensor)
    torch.testing.assert_close(attention(query[:, 6:], key[:, 6:], value[:, 6:], shard), whole[:, 6:])
    with pytest.raises(ValueError, match=r"the rotated heads 3..8 of 12 must be whole heads of q or k, got 6 heads"):
        attention(query, key[:, ::2], value[:, ::2], some)
    with pytest.raises(ValueError, match=r"the rotated heads 3..8 of 12 must be whole heads of q or k, got 24 heads"):
        some(Positions.arange(7), dtype=torch.float64).rotate_query(query.repeat(1, 2, 1, 1))
    both = RoPE(WIDTH, heads=range(6), num_heads=12) + RoPE(WIDTH, heads=range(6, 12), num_heads=12)
    torch.testing.assert_close(attention(query, key, value, both), attention(query, key, value, RoPE(WIDTH)))
    with pytest.raises(ValueError, match="rotate the same channels"):
        some + RoPE(WIDTH, heads=range(6), num_heads=12)
    for heads, count, words in (
        (range(6), None, "must be given together"),
        (range(4, 14), 12, "must be a non-empty range within 0..12"),
    ):
        with pytest.raises(ValueError, match=words):
            RoPE(WIDTH, heads=heads, num_heads=count)


def test_imaginary_heads_are_another_heads_with_the_imaginary_part_of_its_scores() -> None:
    """RoPE++: the real heads are RoPE's, and a query head and its other half rebuild the complex sum."""
    query, key, _ = qkv(7, heads=12)
    twice, positions = query.repeat_interleave(2, 1), Positions.arange(7, start=3)
    scheme = RoPE(WIDTH, 313.0, imaginary=range(1, 24, 2), num_heads=24)
    found = logits(twice, key, scheme(positions, dtype=torch.float64))
    of_rope = RoPE(WIDTH, 313.0)(positions, dtype=torch.float64)
    torch.testing.assert_close(found[:, ::2], logits(query, key, of_rope))
    angle = positions.coords[0, :, None] * 313.0 ** (-torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
    z, w = (torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle) for x in (query, key))
    torch.testing.assert_close(found[:, 1::2], (z @ w.mH).imag / WIDTH**0.5)
    bound = scheme(positions, dtype=torch.float64)
    shard = scheme(positions, dtype=torch.float64, context=Context(heads=range(3, 9)))
    torch.testing.assert_close(shard.rotate_query(twice[:, 3:9]), bound.rotate_query(twice)[:, 3:9])
    with pytest.raises(ValueError, match=r"the rotation was made for queries of 24 heads, got 12$"):
        bound.rotate_query(query)
    with pytest.raises(ValueError, match=r"^cos_sin needs one rotation of channel pairs"):
        scheme(positions).cos_sin()
    for wrong, words in (
        ({"imaginary": range(2)}, "imaginary and num_heads must be given together, got"),
        ({"imaginary": range(9, 13), "num_heads": 12}, "imaginary must be a non-empty range within 0..12, got range(9"),
        ({"imaginary": range(3, 3), "num_heads": 12}, "imaginary must be a non-empty range within 0..12, got range(3"),
        ({"imaginary": [1], "num_heads": 12}, "imaginary must be a range or None, got [1]"),
        (
            {"imaginary": range(2), "heads": range(2), "num_heads": 12},
            "imaginary must be None for a rotation of some heads, range(0, 2), got range(0, 2)",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
            RoPE(WIDTH, **wrong)  # type: ignore[arg-type]


def test_pieces_that_contradict_themselves() -> None:
    def table(r: Tensor) -> Tensor:
        return r.double()[None, ..., None].expand(1, *r.shape, WIDTH)

    straight = Distance("Straight", tail="linear")
    for kind in (Meeting, Value):
        with pytest.raises(ValueError, match=r"^Straight: tail must be 'constant' or None for vectors, got 'linear'"):
            kind(table, straight)
    for contradiction in ({"side": "key"}, {"shift": torch.zeros(HEADS, WIDTH)}):
        with pytest.raises(ValueError, match="a Meeting with a feature must have side='query' and no"):
            Meeting(table, Distance("Plain"), feature="gist", **contradiction)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["reference", "native", "chunked"])
def test_a_feature_is_for_every_row_of_the_batch(backend: str) -> None:
    query, key, value = qkv(5, batch=2)
    encoding = Clocked()(Positions.arange(5)).with_features({"clock": torch.zeros(1, HEADS, 5)})
    with pytest.raises(ValueError, match=r"'clock' of the query must be \(2, 1 or 4, 5, ...\), got \(1, 4, 5\)"):
        attention(query, key, value, encoding, backend=backend)


def test_what_a_context_says_is_checked() -> None:
    for lengths in (5, torch.tensor(5)):
        with pytest.raises(ValueError, match=r"^lengths must be a tensor \(rows,\) or None, got "):
            Context(lengths=lengths)  # type: ignore[arg-type]
    rows = Positions.padded(torch.ones(2, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^lengths must have 1 or 2 rows like the positions, got 3$"):
        RoPE(WIDTH)(rows, context=Context(lengths=torch.ones(3)))
    query, key, value = qkv(5, heads=2)
    shard = ALiBi(4)(Positions.arange(5), context=Context(heads=range(1, 4)))
    with pytest.raises(ValueError, match=r"ALiBi was made for 4 heads, of which context.heads selects 3, got queries"):
        attention(query, key, value, shard, is_causal=True)


@pytest.mark.parametrize("scheme", [ALiBi(8), RoPE(WIDTH) + Shaw(WIDTH, 3, num_heads=8)], ids=["alone", "composed"])
def test_a_shard_has_some_of_the_heads_that_a_scheme_was_made_for(scheme: Scheme) -> None:
    beyond = r"^heads must be within the 8 of (ALiBi|Shaw), got range\(8, 16\): make the scheme for all heads of the m"
    with pytest.raises(ValueError, match=beyond):
        scheme(Positions.arange(5), context=Context(heads=range(8, 16)))


def test_a_scheme_is_where_its_positions_are() -> None:
    positions, query = Positions.arange(5), torch.zeros(1, HEADS, 5, WIDTH)
    elsewhere = (
        r"T5 must be on cpu like the positions, got parameters on meta: move the scheme with the model, and make"
    )
    for scheme in (T5(HEADS).to("meta"), RoPE(WIDTH) + T5(HEADS).to("meta")):
        with pytest.raises(ValueError, match=elsewhere):
            scheme(positions)
        with pytest.raises(ValueError, match=elsewhere):
            attention(query, query, query, scheme, is_causal=True)
    assert T5(HEADS).to("meta")(Positions.arange(5, device="meta")).doors == ("score",)


def test_positions_are_asked_for_where_ids_and_masks_are_given() -> None:
    ids = torch.arange(5)[None]
    for call in (lambda: ALiBi(HEADS)(ids), lambda: ForwardPass(ALiBi(HEADS), ids)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"use Positions.from_ids\(position_ids, mask\), or Positions"):
            call()
    with pytest.raises(ValueError, match="pass mask=, 1 = token, if that is padding"):
        Positions.from_ids(torch.tensor([[0, 1, 2, 1, 1]]))
    with pytest.raises(ValueError, match="convert a float mask with mask == 1"):
        Positions.padded(torch.ones(2, 5))


class Through(Scheme):
    """Vectors of each head through a matrix of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.randn(4, 8, 3))
        self.rates = torch.nn.Parameter(torch.randn(4, 3))

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Meeting, ...]:
        return (Meeting(self.vectors, Distance("Through", num_heads=4), through=self.matrix),)

    def vectors(self, r: Tensor) -> Tensor:
        """Of every head, (heads, ..., 3)."""
        return (r.to(self.rates.dtype)[..., None, None] * self.rates).movedim(-2, 0).sin()


@pytest.mark.parametrize("heads", [range(4), range(1, 3)])
def test_few_queries_go_through_the_matrix_of_their_own_heads(heads: range) -> None:
    scheme, at, context = Through().double(), Positions.arange(20), Context(heads=heads)
    query, key, value = qkv(20, len(heads), batch=2)
    whole, few = (
        attention(q, key, value, scheme(p, at, context=context), is_causal=True, backend="reference")
        for q, p in ((query, at), (query[:, :, -3:], at[17:]))
    )
    torch.testing.assert_close(few, whole[:, :, -3:])
    assert not torch.allclose(whole, attention(query, key, value, is_causal=True))
