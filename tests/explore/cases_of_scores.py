"""Schemes that see two tokens at a time, in all their options."""

import torch

from posenc import (
    FIRE,
    GRAPEA,
    KERPLE,
    T5,
    AbsoluteInAttention,
    ALiBi,
    Chunk,
    CoPE,
    DeBERTa,
    DistanceAware,
    DualChunk,
    FoX,
    Inkling,
    Positions,
    Relative1D,
    Relative2D,
    ReRoPE,
    Sandwich,
    SelfExtend,
    Shaw,
    Softcap,
    StickBreaking,
    Swin,
    SwinV2,
    TransformerXL,
    Wall,
)
from tests.explore.case import Case

WINDOWS = (None, 3, (2, 1), (None, 0), (1, None), Chunk(4))
MIXED = {  # two documents and padding, interleaved; orders that are not those of the row, some equal
    "a mixture": Positions(
        torch.tensor([[0, 5, 1, 3, 7, 2, 9, 4]]),
        order=torch.tensor([[3, 0, 1, 1, 2, 0, 5, 3]]),
        document=torch.tensor([[0, 1, 0, 0, 1, 0, -1, 0]]),
    )
}
SEGMENTS = {"segments": Positions.arange(6).with_segment(torch.tensor([[0, 0, 1, 2, 1, 0]]))}
LONG = {"a long line": Positions.arange(40), "negative": Positions.arange(9, start=-20)}
FAR = {"far apart": Positions(torch.tensor([[0, 3, 130, 17, 4000, 54]]))}

CASES: dict[str, dict[str, Case]] = {
    "absolute_in_attention": {
        "five heads": Case(
            lambda: AbsoluteInAttention(32, 7), heads=5, head_dim=7, fractional=False, positions=MIXED, windows=WINDOWS
        )
    },
    "alibi": {
        "twelve heads": Case(lambda: ALiBi(12, "bidirectional"), heads=12, kv_heads=3, positions=LONG, windows=WINDOWS),
        "five heads": Case(lambda: ALiBi(5), heads=5, positions=MIXED, windows=WINDOWS),
        "directed": Case(lambda: ALiBi(10, "directed"), heads=10, positions=MIXED, windows=WINDOWS),
    },
    "cope": {
        "past its table": Case(lambda: CoPE(7, 3), heads=5, head_dim=7, positions=MIXED, windows=WINDOWS),
        "not scaled": Case(lambda: CoPE(8, 20, scaled=False), kv_heads=2, positions=MIXED),
    },
    "deberta": {
        "buckets": Case(
            lambda: DeBERTa(5, 7, 9, 100, 12, True), {"dim": 9}, 5, None, 7, fractional=False, positions=FAR | LONG
        ),
        "distances clamped": Case(
            lambda: DeBERTa(4, 8, None, 8, 6, clamp="distance"), {"dim": None}, fractional=False, positions=FAR
        ),
        "past its table": Case(
            lambda: DeBERTa(4, 8, None, 3), {"dim": None}, kv_heads=2, fractional=False, positions=MIXED
        ),
    },
    "distance_aware": {"twelve heads": Case(lambda: DistanceAware(12), heads=12, kv_heads=4, positions=FAR)},
    "dual_chunk": {
        "no local keys": Case(
            lambda: DualChunk(10, 3, 0, 313.0, "interleaved"), heads=5, head_dim=10, positions=LONG, windows=WINDOWS
        ),
        "few steps": Case(lambda: DualChunk(8, 9, 8), kv_heads=2, positions=LONG | MIXED),
    },
    "fire": {
        "shorter": Case(lambda: FIRE(5, 7, 4.0), heads=5, positions=MIXED | {"far": Positions.arange(8, start=600)}),
        "twelve heads": Case(lambda: FIRE(12), heads=12, kv_heads=3, windows=WINDOWS),
    },
    "fox": {
        "five heads": Case(lambda: FoX(5), heads=5, positions=MIXED, windows=WINDOWS),
        "an image": Case(lambda: FoX(12), heads=12, kv_heads=4, axes=2),
    },
    "grape_a": {
        "of queries": Case(lambda: GRAPEA(5, 8, "query"), heads=5, kv_heads=1, positions=MIXED, windows=WINDOWS),
        "of both": Case(lambda: GRAPEA(12, 7, "both"), heads=12, kv_heads=3, head_dim=7),
    },
    "inkling": {
        "past its extent": Case(
            lambda: Inkling(5, 3, 4), heads=5, fractional=False, positions=MIXED | LONG, windows=WINDOWS
        ),
        "a global layer": Case(
            lambda: Inkling(12, 2, 64, length=6, strength=0.7), heads=12, kv_heads=3, fractional=False
        ),
        "clipped": Case(lambda: Inkling(4, 3, 9, length=6, clip=0.8), fractional=False),
    },
    "kerple": {
        "log": Case(lambda: KERPLE(5), heads=5, positions=FAR, windows=WINDOWS),
        "power": Case(lambda: KERPLE(12, "power"), heads=12, kv_heads=2, positions=MIXED),
    },
    "re_rope": {
        "leaky": Case(
            lambda: ReRoPE(10, 3, 313.0, "interleaved", leak=0.25),
            heads=5,
            head_dim=10,
            positions=LONG,
            windows=WINDOWS,
        ),
        "a window of one": Case(lambda: ReRoPE(8, 1), kv_heads=2, positions=MIXED),
    },
    "relative_1d": {
        "of each head": Case(
            lambda: Relative1D(32, 7, 5), heads=5, head_dim=7, fractional=False, positions=MIXED, windows=WINDOWS
        ),
        "of all heads": Case(
            lambda: Relative1D(13, 8),
            kv_heads=2,
            fractional=False,
            positions={
                "far documents": Positions.cat([Positions.arange(4), Positions.arange(3, start=90)], documents="new")
            },
        ),
    },
    "relative_2d": {
        "of each head": Case(lambda: Relative2D((3, 5), 7, 5), heads=5, head_dim=7, axes=2, fractional=False),
        "of all heads": Case(lambda: Relative2D((5, 4), 8), kv_heads=2, axes=2, fractional=False),
        "sam": Case(lambda: Relative2D((3, 5), 7, convention="sam"), heads=5, head_dim=7, axes=2, fractional=False),
    },
    "sandwich": {
        "narrow": Case(lambda: Sandwich(5, 6, 313.0), heads=5, positions=LONG),
        "twelve heads": Case(lambda: Sandwich(12), heads=12, kv_heads=4, positions=MIXED, windows=WINDOWS),
    },
    "self_extend": {
        "interleaved": Case(
            lambda: SelfExtend(10, 2, 5, 313.0, "interleaved"), heads=5, head_dim=10, positions=LONG, windows=WINDOWS
        ),
        "groups wider than the window": Case(lambda: SelfExtend(8, 6, 2), kv_heads=2, positions=LONG | MIXED),
    },
    "shaw": {
        "keys": Case(
            lambda: Shaw(7, 2, values=False),
            {"keys": True, "values": False},
            5,
            None,
            7,
            fractional=False,
            positions=LONG,
        ),
        "values": Case(
            lambda: Shaw(8, 3, keys=False, num_heads=12),
            {"keys": False, "values": True},
            heads=12,
            kv_heads=3,
            fractional=False,
            positions=MIXED,
            windows=WINDOWS,
        ),
        "of each head": Case(
            lambda: Shaw(8, 40, num_heads=5), {"keys": True, "values": True}, heads=5, fractional=False
        ),
    },
    "softcap": {"low": Case(lambda: Softcap(0.3), heads=12, kv_heads=3, windows=WINDOWS)},
    "stick_breaking": {
        "sees itself": Case(lambda: StickBreaking(sees_itself=True), heads=5, positions=MIXED, windows=WINDOWS),
        "of an image": Case(lambda: StickBreaking(), heads=12, kv_heads=3, axes=2),
        "mixed": Case(lambda: StickBreaking(), positions=MIXED | LONG, windows=WINDOWS),
    },
    "swin": {
        "a rectangle": Case(lambda: Swin((3, 5), 5), heads=5, axes=2, fractional=False, windows=(None, (3, 2))),
        "a class token": Case(
            lambda: Swin((3, 4), 5, class_token=True),
            heads=5,
            axes=2,
            fractional=False,
            positions={"a class token": Swin((3, 4), 5, class_token=True).positions()},
        ),
    },
    "swin_v2": {
        "another window": Case(
            lambda: SwinV2((5, 4), 12, (2, 1), 7),
            heads=12,
            kv_heads=3,
            axes=2,
            fractional=False,
            windows=(None, (3, 2)),
        )
    },
    "t5": {
        "released": Case(lambda: T5(12), heads=12, kv_heads=3, fractional=False, positions=FAR | LONG),
        "released for encoders": Case(lambda: T5(12, bidirectional=True), heads=12, fractional=False, positions=FAR),
        "an edge on a whole number": Case(lambda: T5(5, 48, 81), heads=5, fractional=False, positions=FAR | MIXED),
        "odd buckets": Case(lambda: T5(5, 9, 13), heads=5, fractional=False, positions=LONG, windows=WINDOWS),
        "of a document": Case(lambda: T5(5, 12, 9, True, axis=2, axes=3, factor=0.3), heads=5, axes=3),
        "few for encoders": Case(lambda: T5(4, 6, 4, True), fractional=False, positions=LONG, windows=WINDOWS),
    },
    "transformer_xl": {
        "a width of its own": Case(
            lambda: TransformerXL(5, 7, 6, 313.0, False), heads=5, head_dim=7, positions=LONG, windows=WINDOWS
        ),
        "shared keys": Case(lambda: TransformerXL(12, 8), heads=12, kv_heads=3, positions=MIXED),
        "segments": Case(
            lambda: TransformerXL(5, 8, segments=True), {"dim": None}, heads=5, positions=SEGMENTS, only=True
        ),
    },
    "wall": {
        "five heads": Case(lambda: Wall(5, 7), heads=5, head_dim=7, positions=MIXED, windows=WINDOWS[:-1]),
        "an image": Case(lambda: Wall(12, 8), heads=12, kv_heads=4, axes=2),
    },
}
