"""Schemes that need whole rows of scores, features of a layer or maps of queries alone: against the packages that have
them, and what each must be in special cases."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posenc import (
    ALiBi,
    Context,
    FoX,
    Inkling,
    Positions,
    QueryScale,
    Softcap,
    StickBreaking,
    Wall,
    attention,
    explain,
    logits,
)
from posenc.encoding.context import cumulative_sums, last_sums
from posenc.models import ForwardPass
from tests.rounding import of_sums

HEADS, HEAD_DIM, TOKENS = 5, 6, 11
CLOSE = {"rtol": 0.0, "atol": of_sums(torch.float64, TOKENS + HEAD_DIM, 8.0, score=16)}  # no number exceeds 8
# Of numbers of order 1 in single precision, as the packages compute them: sums over 24 channels and the keys.
SINGLE = dict.fromkeys(("rtol", "atol"), of_sums(torch.float32, 24 + TOKENS))


def drawn(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float64)


# --- against packages ------------------------------------------------------------------------------------------------


def test_query_scales_are_those_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.beam.modeling_beam import compute_attention_scaling
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale
    from transformers.models.mistral_large4.modeling_mistral_large4 import MistralLarge4TextSoftmaxScaling

    positions = Positions(torch.tensor([[0, 1, 2, 8191, 8192, 16383, 16384, 70_000]]))
    ids, query = positions.coords, torch.randn(1, HEADS, 8, HEAD_DIM)
    learned = MistralLarge4TextSoftmaxScaling(HEADS)
    mine = QueryScale("mistral_large4", num_heads=HEADS)
    for theirs, parameter in ((learned.scale, mine.s), (learned.bias, mine.b)):
        torch.nn.init.normal_(theirs)
        assert parameter is not None
        with torch.no_grad():
            parameter.copy_(theirs)
    for scheme, expected in (
        (QueryScale("beam"), query * compute_attention_scaling(ids)),
        (QueryScale("ministral3"), query * get_llama_4_attn_scale(ids, 0.1, 16384)),
        (mine, learned(query, ids, head_dim_first=True)),
    ):
        turned, same = scheme.tokens(positions).rotate(query, query)
        torch.testing.assert_close(turned, expected, **SINGLE)
        assert torch.equal(same, query)


def test_inklings_bias_is_that_of_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.models.inkling.modeling_inkling import InklingRelativeLogits

    theirs, ours = InklingRelativeLogits(3, 4).double(), Inkling(HEADS, 3, 4).double()
    torch.nn.init.normal_(theirs.proj)
    with torch.no_grad():
        ours.B.copy_(theirs.proj.T)
    positions, profile = Positions.arange(TOKENS, start=7), drawn(2, HEADS, TOKENS, 3)
    query, key = drawn(2, 2, HEADS, TOKENS, HEAD_DIM)
    bias = theirs(profile.transpose(1, 2), positions.coords[0], positions.coords[0])
    found = logits(query, key, ours(positions).with_projected({"profile": profile}))
    torch.testing.assert_close(found, logits(query, key) + bias, **CLOSE)


def test_a_layer_with_its_sinks_is_that_of_inkling_2() -> None:
    """A profile of a learned scale that is clipped, and a sink of each token."""
    pytest.importorskip("transformers")
    from transformers.models.inkling2 import modeling_inkling2 as theirs

    config = SimpleNamespace(hidden_size=3 * HEADS, d_rel=3, rel_l2_clip_threshold=1.5)
    bias = theirs.Inkling2RelativePositionBias(config, HEADS, 4, log_scaling=False)
    torch.nn.init.eye_(bias.linear.weight)
    for parameter in (bias.norm.scale, bias.proj):
        torch.nn.init.normal_(parameter)
    query, key, value = drawn(3, 2, HEADS, TOKENS, HEAD_DIM).float()
    profile, sinks = drawn(2, HEADS, TOKENS, 3).float(), drawn(2, HEADS, TOKENS).float().requires_grad_()
    ours, positions = Inkling(HEADS, 3, 4, clip=1.5), Positions.arange(TOKENS)
    with torch.no_grad():
        ours.B.copy_(bias.proj.T)
    module, line = torch.nn.Module().eval(), torch.arange(TOKENS)
    module.num_key_value_groups = 1  # type: ignore[assignment]
    expected, _ = theirs.eager_attention_forward(
        module,
        query,
        key,
        value,
        torch.full((TOKENS, TOKENS), -torch.inf).triu(1),
        HEAD_DIM**-0.5,
        position_bias=bias(profile.transpose(1, 2).flatten(2), line[:, None] - line, line),
        sinks=sinks[..., None],
    )
    of_layer = profile * bias.norm.scale[:, None]
    encoding = ours(positions).with_projected({"profile": of_layer})
    found = attention(query, key, value, encoding, is_causal=True, sinks=sinks)
    assert isinstance(found, Tensor)
    torch.testing.assert_close(found.transpose(1, 2), expected, **SINGLE)
    gradients = (torch.autograd.grad(out.sum(), sinks)[0] for out in (found, expected))
    torch.testing.assert_close(*gradients, **SINGLE)


def test_softcap_is_that_of_gemma2() -> None:
    pytest.importorskip("transformers")
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    query, key, value = drawn(3, 2, HEADS, TOKENS, HEAD_DIM)
    module = torch.nn.Module().eval()
    module.num_key_value_groups = 1  # type: ignore[assignment]
    expected, _ = eager_attention_forward(module, query, key, value, None, scaling=HEAD_DIM**-0.5, softcap=0.8)
    found = attention(query, key, value, Softcap(0.8))
    assert isinstance(found, Tensor)
    # Their softmax is of single precision.
    torch.testing.assert_close(found.transpose(1, 2), expected, **SINGLE)


# --- what they must be -----------------------------------------------------------------------------------------------


def test_a_shard_of_foxs_heads_has_their_features() -> None:
    gates = drawn(1, 2, 4, TOKENS)[0]
    query, key, value = drawn(3, 2, 4, TOKENS, HEAD_DIM)
    scheme, positions, heads = FoX(4), Positions.packed([4, 7]), range(1, 3)
    expected = attention(query, key, value, scheme(positions).with_projected({"forgotten": gates}), is_causal=True)
    here = scheme(positions, context=Context(heads=heads))
    shard = {"forgotten": gates[:, 1:3]}
    q, k, v = (x[:, 1:3] for x in (query, key, value))
    found = attention(q, k, v, here.with_projected(shard), is_causal=True)
    torch.testing.assert_close(found, expected[:, 1:3], **CLOSE)
    step = ForwardPass(scheme, positions, context=Context(heads=heads), dtype=torch.float64)
    features, of_keys = step.features(shard)
    torch.testing.assert_close(step.attention(q, k, v, features=features, key_features=of_keys), found, **CLOSE)
    with pytest.raises(ValueError, match=r"feature 'forgotten' must be \(batch, 2, 11\)"):
        here.with_projected({"forgotten": gates})
    with pytest.raises(ValueError, match=r"heads must be within the 4 of FoX, got range\(3, 5\)"):
        scheme(positions, context=Context(heads=range(3, 5))).with_projected(shard)


def test_what_is_left_of_a_stick_is_left() -> None:
    """Weights sum to 1 less what is left at the end, which the log-sum-exp says; the first token sees nothing."""
    query, key = drawn(2, 2, HEADS, TOKENS, HEAD_DIM)
    value = torch.ones_like(key)
    out, lse = attention(query, key, value, StickBreaking(), is_causal=True, return_lse=True)
    scores = query @ key.mT * HEAD_DIM**-0.5
    left = (-scores).sigmoid().log().tril(-1).sum(-1).exp()
    torch.testing.assert_close(out[..., 0], 1 - left, **CLOSE)
    torch.testing.assert_close(lse.exp(), 1 - left, **CLOSE)
    assert torch.equal(out[:, :, 0], torch.zeros_like(out[:, :, 0]))


@pytest.mark.parametrize("entry", [attention, explain])
def test_weights_that_are_not_normalised_are_not_changed_afterwards(entry: Callable[..., object]) -> None:
    query = drawn(1, HEADS, TOKENS, HEAD_DIM)
    for after in (Softcap(20.0), ALiBi(HEADS), StickBreaking(sees_itself=True)):
        with pytest.raises(ValueError, match="compose the scheme that returns weights last"):
            entry(query, query, query, StickBreaking() + after, is_causal=True)
    entry(query, query, query, ALiBi(HEADS) + StickBreaking(), is_causal=True)
    with pytest.raises(ValueError, match=r"attn_mask must be bool, True = may attend, .* got torch.float64"):
        entry(query, query, query, StickBreaking(), is_causal=True, attn_mask=torch.ones(TOKENS, TOKENS).double())
    entry(query, query, query, ALiBi(HEADS), is_causal=True, attn_mask=torch.ones(TOKENS, TOKENS).double())


# --- features --------------------------------------------------------------------------------------------------------


def check_closed_gates(bias: float, places: Positions) -> None:
    """Scores and their gradients, against exponentials of each pair in double precision: in single precision they are
    off by as much as products of queries and keys are, however far the gates are closed."""
    torch.default_generator.manual_seed(0)
    q, k = (torch.randn(1, heads, 70, HEAD_DIM, requires_grad=True) for heads in (4, 2))
    gates = (torch.randn(1, 4, 70, HEAD_DIM) * max(1.0, abs(bias)) / 3 + bias).requires_grad_()
    found = logits(q, k, Wall(4, HEAD_DIM)(places).with_projected({"kept": gates}), scale=1.0)
    order, document = places.order[0], places.document[0]
    seen = (order <= order[:, None]) & (document == document[:, None])
    readings_of = cumulative_sums(torch.nn.functional.logsigmoid(gates.double()), places)
    gap = (readings_of[:, :, :, None] - readings_of[:, :, None]).masked_fill(~seen[..., None], 0.0)
    truth = (q[:, :, :, None] * k.repeat_interleave(2, 1)[:, :, None] * gap.exp()).sum(-1)
    bound = of_sums(torch.float32, HEAD_DIM, q.detach(), score=1) * float(k.detach().abs().max())
    torch.testing.assert_close(found.double()[..., seen], truth[..., seen], rtol=0, atol=bound)
    for mine, right in zip(
        *(torch.autograd.grad(x[..., seen].sum(), (q, k, gates)) for x in (found, truth)), strict=True
    ):
        torch.testing.assert_close(mine, right, rtol=0, atol=70 * bound)


@pytest.mark.parametrize("bias", [8.0, -40.0, -400.0])
def test_gates_of_channels_do_not_overflow(bias: float) -> None:
    check_closed_gates(bias, Positions.arange(70))
    check_closed_gates(bias, Positions.packed([[33, 37]]))


def test_two_parts_cannot_want_different_things_by_one_name() -> None:
    assert (FoX(HEADS) + FoX(HEADS)).features.keys() == {"forgotten"}
    with pytest.raises(ValueError, match=r"^two schemes need different features named 'profile'"):
        (Inkling(HEADS, 3, 4) + Inkling(HEADS, 2, 4))(Positions.arange(3))


def places() -> dict[str, Positions]:
    order = torch.tensor([[5, 0, 3, 9, 1, 1, 7, 2, 8, 3, 30], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])
    document = torch.tensor([[2, 0, 2, -1, 0, 2, 0, 2, 2, 0, 2], [0] * 11])
    return {
        "text": Positions.arange(TOKENS, start=3),
        "packed": Positions.packed([[4, 7], [5, 3, 3]]),
        "documents in one another": Positions(torch.arange(TOKENS)[None], order=order, document=document),
    }


@pytest.mark.parametrize("name", places())
def test_a_clock_is_a_sum_over_its_document(name: str) -> None:
    """At its own tokens, and at others of the same documents; and a cache goes on from it."""
    positions, steps = places()[name], drawn(2, 3, TOKENS)
    wide = positions.expand(2)

    def read(b: int, document: int, order: int, among: range) -> Tensor:
        of = [t for t in among if wide.document[b, t] == document != -1 and wide.order[b, t] <= order]
        return steps[b, :, of].sum(-1)

    expected = torch.stack(
        [
            torch.stack(
                [read(b, int(wide.document[b, i]), int(wide.order[b, i]), range(TOKENS)) for i in range(TOKENS)], -1
            )
            for b in range(2)
        ]
    )
    torch.testing.assert_close(cumulative_sums(steps, positions), expected, **CLOSE)
    torch.testing.assert_close(cumulative_sums(steps, positions, positions[4:]), expected[..., 4:], **CLOSE)
    if name != "documents in one another":  # which come in another order
        first, rest = positions[:6], positions[6:]
        shown = cumulative_sums(steps[..., :6], first)
        went_on = cumulative_sums(steps[..., 6:], rest) + last_sums(shown, first, rest)
        torch.testing.assert_close(went_on, expected[..., 6:], **CLOSE)


def test_another_text_in_a_cache_has_a_clock_of_its_own() -> None:
    """A document that begins after a first one starts at 0, however far that one had come."""
    first, second = Positions.arange(4), Positions(torch.arange(3)[None], document=torch.ones(1, 3, dtype=torch.int64))
    shown = drawn(2, 3, 4)
    assert torch.equal(last_sums(shown, first, second), torch.zeros(2, 3, 3, dtype=torch.float64))
    assert torch.equal(last_sums(shown, first, Positions.arange(2, start=4)), shown[..., -1:].expand(-1, -1, 2))
