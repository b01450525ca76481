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
from posenc.backends.call import Call
from posenc.backends.flex import FLEX, _block_mask
from posenc.backends.reference import REFERENCE
from posenc.backends.request import Options, Request
from posenc.positions.tiles import Visibility, visible
from posenc.schemes.catalog import Shape
from tests.backends.parity_cases import (
    ATTENDING,
    BANDED,
    KINDS,
    PLACES,
    WAYS,
    Case,
    case,
    fits,
    goes_by_one_distance,
    refuses,
    same,
    takes,
    with_gradients,
)
from tests.user_schemes import TrialCoPE, interpolated

HEADS, HEAD_DIM, TOKENS = 4, 16, 45
LEARNED_MAPS = {"swin_v2", "tupe"}  # what they learn goes into the query
SHAPE = Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, max_positions=200)


def qkv(queries: int, keys: int) -> list[Tensor]:
    """Of half as many heads of keys, and of other channels of values."""
    shapes = ((HEADS, queries, HEAD_DIM), (2, keys, HEAD_DIM), (2, keys, 24))
    return [torch.randn(2, *shape) for shape in shapes]


def fixed(name: str) -> Scheme:
    return KINDS[name].build(SHAPE).float().requires_grad_(False)


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
    options = Options(is_causal, dropout_p=dropout_p, return_lse=return_lse)
    request = Request(q, k, v, scheme, *at, mask, options=options).bound()
    return request.call(request.settled())


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention runs the functions that it is given, and makes no code of them."""
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: flex._attend)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def of_its_own(it: Case) -> Case:
    """The call without what needs a gradient, which FlexAttention has not on the CPU."""
    for leaf in it.leaves.values():
        leaf.requires_grad_(False)
    return it


def check_as_exact_as_the_reference(it: Case) -> None:
    """float32 sums in another order: the error, from float64, is a few times the reference's at most. Four, since it is
    the largest of thousands that is compared."""
    runs = (("reference", torch.float64), ("reference", torch.float32), ("flex", torch.float32))
    truth, plain, found = (it.to(dtype).attend(way)[0].double() for way, dtype in runs)
    unit = torch.finfo(torch.float32).eps * float(truth.abs().max())
    assert float((found - truth).abs().max()) <= 4 * float((plain - truth).abs().max()) + unit
    assert (found[truth == 0] == 0).all()


# --- it is the reference --------------------------------------------------------------------------------------------

ASKED = [name for name, way in WAYS.items() if not way.has_sinks]  # which take a share by the log-sum-exp
RUNS = [
    (name, place, ASKED[(a + b) // 2 % len(ASKED)])
    for a, name in enumerate(name for name in ATTENDING if name not in BANDED)
    for b, place in enumerate(PLACES)
    if (a + 5 * b) % 9 == 0 and fits(name, place) and not (PLACES[place].fractional and goes_by_one_distance(name))
]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize(("name", "place", "way"), RUNS)
def test_it_is_the_reference_or_says_that_it_cannot(name: str, place: str, way: str) -> None:
    it = of_its_own(case(name, place, TOKENS, way))
    if refuses("flex", name, place, way):
        with pytest.raises(ValueError, match=r"^backend 'flex' cannot run this: "):
            it.to(torch.float32).attend("flex")
    else:
        check_as_exact_as_the_reference(it)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "way"),
    [
        ("t5", "padded left and right", "both"),
        ("transformer_xl", "packed", "a window"),
        ("distance_aware", "text", "causal"),
        ("alibi", "text", "a mask"),
    ],
)
def test_so_is_the_code_that_is_made_of_it(name: str, place: str, way: str) -> None:
    """For each kind of term: a bias that is read, vectors that are multiplied, and a function of the score."""
    check_as_exact_as_the_reference(of_its_own(case(name, place, 200, way, heads=4)))


@pytest.mark.slow
def test_bfloat16_within_its_rounding() -> None:
    """The inputs are exact. Each weight is rounded once, relatively, and the output once. Distances are not: they
    reach 7363 here, where bfloat16 counts in steps of 32."""
    q, k, v = (x.bfloat16() for x in qkv(200, 200))
    at = Positions(torch.arange(0, 37 * 200, 37)[None])
    make = partial(called, scheme=fixed("alibi"), at=(at, at), is_causal=True)
    out, _ = FLEX.run(make(q, k, v))
    assert out.dtype == torch.bfloat16
    q, k, v = q.double(), k.double(), v.double()
    (truth, _), (weighed, _) = REFERENCE.run(make(q, k, v)), REFERENCE.run(make(q, k, v.abs()))
    unit = torch.finfo(torch.bfloat16).eps / 2
    budget = unit * (weighed + truth.abs()) + 1e-5  # of the float32 arithmetic before: scores of order 10, eps 1e-7
    assert ((out - truth).abs() <= budget).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
@pytest.mark.parametrize("place", ["padded left and right", "cache"])
@pytest.mark.parametrize("name", [name for name in ATTENDING if name not in BANDED and takes("flex", name)])
def test_on_cuda_it_trains(name: str, place: str) -> None:
    """Output, log-sum-exp and every gradient. The kernel may round products to TF32, of 11 bits."""
    it = case(name, place, 200, "causal", heads=4).to(torch.device("cuda"))
    runs = ((it.to(torch.float32), "flex"), (it, "reference"))
    found, truth = (with_gradients(one, one.attend(way, return_lse=True)) for one, way in runs)
    for what, expected in truth.items():
        assert torch.equal(found[what] == -torch.inf, expected == -torch.inf)
        finite = expected.isfinite()
        error = (found[what] - expected)[finite].abs().max()
        assert float(error) <= 8 * 2.0**-11 * float(expected[finite].abs().max()), what


# --- compiled once --------------------------------------------------------------------------------------------------


def test_lengths_layers_and_positions_share_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lengths between powers of two are one compilation, whatever else the positions and the parameters are."""
    torch.compiler.reset()
    compiled = torch.compile(flex._attend, dynamic=False, fullgraph=True, backend="eager")
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: compiled)
    before = counters["stats"]["unique_graphs"]
    text, padded = Positions.arange(200), Positions.padded(torch.rand(2, 200) > 0.3)
    for is_causal, at in ((True, text), (False, text), (True, padded), (True, text[50:])):
        FLEX.run(called(*qkv(len(at), 200), fixed("rope"), (at, padded if at is padded else text), is_causal=is_causal))
    assert counters["stats"]["unique_graphs"] - before == 1
    for n in (130, 256, 177, 511, 257, 222):  # from 129 to 256, and from 257 to 512
        FLEX.run(called(*qkv(n, n), AbsoluteInAttention(n, HEAD_DIM).requires_grad_(False), is_causal=True))
    assert counters["stats"]["unique_graphs"] - before == 2


# --- the table of blocks --------------------------------------------------------------------------------------------


def blocks_of(call: Call, height: int = 1) -> tuple[Tensor, Tensor]:
    """Which blocks (rows, query blocks, key blocks) are looked at pair by pair, and which are taken as they are."""
    mask = _block_mask(call, call.query.size(2), call.key.size(2), height)
    assert list(mask.BLOCK_SIZE) == [height * 128, 128]
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
@pytest.mark.parametrize("height", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_blocks_hold_what_is_visible(seed: int, height: int, is_causal: bool) -> None:
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
    partial_blocks, whole = blocks_of(call, height)
    seen = visible(*positions, Visibility(is_causal))
    assert seen is not None
    for row in range(2):
        for block, high in enumerate(seen[row].split(128 * height)):
            for of_keys, pairs in enumerate(high.split(128, 1)):
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
            q, k, v, fixed(name).requires_grad_(), same(KINDS[name].at(Positions.arange(8))), is_causal=True
        ),
        NO_BACKWARD + f"{'query' if name in LEARNED_MAPS else 'a score term'} requires grad",
    )
    for name in ("t5", "transformer_xl", "distance_aware", *sorted(LEARNED_MAPS))
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses_in_words(case: str) -> None:
    make, reason = REFUSED[case]
    assert FLEX.refuses(make(*qkv(8, 8))) == reason


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
