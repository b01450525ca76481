"""What a call may say, and how misuse that its arguments give away is answered: with an error, or as it looks."""

import copy
import os
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from posenc import (
    T5,
    ALiBi,
    Context,
    Encoding,
    FoX,
    Learned,
    NoPE,
    Positions,
    RoPE,
    Schedule,
    Scheme,
    Shaw,
    Sinusoidal,
    attention,
    logits,
)
from posenc.encoding.rotation import Rotation
from posenc.encoding.terms import CumulativeBias, Distance, RelativeDot, Value
from posenc.models import Decoder, Encoder, ForwardPass, KVCache
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Shape

HEADS, WIDTH, TOKENS = 4, 8, 7
TEXT = Positions.arange(TOKENS)


def qkv(tokens: int = TOKENS, heads: int = HEADS, **how: Any) -> list[Tensor]:
    return [torch.randn(2, heads, tokens, WIDTH, **how) for _ in range(3)]


# --- arguments --------------------------------------------------------------------------------------------------------


FOREIGN: list[tuple[Any, str]] = [
    (lambda: attention(*qkv(), None, None, 0.0, True), r"attention takes .*, got 3 too many: PyTorch's attention\("),
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
    (
        lambda: attention(*qkv(), key_padding_mask=0),
        r"attention has no argument 'key_padding_mask'; for a tokenizer's mask pass scheme\(Positions.padded",
    ),
    (
        lambda: RoPE(WIDTH)(Positions.arange(3)) + ALiBi(2),
        "a scheme cannot be added to an encoding: add the schemes, and bind their sum to positions$",
    ),
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


def test_the_arguments_of_pytorchs_own_attention() -> None:
    query, key, value = qkv()
    few = key[:, :2], value[:, :2]
    for enable in (True, False):
        torch.testing.assert_close(
            attention(query, *few, is_causal=True, enable_gqa=enable),
            nn.functional.scaled_dot_product_attention(query, *few, is_causal=True, enable_gqa=True),
        )
    with pytest.raises(ValueError, match=r"pass a mask as attn_mask=, got torch.bool \(7, 7\)"):
        attention(query, key, value, torch.ones(TOKENS, TOKENS, dtype=torch.bool))  # type: ignore[arg-type]


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


@pytest.mark.parametrize("ids", [[1, 1, 1, 0, 1, 2], [1, 1, 0, 1, 2, 3], [0, 1, 2, 1, 1, 1], [0, 1, 0, 1, 1, 1]])
def test_padded_ids_are_not_packed_ids(ids: list[int]) -> None:
    """As transformers makes them of a mask: padding is at 1."""
    padded = r"^ids must increase by one in each packed document, got 1 twice in row 1 and documents that begin at 0: "
    rows = torch.tensor([[0, 1, 2, 3, 4, 5], ids])
    with pytest.raises(ValueError, match=padded):
        Positions.from_ids(rows, packed=True)
    mask = torch.tensor(ids) != 1
    Positions.from_ids(rows, torch.stack((mask | True, mask)), packed=True)


def test_packed_rows_laid_end_to_end() -> None:
    packed = Positions.packed([2, 3])
    with pytest.raises(ValueError, match="parts have tokens of document 0 at the same order"):
        Positions.cat([packed, packed])
    new = Positions.cat([packed, packed], documents="new")
    assert new.document.tolist() == [[0, 0, 1, 1, 1, 2, 2, 3, 3, 3]]
    assert new.coords.tolist() == [[0, 1, 0, 1, 2] * 2]
    rows = Positions.packed([[2, 3], [1, 2]])
    assert Positions.cat([rows, rows.following()]).document.tolist() == [[0, 0, 1, 1, 1, 1], [0, 1, 1, -1, -1, 1]]


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


class Clocked(Scheme):
    """A clock and nothing else (FoX)."""

    def score(self, *_: Any) -> tuple[CumulativeBias]:
        """One term."""
        return (CumulativeBias("clock"),)


@pytest.mark.parametrize("backend", ["reference", "native", "chunked"])
def test_a_feature_is_for_every_row_of_the_batch(backend: str) -> None:
    query, key, value = qkv(5, dtype=torch.float64)
    encoding = Clocked()(Positions.arange(5)).with_features({"clock": torch.zeros(1, HEADS, 5)})
    with pytest.raises(ValueError, match=r"'clock' of the query must be \(2, 1 or 4, 5, ...\), got \(1, 4, 5\)"):
        attention(query, key, value, encoding, backend=backend)


def test_pieces_that_contradict_themselves() -> None:
    def table(r: Tensor) -> Tensor:
        return r.double()[None, ..., None].expand(1, *r.shape, WIDTH)

    straight = Distance("Straight", tail="linear")
    for kind in (RelativeDot, Value):
        with pytest.raises(ValueError, match=r"^Straight: tail must be 'constant' or None for vectors, got 'linear'"):
            kind(table, straight)
    for contradiction in ({"side": "key"}, {"shift": torch.zeros(HEADS, WIDTH)}):
        with pytest.raises(ValueError, match="a RelativeDot with a feature must have side='query' and no"):
            RelativeDot(table, Distance("Plain"), feature="gist", **contradiction)  # type: ignore[arg-type]


# --- heads that turn, and factors that come along ---------------------------------------------------------------------


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
    query, key, value = qkv(5, dtype=torch.float64)
    encoding = Loud()(Positions.arange(5))
    turned = encoding.rotate(query, key)
    by_hand = attention(*turned, value, encoding.pairs)
    torch.testing.assert_close(by_hand, attention(query, key, value, Loud()))
    with pytest.raises(ValueError, match=r"the scale of Mute must equal that of its rotation, 2\.0, got None"):
        attention(query, key, value, Mute())
    values = RoPE(WIDTH, values=True)(Positions.arange(5))
    with pytest.raises(ValueError, match="rotates values too: call rotate_query, rotate_key and rotate_value"):
        values.rotate(query, key)


def test_some_heads_turn_whoever_shares_their_keys() -> None:
    query, key, value = qkv(7, heads=12, dtype=torch.float64)
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
    query, key, _ = qkv(7, heads=12, dtype=torch.float64)
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


# --- encodings: wrapped, copied, pickled, as trees --------------------------------------------------------------------


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, checkpoint_wrapper])
@pytest.mark.parametrize("way", ["replaced", "added", "added to", "whole"])
def test_a_wrapped_part_is_opened_like_any_other(wrap: Callable[[nn.Module], Any], way: str) -> None:
    query, key, value = qkv()
    rope, t5 = RoPE(WIDTH), T5(HEADS)
    want = attention(query, key, value, rope + t5, is_causal=True)
    scheme: Any = rope + t5
    if way == "replaced":
        scheme.schemes[1] = wrap(t5)
    elif way == "added":
        scheme = rope + wrap(t5)
    elif way == "added to":
        scheme = wrap(rope) + t5
    else:
        scheme = wrap(scheme)
    assert scheme.doors == ("rotate", "score")
    torch.testing.assert_close(attention(query, key, value, scheme, is_causal=True), want)
    step = ForwardPass(scheme, TEXT)
    torch.testing.assert_close(step.attention(query, key, value), want)
    layers = Schedule([(scheme, None), (wrap(t5), 3)])
    assert layers[1][1] == 3
    torch.testing.assert_close(ForwardPass(layers, TEXT).attention(query, key, value, layer=0), want)


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


def test_an_encoding_is_a_tree_of_the_tensors_it_holds() -> None:
    query, key, value = qkv()
    scheme = RoPE(WIDTH) + T5(HEADS) + Learned(TOKENS, 12)
    encoding = scheme(TEXT).with_features({"gate": torch.randn(2, HEADS, TOKENS).bfloat16()})
    leaves = pytree.tree_leaves(encoding)
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    assert {tuple(leaf.shape) for leaf in leaves} >= {(1, TOKENS, 12), (1, 1, TOKENS, WIDTH // 2), (2, HEADS, TOKENS)}
    detached = pytree.tree_map(Tensor.detach, encoding)
    assert encoding.tables[0].requires_grad
    assert not detached.tables[0].requires_grad
    want = attention(query, key, value, scheme.pairs(TEXT), is_causal=True)
    torch.testing.assert_close(attention(query, key, value, detached.pairs, is_causal=True), want)
    moved = pytree.tree_map(lambda x: x.to("meta"), encoding)
    assert {leaf.device.type for leaf in pytree.tree_leaves(moved)} == {"meta"}
    assert moved.key_positions is moved.query_positions
    assert moved.score_terms == encoding.score_terms  # they refer to the scheme


def test_trees_are_not_cast_to_what_cannot_hold_them() -> None:
    def half(x: Tensor) -> Tensor:
        return x.bfloat16() if x.is_floating_point() else x

    with pytest.raises(ValueError, match=r"the encoding was cast to torch.bfloat16, which is too coarse for phases"):
        pytree.tree_map(half, RoPE(WIDTH)(TEXT))
    with pytest.raises(ValueError, match=r"positions were cast to torch.bfloat16, which cannot tell 256 from 257"):
        pytree.tree_map(half, TEXT.shift(0.5))
    assert pytree.tree_map(half, TEXT).coords.dtype == torch.int64
    segmented = TEXT.with_segment(torch.ones(1, TOKENS, dtype=torch.int64))
    assert pytree.tree_map(lambda x: x + 1, segmented).segment.tolist() == [[2] * TOKENS]


def test_an_encoding_is_said_in_a_line_and_gives_its_angles() -> None:
    encoding = (RoPE(WIDTH) + T5(HEADS))(TEXT)
    assert repr(encoding).startswith("Encoding(rotate, score; queries Positions(rows=1, tokens=7")
    assert "\n" not in repr(encoding)
    cos, sin = encoding.cos_sin()
    angle = torch.arange(TOKENS)[:, None] * 10_000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
    torch.testing.assert_close((cos[0], sin[0]), (angle.cos(), angle.sin()))
    with pytest.raises(ValueError, match="cos_sin needs one rotation of channel pairs"):
        ALiBi(HEADS)(TEXT).cos_sin()


# --- what was done already --------------------------------------------------------------------------------------------


ROTATED = r"^{} was rotated already, and attention would rotate it again: pass rotated queries and keys with scheme.pai"


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
            with pytest.raises(ValueError, match=ROTATED.format(name)):
                call()
    out = attention(turned, kept, value, scheme.pairs(positions), is_causal=True)
    torch.testing.assert_close(out, attention(query, key, value, scheme, is_causal=True), rtol=1e-4, atol=1e-5)
    attention(turned.clone(), kept.clone(), value, again, is_causal=True)  # said to be meant


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


def test_every_layer_of_a_cache_is_called_once_in_every_pass() -> None:
    query, key, value = qkv(3, dtype=torch.float64)
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
    with pytest.raises(ValueError, match=r"layer 1 was not called in an earlier pass: every layer must be called in"):
        run(text.following(3), 0, 1)


def test_a_forward_pass_opens_the_add_door_or_says_so() -> None:
    query, key, value = qkv(3, dtype=torch.float64)
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


PADDED = Positions.padded(torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]))

JUMPED = Positions.from_ids(torch.tensor([[0, 1, 2, 10, 11]]))  # ids as after an image

MULTIMODAL = Positions.multimodal([2, (1, 2, 2)])

PACKED = Positions.packed([2, 3])

CONTINUED: dict[str, tuple[Positions, Positions, str]] = {
    "a text": (Positions.arange(10), Positions.arange(1, start=10), ""),
    "a gap": (Positions.arange(10), Positions.arange(1, start=20), "at order 10, got 20"),
    "earlier tokens": (Positions.arange(4, start=6), Positions.arange(6), ""),
    "a gap after padding": (PADDED, Positions.arange(1, start=6), "at order 4, got 6"),
    "padding": (PADDED, PADDED.following(2), ""),
    "coordinates that jump": (Positions.arange(10), Positions.arange(1, start=10).shift(10), ""),
    "ids that have jumped": (JUMPED, Positions.from_ids(torch.tensor([[12]])), ""),
    "ids that jump again": (JUMPED, Positions.from_ids(torch.tensor([[20]])), "at order 5, got 20"),
    "text after an image": (MULTIMODAL, MULTIMODAL.following(2), ""),
    "another document": (Positions.arange(4), Positions.cat([Positions.arange(4)] * 2, documents="new")[4:], ""),
    "packed": (PACKED, PACKED.following(), ""),
    "the first of the packed": (PACKED, Positions.packed([4, 3])[2:4], ""),
    "the first of the packed, last": (
        PACKED,
        Positions(torch.tensor([[2]]), order=torch.tensor([[5]]), document=torch.tensor([[0]])),
        "",
    ),
    "a gap in a document": (PACKED, Positions.packed([4, 3])[3:4], "at order 2, got 3"),
}


@pytest.mark.parametrize("case", CONTINUED)
def test_a_cache_is_continued_without_a_gap_in_the_order(case: str) -> None:
    before, after, skip = CONTINUED[case]
    cache = KVCache()
    for positions in (before, after):
        drawn = [torch.randn(positions.rows, 2, len(positions), 8) for _ in range(3)]
        gap = skip and positions is after
        says = (
            rf"^positions must go on from the cache {skip}: continue it with cache.positions.following\(n\) or, where"
        )
        refused = pytest.raises(ValueError, match=says) if gap else nullcontext()
        with refused, ForwardPass(posenc.NoPE(), positions, cache) as step:
            step.attention(*drawn, layer=0)
    assert len(cache) == len(before) + len(after) * (not skip)


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


# --- derivatives and precision ----------------------------------------------------------------------------------------


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


TABLES: dict[str, Callable[[], Scheme]] = {
    "T5": lambda: T5(HEADS),
    "Shaw's keys": lambda: Shaw(WIDTH, 16, values=False),
    "Shaw": lambda: Shaw(WIDTH, 16),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_gradient_of_a_table_is_whole_beside_inputs_in_half_precision(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6 of its largest entry, the tables in float32, against float64 on the same rounded inputs, where the kernel
    converts them to float32."""
    query, key, value, direction = (torch.randn(1, HEADS, 300, WIDTH).bfloat16() for _ in range(4))
    scheme = TABLES[name]()
    for parameter in scheme.parameters():
        nn.init.normal_(parameter, std=0.5)

    def gradients(dtype: torch.dtype, backend: str) -> tuple[Tensor, ...]:
        out = attention(*(x.to(dtype) for x in (query, key, value)), scheme, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        assert out.dtype == dtype
        return torch.autograd.grad(out, list(scheme.parameters()), direction.to(dtype))

    monkeypatch.setattr("posenc.backends.native.backend.multiplies_bfloat16", lambda: False)
    found = gradients(torch.bfloat16, "native")
    scheme.double()
    for mine, exact in zip(found, gradients(torch.float64, "chunked"), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=1e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_relative_2d_in_float16_bears_a_large_gradient(backend: str) -> None:
    grid = Positions.grid(16, 16)
    scheme = posenc.Relative2D((16, 16), 16)
    leaves = [torch.randn(1, HEADS, 256, 16).half().requires_grad_() for _ in range(3)]
    query, key, value = leaves
    out = attention(query, key, value, scheme, query_positions=grid, backend=backend)
    assert isinstance(out, Tensor)
    for gradient in torch.autograd.grad(out, [*leaves, *scheme.parameters()], 1000 * torch.ones_like(out)):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


# --- devices ----------------------------------------------------------------------------------------------------------


PLACES = 10  # also of a grid of two rows


class NoDouble(TorchDispatchMode):
    """The device "meta" as one without double precision; what is taken from there to the CPU is ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and str(kwargs.get("device")) == "cpu":
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        for x in pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.is_meta and x.dtype == torch.float64:
                raise TypeError(f"{func} makes float64 on a device that has none")
        return out


def built(entry: Entry) -> tuple[Scheme, Positions]:
    """A scheme of the catalog and positions that it takes, both where tensors are made by default."""
    grid = (None, (2, PLACES // 2), (1, 2, PLACES // 2))[entry.least_axes - 1]
    scheme = entry.build(Shape(HEADS * WIDTH, HEADS, WIDTH, PLACES, grid=grid))
    frames = None if grid is None or len(grid) == 2 else grid[0]
    positions = Positions.arange(PLACES) if grid is None else Positions.grid(*grid[-2:], frames=frames)
    if entry.needs_segments:
        positions = positions.with_segment(torch.zeros(1, PLACES, dtype=torch.int64))
    return scheme, positions


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_no_scheme_makes_double_precision_on_a_device_that_has_none(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exact(device: torch.device | None) -> torch.device | None:
        return torch.device("cpu") if device is not None and device.type == "meta" else device

    for module in [m for name, m in sys.modules.items() if name.startswith("posenc.") and hasattr(m, "exact")]:
        monkeypatch.setattr(module, "exact", exact)
    with torch.device("meta"):
        scheme, positions = built(entry)
    query = torch.empty(1, HEADS, PLACES, WIDTH, device="meta")
    with NoDouble():
        encoding = scheme(positions)
        encoding.add(torch.empty(1, PLACES, HEADS * WIDTH, device="meta"))
        if encoding.wanted:
            encoding = encoding.with_projected(projected(encoding, torch.device("meta")))
        assert attention(query, query, query, encoding, is_causal=True, backend="reference").is_meta


def projected(encoding: Encoding, device: torch.device) -> dict[str, Tensor]:
    """What a layer projects, as shapes."""
    return {
        name: feature.of_heads(torch.empty(1, PLACES, feature.size, device=device))
        for name, feature in encoding.wanted.items()
    }


TRUNCATED = ("swin", "swin_v2")  # whose parameters PyTorch cannot draw without numbers


@pytest.mark.parametrize(
    "entry", [entry for entry in CATALOG if entry.name not in TRUNCATED][::5], ids=lambda entry: entry.name
)
def test_shapes_can_be_had_without_numbers(entry: Entry) -> None:
    with FakeTensorMode():
        grid, positions = {
            1: (None, Positions.arange(6)),
            2: ((2, 3), Positions.grid(2, 3)),
            3: ((1, 2, 3), Positions.grid(2, 3, frames=1)),
        }[entry.least_axes]
        scheme = entry.build(Shape(16, 2, 8, 64, grid=grid))
        encoding = scheme(positions.with_segment(torch.zeros(1, 6, dtype=torch.int64)))
        if encoding.tables:
            assert encoding.add(torch.randn(1, 6, 16)).shape == (1, 6, 16)
        elif not encoding.wanted:
            assert attention(*torch.randn(3, 1, 2, 6, 8), encoding, is_causal=True).shape[:3] == (1, 2, 6)


@pytest.mark.more
@pytest.mark.skipif(
    os.environ.get("POSENC_SHAPES") == "1", reason="torch.compile cannot see through the checks of shapes"
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++")
def test_positions_that_a_graph_counts_by_division() -> None:
    """Of arange(120) // 50 inductor writes 100 numbers and leaves 20 as they were, unless it is kept from it."""

    def run() -> Tensor:
        return Positions((torch.arange(120) // 50)[None]).coords

    assert torch.equal(torch.compile(run, fullgraph=True)(), run())
