"""Inference: the cache is the full forward, keys are rotated once, and generate is repeated full forwards."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import ALiBi, Learned, NoPE, PositionError, Positions, RoPE, Scheme, Sinusoidal
from posenc.encoding.encoding import Context
from posenc.encoding.features import NOTHING, Features
from posenc.encoding.rotation import Rotation
from posenc.models import Decoder, KVCache
from tests.cases import DIM, HEAD_DIM, HEADS, KV_HEADS
from tests.models import zoo
from tests.models.zoo import CLOSE, LAYERS, PLACES, PROMPTS, SCHEMES_AND_WAYS, TOKENS, VOCAB, WAYS
from tests.oracles import rope


class Recorded(KVCache):
    """A cache that shows what every layer was last given: all keys and values so far."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, tuple[Tensor, Tensor]] = {}

    def append(
        self, layer: int, key: Tensor, value: Tensor, features: Features = NOTHING
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        kept = super().append(layer, key, value, features)
        self.given[layer] = kept[:2]
        return kept


@torch.no_grad()
def in_chunks(model: Decoder, ids: Tensor, positions: Positions, chunk: int, cache: KVCache | None = None) -> Tensor:
    cache = KVCache() if cache is None else cache
    cuts = [slice(start, start + chunk) for start in range(0, len(positions), chunk)]
    return torch.cat([model(ids[:, cut], positions[cut], cache=cache) for cut in cuts], 1)


# -- prefill + decode = full forward -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "way", "place"), zoo.half_of((*run, place) for run, place in zoo.in_turn(SCHEMES_AND_WAYS, list(PLACES)))
)
def test_chunks_through_the_cache_are_the_full_forward(name: str, way: str, place: str) -> None:
    model, ids, positions = zoo.model(Decoder, name, **WAYS[way]), zoo.tokens(), PLACES[place]
    real = zoo.real(positions)
    full = model(ids, positions).detach()[real]
    for chunk in (1, 3, TOKENS):
        torch.testing.assert_close(in_chunks(model, ids, positions, chunk)[real], full, **CLOSE)


@pytest.mark.parametrize(("name", "place"), zoo.half_of(zoo.in_turn(zoo.SCHEMES, list(PROMPTS), every=3)))
@torch.no_grad()
def test_by_default_the_cache_continues_each_rows_last_document(name: str, place: str) -> None:
    """Without positions, what follows a prompt is what follows its last document in a run without any cache."""
    model, ids, positions = zoo.model(Decoder, name), zoo.tokens(), PROMPTS[place]
    more = zoo.tokens(count=6)
    cache = KVCache()
    model(ids, positions, cache=cache)
    continued = torch.cat([model(more[:, :1], cache=cache), model(more[:, 1:], cache=cache)], 1)
    last = {row: (columns, alone) for row, columns, alone in zoo.documents(positions)}  # later documents win
    for row, (columns, alone) in last.items():
        assert alone.segment is not None
        segment = torch.cat([alone.segment[0], alone.segment[0, -1:].expand(6)])  # the last token's goes on
        whole = Positions.arange(len(segment)).with_segment(segment[None])
        expected = model(torch.cat([ids[row, columns], more[row]])[None], whole)
        torch.testing.assert_close(continued[row], expected[0, -6:], **CLOSE)


@pytest.mark.parametrize("name", ["rope", "alibi", "learned", "CoPE"])
@torch.no_grad()
def test_a_cache_may_be_filled_out_of_order(name: str) -> None:
    """Causality compares order, so a chunk of later tokens and one of earlier ones each see what they should."""
    model, ids, positions = zoo.model(Decoder, name), zoo.tokens(), Positions.arange(TOKENS)
    full = model(ids)
    late, early = torch.arange(5, TOKENS), torch.arange(5)
    cache = KVCache()
    model(ids[:, late], positions[late], cache=cache)  # these saw too little
    out = model(ids[:, early], positions[early], cache=cache)
    torch.testing.assert_close(out, full[:, :5], **CLOSE)


# -- what the cache keeps ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["plain", "left padded", "packed"])
@pytest.mark.parametrize(
    ("position", "base", "layout", "rotary_dim"),
    [
        (lambda: RoPE(HEAD_DIM, base=313.0), 313.0, "half", HEAD_DIM),
        (lambda: RoPE(HEAD_DIM, base=77.0, layout="interleaved", rotary_dim=4), 77.0, "interleaved", 4),
        (lambda: Sinusoidal(DIM) + RoPE(HEAD_DIM) + ALiBi(HEADS), 10_000.0, "half", HEAD_DIM),
    ],
    ids=["half", "partial", "composed"],
)
@pytest.mark.parametrize("per_layer", [False, True])
def test_the_cache_keeps_keys_rotated_once_to_their_own_positions(
    position: Callable[[], Scheme], base: float, layout: str, rotary_dim: int, per_layer: bool, place: str
) -> None:
    model = zoo.model(Decoder, position(), inject="every_layer", per_layer=per_layer)
    projected: dict[int, list[Tensor]] = {layer: [] for layer in range(LAYERS)}
    for layer, block in enumerate(model.trunk.blocks):
        block.attention.key.register_forward_hook(lambda _m, _x, out, layer=layer: projected[layer].append(out))
    cache, positions = Recorded(), PLACES[place].shift(5)
    in_chunks(model, zoo.tokens(), positions, 3, cache)
    assert len(cache) == TOKENS
    for layer in range(LAYERS):
        raw = torch.cat(projected[layer], 1).unflatten(-1, (KV_HEADS, HEAD_DIM)).transpose(1, 2)
        turned = rope.rotate_all(raw, positions.expand(2).coords.tolist(), base, layout, rotary_dim)
        torch.testing.assert_close(cache.given[layer][0], turned, **CLOSE)


@torch.no_grad()
def test_what_is_kept_never_changes() -> None:
    model, ids, cache = zoo.model(Decoder, "rope"), zoo.tokens(), Recorded()
    earlier: dict[int, tuple[Tensor, Tensor]] = {}
    for column in range(TOKENS):
        model(ids[:, column : column + 1], cache=cache)
        for layer, kept in earlier.items():
            for before, now in zip(kept, cache.given[layer], strict=True):
                assert torch.equal(before, now[:, :, :column])
        earlier = {layer: (key.clone(), value.clone()) for layer, (key, value) in cache.given.items()}


class CountedRoPE(RoPE):
    """Notes for how many tokens it was asked to rotate, each time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[int] = []

    def rotation(
        self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation:
        self.asked.append(len(positions))
        return super().rotation(positions, dtype, context)


class CountedSinusoidal(Sinusoidal):
    """Notes for how many tokens it was asked for vectors, each time."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[int] = []

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor:
        self.asked.append(len(positions))
        return super().table(positions, dtype)


@pytest.mark.parametrize("way", WAYS)
def test_token_doors_open_for_new_tokens_alone(way: str) -> None:
    """Once per model where the layers share a scheme, once per layer where each has its own."""
    model = zoo.model(Decoder, CountedSinusoidal(DIM) + CountedRoPE(HEAD_DIM) + ALiBi(HEADS), **WAYS[way])
    model.generate(zoo.tokens(count=7), 5)
    assert len(model.trunk.schemes) == (LAYERS if way == "per layer" else 1)
    for held in model.trunk.schemes:
        counted = [part.asked for part in held.parts if hasattr(part, "asked")]
        assert counted == [[7, 1, 1, 1, 1]] * 2


@torch.no_grad()
def test_appending_copies_the_cache_at_doublings_alone() -> None:
    cache, key, value = Recorded(), torch.randn(2, 3, 64, 4), torch.randn(2, 3, 64, 4)
    homes: list[tuple[int, int]] = []
    for n in range(64):
        given = cache.append(0, key[:, :, n : n + 1], value[:, :, n : n + 1])
        cache.positions = Positions.arange(n + 1)
        homes.append((given[0].data_ptr(), given[1].data_ptr()))
        room = given[0].untyped_storage().nbytes() // (key[:, :, :1].numel() * key.element_size())
        assert n + 1 <= room <= max(2 * n, 1)
    assert torch.equal(given[0], key)
    assert torch.equal(given[1], value)
    for which in range(2):
        moves = [n for n in range(1, 64) if homes[n][which] != homes[n - 1][which]]
        assert moves == [1, 2, 4, 8, 16, 32]


@torch.no_grad()
def test_a_step_that_fails_leaves_the_cache_as_it_was() -> None:
    model, ids, cache = zoo.model(Decoder, "learned+segment"), zoo.tokens(), KVCache()
    positions = zoo.segmented(Positions.arange(TOKENS))
    full = model(ids, positions)
    model(ids[:, :7], positions[:7], cache=cache)
    with pytest.raises(PositionError):
        model(ids[:, 7:], positions[7:].shift(30), cache=cache)
    with pytest.raises(ValueError, match="segment must be given in every part or in none"):
        model(ids[:, 7:], Positions.arange(4, start=7), cache=cache)
    assert len(cache) == 7
    torch.testing.assert_close(model(ids[:, 7:], positions[7:], cache=cache), full[:, 7:], **CLOSE)


@pytest.mark.parametrize("name", ["rope", "fox", "selective_rope", "stick_breaking", "wall"])
@torch.no_grad()
def test_a_rejected_draft_is_dropped(name: str) -> None:
    model, ids, cache = zoo.model(Decoder, name), zoo.tokens(), KVCache()
    full = model(ids)
    for kept, draft in ((0, 5), (7, 4), (3, 1), (0, 3)):
        cache.crop(min(kept, len(cache)))
        assert len(cache) == kept
        model(torch.zeros(len(ids), draft, dtype=torch.int64), cache=cache)
        cache.crop(kept)
        out = model(ids[:, kept:], cache=cache)
        torch.testing.assert_close(out, full[:, kept:], **CLOSE)
    for wrong in (-1, TOKENS + 1):
        with pytest.raises(ValueError, match=f"tokens must be a whole number within 0..{TOKENS}, got {wrong}"):
            cache.crop(wrong)


def test_training_through_a_cache_is_an_error() -> None:
    model = zoo.model(Decoder, "rope")
    cache = KVCache()
    with pytest.raises(ValueError, match=r"a KVCache is for inference: call the model under torch\.no_grad\(\)"):
        model(zoo.tokens(), cache=cache)
    assert len(cache) == 0
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.trunk.blocks[-1].attention.value.weight.requires_grad_()  # its values alone carry a gradient
    with pytest.raises(ValueError, match="a KVCache is for inference"):
        model(zoo.tokens(), cache=cache)
    model.requires_grad_(False)
    model(zoo.tokens(), cache=cache)  # nothing to differentiate: as good as no_grad
    assert len(cache) == TOKENS


@torch.no_grad()
def test_a_prefill_that_failed_may_be_tried_again() -> None:
    """With other sizes, although the first layer had its keys in the cache already."""
    model, cache = zoo.model(Decoder, "rope"), KVCache()

    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory, say")

    hook = model.trunk.blocks[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        model(zoo.tokens(rows=1, count=20), cache=cache)
    hook.remove()
    assert len(cache) == 0
    ids = zoo.tokens(rows=3)
    torch.testing.assert_close(model(ids, cache=cache), model(ids), **CLOSE)


@torch.no_grad()
def test_a_cache_serves_one_batch_size() -> None:
    """At a doubling too, where the rows of the old buffer would broadcast into the new one."""
    model, cache = zoo.model(Decoder, "rope"), KVCache()
    model(zoo.tokens(rows=1), cache=cache)
    with pytest.raises(ValueError, match=r"the cache holds keys or values of shape \(1, .*, got \(3, "):
        model(zoo.tokens(rows=3, count=1), cache=cache)
    model(zoo.tokens(rows=1, count=1), cache=cache)
    with pytest.raises(ValueError, match=r"the cache holds keys or values of shape \(1, .*, got \(3, "):
        model(zoo.tokens(rows=3, count=1), cache=cache)
    assert len(cache) == TOKENS + 1


# -- generate ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def chosen_without_a_cache(
    model: Decoder,
    ids: Tensor,
    segment: Tensor,
    count: int,
    choose: Callable[[Tensor], Tensor] = lambda logits: logits.argmax(-1, keepdim=True),
) -> Tensor:
    """The continuation of plain rows, by one full forward per token."""
    start = ids.size(1)
    for _ in range(count):
        segment = torch.cat([segment, segment[:, -1:]], 1)
        positions = Positions.arange(ids.size(1)).with_segment(segment[:, : ids.size(1)])
        ids = torch.cat([ids, choose(model(ids, positions)[:, -1])], 1)
    return ids[:, start:]


@pytest.mark.parametrize(("name", "way"), zoo.half_of(zoo.one_way_each()))
def test_greedy_generation_is_repeated_full_forwards(name: str, way: str) -> None:
    model, ids = zoo.model(Decoder, name, **WAYS[way]), zoo.tokens()
    positions = zoo.segmented(Positions.arange(TOKENS))
    assert positions.segment is not None
    expected = chosen_without_a_cache(model, ids, positions.segment, 9)
    assert torch.equal(model.generate(ids, 9, positions), expected)
    if "segment" not in name:
        assert torch.equal(model.generate(ids, 9), expected)


@pytest.mark.parametrize(
    ("name", "place"), zoo.half_of(zoo.in_turn(zoo.SCHEMES, [place for place in PROMPTS if place != "plain"]))
)
def test_each_row_generates_what_it_generates_alone(name: str, place: str) -> None:
    """Padding on any side or inside, and packed prompts, of which the last document goes on."""
    model, ids, positions = zoo.model(Decoder, name), zoo.tokens(), PROMPTS[place]
    together = model.generate(ids, 7, positions)
    last = {row: (columns, alone) for row, columns, alone in zoo.documents(positions)}
    for row, (columns, alone) in last.items():
        assert alone.segment is not None
        assert torch.equal(
            together[row], chosen_without_a_cache(model, ids[row : row + 1, columns], alone.segment, 7)[0]
        )


def test_sampling_draws_from_the_softmax_and_is_reproducible() -> None:
    model, ids = zoo.model(Decoder, "rope"), zoo.tokens()

    def sample(seed: int, temperature: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.generate(ids, 12, temperature=temperature, generator=generator)

    torch.manual_seed(1)
    first = sample(5, 0.7)
    torch.manual_seed(2)  # the global state has no part in it
    assert torch.equal(sample(5, 0.7), first)
    assert not torch.equal(sample(6, 0.7), first)
    generator = torch.Generator().manual_seed(5)

    def draw(logits: Tensor) -> Tensor:
        return torch.multinomial((logits / 0.7).softmax(-1), 1, generator=generator)

    assert torch.equal(chosen_without_a_cache(model, ids, torch.zeros_like(ids), 12, draw), first)
    assert torch.equal(sample(7, 1e-6), model.generate(ids, 12))  # cold enough to be greedy


def test_no_new_tokens() -> None:
    """Nothing is run, so a prompt past the table is no error."""
    model = zoo.model(Decoder, Learned(3, DIM))
    nothing = model.generate(zoo.tokens(), 0)
    assert nothing.shape == (2, 0)
    assert nothing.dtype == torch.int64


def test_generation_stops_at_the_end_of_a_learned_table() -> None:
    """The last token chosen is never fed back, so a table of 13 serves a prompt of 11 and 3 new tokens, not 4."""
    model, ids = zoo.model(Decoder, Learned(13, DIM)), zoo.tokens()
    assert model.generate(ids, 3).shape == (2, 3)
    with pytest.raises(PositionError, match="Learned encodes positions 0 to 12, got 13"):
        model.generate(ids, 4)
    short = Positions.padded(torch.arange(TOKENS) >= torch.tensor([[4], [6]]))
    assert model.generate(ids, 7, short).shape == (2, 7)  # the longer prompt is 7 tokens: padding takes no positions
    with pytest.raises(PositionError, match="Learned encodes positions 0 to 12, got 13"):
        model.generate(ids, 8, short)


def test_generate_checks_what_it_is_given() -> None:
    model = Decoder(VOCAB, DIM, 1, HEADS, position=NoPE())
    with pytest.raises(ValueError, match=r"tokens must be a prompt of at least one token, got torch.int64 \(2, 0\)"):
        model.generate(torch.zeros(2, 0, dtype=torch.int64), 4)
    with pytest.raises(ValueError, match="max_new_tokens must be a whole number of at least 0, got -1"):
        model.generate(zoo.tokens(), -1)
    with pytest.raises(ValueError, match=r"temperature must not be negative, got -0\.5"):
        model.generate(zoo.tokens(), 2, temperature=-0.5)
    with pytest.raises(ValueError, match="positions has 9 tokens, the batch has 11"):
        model.generate(zoo.tokens(), 2, Positions.arange(9))
    with pytest.raises(ValueError, match="positions must have 1 or 2 rows like the batch, got 3"):
        model.generate(zoo.tokens(), 2, Positions.padded(torch.ones(3, TOKENS, dtype=torch.bool)))
    with pytest.raises(ValueError, match="following takes one coordinate per token, got positions of 2 axes"):
        model.generate(zoo.tokens(count=6), 2, Positions.grid(2, 3))


@torch.no_grad()
def test_positions_that_do_not_follow_the_cache_are_an_error() -> None:
    """Left without an order, the new token would see the first key alone."""
    model, cache = zoo.model(Decoder, "rope"), KVCache()
    model(zoo.tokens()[:, :5], cache=cache)
    with pytest.raises(ValueError, match="begin at or before the last token of the cache"):
        model(zoo.tokens()[:, 5:6], Positions(torch.tensor([[5]])), cache=cache)
    model(zoo.tokens()[:, 5:6], Positions(torch.tensor([[5]]), order=torch.tensor([[5]])), cache=cache)
    assert len(cache) == 6


@torch.no_grad()
def test_a_cache_keeps_its_dtype() -> None:
    model, cache = zoo.model(Decoder, "rope"), KVCache()
    model(zoo.tokens()[:, :5], cache=cache)
    with pytest.raises(ValueError, match=r"the cache holds torch.float64 on cpu, got torch.float32"):
        model.float()(zoo.tokens()[:, 5:6], cache=cache)
