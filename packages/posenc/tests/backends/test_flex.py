"""The flex backend against the reference: every score term, every kind of positions, and what it refuses."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.autograd import forward_ad
from torch.nn.attention import flex_attention

from posenc import AbsoluteInAttention, DistanceAware, Positions, RoPE, Scheme, Shaw
from posenc.backends import flex
from posenc.backends.call import Backend, Call
from posenc.backends.flex import FLEX, _block_mask
from posenc.backends.reference import REFERENCE
from posenc.backends.request import Request
from posenc.positions.tiles import Visibility, visible
from posenc.schemes.catalog import Shape
from tests.awkward import TrialCoPE, interpolated
from tests.backends.grounds import ATTENDING, BANDED, KINDS, built, encoded, same, takes
from tests.rows import with_more

GPU = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")])
HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM = 4, 2, 16, 24
KEYS, QUERIES = 200, 150  # between the same two powers of two, so that one compilation serves both

SHAPE = Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, max_positions=KEYS)
NEEDING = {name for name in ATTENDING if any(piece.feature for piece in encoded(name).pieces)}
SCHEMES = [
    name
    for name in ATTENDING
    if takes("flex", name)
    and name not in BANDED | NEEDING | {"learned"}
    and ("score" in built(name).doors or name in ("nope", "rope", "tupe"))
]
"""Those that it can run, that need no features of the tokens and add nothing to the input. What is turned before it is
called stands for all that is."""
REFUSED_SCHEMES = [name for name in ATTENDING if not takes("flex", name) and name not in BANDED | NEEDING]
LEARNED_MAPS = {"swin_v2", "tupe"}  # what they learn goes into the query


def made(name: str) -> Scheme:
    """The scheme, with parameters that matter."""
    scheme = KINDS[name].build(SHAPE).float().requires_grad_(False)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return scheme


def positions_of(kind: str, name: str = "nope") -> tuple[Positions, Positions]:
    """Those of queries and of keys, with what the scheme asks for."""
    token = torch.rand(2, KEYS) > 0.3
    token[1, 100:] = False
    document = {
        "packed": Positions.packed([[100, 60, 40], [150, 30]]).document,
        "padded": torch.where(token, 0, -1),
    }.get(kind)
    base = Positions.arange(KEYS)
    whole = KINDS[name].at(base if document is None else Positions(base.coords, order=base.order, document=document))
    return (whole[KEYS - QUERIES :] if kind == "fewer queries" else whole), whole


def qkv(queries: int, keys: int, heads: int = HEADS, kv_heads: int = KV_HEADS) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(2, heads, queries, HEAD_DIM),
        torch.randn(2, kv_heads, keys, HEAD_DIM),
        torch.randn(2, kv_heads, keys, VALUE_DIM),
    )


def called(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Any = None,
    at: tuple[Positions | None, Positions | None] = (None, None),
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    return_lse: bool = False,
) -> Call:
    asked = Request(q, k, v, scheme, *at, mask, is_causal, dropout_p=dropout_p, return_lse=return_lse)
    encoding = asked.bind()
    return asked.call(encoding, asked.settled(encoding))


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention runs the functions that it is given, and makes no code of them."""
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: flex._attend)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def run(backend: Backend, call: Call) -> Tensor:
    assert backend.refuses(call) is None
    return backend.run(call)[0]


def check_as_exact_as_the_reference(make: Callable[[Callable[[Tensor], Tensor]], Call]) -> Tensor:
    """float32 sums in another order: the error, from float64, is a few times the reference's at most. Four, since it is
    the largest of thousands that is compared. Gives flex's output."""
    truth = run(REFERENCE, make(lambda x: x.double()))
    out, plain = (run(backend, make(lambda x: x)) for backend in (FLEX, REFERENCE))
    assert out.shape == truth.shape
    unit = torch.finfo(torch.float32).eps * float(truth.abs().max())
    assert float((out - truth).abs().max()) <= 4 * float((plain - truth).abs().max()) + unit
    assert (out[truth == 0] == 0).all()
    return out


# --- it is the reference --------------------------------------------------------------------------------------------


ASKED = [("plain", True), ("packed", True), ("padded", False), ("plain", False), ("fewer queries", True)]


def check_scheme(name: str, kind: str, is_causal: bool) -> None:
    scheme = made(name)
    is_causal = is_causal or KINDS[name].looks_back
    at = positions_of(kind, name)
    tensors = qkv(len(at[0]), len(at[1]))
    out = check_as_exact_as_the_reference(
        lambda cast: called(*(cast(x) for x in tensors), scheme, at, is_causal=is_causal)
    )
    padding = (at[0].document == -1).expand(2, -1)
    assert (out.transpose(1, 2)[padding] == 0).all()
    assert (out.transpose(1, 2)[~padding] != 0).any(-1).all()


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(
    ("name", "kind", "is_causal"),
    [(name, *asked) for a, name in enumerate(SCHEMES) for b, asked in enumerate(ASKED) if (a + b) % 5 in (0, 2)],
)
def test_every_scheme_is_what_the_reference_says(name: str, kind: str, is_causal: bool) -> None:
    check_scheme(name, kind, is_causal)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "is_causal"),
    with_more([("t5", "padded", False)], [("transformer_xl", "packed", True), ("distance_aware", "plain", False)]),
)
def test_so_is_the_code_that_is_made_of_it(name: str, kind: str, is_causal: bool) -> None:
    """For each kind of term: a bias that is read, vectors that are multiplied, and a function of the score."""
    check_scheme(name, kind, is_causal)


def test_the_schemes_tried_are_those_that_it_does_not_refuse() -> None:
    assert {"rope", "alibi", "transformer_xl", "distance_aware", "relative_1d", "relative_2d"} < set(SCHEMES)
    assert {"shaw", "cope", "fire", "interpolated"} < set(REFUSED_SCHEMES)
    for name in [*SCHEMES, *REFUSED_SCHEMES]:
        q, k, v = qkv(KEYS, KEYS)
        call = called(q, k, v[..., :HEAD_DIM], made(name), positions_of("plain", name), is_causal=True)
        assert (FLEX.refuses(call) is None) == (name in SCHEMES), name


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("is_causal", [True, False])
def test_unlucky_sizes(is_causal: bool) -> None:
    """3 heads that share nothing, 6 and 5 channels, 7 tokens, of which some see nothing."""
    tensors = [torch.randn(2, 3, n, d) for n, d in ((5, 6), (7, 6), (7, 5))]
    keys = Positions.padded(torch.tensor([[False, True, True, False, True, True, True], [False] * 7]))
    queries = Positions(torch.arange(5)[None], order=torch.tensor([[-1, 0, 1, 2, 3]]))
    out = check_as_exact_as_the_reference(
        lambda cast: called(*(cast(x) for x in tensors), None, (queries, keys), is_causal=is_causal)
    )
    assert (out[1] == 0).all()
    assert bool((out[0, :, 0] == 0).all()) is is_causal


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(kind: str) -> None:
    shape = (1, KEYS, KEYS)
    hidden = torch.rand(shape) > 0.6
    hidden[:, 7] = True  # sees nothing
    mask = ~hidden if kind == "bool" else torch.randn(shape).masked_fill(hidden, -torch.inf)
    tensors = qkv(KEYS, KEYS)
    out = check_as_exact_as_the_reference(
        lambda cast: called(*(cast(x) for x in tensors), mask=mask if kind == "bool" else cast(mask), is_causal=True)
    )
    assert (out[:, :, 7] == 0).all()


@pytest.mark.slow
def test_bfloat16_within_its_rounding() -> None:
    """The inputs are exact. Each weight is rounded once, relatively, and the output once. Distances are not: they
    reach 7363 here, where bfloat16 counts in steps of 32."""
    q, k, v = (x.bfloat16() for x in qkv(KEYS, KEYS))
    at = Positions(torch.arange(0, 37 * KEYS, 37)[None])
    make = partial(called, scheme=made("alibi"), at=(at, at), is_causal=True)
    out = run(FLEX, make(q, k, v))
    assert out.dtype == torch.bfloat16
    q, k, v = q.double(), k.double(), v.double()
    truth, weighed = run(REFERENCE, make(q, k, v)), run(REFERENCE, make(q, k, v.abs()))
    unit = torch.finfo(torch.bfloat16).eps / 2
    budget = unit * (weighed + truth.abs()) + 1e-5  # of the float32 arithmetic before: scores of order 10, eps 1e-7
    assert ((out - truth).abs() <= budget).all()


# --- compiled once --------------------------------------------------------------------------------------------------


def test_lengths_layers_and_positions_share_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lengths between powers of two are one compilation, whatever else the positions and the parameters are."""
    torch.compiler.reset()
    compiled = torch.compile(flex._attend, dynamic=False, fullgraph=True, backend="eager")
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: compiled)
    before = counters["stats"]["unique_graphs"]
    kinds = [(True, "plain"), (False, "plain"), (True, "padded"), (True, "fewer queries")]
    for is_causal, kind in kinds:
        at = positions_of(kind)
        run(FLEX, called(*qkv(len(at[0]), KEYS), made("rope"), at, is_causal=is_causal))
    assert counters["stats"]["unique_graphs"] - before == 1
    for n in (130, 256, 177, 511, 257, 222):  # from 129 to 256, and from 257 to 512
        run(FLEX, called(*qkv(n, n), AbsoluteInAttention(n, HEAD_DIM).requires_grad_(False), is_causal=True))
    assert counters["stats"]["unique_graphs"] - before == 2


# --- the table of blocks --------------------------------------------------------------------------------------------


def blocks_of(call: Call) -> tuple[Tensor, Tensor]:
    """Which blocks (rows, query blocks, key blocks) are looked at pair by pair, and which are taken as they are."""
    mask = _block_mask(call, call.query.size(2), call.key.size(2))
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    tables = []
    for counts, indices in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices)):
        table = torch.zeros(indices.shape, dtype=torch.bool)
        for row in range(indices.size(0)):
            for block in range(indices.size(2)):
                table[row, 0, block, indices[row, 0, block, : counts[row, 0, block]]] = True
        tables.append(table[:, 0])
    return tables[0], tables[1]


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_hold_what_is_visible(seed: int, is_causal: bool) -> None:
    """Of skipped blocks no pair may be visible, of whole ones every pair; the last blocks are shorter."""
    torch.manual_seed(seed)
    lengths = (413, 300)
    positions = []
    for n in lengths:
        order = torch.arange(n).repeat(2, 1) + torch.randint(0, 1 + 60 * (seed % 3), (2, n))
        document = torch.randint(-1, 3, (2, 4)).repeat_interleave(128, 1)[:, :n]
        if seed % 2:
            document = document.roll(31, 1)
        positions.append(Positions(torch.zeros(2, n, dtype=torch.int64), order=order, document=document))
    call = called(*qkv(*lengths), None, (positions[0], positions[1]), is_causal=is_causal)
    partial_blocks, whole = blocks_of(call)
    seen = visible(*positions, Visibility(is_causal))
    assert seen is not None
    for row in range(2):
        for block in range(4):
            for of_keys in range(3):
                pairs = seen[row, 128 * block : 128 * (block + 1), 128 * of_keys : 128 * (of_keys + 1)]
                if whole[row, block, of_keys]:
                    assert pairs.all()
                elif not partial_blocks[row, block, of_keys]:
                    assert not pairs.any()
                assert not (whole & partial_blocks).any()


# --- what it refuses ------------------------------------------------------------------------------------------------

NO_BACKWARD = "FlexAttention has no backward on CPU, and "
WEIGHED = torch.zeros(8, 8, requires_grad=True)
REFUSED: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Call], str]] = {
    "meta": (
        lambda q, k, v: called(q.to("meta"), k.to("meta"), v.to("meta")),
        "FlexAttention runs on CPU and CUDA, but the query is on meta",
    ),
    "float64": (lambda q, k, v: called(q.double(), k.double(), v.double()), "FlexAttention has no float64"),
    "no key": (
        lambda q, k, v: called(q[:, :, :0], k[:, :, :0], v[:, :, :0]),
        "FlexAttention needs at least one query, key and channel",
    ),
    "value door": (
        lambda q, k, v: called(q, k, v, Shaw(HEAD_DIM, 3, keys=False)),
        "the value door needs the attention weights, which FlexAttention does not return",
    ),
    "whole rows": (
        lambda q, k, v: called(q, k, v, TrialCoPE(4, HEAD_DIM)),
        "a score term needs whole rows of scores, but FlexAttention processes one score at a time",
    ),
    "both coordinates": (
        lambda q, k, v: called(q, k, v, interpolated(HEADS)),
        "a score term is a function of both coordinates, which FlexAttention does not support",
    ),
    "dropout": (lambda q, k, v: called(q, k, v, dropout_p=0.1), "FlexAttention has no dropout"),
    "log-sum-exp": (
        lambda q, k, v: called(q, k, v, return_lse=True),
        "FlexAttention does not return the log-sum-exp on CPU",
    ),
    "query": (lambda q, k, v: called(q.requires_grad_(), k, v), NO_BACKWARD + "query requires grad"),
    "key, rotated": (
        lambda q, k, v: called(q, k.requires_grad_(), v, RoPE(HEAD_DIM)),
        NO_BACKWARD + "key requires grad",
    ),
    "value": (lambda q, k, v: called(q, k, v.requires_grad_()), NO_BACKWARD + "value requires grad"),
    "mask": (lambda q, k, v: called(q, k, v, mask=WEIGHED), NO_BACKWARD + "attn_mask requires grad"),
} | {
    f"parameters of {name}": (
        lambda q, k, v, name=name: called(
            q, k, v, made(name).requires_grad_(), same(KINDS[name].at(Positions.arange(8))), is_causal=True
        ),
        NO_BACKWARD + f"{'query' if name in LEARNED_MAPS else 'a score term'} requires grad",
    )
    for name in ("t5", "transformer_xl", "distance_aware", *sorted(LEARNED_MAPS))
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses_in_words(case: str) -> None:
    make, reason = REFUSED[case]
    assert FLEX.refuses(make(*qkv(8, 8))) == reason


@pytest.mark.usefixtures("uncompiled")
def test_what_is_learned_runs_where_no_gradient_is_asked_for() -> None:
    q, k, v = (x.requires_grad_() for x in qkv(KEYS, KEYS))
    scheme = AbsoluteInAttention(KEYS, HEAD_DIM)
    with torch.no_grad():
        call = called(q, k, v, scheme)
        torch.testing.assert_close(run(FLEX, call), run(REFERENCE, call))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # of torch's own, once
def test_a_tangent_is_refused_and_not_left_behind() -> None:
    q, k, v = qkv(8, 8)
    scheme = DistanceAware(HEADS).requires_grad_(False)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        reason = "FlexAttention has no forward-mode derivative, and {} has a tangent"
        assert FLEX.refuses(called(dual, k, v)) == reason.format("query")
        assert FLEX.refuses(called(q, k, v, scheme)) is None
        w = scheme.w.detach()
        del scheme.w
        scheme.w = forward_ad.make_dual(w, torch.ones_like(w))
        assert FLEX.refuses(called(q, k, v, scheme)) == reason.format("a score term")


def test_on_cpu_it_is_no_part_of_a_compiled_graph() -> None:
    reasons: list[str | None] = []

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        reasons.append(FLEX.refuses(called(q, k, v)))
        return q + 1

    torch.compile(forward, backend="eager")(*qkv(8, 8))
    assert reasons == ["FlexAttention on CPU is compiled separately and cannot be part of a compiled graph"]


# --- on CUDA --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [GPU])
@pytest.mark.parametrize("kind", ["padded", "fewer queries"])
@pytest.mark.parametrize("name", SCHEMES)
def test_on_cuda_it_trains(name: str, kind: str, device: str) -> None:
    """Output, log-sum-exp and every gradient. The kernel may round products to TF32, of 11 bits."""
    scheme = made(name).to(device).requires_grad_()
    at = tuple(p.to(device) for p in positions_of(kind, name))
    tensors = qkv(len(at[0]), len(at[1]))
    results = []
    for backend, dtype in ((FLEX, torch.float32), (REFERENCE, torch.float64)):
        leaves = [x.to(device, dtype).requires_grad_() for x in tensors]
        call = called(*leaves, scheme, (at[0], at[1]), is_causal=True, return_lse=True)
        assert backend.refuses(call) is None
        out, lse = backend.run(call)
        assert lse is not None
        learned = [x for x in scheme.parameters() if x.requires_grad]
        weight = torch.linspace(-1, 1, out.numel(), device=device).view(out.shape)
        gradients = torch.autograd.grad((out * weight).sum(), [*leaves, *learned])
        results.append([out, lse, *gradients])
    unit = 2.0**-11
    for got, truth in zip(*results, strict=True):
        assert torch.equal(got == -torch.inf, truth == -torch.inf)
        finite = truth.isfinite()
        error = (got - truth)[finite].abs().max()
        assert float(error) <= 8 * unit * float(truth[finite].abs().max())
