"""Mistakes that would run without a word: each is refused, or means what it looks like."""

import copy
import gc
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import T5, ALiBi, FoX, Learned, Positions, RoPE, Scheme, Sinusoidal, XPos, attention
from posenc.encoding import marks
from posenc.models import ForwardPass, KVCache

HEADS, WIDTH, TOKENS = 4, 8, 7


def qkv(tokens: int = TOKENS, heads: int = HEADS, **how: Any) -> list[Tensor]:
    return [torch.randn(2, heads, tokens, WIDTH, **how) for _ in range(3)]


# --- copies of encodings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [RoPE(WIDTH), ALiBi(HEADS), T5(HEADS), FoX(HEADS)], ids=str)
def test_a_copy_of_an_encoding_is_the_encoding(scheme: Scheme) -> None:
    encoding = scheme(Positions.arange(TOKENS))
    assert copy.deepcopy({"batch": [encoding]})["batch"][0] is copy.copy(encoding) is encoding


def test_an_encoding_is_not_copied_with_the_scheme_that_it_reads() -> None:
    class Model(nn.Module):
        def __init__(self, scheme: Scheme) -> None:
            super().__init__()
            self.scheme, self.encoding = scheme, scheme(Positions.arange(TOKENS))

    copied = copy.deepcopy(Model(RoPE(WIDTH)))  # has no parameters
    torch.testing.assert_close(attention(*qkv(), copied.encoding).shape, (2, HEADS, TOKENS, WIDTH))
    with pytest.raises(
        ValueError, match=r"^the encoding would be copied with its scheme, and still read the parameters"
    ):
        copy.deepcopy(Model(T5(HEADS)))


def test_an_encoding_of_numbers_alone_can_be_pickled() -> None:
    mask, x, (query, key, value) = torch.tensor([[0] * 2 + [1] * 5, [1] * 7]), torch.randn(2, TOKENS, 6), qkv()
    encoding = (Sinusoidal(6) + RoPE(WIDTH))(Positions.padded(mask))
    loaded = pickle.loads(pickle.dumps(encoding))
    assert torch.equal(loaded.add(x), encoding.add(x))
    assert torch.equal(attention(query, key, value, loaded), attention(query, key, value, encoding))


@pytest.mark.parametrize("scheme", [ALiBi(HEADS), T5(HEADS), Learned(9, 6), XPos(WIDTH)], ids=str)
def test_one_that_refers_to_its_scheme_cannot_be_pickled(scheme: Scheme) -> None:
    encoding = scheme(Positions.arange(TOKENS))
    refers = rf"^an encoding that opens {scheme.doors[0]} refers to its scheme and cannot be pickled: pickle the scheme"
    with pytest.raises(TypeError, match=refers):
        pickle.dumps(encoding)
    again: Scheme = pickle.loads(pickle.dumps(scheme))
    assert again(pickle.loads(pickle.dumps(Positions.arange(TOKENS)))).doors == encoding.doors


# --- derivatives and inference mode -----------------------------------------------------------------------------------

ONCE = (
    r"^attention's fused kernels have only a first derivative: pass backend='reference' for a second one "
    r"\(create_graph=True\)$"
)


@pytest.mark.parametrize("backend", ["sdpa", "native", "tiled", "chunked"])
@pytest.mark.parametrize("scheme", [None, RoPE(WIDTH), ALiBi(HEADS)], ids=str)
def test_a_second_derivative_is_asked_of_the_reference(scheme: Scheme | None, backend: str) -> None:
    tensors = qkv(requires_grad=True)
    out = attention(*tensors, scheme, is_causal=True, backend=backend)
    first = torch.autograd.grad(out.square().sum(), tensors, create_graph=True)
    with pytest.raises(ValueError, match=ONCE):
        torch.autograd.grad(first[0].square().sum() + tensors[0].sum(), tensors)
    torch.autograd.grad((first[0].detach() * tensors[0]).sum(), tensors[0])  # the first alone


POSITIONS_TABLES = [Learned(9, 6), posenc.AbsoluteInAttention(9, WIDTH), posenc.TUPE(HEADS, WIDTH, 9)]


@pytest.mark.parametrize("scheme", POSITIONS_TABLES, ids=str)
def test_positions_of_inference_mode_may_be_trained_with(scheme: Scheme) -> None:
    with torch.inference_mode():
        positions = Positions.arange(TOKENS)
    encoding = scheme(positions)
    encoding.add(torch.zeros(1, TOKENS, 6)).sum().backward() if "add" in scheme.doors else attention(
        *qkv(), encoding
    ).sum().backward()
    assert next(scheme.parameters()).grad is not None


def test_an_encoding_of_inference_mode_that_hides_its_tensors_is_not_trained_with() -> None:
    scheme, grid = posenc.SwinV2((1, TOKENS), HEADS), Positions.grid(1, TOKENS)
    with torch.inference_mode():
        encoding = scheme(grid)
    with pytest.raises(
        ValueError, match=r"^the encoding was made under torch.inference_mode\(\) and cannot be used fo"
    ):
        attention(*qkv(requires_grad=True), encoding)


# --- what was done already --------------------------------------------------------------------------------------------

TURNED = r"^{} was rotated already, and attention would rotate it again: pass rotated queries and keys with scheme.pai"


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    "scheme",
    [RoPE(WIDTH), RoPE(WIDTH, rotary_dim=4), ALiBi(HEADS) + posenc.XPos(WIDTH), posenc.LeRoPE(WIDTH)],
    ids=["rope", "partial", "with alibi", "learned"],
)
def test_what_was_turned_by_hand_is_not_turned_again(scheme: Scheme, bound: bool) -> None:
    (query, key, value), positions = qkv(), Positions.arange(TOKENS)
    turned, kept = scheme.tokens(positions).rotate(query, key)
    again = scheme(positions) if bound else scheme
    for q, k, name in ((turned, kept, "query"), (query, kept, "key"), (turned, key, "query")):
        for call in (
            lambda q=q, k=k: attention(q, k, value, again, is_causal=True),
            lambda q=q, k=k: posenc.logits(q, k, again),
        ):
            with pytest.raises(ValueError, match=TURNED.format(name)):
                call()
    out = attention(turned, kept, value, scheme.pairs(positions), is_causal=True)
    torch.testing.assert_close(out, attention(query, key, value, scheme, is_causal=True), rtol=1e-4, atol=1e-5)
    attention(turned.clone(), kept.clone(), value, again, is_causal=True)  # said to be meant


def test_a_plan_that_is_kept_does_not_skip_the_check() -> None:
    (query, key, value), encoding = qkv(), RoPE(WIDTH)(Positions.arange(TOKENS))
    attention(query, key, value, encoding)
    turned = encoding.rotate_query(query)
    with pytest.raises(ValueError, match=TURNED.format("query")):
        attention(turned, key, value, encoding)


def test_other_channels_heads_and_maps_may_be_turned_by_attention() -> None:
    (query, key, value), positions = qkv(), Positions.arange(TOKENS)
    low, high = (RoPE(WIDTH, rotary_dim=4, first_channel=first) for first in (0, 4))
    both = attention(query, key, value, low + high)
    torch.testing.assert_close(attention(*low(positions).rotate(query, key), value, high), both)
    scaled = posenc.QueryScale("llama4", length=4)
    by_hand = attention(*RoPE(WIDTH)(positions).rotate(query, key), value, scaled)
    torch.testing.assert_close(by_hand, attention(query, key, value, RoPE(WIDTH) + scaled))


def test_keys_that_a_cache_holds_rotated_are_not_turned_again() -> None:
    scheme, (query, key, value), cache = RoPE(WIDTH), qkv(), KVCache()
    whole = Positions.arange(TOKENS)
    kept, values, _ = cache.append(0, scheme(whole).rotate_key(key), value)
    with pytest.raises(ValueError, match=TURNED.format("key")):
        attention(query, kept, values, scheme, is_causal=True)
    raw, values, _ = KVCache().append(0, key, value)
    torch.testing.assert_close(attention(query, raw, values, scheme), attention(query, key, value, scheme))


def test_a_buffer_that_is_written_anew_is_not_taken_for_what_it_held() -> None:
    query, key, value = qkv()
    buffer = RoPE(WIDTH)(Positions.arange(TOKENS)).rotate_query(query)
    buffer.copy_(query)
    found = attention(buffer, key, value, RoPE(WIDTH))
    torch.testing.assert_close(found, attention(query, key, value, RoPE(WIDTH)))
    del buffer, found
    gc.collect()
    assert not [mark for mark in marks._MARKS.values() if mark[0]() is None]


ADDED = r"^x has these vectors already, and encoding.add would add them again: call it once, on the input, or pass x"


@pytest.mark.parametrize(
    "scheme", [Sinusoidal(6), Learned(9, 6), Sinusoidal(6) + Learned(9, 6)], ids=["sinusoidal", "learned", "both"]
)
def test_vectors_are_added_once(scheme: Scheme) -> None:
    x, positions = torch.randn(2, TOKENS, 6), Positions.arange(TOKENS)
    encoding = scheme(positions)
    added = encoding.add(x)
    with pytest.raises(ValueError, match=ADDED):
        encoding.add(added)
    encoding.add(x)  # of another pass
    encoding.add(added * 1.0)  # of the next layer
    segments = posenc.Segment(2, 6)(positions.with_segment(torch.zeros(1, TOKENS, dtype=torch.int64)))
    with pytest.raises(ValueError, match=ADDED):
        encoding.add(segments.add(added))  # others in between
    step = ForwardPass(scheme, positions)
    once = step.add(x)
    with pytest.raises(ValueError, match=ADDED):
        step.add(once)
    assert not torch.equal(step.add(once, layer=1), once)  # a layer that was dropped returns its input


def passed(scheme: Any, cache: KVCache, n: int, layer: int = 0) -> Tensor:
    with ForwardPass(scheme, Positions.arange(n, start=len(cache)), cache) as step:
        out = step.attention(*qkv(n), layer)
    assert isinstance(out, Tensor)
    return out


FILLED = (
    r"^the cache holds tokens of layer 0 that were encoded by {}, got {}: use one scheme from the first token to"
)


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        (RoPE(WIDTH), RoPE(WIDTH, base=500_000.0), (r"RoPE\(8, base=10000.0, .*\)", r"RoPE\(8, base=500000.0, .*\)")),
        (RoPE(WIDTH), RoPE(WIDTH) + ALiBi(HEADS), (r"RoPE\(.*\)", r"RoPE\(.*\) \+ ALiBi\(4.*\)")),
        (posenc.NoPE(), T5(HEADS), (r"NoPE\(\)", r"T5\(4.*\)")),
    ],
    ids=["base", "more", "other"],
)
@pytest.mark.parametrize("is_copied", [False, True])
def test_a_cache_goes_on_under_the_scheme_that_filled_it(
    first: Scheme, second: Scheme, names: tuple[str, str], is_copied: bool
) -> None:
    cache = KVCache()
    passed(first, cache, 5)
    if is_copied:
        cache = pickle.loads(pickle.dumps(copy.deepcopy(cache)))
    with pytest.raises(ValueError, match=FILLED.format(*names)):
        passed(second, cache, 1)
    assert len(cache) == 5
    passed(copy.deepcopy(first), cache, 1)  # made again, as it was
    passed(posenc.Schedule([(first, None)]), cache, 1)
    cache.crop(0)
    passed(second, cache, 1)
