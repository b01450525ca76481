"""Inference: the cache is the full forward, keys are rotated once, and generate is repeated full forwards."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posenc import ALiBi, PositionError, Positions, RoPE, Scheme, Sinusoidal
from posenc.encoding.context import NOTHING, Features
from posenc.models import Decoder, KVCache
from tests.cases import DIM, HEAD_DIM, HEADS, KV_HEADS
from tests.models import zoo
from tests.models.zoo import CLOSE, LAYERS, PLACES, PROMPTS, TOKENS, WAYS
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
    ("name", "way", "place"), [(*run, place) for run, place in zoo.in_turn(zoo.one_way_each(), list(PLACES))]
)
def test_chunks_through_the_cache_are_the_full_forward(name: str, way: str, place: str) -> None:
    model, ids, positions = zoo.model(Decoder, name, **WAYS[way]), zoo.tokens(), PLACES[place]
    real = zoo.real(positions)
    full = model(ids, positions).detach()[real]
    for chunk in (1, 3, TOKENS):
        torch.testing.assert_close(in_chunks(model, ids, positions, chunk)[real], full, **CLOSE)


@pytest.mark.parametrize(("name", "place"), zoo.in_turn(zoo.SCHEMES, list(PROMPTS)))
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


@pytest.mark.parametrize(
    ("name", "place"), zoo.in_turn(zoo.SCHEMES[::2], [place for place in PROMPTS if place != "plain"])
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
