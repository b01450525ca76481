"""Mistakes that would run without a word: each is refused, or means what it looks like."""

import copy
import gc
import pickle
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import posenc
from posenc import T5, ALiBi, FoX, Learned, Positions, RoPE, Scheme, Sinusoidal, attention
from posenc.encoding import marks
from posenc.models import Decoder, Encoder, ForwardPass, KVCache

HEADS, WIDTH, TOKENS = 4, 8, 7


def qkv(tokens: int = TOKENS, heads: int = HEADS, **how: Any) -> list[Tensor]:
    return [torch.randn(2, heads, tokens, WIDTH, **how) for _ in range(3)]


# --- names of other libraries ----------------------------------------------------------------------------------------

FOREIGN: list[tuple[Any, str]] = [
    (
        lambda: attention(*qkv(), None, None, 0.0, True),
        r"attention takes .*, got 3 too many: PyTorch's attention\(",
    ),
    (
        lambda: posenc.explain(*qkv(), None, None, 0.0),
        r"explain takes .* is attention\(q, k, v, attn_mask=mask, dropout_p",
    ),
    (lambda: posenc.logits(*qkv()[:2], None, True), r"logits takes .*, got 1 too many"),
    (lambda: attention(*qkv(), causal=True), r"attention has no argument 'causal': pass is_causal=$"),
    (lambda: posenc.explain(*qkv(), softmax_scale=1.0), r"explain has no argument 'softmax_scale': pass scale=$"),
    (
        lambda: attention(*qkv(), is_casual=True),
        r"attention has no argument 'is_casual' \(did you mean 'is_causal'\?\)$",
    ),
    (lambda: attention(*qkv(), position_ids=0), r"attention has no argument 'position_ids': pass query_positions=$"),
    (lambda: attention(*qkv(), unknown=True), r"attention has no argument 'unknown'$"),
    (lambda: RoPE(WIDTH, theta=1e6), r"RoPE has no argument 'theta': pass base=$"),
    (lambda: RoPE(dim=WIDTH), r"RoPE has no argument 'dim': pass head_dim=$"),
    (lambda: RoPE(WIDTH, max_seq_len=9), r"RoPE has no argument 'max_seq_len': leave it out$"),
    (lambda: Learned(max_seq_len=9, dim=4), r"Learned has no argument 'max_seq_len': pass max_positions=$"),
    (lambda: ALiBi(n_heads=4), r"ALiBi has no argument 'n_heads': pass num_heads=$"),
    (lambda: ALiBi(4, froms="causal"), r"ALiBi has no argument 'froms' \(did you mean 'form'\?\)$"),
    (
        lambda: Positions.arange(5, 10),
        r"arange takes .*: pass Positions.arange\(5, start=10\) for 5 tokens from 10 on, or",
    ),
]


@pytest.mark.parametrize(("call", "message"), FOREIGN, ids=[message[:50] for _, message in FOREIGN])
def test_the_error_for_an_argument_of_another_library_has_the_one_to_pass(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match="^" + message):
        call()


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("RotaryEmbedding", "RoPE"),
        ("get_slopes", "ALiBi"),
        ("RelativePositionBias", "T5"),
        ("PositionalEncoding", "Sinusoidal"),
        ("PartialRoPE", "RoPE(head_dim, rotary_dim=...)"),  # as are former names of posenc
        ("ProportionalRoPE", "RoPE(head_dim, scaling=posenc.Proportional(share))"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(name: str, ours: str) -> None:
    message = re.escape(f"module 'posenc' has no attribute '{name}': use posenc.{ours}")
    with pytest.raises(AttributeError, match=f"^{message}$"):
        getattr(posenc, name)
    assert hasattr(posenc, ours.partition("(")[0])
    assert not hasattr(posenc, name)


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


@pytest.mark.parametrize("scheme", [ALiBi(HEADS), T5(HEADS), Learned(9, 6)], ids=str)
def test_one_that_refers_to_its_scheme_cannot_be_pickled(scheme: Scheme) -> None:
    encoding = scheme(Positions.arange(TOKENS))
    refers = rf"^an encoding that opens {scheme.doors[0]} refers to its scheme and cannot be pickled: pickle the scheme"
    with pytest.raises(TypeError, match=refers):
        pickle.dumps(encoding)
    again: Scheme = pickle.loads(pickle.dumps(scheme))
    assert again(pickle.loads(pickle.dumps(Positions.arange(TOKENS)))).doors == encoding.doors


# --- which tokens, and which axes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", [None, RoPE(WIDTH), ALiBi(HEADS, "bidirectional"), T5(HEADS, bidirectional=True)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_fewer_queries_are_the_last_keys_or_the_first(scheme: Scheme | None, is_causal: bool) -> None:
    query, key, value = qkv()
    whole = attention(query, key, value, scheme, is_causal=is_causal)
    for part, align in ((query[:, :, -3:], None), (query[:, :, -3:], "lower_right"), (query[:, :, :3], "upper_left")):
        found = attention(part, key, value, scheme, is_causal=is_causal, align=align)  # type: ignore[arg-type]
        expected = whole[:, :, :3] if align == "upper_left" else whole[:, :, -3:]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    scores = posenc.logits(query[:, :, :3], key, scheme, align="upper_left")
    torch.testing.assert_close(scores, posenc.logits(query, key, scheme)[:, :, :3])


@pytest.mark.parametrize("queries", [3, 9])
def test_upper_left_is_what_pytorch_takes_is_causal_for(queries: int) -> None:
    (query, _, _), (_, key, value) = qkv(queries), qkv()
    expected = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    found = attention(query, key, value, is_causal=True, align="upper_left")
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    if queries < TOKENS:
        assert (attention(query, key, value, is_causal=True) - expected).abs().max() > 0.1
    assert posenc.explain(query, key, value, is_causal=True, align="upper_left").backend


@pytest.mark.parametrize("of_one", [("key", "value"), ("key",), ("value",), ("query",)], ids=", ".join)
@pytest.mark.parametrize("scheme", [None, RoPE(WIDTH), ALiBi(HEADS), posenc.CoPE(WIDTH, 5)], ids=str)
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_a_batch_of_1_is_shared_as_in_pytorch(of_one: tuple[str, ...], scheme: Scheme | None, backend: str) -> None:
    drawn = dict(zip(("query", "key", "value"), qkv(), strict=True))
    tensors = {name: x[:1] if name in of_one else x for name, x in drawn.items()}
    wide = {name: x.expand(2, -1, -1, -1).clone() for name, x in tensors.items()}
    encodings: list[Any] = [scheme]
    if scheme is not None:
        encodings.append(scheme(Positions.padded(torch.tensor([[1] * TOKENS, [0] * 2 + [1] * (TOKENS - 2)]))))
    for encoding in encodings:
        for _ in range(2):  # with a plan, too
            given = {name: x.clone().requires_grad_() for name, x in tensors.items()}
            found = attention(**given, encoding=encoding, is_causal=True, backend=backend)
            expected = attention(**wide, encoding=encoding, is_causal=True, backend=backend)
            torch.testing.assert_close(found, expected)
            found.sum().backward()
            assert all(x.grad is not None and x.grad.shape == x.shape for x in given.values())


MORE = 9  # queries, of TOKENS keys


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"encoding": posenc.NoPE()},
        {"encoding": posenc.Softcap(2.0)},
        {"attn_mask": torch.arange(MORE * TOKENS).view(MORE, TOKENS) % 3 > 0},
        {"sinks": torch.arange(4.0)},
    ],
    ids=lambda given: ", ".join(given) or "plain",
)
def test_more_queries_than_keys_are_cross_attention_where_nothing_depends_on_positions(
    given: dict[str, Any], backend: str
) -> None:
    (query, _, _), (_, key, value) = qkv(MORE), qkv()
    scores = query @ key.mT / WIDTH**0.5
    scores = 2.0 * torch.tanh(scores / 2.0) if isinstance(given.get("encoding"), posenc.Softcap) else scores
    torch.testing.assert_close(posenc.logits(query, key, given.get("encoding")), scores, rtol=1e-4, atol=1e-5)
    scores = scores.masked_fill(~given["attn_mask"], -torch.inf) if "attn_mask" in given else scores
    sinks = given["sinks"].view(-1, 1, 1).expand(2, -1, MORE, 1) if "sinks" in given else scores[..., :0]
    expected = torch.cat((scores, sinks), -1).softmax(-1)[..., :TOKENS] @ value
    found = attention(query, key, value, **given, backend=backend)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert posenc.explain(query, key, value, **given).backend


@pytest.mark.parametrize("scheme", [None, RoPE(WIDTH), ALiBi(HEADS)], ids=str)
def test_with_more_queries_the_last_are_the_keys_where_lower_right_is_said(scheme: Scheme | None) -> None:
    """The first two see no key, and get zeros, as in FlashAttention."""
    (query, _, _), (_, key, value) = qkv(MORE), qkv()
    found = attention(query, key, value, scheme, is_causal=True, align="lower_right")
    expected = attention(query[:, :, -TOKENS:], key, value, scheme, is_causal=True)
    torch.testing.assert_close(found[:, :, -TOKENS:], expected, rtol=1e-4, atol=1e-5)
    assert not found[:, :, :-TOKENS].any()


def test_align_is_for_calls_without_positions() -> None:
    (query, key, value), positions = qkv(), Positions.arange(TOKENS)
    beside = r"^align must be None where there are positions, which say it, got 'upper_left'$"
    encoding = RoPE(WIDTH)(positions)
    for scheme, given in ((encoding, {}), (None, {"query_positions": positions})):
        attention(query, key, value, scheme, **given)  # also where a plan is kept
        with pytest.raises(ValueError, match=beside):
            attention(query, key, value, scheme, align="upper_left", **given)
    with pytest.raises(ValueError, match=r"^align must be 'lower_right' or 'upper_left', got 'left'$"):
        attention(query, key, value, align="left")  # type: ignore[arg-type]
    for variant in (causal_lower_right, causal_upper_left):
        align = rf"must be a plain tensor, got a CausalBias: pass is_causal=True, align='{variant.__name__[7:]}'$"
        with pytest.raises(ValueError, match=align):
            attention(query, key, value, attn_mask=variant(TOKENS, TOKENS))


def test_heads_on_the_third_axis_are_told_by_positions() -> None:
    positions, turned = Positions.arange(TOKENS), [x.transpose(1, 2) for x in qkv()]
    axes = r"; it must be \(batch, heads, tokens, head_dim\), got \(2, 7, 4, 8\): if that is \(batch, tokens, h"
    with pytest.raises(ValueError, match=r"^query has 4 tokens, but the encoding was made for 7" + axes):
        attention(*turned, RoPE(WIDTH)(positions))
    with pytest.raises(ValueError, match=r"^query_positions must have 4 tokens like query, got 7" + axes):
        attention(*turned, RoPE(WIDTH), query_positions=positions)


# --- packed and padded ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_documents_are_packed_by_lengths_or_by_cu_seqlens(dtype: torch.dtype) -> None:
    expected = Positions.packed([3, 0, 4])
    given: Any
    for given in (
        {"lengths": torch.tensor([3, 0, 4], dtype=dtype)},
        {"cu_seqlens": [0, 3, 3, 7]},
        {"cu_seqlens": torch.tensor([0, 3, 3, 7], dtype=dtype)},
        {"lengths": torch.tensor([3, 0, 4], dtype=dtype).numpy()},
        {"lengths": [*torch.tensor([3, 0, 4], dtype=dtype).numpy()]},
        {"cu_seqlens": torch.tensor([0, 3, 3, 7], dtype=dtype).numpy()},
    ):
        found = Positions.packed(**given)
        assert found.layout == expected.layout
        assert torch.equal(found.coords, expected.coords)
        assert torch.equal(found.document, expected.document)
    rows = torch.tensor([[2, 4], [1, 0]], dtype=dtype)
    assert torch.equal(Positions.packed(rows).document, Positions.packed([[2, 4], [1, 0]]).document)
    assert len(Positions.packed(cu_seqlens=[0])) == len(Positions.packed(torch.empty(0, dtype=dtype))) == 0


@pytest.mark.parametrize(
    "cu_seqlens", [[3, 4], [0, 4, 3], [0, 1.5], [], torch.tensor([2, 5]), 7, torch.zeros(2, device="meta")]
)
def test_cu_seqlens_begin_at_0_and_do_not_decrease(cu_seqlens: Any) -> None:
    named = r"^cu_seqlens must be whole numbers that begin at 0 and do not decrease, got .*: for the lengths of"
    with pytest.raises(ValueError, match=named):
        Positions.packed(cu_seqlens=cu_seqlens)


def test_packed_takes_lengths_or_cu_seqlens() -> None:
    with pytest.raises(ValueError, match=r"^lengths or cu_seqlens must be given, got none$"):
        Positions.packed()
    with pytest.raises(ValueError, match=r"^lengths or cu_seqlens must be given, got both$"):
        Positions.packed([3], cu_seqlens=[0, 3])
    with pytest.raises(ValueError, match=r"^lengths must be whole numbers"):
        Positions.packed(torch.tensor([1.0, 2.0]))  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[1, 1, 1, 0, 1, 2], [1, 1, 0, 1, 2, 3], [0, 1, 2, 1, 1, 1], [0, 1, 0, 1, 1, 1]])
def test_padded_ids_are_not_packed_ids(ids: list[int]) -> None:
    """As transformers makes them of a mask: padding is at 1."""
    padded = r"^ids must increase by one in each packed document, got 1 twice in row 1 and documents that begin at 0: "
    rows = torch.tensor([[0, 1, 2, 3, 4, 5], ids])
    with pytest.raises(ValueError, match=padded):
        Positions.from_ids(rows, packed=True)
    mask = torch.tensor(ids) != 1
    Positions.from_ids(rows, torch.stack((mask | True, mask)), packed=True)


@pytest.mark.parametrize("ids", [[7, 0, 1, 0, 1, 2], [0, 0, 0, 0, 1, 2], [2, 2, 2, 3, 2, 3], [9, 9, 10, 9, 9, 9]])
def test_packed_ids_may_begin_anywhere_and_be_of_one_token(ids: list[int]) -> None:
    document = Positions.from_ids(torch.tensor([ids]), packed=True).document[0]
    assert len(Positions.from_ids(torch.empty(2, 0, dtype=torch.int64), packed=True)) == 0
    begins = [n == 0 or ids[n] <= ids[n - 1] for n in range(6)]
    assert document.tolist() == (torch.tensor(begins).cumsum(0) - 1).tolist()


def test_the_error_for_ids_names_a_mask_that_is_inverted() -> None:
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    for fill in (0, 1):
        ids = (mask.cumsum(1) - 1).masked_fill(mask == 0, fill)
        Positions.from_ids(ids, mask)
        with pytest.raises(ValueError, match=r"; the ids of the hidden tokens do increase: mask must be 1 \(True\)"):
            Positions.from_ids(ids, 1 - mask)
    with pytest.raises(ValueError, match=r"document=\.\.\.\)$"):  # wrong in another way
        Positions.from_ids(torch.tensor([[0, 0, 0, 0]]), torch.tensor([[1, 1, 0, 0]]))


@pytest.mark.parametrize("kind", [posenc.YaRN, posenc.NTKAware, posenc.Llama3, posenc.DynamicNTK])
def test_a_factor_and_a_length_are_not_taken_for_one_another(kind: Any) -> None:
    assert kind(4, 128).factor == 4
    assert kind(2048, 512).factor == 2048  # Mistral Large 4
    swapped = (
        r"^factor must not be above original_length, the trained length in tokens, got factor=128 and original_length=4"
    )
    with pytest.raises(ValueError, match=swapped + ": swap them$"):
        kind(128, 4)


# --- models -----------------------------------------------------------------------------------------------------------


def test_models_that_know_their_pad_token_skip_it() -> None:
    scheme = RoPE(WIDTH) + T5(HEADS)
    model = Decoder(9, HEADS * WIDTH, 2, HEADS, position=scheme, pad_token=0)
    tokens = torch.tensor([[0, 0, 3, 4, 5], [1, 2, 3, 4, 0], [1, 2, 3, 4, 5]])
    positions = Positions.padded(tokens != 0)
    torch.testing.assert_close(model(tokens), model(tokens, positions))
    torch.testing.assert_close(model(tokens)[:1, 2:], model(tokens[:1, 2:]), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.generate(tokens, 4), model.generate(tokens, 4, positions))
    with torch.no_grad():
        cache = KVCache()
        model(tokens, cache=cache)
        model(tokens[:, :1] * 0, cache=cache)  # after a cache it is a token
    assert cache.positions is not None
    assert cache.positions.document[:, -1].tolist() == [0, 0, 0]
    encoder = Encoder(9, HEADS * WIDTH, 1, HEADS, position=T5(HEADS, bidirectional=True), pad_token=0)
    torch.testing.assert_close(encoder(tokens), encoder(tokens, positions))
    with pytest.raises(ValueError, match=r"^pad_token must be a whole number within 0..8, got 9$"):
        Decoder(9, 8, 1, 1, pad_token=9)


# --- derivatives and inference mode -----------------------------------------------------------------------------------

ONCE = (
    r"^attention's fused kernels have only a first derivative: pass backend='reference' for a second one "
    r"\(create_graph=True\)$"
)


@pytest.mark.parametrize("backend", ["sdpa", "native", "chunked"])
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


def test_vectors_of_inference_mode_would_not_be_learned() -> None:
    x, positions = torch.zeros(1, TOKENS, 6, requires_grad=True), Positions.arange(TOKENS)
    with torch.inference_mode():
        learned, fixed = Learned(9, 6)(positions), Sinusoidal(6)(positions)
    with pytest.raises(
        ValueError, match=r"^the encoding was made under torch.inference_mode\(\) and cannot be used fo"
    ):
        learned.add(x)
    fixed.add(x).sum().backward()
    with torch.no_grad():
        learned.add(x)


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


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_forward_pass_does_not_turn_again_what_was_turned(is_cached: bool) -> None:
    (query, key, value), positions = qkv(), Positions.arange(TOKENS)
    for scheme in (RoPE(WIDTH), RoPE(WIDTH, scaling=posenc.DynamicNTK(2, 4))):
        with (
            pytest.raises(ValueError, match=TURNED.format("query")),
            ForwardPass(scheme, positions, KVCache() if is_cached else None) as step,
        ):
            step.attention(*step.tokens().rotate(query, key), value)
        with ForwardPass(scheme, positions, KVCache() if is_cached else None) as step:
            found = step.attention(query, key, value)
        torch.testing.assert_close(found, attention(query, key, value, scheme, is_causal=True), rtol=1e-4, atol=1e-5)


def test_other_channels_heads_and_maps_may_be_turned_by_attention() -> None:
    (query, key, value), positions = qkv(), Positions.arange(TOKENS)
    low, high = (RoPE(WIDTH, rotary_dim=4, first_channel=first) for first in (0, 4))
    both = attention(query, key, value, low + high)
    torch.testing.assert_close(attention(*low(positions).rotate(query, key), value, high), both)
    scaled = posenc.QueryScale("llama4", length=4)
    by_hand = attention(*RoPE(WIDTH)(positions).rotate(query, key), value, scaled)
    torch.testing.assert_close(by_hand, attention(query, key, value, RoPE(WIDTH) + scaled))
    as_key = RoPE(WIDTH)(positions).rotate_query(query)  # content that is chosen, and then rotated as a key
    torch.testing.assert_close(
        posenc.logits(query, as_key, RoPE(WIDTH)), posenc.logits(query, as_key.clone(), RoPE(WIDTH))
    )


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
    with torch.inference_mode():  # such tensors do not tell that they have changed
        written = RoPE(WIDTH)(Positions.arange(TOKENS)).rotate_query(query)
        torch.testing.assert_close(attention(written.copy_(query), key, value, RoPE(WIDTH)), found)
        encoding, x = Sinusoidal(6)(Positions.arange(TOKENS)), torch.randn(2, TOKENS, 6)
        added = encoding.add(x)
        encoding.add(added.add_(x))  # of the next layer, after a residual in place
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


FILLED = r"^the cache holds tokens of layer 0 that were encoded by {}, got {}: use one scheme from the first token to"


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


def test_a_scheme_that_is_made_again_with_a_function_goes_on_with_its_cache() -> None:
    cache, kept = KVCache(), []
    for n in (3, 1):
        kept.append(lambda theta: (theta / 2, 1.0))  # another object
        passed(RoPE(WIDTH, scaling=kept[-1]), cache, n)
    assert len({id(scaling) for scaling in kept}) == 2
    with pytest.raises(ValueError, match=FILLED.format(r"RoPE\(.*<lambda>>\)", r"RoPE\(.*\)")):
        passed(RoPE(WIDTH), cache, 1)
