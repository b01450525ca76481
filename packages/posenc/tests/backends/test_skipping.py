"""Keys that fade with the distance are left out where they cannot count, and are computed wherever they can.

What was left out is seen by what the values hold there: NaN, which any weight, 0 too, would bring into the output.
"""

import pytest
import torch
from torch import Tensor

import posenc
from posenc import FIRE, ALiBi, Positions, Shaw
from posenc.backends import api
from posenc.backends.blockwise import counted_blocks
from posenc.backends.call import Call
from posenc.encoding.terms import Bias, CumulativeBias, Distance
from posenc.models import ForwardPass, KVCache
from posenc.models.cache import NORMS_FEATURE
from posenc.scheme import Scheme
from tests.rounding import of_sums
from tests.rows import every_second, with_more
from tests.user_schemes import TermScheme

HEADS = 4


def power(r: Tensor) -> Tensor:
    """-a |r|^1.2, of which nothing is known but its numbers."""
    return -torch.tensor([1.0, 0.3, 0.1, 0.05], dtype=torch.float64).view(-1, *[1] * r.dim()) * r.abs().double() ** 1.2


POWER = TermScheme(lambda: (Bias(power, Distance("Power")),))
CLOCK = TermScheme(lambda: (CumulativeBias("forgotten"),))
SCHEMES = {
    "alibi": lambda: ALiBi(HEADS),
    "alibi on both sides": lambda: ALiBi(HEADS, "bidirectional"),
    "alibi each way": lambda: ALiBi(HEADS, "directed"),
    "a power": lambda: POWER,
    "alibi and shaw's keys": lambda: ALiBi(HEADS) + Shaw(16, 5, values=False),
    "alibi and shaw": lambda: ALiBi(HEADS) + Shaw(16, 5),
    "a clock": lambda: CLOCK,
}
ON_BOTH_SIDES = ("alibi on both sides", "alibi each way")


def drawn(tokens: int, queries: int | None = None, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    q, k, v = (torch.randn(1, h, tokens, 16, generator=generator, dtype=torch.float64) for h in (HEADS, 2, 2))
    return [x.to(dtype) for x in (q if queries is None else q[:, :, -queries:], k, v)]


def encoding(scheme: Scheme, positions: Positions, queries: int) -> posenc.encoding.encoding.Encoding:
    """Bound, with the readings of a clock of which the heads run at different paces."""
    bound = scheme(positions[-queries:], positions, dtype=torch.float64)
    if scheme is not CLOCK:
        return bound
    generator = torch.Generator().manual_seed(7)
    tokens = positions.order.size(1)
    paces = torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=torch.float64)[:, None]
    readings = -(torch.rand(1, HEADS, tokens, generator=generator, dtype=torch.float64) * 2 * paces).cumsum(-1)
    return bound.with_features({"forgotten": readings[:, :, -queries:]}, {"forgotten": readings})


def run(
    name: str, tensors: list[Tensor], backend: str, positions: Positions | None = None, **how: object
) -> list[Tensor]:
    """The output, the log-sum-exp and the gradients."""
    scheme = SCHEMES[name]()
    for x in scheme.parameters():
        x.data = torch.linspace(-1, 1, x.numel(), dtype=torch.float64).view(x.shape)
    leaves = [x.clone().requires_grad_() for x in tensors]
    tokens = tensors[1].size(2)
    positions = positions or Positions.arange(tokens)
    bound = encoding(scheme, positions, tensors[0].size(2))
    causal = name not in ON_BOTH_SIDES
    out, lse = posenc.attention(*leaves, bound, is_causal=causal, backend=backend, return_lse=True, **how)
    wanted = (*leaves, *scheme.parameters())
    return [out.detach(), lse.detach(), *torch.autograd.grad(out.sin().sum() + lse.sum(), wanted)]


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("queries", [600, 3, 90])
def test_what_is_left_out_weighs_no_more_than_is_said(name: str, queries: int) -> None:
    tensors = drawn(600, queries)
    truth = run(name, tensors, "reference")
    # With nothing left out: scores up to 150 and sums over 600 keys, two or three times 2^-52 (150 + sqrt(600)).
    for share, most in ((None, 1e-13), (2**-32, 2**-30), (2**-10, 2**-8)):
        for found, right in zip(run(name, tensors, "native", skip_below=share), truth, strict=True):
            torch.testing.assert_close(found, right, rtol=0, atol=most * max(1.0, right.abs().max().item()))


def test_what_lifts_far_keys_is_not_left_out() -> None:
    """Terms of which no bound is made, beside a bias that falls: all is computed."""
    tensors = drawn(700)
    scheme = (ALiBi(HEADS) + FIRE(HEADS, 3, 30.0)).double()
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.fill_(1.0)
        scheme.parts[1].outer.weight.fill_(300.0)
    found, truth = (
        posenc.attention(*tensors, scheme, is_causal=True, backend=way, return_lse=True)
        for way in ("native", "reference")
    )
    assert (truth[1][..., -1] - truth[1][..., 0]).min() > 100  # far keys have won
    for one, other in zip(found, truth, strict=True):
        bound = of_sums(torch.float64, 700 + 16, tensors[2], score=truth[1].abs().max().item())
        torch.testing.assert_close(one, other, rtol=0, atol=bound)


@pytest.mark.parametrize("name", ["alibi", "alibi on both sides", "a power", "a clock"])
@pytest.mark.parametrize("queries", [700, 2])
def test_a_far_key_that_is_loud_is_computed(name: str, queries: int) -> None:
    """So loud that it wins over all the near ones, from as far away as there is."""
    q, k, v = drawn(700, queries)
    q[..., 0] = q[..., 0].abs() + 1
    k[:, :, 3, 0] = 4e4
    found, truth = (run(name, [q, k, v], way) for way in ("native", "reference"))
    assert truth[1][..., 3 - 700 :].amin() > 1000  # it has won
    for one, other in zip(found, truth, strict=True):
        # scores of 4e4: 4e4 * 2^-52
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11 * max(1.0, other.abs().max().item()))


@pytest.mark.parametrize("name", ["alibi", "alibi and shaw", "a clock"])
def test_a_cache_that_keeps_the_lengths_of_keys_need_not_be_read(name: str) -> None:
    """Nor are the values of keys that turn out too faint, without the lengths."""
    q, k, v = drawn(1500, 2)
    right = [run(name, [q, k, v], way)[0] for way in ("native", "reference")]
    bound = of_sums(torch.float64, 1500 + 16, right[1], score=0.25 * 1500)
    torch.testing.assert_close(*right, rtol=0, atol=bound)
    norms = torch.linalg.vector_norm(k, dim=-1)
    v[:, :, :600] = torch.nan
    assert run(name, [q, k, v], "native", skip_below=2**-32)[0][0, 0].isfinite().all()
    k[:, :, :600] = torch.nan
    how = {"skip_below": 2**-32, "key_norms": norms}
    found = run(name, [q, k, v], "native", **how)[0]
    torch.testing.assert_close(found[0, 0], right[1][0, 0], rtol=0, atol=4 * 2.0**-32)  # values below 4
    norms[:, :, 5] = torch.inf
    assert run(name, [q, k, v], "native", **how)[0].isnan().all()


# --- what is told before anything is computed -------------------------------------------------------------------------


def given(name: str, tensors: list[Tensor], positions: Positions, **how: object) -> Call:
    """The call, as backends take it."""
    bound = encoding(SCHEMES[name](), positions, tensors[0].size(2))
    kept: list[Call] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.bands, "explain", kept.append)
        posenc.explain(*tensors, bound, **how)
    return kept[0]


ALL_PLACES = {"text": lambda: Positions.arange(1100), "cache": lambda: Positions.arange(1100)} | {
    "packed": lambda: Positions.packed([350, 50, 700]),
    "padded": lambda: Positions.padded(torch.arange(1100)[None] >= 100),
}


@pytest.mark.parametrize(
    ("number", "name"),
    every_second(enumerate(name for name in SCHEMES if name not in ("alibi and shaw", "alibi each way"))),
)
@pytest.mark.parametrize("turn", with_more([0], [1]))
def test_blocks_that_do_not_count_hold_no_weight(number: int, name: str, turn: int) -> None:
    place = [*ALL_PLACES][(number + turn) % len(ALL_PLACES)]
    """Summed by the truth, block by block; a loud key in a far one."""
    q, k, v = drawn(1100, 130 if place == "cache" else None)
    k[:, 1, 330] *= 30.0
    how = {"is_causal": name not in ON_BOTH_SIDES, "window": (900, 500), "skip_below": 2**-32}
    call = given(name, [q, k, v], ALL_PLACES[place](), **how)
    counted = counted_blocks(call, 64)
    assert counted is not None
    assert not counted.all()
    out = torch.eye(1100, dtype=torch.float64).expand(1, HEADS, -1, -1)
    keys = k.repeat_interleave(2, 1)
    bound = encoding(SCHEMES[name](), ALL_PLACES[place](), q.size(2))
    weights = posenc.attention(q, keys, out, bound, is_causal=how["is_causal"], window=(900, 500), backend="reference")
    spread = counted.repeat_interleave(64, 2).repeat_interleave(64, 3)[:, :, : q.size(2), :1100]
    assert weights.masked_fill(spread, 0.0).sum(-1).max() <= 2**-32


def test_explain_says_how_much_is_computed() -> None:
    q, k, v = drawn(2000, dtype=torch.float32)
    faded = posenc.explain(q, k, v, ALiBi(HEADS), is_causal=True)
    assert faded.computed < 0.8
    line = f"at most {faded.computed:.0%} of unmasked pairs are computed: the rest is below skip_below"
    assert line in str(faded).splitlines()
    assert posenc.explain(q, k, v, ALiBi(HEADS), is_causal=True, skip_below=0.0).computed == 1
    assert posenc.explain(q, k, v, posenc.T5(HEADS), is_causal=True).computed == 1
    assert "skip_below" not in str(posenc.explain(q, k, v, posenc.T5(HEADS), is_causal=True))
    k[:, :, 3] *= 1000.0
    louder = posenc.explain(q, k, v, ALiBi(HEADS), is_causal=True).computed
    assert faded.computed < louder < 1
    q, k, v = (x.unflatten(2, (-1, 2))[:, :, 1:].flatten(2, 3) for x in (q, k, v))
    assert posenc.explain(q, k, v, ALiBi(HEADS), is_causal=True, attn_mask=torch.ones(1998, 1998).bool()).computed == 1


# --- a cache that forgets ---------------------------------------------------------------------------------------------


def test_a_horizon_is_where_keys_stop_counting() -> None:
    """With the loudest keys that there may be, and the quietest of its own."""
    scheme, scale, loud = ALiBi(HEADS) + Shaw(16, 5, values=False), 0.25, 3.0
    torch.nn.init.normal_(scheme.parts[1].key_table)
    tokens = 600
    found = scheme.horizon(tokens, query_norm=loud, key_norm=loud, scale=scale)
    assert found.tolist() == sorted(found.tolist())
    assert found[0] < 300
    assert found[-1] == tokens
    q = torch.nn.functional.normalize(drawn(tokens)[0][:, :, -1:], dim=-1) * loud
    for head in range(HEADS):
        at = int(found[head])
        k = (q[:, head : head + 1] * torch.where(torch.arange(tokens) < tokens - at, 1.0, -1.0)[:, None]).expand(
            -1, HEADS, -1, -1
        )
        v = torch.eye(tokens, dtype=torch.float64).expand(1, HEADS, -1, -1)
        weights = posenc.attention(q, k, v, scheme, is_causal=True, backend="reference", scale=scale)
        assert weights[0, head, 0, : tokens - at].sum() <= 2**-32


@pytest.mark.parametrize(
    "scheme", [posenc.T5(HEADS), posenc.RoPE(16), posenc.DistanceAware(HEADS), CLOCK, ALiBi(HEADS) + CLOCK]
)
def test_what_does_not_fade_by_distance_alone_has_no_horizon(scheme: Scheme) -> None:
    found = scheme.horizon(300, query_norm=1.0, key_norm=1.0, scale=0.25)
    assert (found == 300).all()


# --- terms of which there is no bound ---------------------------------------------------------------------------------


def test_places_that_nobody_knows_are_not_taken_for_the_same() -> None:
    """Both of the same bounds and order, each shuffled by itself: a query's own key may stand anywhere."""
    q, k, v = drawn(2000)
    shuffled = [torch.randperm(2000, generator=torch.Generator().manual_seed(n))[None] for n in (1, 2)]
    x, y = (Positions(coords, order=torch.arange(2000)[None]) for coords in shuffled)
    scheme = ALiBi(HEADS, "bidirectional")
    kept: list[Call] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api.bands, "explain", kept.append)
        posenc.explain(q, k, v, scheme, query_positions=x, key_positions=y)
    assert counted_blocks(kept[0], 64) is None


def test_a_forward_pass_keeps_the_lengths_of_its_keys_where_its_scheme_fades() -> None:
    """In terms of the cache, with keys that are rotated first."""
    q, k, v = (torch.randn(1, HEADS, 700, 16) for _ in range(3))
    for scheme, names in ((posenc.RoPE(16) + ALiBi(HEADS), {f"feature {NORMS_FEATURE}"}), (posenc.RoPE(16), set())):
        cache, outs = KVCache(), []
        with torch.no_grad():
            for start, stop in ((0, 690), (690, 700)):
                with ForwardPass(scheme, Positions.arange(stop - start, start=start), cache) as step:
                    part = slice(start, stop)
                    outs.append(step.attention(q[:, :, part], k[:, :, part], v[:, :, part]))
        assert set(cache._layers[0]) == {"key", "value"} | names
        whole = posenc.attention(q, k, v, scheme, is_causal=True, backend="reference")
        torch.testing.assert_close(torch.cat(outs, 2), whole)
