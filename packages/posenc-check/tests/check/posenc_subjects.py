"""posenc's own schemes, under each backend and in each model, as subjects of the checks.

The functions that build and call them are as a user would write them; they stand at the top of the file, since the
script of a finding imports them.
"""

from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc.models import Decoder, Encoder, ImageClassifier, KVCache
from posenc.positions.positions import Positions
from posenc.schemes.catalog import scheme_from_names
from posenc.schemes.entry import Shape
from posenc_check import Attention, Layer, Model, NotApplicableError, Subject

HEADS, HEAD_DIM, DIM = 6, 16, 96
LONGEST = 160  # tokens that any of them is built for
SIDE = 64  # rows and columns of a grid


class Pairs(nn.Module):
    """A scheme and the backend that it is to run under."""

    def __init__(self, name: str, backend: str = "auto", causal: bool = True, longest: int = LONGEST) -> None:
        super().__init__()
        shape = Shape(dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, max_positions=longest, causal=causal)
        self.scheme, self.backend, self.causal = scheme_from_names(name, shape), backend, causal


def positions_of(coords: Tensor, order: Tensor | None, document: Tensor | None, start: int = 0) -> Positions:
    """Coordinates (rows, tokens[, axes]); order counts from ``start`` unless given; all of segment 0."""
    if order is None:
        order = torch.arange(start, start + coords.size(1)).expand(coords.shape[:2])
    segment = torch.zeros(coords.shape[:2], dtype=torch.int64)
    if document is None and coords.dim() == 2 and coords.numel():
        first, lead = int(order[0, 0]), int(coords[0, 0] - order[0, 0])
        run = Positions.arange(coords.size(1), start=first).shift(lead)  # as one says it of an unbroken text
        if bool((run.coords == coords).all() and (run.order == order).all()):
            return run.expand(len(coords)).with_segment(segment)
    return Positions(coords, order=order, document=document, segment=segment)


def attend_with_posenc(
    made: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    query_order: Tensor | None = None,
    key_order: Tensor | None = None,
    query_document: Tensor | None = None,
    key_document: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    queries = positions_of(query_positions, query_order, query_document)
    keys = positions_of(key_positions, key_order, key_document)
    how = {"is_causal": made.causal, "backend": made.backend, "return_lse": return_lse}
    try:
        return posenc.attention(query, key, value, made.scheme, query_positions=queries, key_positions=keys, **how)
    except ValueError as error:
        if "cannot run this" not in str(error):
            raise
        raise NotApplicableError(str(error)) from None  # a backend that is named never falls back


def attend_in_one_line(made: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    return posenc.attention(query, key, value, made.scheme, is_causal=True)


def build_decoder(name: str, **options: Any) -> nn.Module:
    shape = Shape(dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, max_positions=LONGEST)
    return Decoder(48, DIM, 2, HEADS, position=scheme_from_names(name, shape), **options)


def call_decoder(
    made: Any,
    ids: Tensor,
    positions: Tensor | None = None,
    document: Tensor | None = None,
    order: Tensor | None = None,
    cache: Any = None,
) -> tuple[Tensor, Any]:
    if cache is None:
        cache = None if torch.is_grad_enabled() else KVCache()
    start = 0 if cache is None else len(cache)
    if document is not None:
        document = document[:, start:]
    if positions is None:
        positions = torch.arange(start, start + ids.size(1)).expand(ids.shape)
    where = positions_of(positions, order, document, start)
    return made(ids, where, cache=cache), cache


def build_encoder(name: str, **options: Any) -> nn.Module:
    shape = Shape(dim=DIM, num_heads=HEADS, head_dim=HEAD_DIM, max_positions=LONGEST, causal=False)
    return Encoder(48, DIM, 2, HEADS, position=scheme_from_names(name, shape), **options)


def call_encoder(made: Any, ids: Tensor, positions: Tensor | None = None, document: Tensor | None = None) -> Tensor:
    if positions is None:
        positions = torch.arange(ids.size(1)).expand(ids.shape)
    return made(ids, positions_of(positions, positions, document))


def build_classifier(name: str) -> nn.Module:
    shape = Shape(DIM, HEADS, HEAD_DIM, LONGEST, causal=False, grid=(SIDE, SIDE))
    return ImageClassifier(10, 2, DIM, 2, HEADS, position=scheme_from_names(name, shape))


def call_classifier(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made.trunk(x, Positions(positions), None)


# -- the subjects: one of each kind, in which each kind of term is met ------------------------------------------------


def attention(name: str, backend: str = "auto", **claims: Any) -> Subject:
    """A scheme with pair doors or a rotation, as a function between queries and keys."""
    claims = {"causal": True, "relative": True, "normalized": True, **claims}
    options = {"name": name, "backend": backend, "causal": claims["causal"]}
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM}
    return Attention(build=Pairs, call=attend_with_posenc, options=options, jitter=0.3, **sizes, **claims)


SUBJECTS: dict[str, Subject] = {
    "rope": attention("rope", like="rope"),
    "alibi, bidirectional": attention("alibi", like="alibi", causal=False),
    "shaw, native": attention("shaw", backend="native", normalized=False, relative=None),
    "t5, sdpa": attention("t5", backend="sdpa"),
    "relative_2d": attention("relative_2d", axes=2),
    "rope in one line": Attention(
        build=Pairs,
        call=attend_in_one_line,
        options={"name": "rope", "longest": 4096},
        heads=HEADS,
        head_dim=HEAD_DIM,
        causal=True,
        jitter=0.3,
        linear_memory=True,
        compiles=True,
        exports=True,
    ),
    "learned in a decoder": Model(
        build=build_decoder,
        call=call_decoder,
        options={"name": "learned"},
        causal=True,
        jitter=0.1,
        relative=False,
        max_positions=LONGEST,
        varied={"inject": "every_layer", "num_kv_heads": 2},
        refused=[{"inject": "nowhere"}, {"num_kv_heads": 5}],
    ),
    "transformer_xl in an encoder": Model(
        build=build_encoder, call=call_encoder, options={"name": "transformer_xl"}, jitter=0.1, relative=True
    ),
    "axial_rope in a classifier": Layer(
        build=build_classifier,
        call=call_classifier,
        options={"name": "axial_rope"},
        dim=DIM,
        jitter=0.1,
        axes=2,
        relative=True,
    ),
}
