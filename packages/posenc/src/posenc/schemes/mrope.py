"""M-RoPE: RoPE whose channel pairs are allocated to time, row and column."""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch

from posenc.arguments import check_choice, number, shown, whole
from posenc.positions.positions import Positions
from posenc.rotary import Rotary
from posenc.rotation.phases import PairLayout
from posenc.rotation.scaling_parameters import ScalingLike
from posenc.schemes.entry import FORMULA, ROTARY, ROTATED_SCORE, Entry, Law, lines

Form: TypeAlias = Literal["sections", "interleaved", "ernie", "videorope"]
LAYOUTS: dict[Form, PairLayout] = {
    "sections": "half",
    "interleaved": "half",
    "ernie": "interleaved",
    "videorope": "half",
}


class MRoPE(Rotary):
    """Multimodal RoPE: pair k is rotated by p_a theta_k, where a is the axis of the pair: time, row or column.

    Formula: theta_k = base^(-2k/d), k = 0 .. d/2 - 1, as in RoPE, and (a, b) -> (a cos - b sin, a sin + b cos) by

        p_t theta_k,  p_h theta_k  or  p_w theta_k,     for a token at (p_t, p_h, p_w)

    With ``sections`` = (n_t, n_h, n_w) pairs, in this order in every form, the forms allocate the axes as

        "sections"     t for the first n_t pairs, h for the next n_h, w for the last n_w       Qwen2-VL, half layout
        "interleaved"  h for 1, 4, 7 .. below 3 n_h, w for 2, 5, 8 .. below 3 n_w, t the rest  Qwen3-VL, half layout
        "ernie"        h and w alternate in the first n_h + n_w pairs, t for the last n_t      ERNIE, interleaved layout
        "videorope"    the same as "ernie"                                                     VideoRoPE, half layout

    where "half" pairs the channels (k, k + d/2) and "interleaved" (2k, 2k + 1). Where a token's coordinates are equal,
    as for text, it is RoPE of that layout. Nothing is learned. ``rotary_dim`` and ``scaling`` are those of `RoPE`: with
    rotary_dim, it takes the place of d, and the other channels are unchanged.

    Use `Positions.multimodal` for text with images, or, for VideoRoPE, its own `multimodal`; `Positions.following`
    continues both. The defaults in transformers are (16, 24, 24) and base 1 000 000 for Qwen2-VL, whose sizes VideoRoPE
    keeps, (24, 20, 20) and 500 000 for Qwen3-VL, (20, 22, 22) and 500 000 for ERNIE 4.5 VL, whose configuration has the
    order h, w, t. For separate heads per axis (MHRoPE) compose three `RoPE` with ``heads``.

    Shapes: coordinates (rows, tokens, 3) in the order time, row, column; query and key (batch, heads, tokens,
    head_dim), any floating dtype.
    Source: Wang et al. 2024, "Qwen2-VL", section 2.1; the forms as in transformers 5.23.0 (Qwen2VLRotaryEmbedding,
    Qwen3VLTextRotaryEmbedding, Ernie4_5_VLMoeTextRotaryEmbedding), which were read; Wei et al. 2025, "VideoRoPE",
    section 4, and its code (Wiselnn570/VideoRoPE, modeling_videorope.py).
    """

    positions_made_by = "Positions.multimodal(parts), or for form='videorope' its own multimodal(parts)"

    def __init__(
        self,
        head_dim: int,
        sections: Sequence[int],
        form: Form = "sections",
        base: float = 10_000.0,
        *,
        rotary_dim: int | None = None,
        scaling: ScalingLike | None = None,
    ) -> None:
        head_dim = whole("head_dim", head_dim, least=2)
        check_choice("form", form, tuple(LAYOUTS))
        name, turning = (
            ("head_dim", head_dim) if rotary_dim is None else ("rotary_dim", whole("rotary_dim", rotary_dim))
        )
        if not isinstance(sections, Sequence) or len(sections) != 3:
            raise ValueError(f"sections must be the pairs of time, row and column, got {shown(sections)}")
        n_t, n_h, n_w = (whole("sections", n, least=0) for n in sections)
        if n_t + n_h + n_w != turning // 2:
            raise ValueError(f"sections must sum to {name}/2 = {turning // 2}, got {shown(tuple(sections))}")
        if form in ("ernie", "videorope") and n_h != n_w:
            raise ValueError(
                f"sections must have equal numbers for row and column for form={form!r}, in the order time, row, "
                f"column, got {shown(tuple(sections))}"
            )
        allocation = dealt(form, n_t, n_h, n_w)
        super().__init__(head_dim, base, LAYOUTS[form], rotary_dim, axes=3, allocation=allocation, scaling=scaling)
        self.sections, self.form = (n_t, n_h, n_w), form

    def multimodal(
        self,
        parts: Sequence[int | tuple[int, int, int]],
        start: int = 0,
        *,
        spacing: float = 2,
        device: torch.device | str | None = None,
    ) -> Positions:
        """`Positions.multimodal` with VideoRoPE's diagonal layout, for the form "videorope": frames lie on the line on
        which text does, ``spacing`` apart, and patches around them.

        The patch at (f, h, w) of a video of F frames, H rows and W columns that starts at s has the coordinates

            t = s + spacing f,   t + h - floor((H - 1) / 2),   t + w - floor((W - 1) / 2)

        and the next part starts at s + spacing (F - 1) + 1, as in the authors' code; by equation 5 of the paper it
        starts at s + spacing F. The last part must be text, since `Positions.following` continues the last token.

        >>> MRoPE(8, (2, 1, 1), "videorope").multimodal([1, (2, 1, 3), 1]).coords[0].tolist()
        [[0, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 2], [3, 3, 2], [3, 3, 3], [3, 3, 4], [4, 4, 4]]
        """
        if self.form != "videorope":
            raise ValueError(f"form must be 'videorope' for this layout, got {self.form!r}: use Positions.multimodal")
        number("spacing", spacing, above=0)
        plain = Positions.multimodal(parts, start, device=device)
        if parts and isinstance(parts[-1], Sequence):
            raise ValueError(f"parts must end with text, from which generated tokens continue, got {shown(parts[-1])}")
        coords: list[tuple[float, ...]] = []
        at: float = start
        for part in parts:
            (frames, height, width), step = (part, spacing) if isinstance(part, Sequence) else ((part, 1, 1), 1)
            line = (at + step * n for n in range(frames))
            coords += [
                (t, t + h - (height - 1) // 2, t + w - (width - 1) // 2)
                for t in line
                for h in range(height)
                for w in range(width)
            ]
            at += step * (frames - 1) + 1 if frames * height * width else 0
        dtype = torch.int64 if isinstance(spacing, int) else torch.float64
        return plain.with_coords(torch.tensor([coords], dtype=dtype, device=plain.device).view(1, -1, 3))


def dealt(form: Form, n_t: int, n_h: int, n_w: int) -> tuple[int, ...]:
    """The axis of every pair: 0 time, 1 row, 2 column."""
    if form == "sections":
        return (0,) * n_t + (1,) * n_h + (2,) * n_w
    if form in ("ernie", "videorope"):
        return (1, 2) * n_h + (0,) * n_t
    ends = (0, 3 * n_h, 3 * n_w)
    return tuple(k % 3 if k < ends[k % 3] else 0 for k in range(n_t + n_h + n_w))


ENTRY = Entry(
    name="mrope",
    scheme=MRoPE,
    paper="Wang et al. 2024",
    laws=FORMULA | ROTARY | {Law.DECAYING_BOUND},
    cost="one pass over q and k per layer",
    # The sections of Qwen2-VL, 2 : 3 : 3.
    build=lambda shape: MRoPE(shape.head_dim, (shape.head_dim // 2 - (n := 3 * shape.head_dim // 16) - n, n, n)),
    axes="three",
    does="RoPE whose pairs are allocated to time, row and column, in one of four forms; on text it is RoPE",
    limits="each axis has only some of the frequencies",
    formula=lines(
        ROTATED_SCORE,
        r"\phi_k = p_{a(k)} \theta_k, \qquad a(k) \in \{\mathrm{time}, \mathrm{row}, \mathrm{column}\}, \qquad "
        r"\theta_k = \mathrm{base}^{-2k/d}",
    ),
    example=(
        "positions = posenc.Positions.multimodal([10, (1, 6, 8), 6])\n"
        "posenc.attention(q, k, v, posenc.MRoPE(64, (8, 12, 12)), query_positions=positions, is_causal=True)"
    ),
    users="Qwen2-VL, Qwen3-VL, ERNIE 4.5 VL, VideoRoPE",
    url="https://arxiv.org/abs/2409.12191",
    avoid="**Text or images alone.** On text it is `RoPE`; on images `AxialRoPE` gives each axis the whole range.",
)
