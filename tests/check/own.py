"""posenc's own schemes, under each backend and in each model, as subjects of the checks.

The functions that build and call them are as a user would write them; they stand at the top of the file, since the
script of a finding imports them.
"""

from typing import Any

import torch
from torch import Tensor, nn

import posenc
from posenc.encoding.features import projected_at_random
from posenc.models import Decoder, Encoder, ImageClassifier, KVCache
from posenc.positions.positions import Positions
from posenc.schemes.catalog import CATALOG, Entry, Shape, scheme_from_names
from posenc.tools.check import Attention, Layer, Model, NotApplicableError, Subject
from tests.alike import ALIKE

HEADS, HEAD_DIM, DIM = 6, 16, 96
LONGEST = 160  # tokens that any of them is built for
WINDOWS = {"swin": 64, "swin_v2": 16}  # to a side, of those whose table goes by two differences at once


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
        if not made.scheme.features:
            return posenc.attention(query, key, value, made.scheme, query_positions=queries, key_positions=keys, **how)
        encoding = made.scheme(queries, keys, dtype=torch.promote_types(query.dtype, torch.float32))
        return posenc.attention(query, key, value, with_features(encoding, query, key), **how)
    except ValueError as error:
        if "cannot run this" not in str(error):
            raise
        raise NotApplicableError(str(error)) from None  # a backend that is named never falls back


def attend_to_all_keys(
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
) -> Any:
    """Without a log-sum-exp: a scheme that looks at all keys of a row cannot be merged of calls with a part of them. It
    goes by the order, which is that of the positions where nothing else is said."""
    query_order = query_positions if query_order is None else query_order
    key_order = key_positions if key_order is None else key_order
    given = (query_positions, key_positions, query_order, key_order, query_document, key_document)
    return attend_with_posenc(made, query, key, value, *given)


def with_features(encoding: Any, query: Tensor, key: Tensor) -> Any:
    """With what a layer would project for the scheme, of queries and keys in place of its hidden state."""
    of_each = [projected_at_random(encoding.wanted, x.transpose(1, 2).flatten(2)) for x in (query, key)]
    return encoding.with_projected(*of_each)


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
    side = WINDOWS.get(name, 64)
    shape = Shape(DIM, HEADS, HEAD_DIM, LONGEST, causal=False, grid=(side, side))
    return ImageClassifier(10, 2, DIM, 2, HEADS, position=scheme_from_names(name, shape))


def call_classifier(made: Any, x: Tensor, positions: Tensor) -> Tensor:
    return made.trunk(x, Positions(positions), None)


# -- the subjects ------------------------------------------------------------------------------------------------------


def attention(entry: Entry, backend: str, causal: bool) -> Subject:
    """A scheme with pair doors or a rotation, as a function between queries and keys."""
    return Attention(
        build=Pairs,
        call=attend_to_all_keys if entry.name in OF_ALL_KEYS else attend_with_posenc,
        options={"name": entry.name, "backend": backend, "causal": causal},
        heads=HEADS,
        head_dim=HEAD_DIM,
        causal=causal,
        jitter=0.3,
        like=entry.name if backend == "auto" and entry.name not in SIZED | NEEDS_A_LAYER else None,
        normalized=entry.name not in UNEQUAL_VALUES,
        directed=True if "directed" in entry.laws and not causal and sides_show(entry) else None,
        # Without a causal mask, it counts to the end of the row.
        **{**claims(entry), **({"relative": None} if entry.name == "cope" and not causal else {})},
    )


def sides_show(entry: Entry) -> bool:
    """Whether weights before and after a token of a line of equal ones must differ, where its scores are directed."""
    return entry.least_axes == 1 and entry.name not in ONE_SIDED


def one_line(entry: Entry) -> Subject:
    """A scheme as most will use it, which compiles, exports and takes memory for the tokens and not for their pairs."""
    return Attention(
        build=Pairs,
        call=attend_in_one_line,
        options={"name": entry.name, "longest": 4096},
        heads=HEADS,
        head_dim=HEAD_DIM,
        causal=True,
        jitter=0.3,
        linear_memory=entry.name not in {"cope", "stick_breaking"},  # linear too, but slow at the lengths that show it
        compiles=True,
        exports=True,
        max_positions=4096 if entry.name in ("absolute_in_attention", "tupe") else None,
    )


# Their scores go by more than the distance, and yet a short text may be moved. On the diagonal LieRE is relative. The
# last three go by the order, and not by positions: moving those shows nothing.
NEITHER = {"lie_re", "dual_chunk", "self_extend", "cope", "fox", "stick_breaking"}


def claims(entry: Entry) -> dict[str, Any]:
    ends = {"learned", "absolute_in_attention", "tupe"}  # the end of relative_1d is a distance
    return {
        "relative": None if entry.name in NEITHER else "relative" in entry.laws,
        "axes": entry.least_axes,
        "order_free": "order_free" in entry.laws or entry.name in OF_ALL_KEYS,
        "max_positions": LONGEST if entry.name in ends else WINDOWS.get(entry.name),
    }


def decoder(entry: Entry) -> Subject:
    return Model(
        build=build_decoder,
        call=call_decoder,
        options={"name": entry.name},
        causal=True,
        jitter=0.1,
        varied={"inject": "every_layer", "num_kv_heads": 2} if "add" in entry.doors else {"num_kv_heads": 2},
        refused=[{"inject": "nowhere"}, {"num_kv_heads": 5}],
        **claims(entry),
    )


def encoder(entry: Entry) -> Subject:
    return Model(build=build_encoder, call=call_encoder, options={"name": entry.name}, jitter=0.1, **claims(entry))


def classifier(entry: Entry) -> Subject:
    return Layer(
        build=build_classifier,
        call=call_classifier,
        options={"name": entry.name},
        dim=DIM,
        jitter=0.1,
        **{
            **claims(entry),
            "axes": 2,
            "max_positions": WINDOWS.get(entry.name, 64)
            if entry.axes == "two" and "length_free" not in entry.laws
            else None,
        },
    )


# tests/backends compares the rest with these; flex compiles for every length: see test_flex.py.
BACKENDS = ("auto", "sdpa", "native")
# PyTorch's kernel can neither add to values nor multiply scores; the C++ kernel has no functions of whole rows.
CANNOT = {
    "sdpa": {"shaw", "distance_aware", "softcap", "cope", "stick_breaking", "re_rope"},
    "native": {"cope", "stick_breaking"},
}
SIZED = {"deberta", "cope", "relative_1d", "relative_2d"}  # their tables are as long as Pairs wants them
UNEQUAL_VALUES = {"rotated_values", "shaw", "stick_breaking"}  # do more to values than weigh them, or leave some over
# Directed by the causal mask, by the place of the query, or by who is nearer: sides alone show nothing.
ONE_SIDED = {"alibi", "query_scale", "stick_breaking"}
OF_ALL_KEYS = {"cope", "fox", "stick_breaking"}
NEEDS_A_LAYER = {"fox", "inkling"}  # for a feature
IN_PAIRS = [entry for entry in CATALOG if "add" not in entry.doors]
# The classifier says nothing of an order: what goes by it alone would go by the index.
ON_GRIDS = [entry for entry in CATALOG if entry.axes in ("two", "any") and entry.name not in OF_ALL_KEYS]

MODELLED = [entry for entry in CATALOG if entry.name not in ALIKE]
# One for each kind of piece: checked under every backend, and in an encoder.
KINDS = {
    *("nope", "rope", "alibi", "t5", "shaw", "absolute_in_attention", "relative_1d", "relative_2d", "transformer_xl"),
    *("distance_aware", "fox", "re_rope"),
}


def ways(entry: Entry) -> list[tuple[str, bool]]:
    """(backend, causal) under which a scheme is checked. That all backends give what the reference gives, with a causal
    mask and without, tests/backends sees to."""
    if entry.name in ALIKE:
        return [("auto", True)]
    named = BACKENDS[1:] if entry.name in KINDS else ()
    both = [("auto", True), ("auto", False)][: 1 if entry.scheme.looks_back else 2]
    return [*both, *((b, True) for b in named if entry.name not in CANNOT.get(b, ()))]


SUBJECTS: dict[str, Subject] = {
    **{
        f"{entry.name}-{backend}-{'causal' if causal else 'bidirectional'}": attention(entry, backend, causal)
        for entry in IN_PAIRS
        for backend, causal in ways(entry)
    },
    **{
        f"{entry.name}-one-line": one_line(entry)
        for entry in IN_PAIRS
        if entry.least_axes == 1 and entry.name not in NEEDS_A_LAYER and entry.name not in ALIKE - {"tupe"}
    },
    **{f"{entry.name}-decoder": decoder(entry) for entry in MODELLED if entry.least_axes == 1},
    **{
        f"{entry.name}-encoder": encoder(entry)
        for entry in MODELLED
        if entry.least_axes == 1 and (entry.name in KINDS or "add" in entry.doors) and not entry.scheme.looks_back
    },
    **{f"{entry.name}-classifier": classifier(entry) for entry in ON_GRIDS},
}

# CI checks one of each kind of subject, in which each kind of piece is met; tests/backends compares all with the
# reference.
CHECKED = {
    *(
        "rope-auto-causal",
        "alibi-auto-bidirectional",
        "shaw-native-causal",
        "t5-sdpa-causal",
        "relative_2d-auto-causal",
    ),
    *("fox-auto-causal", "rope-one-line"),
    *("learned-decoder", "transformer_xl-encoder", "axial_rope-classifier"),
}
SURVEYED = SUBJECTS.keys() - CHECKED
