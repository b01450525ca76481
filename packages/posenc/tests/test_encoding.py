"""The meeting place: what an encoding does with tensors, what it refuses, and how schemes compose."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import posenc
from posenc import ALiBi, Encoding, Learned, NoPE, Positions, RoPE, Scheme, Segment, Sinusoidal, YaRN, attention
from posenc.encoding.encoding import Context
from posenc.encoding.rotation import Rotation, mark, mark_of
from posenc.encoding.terms import AddedVector, Bias, CumulativeBias, Distance, Function, RelativeDot, Row, Value
from posenc.lowering.distances import Block
from posenc.rotation import phases

TOKENS, DIM, HEADS, HEAD_DIM = 5, 6, 3, 2


def qk(batch: int = 2, queries: int = TOKENS, keys: int = TOKENS, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(batch, HEADS, n, HEAD_DIM).to(dtype) for n in (queries, keys)]


# --- the add door ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once_however_many_vectors_are_added(dtype: torch.dtype) -> None:
    positions = Positions.arange(TOKENS, start=300).with_segment(torch.ones(1, TOKENS, dtype=torch.int64))
    parts = (Sinusoidal(DIM), Segment(2, DIM), Learned(310, DIM))
    x = torch.randn(2, TOKENS, DIM).to(dtype)
    tables = [part.double().table(positions, torch.float64) for part in parts]
    exact = x.double() + tables[0] + tables[1] + tables[2]
    encoding = (parts[0] + parts[1] + parts[2])(positions, dtype=torch.float64)
    assert torch.equal(encoding.add(x), exact.to(dtype))


# --- the rotate door ------------------------------------------------------------------------------------------------


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


FITTING = torch.zeros(2, HEADS, TOKENS, HEAD_DIM)


# --- encodings ------------------------------------------------------------------------------------------------------


SCALED: dict[str, Callable[[], Scheme]] = {
    "pope": lambda: posenc.PoPE(4),
    "mla": lambda: posenc.MLA(4, 4, scaling=posenc.YaRN(40.0, 64, mscale_all_dim=1.0)),
    "deberta": lambda: posenc.DeBERTa(HEADS, 4, max_distance=3),
    "swin_v2": lambda: posenc.SwinV2((1, TOKENS), HEADS),
    "tupe": lambda: posenc.TUPE(HEADS, 4, TOKENS),
    "composed": lambda: ALiBi(HEADS, "bidirectional") + posenc.PoPE(4),
}


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


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Encoding(Positions.arange(1), Positions.arange(1)), "tables"),
        (Rotation(torch.neg, torch.neg), "query"),
        (Context(), "heads"),
        (Distance("Scheme"), "reach"),
        (Bias(torch.neg, Distance("Scheme")), "at"),
        (RelativeDot(torch.neg, Distance("Scheme")), "vectors"),
        (AddedVector("Scheme"), "query"),
        (CumulativeBias("age"), "feature"),
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


def test_schemes_are_composed_by_sum() -> None:
    rope, alibi = RoPE(8), ALiBi(4)
    assert sum([rope, alibi]).parts == (rope, alibi)
    assert sum([rope]) is rope
    for other in (1, 0.0, False, "alibi"):
        with pytest.raises(TypeError):
            other + rope


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


def test_a_composition_owns_its_parts_parameters_and_draws_them_all_anew() -> None:
    learned, segment = Learned(9, DIM), Segment(2, DIM)
    scheme = learned + RoPE(HEAD_DIM) + segment
    assert {id(p) for p in scheme.parameters()} == {id(learned.weight), id(segment.weight)}
    before = [p.detach().clone() for p in scheme.parameters()]
    scheme.reset_parameters()
    for old, new in zip(before, scheme.parameters(), strict=True):
        assert (old != new).all()


# --- stores -----------------------------------------------------------------------------------------------------------


def test_marks_belong_to_unchanged_tensors_and_go_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    store: dict[object, object] = {}
    monkeypatch.setattr("posenc.encoding.rotation._MARKS", store)
    equal = [mark(torch.ones(2), n) for n in range(100)]
    assert [mark_of(x) for x in equal] == list(range(100))
    assert mark_of(torch.ones(2)) is None
    equal[0].add_(0)
    assert mark_of(equal[0]) is None
    with torch.inference_mode():
        assert mark_of(mark(torch.ones(2), "nothing")) is None
    equal.clear()
    assert not store


def test_constants_are_stored_up_to_a_number_and_right_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_CONSTANTS", store := dict[object, Tensor]())
    monkeypatch.setattr(phases, "MAX_CONSTANTS", 2)
    device = torch.device("cpu")
    for count in (3, 4, 5, 3):
        found = phases.constant(phases.frequencies, 2 * count, 100.0, device=device)
        assert torch.equal(found, phases.frequencies(2 * count, 100.0))
    assert [len(x) for x in store.values()] == [3, 4]
    assert phases.constant(phases.frequencies, 6, 100.0, device=device) is next(iter(store.values()))
