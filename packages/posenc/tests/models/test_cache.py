"""Inference: the cache is the full forward, keys are rotated once, and generate is repeated full forwards."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import (
    ALiBi,
    Chunk,
    CoPE,
    FoX,
    KeyOffset,
    Learned,
    PositionError,
    Positions,
    Proportional,
    ReRoPE,
    RoPE,
    Schedule,
    Scheme,
    Sinusoidal,
)
from posenc.encoding.context import NOTHING, Features
from posenc.models import Decoder, ForwardPass, KVCache
from tests.cases import DIM, HEAD_DIM, HEADS, KV_HEADS
from tests.models import zoo
from tests.models.zoo import CLOSE, LAYERS, PLACES, PROMPTS, TOKENS, WAYS
from tests.oracles import key_offset, rope


class Recorded(KVCache):
    """A cache that shows what every layer was last given: all keys and values so far."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, tuple[Tensor, Tensor]] = {}

    def append(
        self, layer: int, key: Tensor, value: Tensor, features: Features = NOTHING, *, needed: int | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        kept = super().append(layer, key, value, features, needed=needed)
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


@pytest.mark.parametrize("form", ["partial", "proportional"])
@pytest.mark.parametrize("place", ["plain", "packed", "left padded", "right padded"])
def test_keys_take_channels_of_the_token_before_across_steps(form: Any, place: str) -> None:
    """Each document as if it were alone, whatever a step begins with."""
    beside = RoPE(8, rotary_dim=4) if form == "partial" else RoPE(8, scaling=Proportional(0.5))
    model = Decoder(zoo.VOCAB, 32, LAYERS, 4, 2, position=beside + KeyOffset(8, form)).double()
    ids, positions = zoo.tokens(), PLACES[place]
    keys, real = torch.randn(2, 2, TOKENS, 8, dtype=torch.float64), zoo.real(positions)
    found, expected = KeyOffset(8, form)(positions).rotate_key(keys), key_offset.offset(form)(keys, positions, None)
    assert torch.equal(found.transpose(1, 2)[real], expected.transpose(1, 2)[real])
    full = model(ids, positions).detach()
    for chunk in (1, 3):
        torch.testing.assert_close(in_chunks(model, ids, positions, chunk)[real], full[real], **CLOSE)
    for row, columns, alone in zoo.documents(positions):
        torch.testing.assert_close(full[row, columns], model(ids[row, columns][None], alone).detach()[0], **CLOSE)


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


# -- windows, evicted tokens, selected and joined rows -----------------------------------------------------------------

LEFT = torch.arange(30).expand(2, -1) >= torch.tensor([[0], [7]])
LONG = {
    "text": Positions.arange(30, start=100),
    "left padded": Positions.padded(LEFT),
    "packed": Positions.packed([[13, 17], [5, 25]]),
}
MAKES: dict[str, Callable[[], Scheme]] = {
    "rotated keys": lambda: RoPE(HEAD_DIM) + ALiBi(HEADS),
    "raw keys": lambda: ReRoPE(HEAD_DIM, 3),
    "clock": lambda: FoX(HEADS),
    "rows": lambda: CoPE(HEAD_DIM, 8),
}


class Layers:
    """Layers that attend to fixed queries, keys, values, gates and sinks."""

    def __init__(self, schedule: Schedule, positions: Positions, rows: int = 2) -> None:
        self.schedule, self.positions, self.rows = schedule.double(), positions, rows
        self.qkv = torch.randn(len(schedule), 3, rows, HEADS, len(positions), HEAD_DIM, dtype=torch.float64)
        self.gates = torch.randn(len(schedule), rows, HEADS, len(positions), dtype=torch.float64)
        self.sinks = torch.randn(len(schedule), HEADS, dtype=torch.float64)

    def run(
        self, start: int, stop: int, cache: KVCache | None, mask: Tensor | None = None, rows: Tensor | None = None
    ) -> Tensor:
        """The outputs of all layers for these tokens, of some rows."""
        positions, outs = self.positions[start:stop], []
        rows = torch.arange(self.rows) if rows is None else rows
        if positions.rows > 1:
            positions = Positions(**positions._each(lambda x: x[rows]))
        with ForwardPass(self.schedule, positions, cache, dtype=torch.float64) as step:
            for layer in range(len(self.schedule)):
                q, k, v = self.qkv[layer][:, rows, :, start:stop]
                names = self.schedule[layer][0].features
                gates = dict.fromkeys(names, self.gates[layer][rows, :, start:stop])
                features, key_features = step.features(gates, layer)
                given = {"features": features, "key_features": key_features, "sinks": self.sinks[layer]}
                outs.append(step.attention(q, k, v, layer, **given, attn_mask=mask))
        return torch.stack(outs)


@pytest.mark.parametrize("place", LONG)
@pytest.mark.parametrize("name", MAKES)
@torch.no_grad()
def test_layers_hold_what_their_windows_see(name: str, place: str) -> None:
    windows = (4, None, (0, 0), Chunk(5))
    layers = Layers(Schedule([(MAKES[name](), window) for window in windows]), LONG[place])
    whole = layers.run(0, 30, None)
    for cuts in ((0, 19, *range(22, 31)), (0, 1, 30)):
        cache = KVCache()
        outs = [layers.run(start, stop, cache) for start, stop in itertools.pairwise(cuts)]
        torch.testing.assert_close(torch.cat(outs, 3), whole, **CLOSE)
        assert len(cache) == 30
        if place != "packed" and len(cuts) > 3:  # a first document may go on
            assert [cache._held(layer) for layer in range(4)] == [4, 30, 2, 5]
            assert cache.positions is not None
            step = ForwardPass(layers.schedule, cache.positions.following(), cache, dtype=torch.float64)
            for layer, words in ((0, "window of 4 keys"), (2, "window of 0 keys back")):
                error = f"layer {layer} has dropped tokens outside of its {words}.*, got a call with"
                with pytest.raises(ValueError, match=error), step:
                    step.attention(*layers.qkv[layer][..., :1, :], layer, window=5)


@torch.no_grad()
def test_masks_and_keys_of_others_beside_windows() -> None:
    scheme = RoPE(HEAD_DIM, rotary_dim=2) + KeyOffset(HEAD_DIM)
    layers = Layers(Schedule([(scheme, 4), (RoPE(HEAD_DIM), 4), (RoPE(HEAD_DIM), None)]), LONG["text"])
    mask = (torch.rand(30, 30) < 0.7) | torch.eye(30).bool()
    whole, cache = layers.run(0, 30, None, mask=mask), KVCache()
    outs = [layers.run(n, n + 1, cache, mask=mask[n : n + 1, : n + 1]) for n in range(30)]
    torch.testing.assert_close(torch.cat(outs, 3), whole, **CLOSE)
    assert [cache._held(layer) for layer in range(3)] == [30, 4, 30]
    with pytest.raises(ValueError, match="evict is not supported by schemes whose keys depend on others, such as Key"):
        cache.evict(1, 5)


@torch.no_grad()
def test_a_cache_of_windows_alone_is_bounded_and_goes_back_to_its_last_pass() -> None:
    layers = Layers(Schedule([(RoPE(HEAD_DIM), 4)] * 2), Positions.arange(90))
    whole, cache = layers.run(0, 90, None), KVCache()
    for n in range(60):
        layers.run(n, n + 1, cache)
    storages = [x.untyped_storage().nbytes() for layer in cache._layers for x in layer.values()]
    assert sum(storages) <= 2 * 4 * 2 * 4 * HEADS * HEAD_DIM * 8 * 2  # tensors of 4 tokens in buffers of at most 8
    assert len(cache.positions) == 4
    layers.run(60, 65, cache)
    cache.crop(62)
    torch.testing.assert_close(layers.run(62, 90, cache), whole[:, :, :, 62:], **CLOSE)
    with pytest.raises(ValueError, match="tokens must be 0 or at least 62, where the last pass began, since earlier"):
        cache.crop(61)
    cache.crop(0)
    torch.testing.assert_close(layers.run(0, 9, cache), whole[:, :, :, :9], **CLOSE)


@pytest.mark.parametrize("place", LONG)
@pytest.mark.parametrize("name", MAKES)
@torch.no_grad()
def test_evicted_tokens_are_as_masked(name: str, place: str) -> None:
    layers = Layers(Schedule([(MAKES[name](), None), (MAKES[name](), 9)]), LONG[place])
    cache, positions = KVCache(), LONG[place].expand(2)
    layers.run(0, 28, cache)
    cache.evict(sinks=2, recent=4)
    assert len(cache) == 28
    assert len(cache.positions) <= 2 * (2 + 4) + 7  # of two documents, or of rows that begin apart
    seen = torch.ones(2, 1, 1, 30, dtype=torch.bool)
    for row, document in itertools.product(range(2), range(2)):
        text = (positions.document[row, :28] == document).nonzero()[:, 0].tolist()
        seen[row, ..., [n for n in text[2:] if n not in text[-4:]]] = False
    expected = layers.run(0, 30, None, mask=seen)[:, :, :, 28:]
    torch.testing.assert_close(layers.run(28, 30, cache), expected, **CLOSE)


@pytest.mark.parametrize("place", LONG)
@pytest.mark.parametrize("name", MAKES)
@torch.no_grad()
def test_rows_are_selected_and_joined(name: str, place: str) -> None:
    layers = Layers(Schedule([(MAKES[name](), None), (MAKES[name](), 4)]), LONG[place])
    whole, cache = layers.run(0, 30, None), KVCache()
    for start, stop in ((0, 20), (20, 25)):
        layers.run(start, stop, cache)
    one = copy.deepcopy(cache)
    rows = torch.tensor([1, 0, 1])
    cache.select(rows)
    torch.testing.assert_close(layers.run(25, 27, cache, rows=rows), whole[:, rows, :, 25:27], **CLOSE)
    one.select(torch.tensor([False, True]))  # the other row has ended
    layers.run(25, 30, one, rows=rows[:1])
    one.crop(27)
    joined = KVCache.cat([cache, one])
    rows = torch.tensor([1, 0, 1, 1])
    torch.testing.assert_close(layers.run(27, 30, joined, rows=rows), whole[:, rows, :, 27:], **CLOSE)


@torch.no_grad()
def test_requests_of_several_lengths_go_on_as_one_batch() -> None:
    model = zoo.model(Decoder, Schedule([(RoPE(HEAD_DIM), 5), (ALiBi(HEADS), None)]))
    texts, caches = [zoo.tokens(rows=1, count=n) for n in (20, 4, 11)], []
    for text in texts:
        caches.append(KVCache())
        for part in text[:, :-2].split(7, 1):
            model(part, cache=caches[-1])
    joined = KVCache.cat(caches)
    last = torch.cat([text[:, -2:] for text in texts])
    outs = torch.cat([model(last[:, :1], cache=joined), model(last[:, 1:], cache=joined)], 1)
    torch.testing.assert_close(outs, torch.cat([model(text)[:, -2:] for text in texts]), **CLOSE)


COMPILED: dict[str, Callable[[], Scheme | Schedule]] = {
    "rotated keys": MAKES["rotated keys"],
    "clock": MAKES["clock"],
    "schedule": lambda: Schedule([(RoPE(HEAD_DIM), 6), (Learned(24, DIM), None)]),
    # The first key in sight takes channels of one that is not.
    "offset keys in a window": lambda: Schedule([(KeyOffset(HEAD_DIM), 6)] * 2),
}


# Eight seconds each: keys of others, raw keys and windows, and layers that are not alike.
IN_CHECK = {"offset keys in a window", "schedule"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.more if x in IN_CHECK else pytest.mark.survey) for x in COMPILED]
)
@torch.no_grad()
def test_decoding_compiles_whole_graphs_and_none_after_the_second_step(name: str) -> None:
    torch._dynamo.reset()
    model, ids, cache = zoo.model(Decoder, COMPILED[name](), inject="every_layer"), zoo.tokens(count=20), KVCache()
    graphs: list[Any] = []
    step = torch.compile(model, fullgraph=True, backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    outs, counts = [step(ids[:, :5], cache=cache)], []
    for token in ids[:, 5:].split(1, 1):
        outs.append(step(token, cache=cache))
        counts.append(len(graphs))
    torch.testing.assert_close(torch.cat(outs, 1), model(ids), **CLOSE)
    assert counts[1:] == counts[1:2] * 14
    cache.crop(19)  # and goes on without a compiler
    torch.testing.assert_close(model(ids[:, 19:], cache=cache), outs[-1], **CLOSE)


@torch.no_grad()
def test_after_eviction_tokens_come_last_and_sinks_are_the_first_of_a_text() -> None:
    cache, windowed = KVCache(), KVCache()
    model = zoo.model(Decoder, RoPE(HEAD_DIM), inject="every_layer")
    model(zoo.tokens(count=12), cache=cache)
    cache.evict(sinks=1, recent=3)
    for start in (4, 8):
        with pytest.raises(ValueError, match=f"positions must come after order 11, .* got {start}: continue it with"):
            model(zoo.tokens(count=1), Positions.arange(1, start=start), cache=cache)
    windows = Schedule([(RoPE(HEAD_DIM), 6)] * 2)
    model = zoo.model(Decoder, windows, inject="every_layer")
    for tokens in zoo.tokens(count=13).split(12, 1):  # the second pass drops what no later token sees
        model(tokens, cache=windowed)
    for short, most in ((cache, 1), (windowed, 0), (KVCache.cat([cache, cache]), 1), (KVCache.cat([windowed]), 0)):
        with pytest.raises(ValueError, match=f"sinks must be at most {most}, since .* got 2"):
            short.evict(sinks=2, recent=1)


# -- generate ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
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

    text = ids
    for _ in range(12):  # without a cache
        text = torch.cat([text, draw(model(text)[:, -1])], 1)
    assert torch.equal(text[:, ids.size(1) :], first)
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


def test_a_cache_of_inference_mode_goes_on_without_it() -> None:
    """Its buffer has room, but may not be written outside."""
    model, ids, cache = Decoder(30, 16, 2, 2, position=RoPE(8)).eval(), torch.arange(9)[None], KVCache()
    with torch.inference_mode():
        parts = [model(ids[:, here], cache=cache) for here in (slice(0, 5), slice(5, 6))]
    with torch.no_grad():
        parts += [model(ids[:, n : n + 1], cache=cache) for n in (6, 7)]
        with torch.inference_mode():
            parts.append(model(ids[:, 8:], cache=cache))
        whole = model(ids)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)
