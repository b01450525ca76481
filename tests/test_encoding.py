"""The meeting place: what an encoding does with tensors, what it refuses, and how schemes compose."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posenc
from posenc import ALiBi, Encoding, Learned, NoPE, Positions, RoPE, Scheme, Segment, Shaw, Sinusoidal, YaRN, attention
from posenc.encoding.encoding import DOORS, Context
from posenc.encoding.pieces import Bias, Clock, Distance, Fold, Function, Meeting, Row, Value
from posenc.encoding.rotation import Rotation
from posenc.lowering.block import Block
from posenc.scheme import Composition
from tests.awkward import TrialCoPE

TOKENS, DIM, HEADS, HEAD_DIM = 5, 6, 3, 2


def qk(batch: int = 2, queries: int = TOKENS, keys: int = TOKENS, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(batch, HEADS, n, HEAD_DIM).to(dtype) for n in (queries, keys)]


# --- the add door ---------------------------------------------------------------------------------------------------


def test_add_adds_the_vector_of_each_query_position() -> None:
    scheme, x = Learned(9, DIM), torch.randn(2, 3, DIM)
    positions = Positions(torch.tensor([[4, 0, 4], [8, 2, 1]]))
    torch.testing.assert_close(scheme(positions).add(x), x + scheme.weight[positions.coords])
    keys = Positions.arange(9)  # a query's vector is added, whatever the keys are
    torch.testing.assert_close(scheme(positions, keys).add(x), x + scheme.weight[positions.coords])


def test_one_row_of_vectors_serves_the_whole_batch() -> None:
    x = torch.randn(3, TOKENS, DIM)
    added = Sinusoidal(DIM)(Positions.arange(TOKENS)).add(x) - x
    torch.testing.assert_close(added, Sinusoidal(DIM).table(Positions.arange(TOKENS)).expand(3, -1, -1))


@pytest.mark.parametrize("scheme", [NoPE(), RoPE(HEAD_DIM), ALiBi(HEADS), RoPE(HEAD_DIM) + ALiBi(HEADS)])
def test_a_closed_add_door_gives_x_itself(scheme: Scheme) -> None:
    x = torch.randn(2, TOKENS, DIM)
    assert scheme(Positions.arange(TOKENS)).add(x) is x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once_however_many_vectors_are_added(dtype: torch.dtype) -> None:
    positions = Positions.arange(TOKENS, start=300).with_segment(torch.ones(1, TOKENS, dtype=torch.int64))
    parts = (Sinusoidal(DIM), Segment(2, DIM), Learned(310, DIM))
    x = torch.randn(2, TOKENS, DIM).to(dtype)
    tables = [part.double().table(positions, torch.float64) for part in parts]
    exact = x.double() + tables[0] + tables[1] + tables[2]
    encoding = (parts[0] + parts[1] + parts[2])(positions, dtype=torch.float64)
    assert torch.equal(encoding.add(x), exact.to(dtype))


ADD_ERRORS: dict[str, tuple[Positions, tuple[int, ...], str]] = {
    "two axes": (
        Positions.arange(TOKENS),
        (TOKENS, DIM),
        r"x must be \(batch, 5, 6\) to add positions to, got \(5, 6\)",
    ),
    "tokens": (Positions.arange(TOKENS), (2, 4, DIM), r"x must be \(batch, 5, 6\) .*, got \(2, 4, 6\)"),
    "sequence first": (Positions.arange(TOKENS), (TOKENS, 2, DIM), r"x must be \(batch, 5, 6\) .*, got \(5, 2, 6\)"),
    "dim": (Positions.arange(TOKENS), (2, TOKENS, 8), r"x must be \(batch, 5, 6\) .*, got \(2, 5, 8\)"),
    "dim 1": (Positions.arange(TOKENS), (2, TOKENS, 1), r"x must be \(batch, 5, 6\) .*, got \(2, 5, 1\)"),
    "rows": (Positions.arange(TOKENS).expand(3), (2, TOKENS, DIM), r"x must be \(3, 5, 6\) .*, got \(2, 5, 6\)"),
    "one row of x": (
        Positions.arange(TOKENS).expand(3),
        (1, TOKENS, DIM),
        r"x must be \(3, 5, 6\) .*, got \(1, 5, 6\)",
    ),
}


@pytest.mark.parametrize("case", ADD_ERRORS)
def test_add_refuses_what_would_be_broadcast(case: str) -> None:
    positions, shape, message = ADD_ERRORS[case]
    with pytest.raises(ValueError, match=message):
        Sinusoidal(DIM)(positions).add(torch.zeros(shape))


# --- the rotate door ------------------------------------------------------------------------------------------------


def test_rotate_turns_queries_and_keys_each_at_their_own_positions() -> None:
    query, key = qk(queries=2)
    asking, known = Positions.arange(2, start=40), Positions.arange(TOKENS, start=3)
    turned = RoPE(HEAD_DIM)(asking, known).rotate(query, key)
    torch.testing.assert_close(turned[0], RoPE(HEAD_DIM)(asking).rotate(query, query)[0])
    torch.testing.assert_close(turned[1], RoPE(HEAD_DIM)(known).rotate(key, key)[0])


def test_rotations_open_from_left_to_right() -> None:
    class Swap(Scheme):
        def rotation(
            self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
        ) -> Rotation:
            return Rotation(lambda x: x.flip(-1), lambda x: x.flip(-1))

    query, key = qk()
    positions = Positions.arange(TOKENS)
    turned = RoPE(HEAD_DIM)(positions).rotate(query, key)
    swapped = (RoPE(HEAD_DIM) + Swap())(positions).rotate(query, key)
    torch.testing.assert_close(swapped, tuple(x.flip(-1) for x in turned))
    other = (Swap() + RoPE(HEAD_DIM))(positions).rotate(query, key)
    assert (other[0] - swapped[0]).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_turned_keeps_its_dtype(dtype: torch.dtype) -> None:
    encoding = RoPE(HEAD_DIM)(Positions.arange(TOKENS), dtype=torch.promote_types(dtype, torch.float32))
    query, key = encoding.rotate(*qk(dtype=dtype))
    assert (query.dtype, key.dtype) == (dtype, dtype)


def test_a_closed_rotate_door_gives_the_same_tensors() -> None:
    query, key = qk()
    same = ALiBi(HEADS)(Positions.arange(TOKENS)).rotate(query, key)
    assert same[0] is query
    assert same[1] is key


FITTING = torch.zeros(2, HEADS, TOKENS, HEAD_DIM)
CHECK_ERRORS: dict[str, tuple[Tensor, Tensor, str]] = {
    "query of three axes": (
        FITTING[0],
        FITTING,
        r"query must be \(batch, heads, tokens, head_dim\), got \(3, 5, 2\)",
    ),
    "key of five axes": (
        FITTING,
        FITTING[None],
        r"key must be \(batch, heads, tokens, head_dim\), got \(1, 2, 3, 5, 2\)",
    ),
    "query tokens": (FITTING[:, :, :4], FITTING, r"query has 4 tokens, but the encoding was made for 5"),
    "key tokens": (FITTING, FITTING[:, :, :1], r"key has 1 tokens, but the encoding was made for 5"),
    "batch": (FITTING[:1], FITTING, r"query has batch 1, but the encoding's positions have 2 rows"),
    "key batch": (FITTING, FITTING.repeat(2, 1, 1, 1), r"key has batch 4, but the encoding's positions have 2 rows"),
    "device": (FITTING.to("meta"), FITTING, r"query is on meta, but the encoding's positions are on cpu"),
    "key device": (FITTING, FITTING.to("meta"), r"key is on meta, but the encoding's positions are on cpu"),
}


@pytest.mark.parametrize("case", CHECK_ERRORS)
def test_check_and_rotate_refuse_what_the_encoding_was_not_made_for(case: str) -> None:
    query, key, message = CHECK_ERRORS[case]
    for scheme in (NoPE(), RoPE(HEAD_DIM)):
        encoding = scheme(Positions.arange(TOKENS).expand(2))
        for method in (encoding.check, encoding.rotate):
            with pytest.raises(ValueError, match=message):
                method(query, key)


def test_a_rotation_refuses_another_head_dim() -> None:
    with pytest.raises(ValueError, match="the rotation was made for head_dim 4, got q or k of head_dim 2"):
        RoPE(4)(Positions.arange(TOKENS)).rotate(FITTING, FITTING)


# --- encodings ------------------------------------------------------------------------------------------------------


def everything() -> tuple[Scheme, Positions]:
    scheme = Sinusoidal(DIM) + RoPE(HEAD_DIM) + ALiBi(HEADS) + Shaw(HEAD_DIM, 2)
    return scheme, Positions.arange(TOKENS)


def test_doors_are_those_that_are_open() -> None:
    scheme, positions = everything()
    assert scheme.doors == scheme(positions).doors == DOORS
    assert Encoding(positions, positions).doors == ()
    for one, doors in (
        (NoPE(), ()),
        (Sinusoidal(DIM), ("add",)),
        (Learned(9, DIM), ("add",)),
        (RoPE(HEAD_DIM), ("rotate",)),
        (ALiBi(HEADS), ("score",)),
        (Shaw(HEAD_DIM, 2), ("score", "value")),
        (ALiBi(HEADS) + Sinusoidal(DIM), ("add", "score")),
        (NoPE() + NoPE(), ()),
    ):
        assert one.doors == doors
        assert one(positions).doors == doors


def test_pairs_are_the_pair_doors_alone() -> None:
    scheme, positions = everything()
    encoding = scheme(positions)
    pairs = encoding.pairs
    assert pairs.doors == ("score", "value")
    assert (pairs.pieces, pairs.values) == (encoding.pieces, encoding.values)
    query, key = qk()
    assert pairs.rotate(query, key)[0] is query
    assert pairs.query_positions is encoding.query_positions
    assert pairs.key_positions is encoding.key_positions


def test_token_doors_and_pair_doors_make_the_whole() -> None:
    scheme, positions = everything()
    keys = Positions.arange(7)
    tokens, pairs = scheme.tokens(positions, keys), scheme.pairs(positions, keys)
    assert (tokens.doors, pairs.doors) == (("add", "rotate"), ("score", "value"))
    whole, summed = scheme(positions, keys), tokens + pairs
    assert summed.doors == whole.doors == DOORS
    x, (query, key) = torch.randn(2, TOKENS, DIM), qk(keys=7)
    assert torch.equal(summed.add(x), whole.add(x))
    for a, b in zip(summed.rotate(query, key), whole.rotate(query, key), strict=True):
        assert torch.equal(a, b)


SCALED: dict[str, Callable[[], Scheme]] = {
    "pope": lambda: posenc.PoPE(4),
    "mla": lambda: posenc.MLA(4, 4, scaling=posenc.YaRN(40.0, 64, mscale_all_dim=1.0)),
    "deberta": lambda: posenc.DeBERTa(HEADS, 4, max_distance=3),
    "swin_v2": lambda: posenc.SwinV2((1, TOKENS), HEADS),
    "tupe": lambda: posenc.TUPE(HEADS, 4, TOKENS),
    "composed": lambda: ALiBi(HEADS, "bidirectional") + posenc.PoPE(4),
}


@pytest.mark.parametrize("name", SCALED)
def test_pair_doors_that_are_bound_alone_have_the_scale_of_the_rotation(name: str) -> None:
    scheme, (query, key) = SCALED[name](), torch.randn(2, 2, HEADS, TOKENS, 4)
    positions = Positions.grid(1, TOKENS) if name == "swin_v2" else Positions.arange(TOKENS)
    pairs, value = scheme.pairs(positions), key
    assert pairs.scale == scheme.scale == scheme(positions).scale is not None
    out = attention(*scheme.tokens(positions).rotate(query, key), value, pairs)
    torch.testing.assert_close(out, attention(query, key, value, scheme(positions)))
    assert (scheme.tokens(positions) + pairs).scale == scheme.scale


def test_one_rotation_alone_brings_a_scale() -> None:
    positions = Positions.arange(TOKENS)
    deberta, pope = SCALED["deberta"](), SCALED["pope"]()
    with pytest.raises(ValueError, match=r"^only one rotation can set the softmax scale, got 0.*, 0.*"):
        deberta + pope
    for one, other in ((deberta(positions), pope(positions)), (deberta.pairs(positions), pope.pairs(positions))):
        with pytest.raises(ValueError, match=r"^only one rotation can set the softmax scale, got 0.*, 0.*"):
            one + other


def test_pair_doors_of_what_is_turned_in_pairs_are_refused() -> None:
    scheme, positions = posenc.ReRoPE(HEAD_DIM, 2) + ALiBi(HEADS), Positions.arange(TOKENS)
    with pytest.raises(ValueError, match=r"see Scheme.needs_raw_keys"):
        scheme(positions).pairs  # noqa: B018
    with pytest.raises(ValueError, match=r"see Scheme.needs_raw_keys"):
        scheme.pairs(positions)
    lengthening = RoPE(4, scaling=posenc.DynamicNTK(2.0, 3))  # one rotation for each token of a call
    assert lengthening.pairs(positions).doors == ()


def test_a_sum_of_encodings_keeps_what_either_has() -> None:
    positions, heads = Positions.arange(TOKENS), range(2)
    steps = torch.randn(2, 4, TOKENS).sigmoid()
    fox = posenc.FoX(4)(positions).with_projected({"forgotten": steps})
    for both in (RoPE(HEAD_DIM)(positions) + fox, fox + RoPE(HEAD_DIM)(positions)):
        assert both.query_features["forgotten"] is fox.query_features["forgotten"]
        assert both.key_features["forgotten"] is fox.key_features["forgotten"]
    with pytest.raises(ValueError, match="both encodings have a feature 'forgotten': add the encodings before"):
        fox + posenc.FoX(4)(positions).with_projected({"forgotten": 1 - steps})
    with pytest.raises(ValueError, match="two schemes need different features named 'forgotten'"):
        posenc.FoX(4)(positions) + posenc.FoX(8)(positions)
    shard = ALiBi(4)(positions, context=Context(heads=heads))
    assert (RoPE(HEAD_DIM)(positions) + shard).context.heads == heads
    with pytest.raises(ValueError, match=r"of the same heads to be added, got range\(0, 2\) and range\(2, 4\)"):
        shard + ALiBi(4)(positions, context=Context(heads=range(2, 4)))


def test_keys_stand_where_the_queries_do_unless_told() -> None:
    for scheme in (RoPE(HEAD_DIM), RoPE(HEAD_DIM) + ALiBi(HEADS)):
        positions, keys = Positions.arange(2), Positions.arange(3)
        for bind in (scheme, scheme.tokens, scheme.pairs):
            assert bind(positions).key_positions is positions
            assert bind(positions, keys).key_positions is keys


def test_sum_of_encodings_holds_the_terms_of_both_in_their_order() -> None:
    positions = Positions.arange(TOKENS)
    first, second = ALiBi(HEADS)(positions), (Shaw(HEAD_DIM, 2) + RoPE(HEAD_DIM))(positions)
    both = first + second
    assert both.pieces == first.pieces + second.pieces
    assert both.values == second.values
    assert both.rotations == second.rotations
    assert (second + first).pieces == second.pieces + first.pieces


def test_attention_takes_an_encoding_whose_token_doors_are_opened_once() -> None:
    query, key = qk()
    positions, x = Positions.arange(TOKENS), torch.zeros(2, TOKENS, DIM)
    adding = (Sinusoidal(DIM) + ALiBi(HEADS, "bidirectional"))(positions)
    for encoding in (adding, adding.with_features({"age": torch.zeros(1, 1, TOKENS)}), adding + NoPE()(positions)):
        with pytest.raises(ValueError, match=r"^the encoding adds to the input, and was not added: call x = "):
            attention(query, key, key, encoding)
    adding.with_features({"age": torch.zeros(1, 1, TOKENS)}).add(x)  # of the same encoding
    attention(query, key, key, adding)
    attention(query, key, key, adding + NoPE()(positions))
    turning = RoPE(HEAD_DIM)(positions)
    out = attention(query, key, key, turning)
    turned = turning.rotate(query, key)
    for encoding in (turning, NoPE()(positions) + turning):
        with pytest.raises(ValueError, match=r"^the encoding has rotated query and key already, and attention would"):
            attention(*turned, key, encoding)
    torch.testing.assert_close(attention(*turned, key, turning.pairs), out)


@pytest.mark.parametrize("other", [(Positions.arange(TOKENS), None), (None, Positions.arange(TOKENS))])
def test_encodings_of_other_positions_cannot_be_added(other: tuple[Positions | None, Positions | None]) -> None:
    query, key = Positions.arange(TOKENS), Positions.arange(TOKENS)
    stranger = NoPE()(other[0] or query, other[1] or key)
    with pytest.raises(ValueError, match="encodings must be of the same positions to be added, got diff"):
        NoPE()(query, key) + stranger


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Encoding(Positions.arange(1), Positions.arange(1)), "tables"),
        (Rotation(torch.neg, torch.neg), "query"),
        (Context(), "heads"),
        (Distance("Scheme"), "reach"),
        (Bias(torch.neg, Distance("Scheme")), "at"),
        (Meeting(torch.neg, Distance("Scheme")), "vectors"),
        (Fold("Scheme"), "query"),
        (Clock("age"), "feature"),
        (Function(torch.neg), "apply"),
        (Row(torch.neg), "apply"),
        (Value(torch.neg, Distance("Scheme")), "vectors"),
        (Block(FITTING, FITTING, Positions.arange(TOKENS), Positions.arange(TOKENS), 1.0), "scale"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_bound_is_frozen(value: object, name: str) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)


# --- schemes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [NoPE, lambda: RoPE(HEAD_DIM), lambda: Sinusoidal(DIM) + ALiBi(HEADS)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
def test_an_encoding_is_never_held_in_half_precision(make: Callable[[], Scheme], dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"dtype must be float32 or float64, got {dtype}"):
        make()(Positions.arange(TOKENS), dtype=dtype)


def test_schemes_are_composed_by_sum() -> None:
    rope, alibi = RoPE(8), ALiBi(4)
    assert sum([rope, alibi]).parts == (rope, alibi)
    assert sum([rope]) is rope
    for other in (1, 0.0, False, "alibi"):
        with pytest.raises(TypeError):
            other + rope


def test_composition_is_flat_however_it_is_bracketed() -> None:
    a, b, c = Sinusoidal(DIM), RoPE(HEAD_DIM), ALiBi(HEADS)
    for scheme in ((a + b) + c, a + (b + c), Composition(a, b) + c):
        assert isinstance(scheme, Composition)
        assert scheme.parts == (a, b, c)
    assert a.parts == (a,)
    assert (a + a).parts == (a, a)


NOT_ADDED: list[tuple[object, str]] = [
    (None, r"None: for no encoding, leave it out or add NoPE\(\)"),
    (YaRN(4, 128), r"YaRN\(.*\): a scaling belongs to a scheme, RoPE\(head_dim, scaling=\.\.\.\)"),
    (RoPE, r"the class RoPE: make a scheme of it, RoPE\(\.\.\.\)"),
    ("rope", r"'rope': make a scheme, such as posenc.ALiBi\(num_heads\)"),
    (Positions.arange(3), r"Positions.*: call a scheme with them, scheme\(positions\)"),
]


def test_a_scheme_is_added_to_schemes_alone() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        NoPE() + 1
    for other, message in NOT_ADDED:
        for add in (lambda other: NoPE() + other, lambda other: other + NoPE()):
            with pytest.raises(TypeError, match=r"^a scheme is composed with schemes, got " + message + "$"):
                add(other)
    with pytest.raises(TypeError, match="unsupported operand"):
        NoPE() + NoPE()(Positions.arange(2))


def test_doors_are_named_in_the_order_they_open() -> None:
    assert (ALiBi(HEADS) + RoPE(HEAD_DIM) + Sinusoidal(DIM)).doors == ("add", "rotate", "score")


def test_a_composition_owns_its_parts_parameters_and_draws_them_all_anew() -> None:
    learned, segment = Learned(9, DIM), Segment(2, DIM)
    scheme = learned + RoPE(HEAD_DIM) + segment
    assert {id(p) for p in scheme.parameters()} == {id(learned.weight), id(segment.weight)}
    before = [p.detach().clone() for p in scheme.parameters()]
    scheme.reset_parameters()
    for old, new in zip(before, scheme.parameters(), strict=True):
        assert (old != new).all()


def test_a_term_that_needs_its_row_composes_too() -> None:
    scheme = RoPE(HEAD_DIM) + TrialCoPE(4, HEAD_DIM)
    assert scheme.doors == ("rotate", "score")
    assert isinstance(scheme(Positions.arange(3)).pieces[0], Row)


def test_a_scheme_that_overrides_nothing_keeps_every_door_closed() -> None:
    scheme, positions = Scheme(), Positions.arange(3)
    assert scheme.doors == scheme(positions).doors == ()
    assert (scheme.table(positions), scheme.rotation(positions)) == (None, None)
    assert (scheme.score(positions, positions), scheme.value(positions, positions)) == ((), ())


def test_segments_of_padding_do_not_count() -> None:
    mask = torch.tensor([[True, True, False]])
    positions = Positions.padded(mask).with_segment(torch.tensor([[0, 1, -1]]))
    assert Segment(2, 4)(positions).add(torch.zeros(1, 3, 4)).isfinite().all()


def test_positions_are_not_added_to_integers() -> None:
    with pytest.raises(ValueError, match=r"x must be floating to add positions to, got torch.int64"):
        Sinusoidal(4)(Positions.arange(3)).add(torch.zeros(1, 3, 4, dtype=torch.int64))


def test_the_table_of_a_composition_is_the_sum_of_its_parts() -> None:
    sinusoidal, learned, positions = Sinusoidal(4), Learned(8, 4), Positions.arange(3)
    table = (sinusoidal + RoPE(4) + learned).table(positions)
    torch.testing.assert_close(table, sinusoidal.table(positions) + learned.table(positions))
    assert (RoPE(4) + ALiBi(2)).table(positions) is None


def test_token_doors_refuse_half_precision() -> None:
    for scheme in (RoPE(4), RoPE(4) + ALiBi(2)):
        with pytest.raises(ValueError, match=r"dtype must be float32 or float64, got torch.bfloat16"):
            scheme.tokens(Positions.arange(3), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("scheme", "written"),
    [
        (RoPE(8), "RoPE(8, base=10000.0, layout='half', rotary_dim=8, axes=1)"),
        (RoPE(8, values=True), "RoPE(8, base=10000.0, layout='half', rotary_dim=8, axes=1, values=True)"),
        (Learned(5, 4), "Learned(5, 4)"),
        (NoPE() + NoPE(), "Composition(\n  (schemes): ModuleList(\n    (0-1): 2 x NoPE()\n  )\n)"),
    ],
    ids=["usual", "changed", "with parameters", "composed"],
)
def test_a_scheme_is_written_with_the_arguments_it_was_made_with(scheme: Scheme, written: str) -> None:
    assert repr(scheme) == written


# --- inference, then training -----------------------------------------------------------------------------------------

KEPT = (
    r"^the encoding was made under torch\.inference_mode\(\) and cannot be used for training: call the scheme "
    r"with the positions again, once in every forward pass$"
)


@pytest.mark.parametrize(
    "scheme", [posenc.RoPE(8), posenc.PoPE(8), posenc.LeRoPE(8), posenc.AbsoluteInAttention(9, 8)], ids=str
)
def test_an_encoding_of_inference_mode_is_not_trained_with(scheme: posenc.Scheme) -> None:
    positions = Positions.arange(5)
    with torch.inference_mode():
        kept = scheme(positions)
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    expected = posenc.attention(q, k, v, scheme(positions))
    torch.testing.assert_close(posenc.attention(q, k, v, kept), expected)
    for leaf in (q, k):
        leaf.requires_grad_()
        with pytest.raises(ValueError, match=KEPT):
            posenc.attention(q, k, v, kept)
        with torch.no_grad():
            torch.testing.assert_close(posenc.attention(q, k, v, kept), expected)
        leaf.requires_grad_(False)
    q.requires_grad_()
    if "rotate" in scheme.doors:
        with pytest.raises(ValueError, match=KEPT):
            kept.rotate(q, k)
    cloned = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, kept)
    if "rotate" in scheme.doors:
        cloned.rotate_query(q).sum().backward()


def test_one_whose_terms_are_read_when_they_run_may_be_kept() -> None:
    scheme = posenc.T5(2)
    with torch.inference_mode():
        kept = scheme(Positions.arange(5))
    q = torch.randn(1, 2, 5, 8, requires_grad=True)
    posenc.attention(q, q, q, kept, is_causal=True).sum().backward()
    assert scheme.weight.grad is not None
