"""What FlexAttention's functions read for a pair of tokens, and the code and sizes they are compiled for on a GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from posenc import KERPLE, T5, ALiBi, DeBERTa, Positions, Sandwich, Scheme, TransformerXL
from posenc.backends import fitting, flex
from posenc.backends.call import Call
from posenc.lowering import forms
from posenc.lowering.distances import shift_of
from posenc.positions.tiles import Visibility, visible
from tests.backends.test_flex import called
from tests.backends.test_host import OnDevice

HEADS, HEAD_DIM, TOKENS = 4, 16, 37

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "alibi": lambda: ALiBi(HEADS),
    "alibi, directed": lambda: ALiBi(HEADS, form="directed"),
    "alibi, bidirectional": lambda: ALiBi(HEADS, form="bidirectional"),
    "kerple": lambda: KERPLE(HEADS),
    "sandwich": lambda: Sandwich(HEADS, 32),
    "t5": lambda: T5(HEADS, 8, 16, bidirectional=True),
    "transformer_xl": lambda: TransformerXL(HEADS, HEAD_DIM),
    "deberta": lambda: DeBERTa(HEADS, HEAD_DIM, 8),
}


def _padded() -> Positions:
    token = torch.ones(2, TOKENS, dtype=torch.bool)
    token[0, :9] = token[1, 30:] = False
    return Positions.padded(token).with_layout()


def _split(first: int) -> Positions:
    """Documents of 20 and 17 tokens; the second begins with this coordinate."""
    both = Positions.packed([20, 17])
    return Positions(both.coords + first * both.document, order=both.order, document=both.document).with_layout()


def _parts(a: int, b: int) -> Positions:
    """One document, of which the second half begins with coordinate b."""
    line = torch.arange(TOKENS)[None]
    return Positions(torch.where(line < 20, line + a, line + b)).with_layout()


TEXT = Positions.arange(TOKENS)
LAID: dict[str, tuple[Positions, Positions]] = {
    "text": (TEXT, TEXT),
    "later": (TEXT[20:], TEXT),
    "earlier": (TEXT[:20], TEXT[5:]),
    "far from zero": (Positions.arange(TOKENS, start=2**40),) * 2,
    "packed": (Positions.packed([[20, 17], [30, 7]]),) * 2,
    "padded": (_padded(),) * 2,
    "documents far apart": (_split(2**33),) * 2,
}
"""Of known layouts in which coordinates and indices differ by one number for all that are seen."""
UNEVEN: dict[str, tuple[Positions, Positions]] = {
    "a gap": (_parts(0, 3),) * 2,
    "steps of two": (Positions(2 * torch.arange(TOKENS)[None]).with_layout(),) * 2,
    "documents in other places": (_split(0), _split(3)),
    "repeated": (Positions(torch.arange(TOKENS)[None] // 2).with_layout(),) * 2,
}


def _call(scheme: Scheme | None, at: tuple[Positions, Positions]) -> Call:
    generator = torch.Generator().manual_seed(0)
    draw = (torch.randn(2, HEADS, len(at[n > 0]), HEAD_DIM, generator=generator) for n in range(3))
    return called(*draw, scheme, at)


def _indices(call: Call) -> list[Tensor]:
    sizes = call.query.size(0), call.query.size(1), call.query.size(2), call.key.size(2)
    return [
        torch.arange(n, dtype=torch.int32).view([n if a == d else 1 for d in range(4)]) for a, n in enumerate(sizes)
    ]


class Reads(TorchFunctionMode):
    """Counts what is read for each pair, and for each query or key."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = self.tokens = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.__getitem__:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            shape = torch.broadcast_shapes(*(x.shape for x in index if isinstance(x, Tensor)))
            self.pairs += min(shape[-2:]) > 1
            self.tokens += min(shape[-2:]) == 1 < max(shape[-2:])
        return func(*args, **(kwargs or {}))


def _scores(call: Call) -> tuple[Tensor, Reads]:
    functions = flex._functions(call, call.score_terms)
    assert not isinstance(functions, str)
    b, h, i, j = _indices(call)
    score = torch.zeros(2, HEADS, i.numel(), j.numel())
    with Reads() as reads:
        for change in functions:
            score = change(score, b, h, i, j)
    return score, reads


def _is_near(call: Call, score: Tensor) -> None:
    """Of seen pairs, as the dense form says: a product of a slope is rounded once, a sum of channels 16 times."""
    wanted = torch.zeros_like(score)
    for score_term in call.score_terms:
        wanted = wanted + forms.added(score_term, call.block())
    seen = visible(call.query_positions, call.key_positions, Visibility())
    seen = torch.ones_like(score, dtype=torch.bool) if seen is None else seen[:, None].expand_as(score)
    assert torch.equal(score[seen].isinf(), wanted[seen].isinf())
    finite = seen & wanted.isfinite()
    bound = 2 * HEAD_DIM * torch.finfo(torch.float32).eps * (1 + wanted[finite].abs().max())
    assert float((score - wanted)[finite].abs().max()) <= float(bound)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        (name, place)
        for name in SCHEMES
        for place in LAID | UNEVEN
        if place != "documents far apart" or name not in ("kerple", "sandwich", "transformer_xl")  # of every distance
    ],
)
@torch.no_grad()
def test_scores_are_those_of_the_dense_form(name: str, place: str) -> None:
    """And where the layout tells, nothing is read of a query or a key to know their distance; slopes, once a head."""
    call = _call(SCHEMES[name](), (LAID | UNEVEN)[place])
    score, reads = _scores(call)
    _is_near(call, score)
    terms = len(flex._functions(call, call.score_terms))
    folds = name == "transformer_xl"  # u, folded before
    looked_up = 0 if name.startswith("alibi") else terms
    assert (reads.pairs, reads.tokens) == (looked_up, 0 if place in LAID else 2 * (terms - folds))


# --- who is seen ------------------------------------------------------------------------------------------------------

SEEN = [Visibility(), Visibility(True), Visibility(True, 5), Visibility(False, 3, 6), Visibility(True, 10**12)]


@pytest.mark.parametrize("place", [*LAID, *UNEVEN, "unknown", "unordered"])
@pytest.mark.parametrize("visibility", SEEN)
def test_on_a_gpu_a_pair_is_seen_by_its_indices(visibility: Visibility, place: str) -> None:
    order = torch.arange(TOKENS).flip(0)[None]
    others = {"unknown": Positions(order, order=order // 2), "unordered": Positions(order, order=order).with_layout()}
    at = (others[place],) * 2 if place in others else (LAID | UNEVEN)[place]
    call = replace(_call(None, at), visibility=visibility)
    b, _, i, j = _indices(call)
    with OnDevice():
        pair = flex._seen(call, i.numel(), j.numel(), 1).pair
    with Reads() as reads:
        found = pair(b, torch.tensor(0), i, j)
    seen = visible(*at, visibility)
    wanted = torch.ones(1, i.numel(), j.numel(), dtype=torch.bool) if seen is None else seen
    assert torch.equal(found.expand(2, 1, -1, -1)[:, 0], wanted.expand(2, -1, -1))
    is_single = place in ("text", "later", "earlier", "far from zero", "a gap", "steps of two", "repeated")
    assert (reads.pairs, reads.tokens) == (0, 0 if is_single else 5 if place in others else 2)


def test_a_shift_needs_one_number_for_all() -> None:
    line = lambda span: span.line  # noqa: E731
    assert shift_of(TEXT[20:].layout, TEXT.layout, line) == -20
    for query, key in UNEVEN.values():
        assert shift_of(query.layout, key.layout, line) is None


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_first", {})


def _asked(monkeypatch: pytest.MonkeyPatch, fits: int, message: str = flex.NO_SIZES) -> list[int]:
    """The sizes that are tried; the first that fits is ``fits``."""
    tried: list[int] = []

    def run(size: Any, has_whole_blocks: bool, query: Tensor, *_: Any) -> tuple[Tensor, None]:
        tried.append(flex.SIZES.index(size))
        if tried[-1] < fits:
            raise RuntimeError(f"{message}. OutOfMemoryError: out of resource")
        return query, None

    monkeypatch.setattr(flex, "_compiled", lambda *_: run)
    return tried


def _attend(dtype: torch.dtype = torch.bfloat16, channels: int = 64, reads_pairs: bool = False) -> None:
    tensors = [torch.zeros(1, 1, 8, channels, dtype=dtype)] * 3
    with OnDevice():
        flex.attend((*tensors, None, None, 1.0, False, False), reads_pairs)


@pytest.mark.usefixtures("fresh")
def test_what_does_not_fit_is_tried_in_smaller_tiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _asked(monkeypatch, 2)
    _attend()
    _attend()
    _attend(channels=128)
    assert tried == [0, 1, 2, 2, 0, 1, 2]
    _asked(monkeypatch, len(flex.SIZES))
    with pytest.raises(RuntimeError, match=r"^no size .* fits this GPU for torch.bfloat16 with 96 channels: use an"):
        _attend(channels=96)
    tried = _asked(monkeypatch, 1, "CUDA out of memory")  # of which sizes are not the cause
    with pytest.raises(RuntimeError, match=r"^CUDA out of memory"):
        _attend(channels=32)
    assert tried == [0]


@pytest.mark.usefixtures("fresh")
def test_what_is_read_for_each_pair_begins_with_smaller_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of half precision and 64 channels, whose tiles are 128 x 128 (253,952 bytes for 232,448 that an H100 has)."""
    tried = _asked(monkeypatch, 0)
    _attend(reads_pairs=True)
    _attend(torch.float32, reads_pairs=True)
    _attend(channels=128, reads_pairs=True)
    assert tried == [1, 0, 0]


@pytest.mark.usefixtures("fresh")
def test_whole_blocks_are_known_to_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths that are multiples of a block, of which code for all lengths knows nothing itself."""
    options: list[dict[str, Any] | None] = []

    def run(query: Tensor, *_: Any, kernel_options: Any, **more: Any) -> Tensor:
        options.append(kernel_options)
        return query

    monkeypatch.setattr(flex, "_compiled", lambda dynamic: flex._attend)
    monkeypatch.setattr(flex.flex, "flex_attention", run)
    for queries, keys in ((256, 384), (256, 300), (100, 128), (128, 128)):
        query, key = (torch.zeros(1, 1, n, 16) for n in (queries, keys))
        with OnDevice():
            flex.attend((query, key, key, None, None, 1.0, False, False), False)
    assert options == [{"IS_DIVISIBLE": True}, None, None, {"IS_DIVISIBLE": True}]
