"""Partial key offset: half of a key's channels are those of the token before."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posenc.arguments import check_choice, whole
from posenc.encoding.context import WHOLE, Context, previous_tokens
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import Positions
from posenc.rotation.phases import check_fits, identity
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law

Form = Literal["partial", "proportional"]


@dataclass(frozen=True, eq=False)
class OffsetChannels:
    """Replaces some channels of each key by those of another key of the call."""

    source: Int[Tensor, "rows keys"]
    is_offset: Bool[Tensor, " head_dim"]

    def __call__(self, x: Float[Tensor, "batch heads keys head_dim"]) -> Float[Tensor, "batch heads keys head_dim"]:
        """The keys in x's dtype. Raises ValueError for a shape of x that does not match."""
        check_fits("KeyOffset", (self.source.size(0), 1, self.source.size(1)), x)
        if x.size(-1) != self.is_offset.size(0):
            raise ValueError(f"KeyOffset was made for head_dim {self.is_offset.size(0)}, got keys of {x.size(-1)}")
        source = self.source.to(x.device)[:, None, :, None].expand(x.size(0), *x.shape[1:])
        return torch.where(self.is_offset.to(x.device), x.gather(2, source), x)


class KeyOffset(Scheme):
    """Partial key offset: half of the channels of key j are those of the key of the token before it.

    Formula, for channel c of the key of token j, with i the token before j in the order of its document:

        k_jc <- k_ic  for c in S,    k_jc  otherwise and for the first token of a document

    so one layer can find what followed an earlier token that is like the query. S are the channels that do not rotate,
    by ``form``:

        "partial"       d/2 .. d - 1                      beside RoPE(d, rotary_dim=d/2)
        "proportional"  d/4 .. d/2 - 1 and 3d/4 .. d - 1  beside RoPE(d, scaling=Proportional(0.5)), half layout

    Compose it: ``RoPE(64, rotary_dim=32) + KeyOffset(64)``. The code that it is from shifts a whole packed row, so that
    the first key of a document has channels of the document before; here documents are apart, as in Marin after that
    was found. Queries and values are unchanged, and coordinates are ignored.

    A key depends on two tokens, so a cache keeps keys without the offset (``needs_raw_keys``), which is a pass over all
    keys in every call, and keys must be those of whole documents: `posenc.distributed` runs it by "ulysses" alone.
    Nothing is learned. Shapes: key (batch, heads, keys, head_dim), any dtype.
    Source: KellerJordan/modded-nanogpt, pull request 169: train_gpt.py for "partial" and train_gpt_medium.py for
    "proportional", where layers with long windows have it. There is no paper.
    """

    def __init__(self, head_dim: int, form: Form = "partial") -> None:
        super().__init__()
        self.head_dim = whole("head_dim", head_dim, least=2)
        check_choice("form", form, ("partial", "proportional"))
        if head_dim % (parts := 2 if form == "partial" else 4):
            raise ValueError(f"head_dim must be a multiple of {parts} for form={form!r}, got {head_dim}")
        self.form: Form = form

    @property
    def needs_raw_keys(self) -> bool:
        return True

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        block = self.head_dim if self.form == "partial" else self.head_dim // 2
        is_offset = torch.arange(self.head_dim, device=positions.device) % block >= block // 2
        return Rotation(identity, OffsetChannels(previous_tokens(positions), is_offset), needs_whole_documents=True)


ENTRY = Entry(
    name="key_offset",
    scheme=KeyOffset,
    paper="modded-nanogpt, 2025",
    laws=FORMULA | {Law.RELATIVE, Law.BOUNDED},
    cost="one pass over all keys per layer, in decoding too",
    build=lambda shape: KeyOffset(shape.head_dim),
    axes="any",
    does="half of the channels of a key are those of the token before, within its document",
    limits="encodes only which token came before; a cache keeps keys without it",
    formula=(
        r"k_{jc} \leftarrow \begin{cases} k_{j - 1, c} & c \ge d / 2 \mbox{ and } j > 1 \\ "
        r"k_{jc} & \mbox{else} \end{cases}"
    ),
    example="posenc.attention(q, k, v, posenc.RoPE(64, rotary_dim=32) + posenc.KeyOffset(64), is_causal=True)",
    users="modded-nanogpt, Marin",
    url="https://github.com/kellerjordan/modded-nanogpt/pull/169",
    avoid="**By itself.** It says which token came before a key, and not how far away. Compose it with partial `RoPE`.",
)
