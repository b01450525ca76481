"""Query scale: multiplies queries by a factor that grows with their position or with the length of the text."""

import math
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from posenc.arguments import check_choice, number, whole
from posenc.encoding.context import WHOLE, Context
from posenc.encoding.rotation import Rotation
from posenc.positions.positions import PADDING, PositionError, Positions
from posenc.positions.validation import is_readable
from posenc.rotation.phases import TokenScale, identity, in_double, log_length_scale
from posenc.scheme import Scheme
from posenc.schemes.entry import Entry, Law, lines

Form: TypeAlias = Literal[
    "llama4", "ministral3", "inkling", "beam", "rerope", "chunkllama", "qwen2_5_1m", "mistral_large4", "ssmax"
]

DEFAULTS: dict[str, tuple[int | None, float | None]] = {
    "llama4": (8192, 0.1),
    "ministral3": (16384, 0.1),
    "inkling": (None, 0.1),
    "beam": (2048, 0.1),
    "rerope": (None, None),
    "chunkllama": (None, 0.05),
    "qwen2_5_1m": (None, 0.1),
}
OF_ROWS = ("chunkllama", "qwen2_5_1m")
LEARNED = ("mistral_large4", "ssmax")


class QueryScale(Scheme):
    """Multiplies queries by a factor that grows with their position or with the length of the text, so that attention
    over more keys stays sharp.

    Formula: q_i c(n) with n = p_i + 1, the number of tokens up to the query:

        llama4          1 + a ln(1 + floor(n / L))          L = 8192, a = 0.1; in its layers without RoPE
        ministral3      1 + a ln(1 + floor((n - 1) / L))    L = 16384, a = 0.1; Mistral 4's L is 8192; in all layers
        inkling         1 + a ln max(1, n / L)              a = 0.1, L required; `Inkling` scales its bias as well
        beam            (1 + n / L)^a                       L = 2048, a = 0.1; in its layers without RoPE
        rerope          max(1, ln n / ln L)                 L, the training length, required
        mistral_large4  s_h ln n + b_h                      learned, per head; initially s = 0 and b = 1
        ssmax           s_h ln n                            learned, per head; initially s = 0.43

    and with n the current length of the row's text, the same for all of its queries:

        chunkllama      (1 + a ln max(1, n / L))^2          a = 0.05, L, the training length, required
        qwen2_5_1m      1 + a ln max(1, n / L)              a = 0.1, L required; 262144 in the model

    ``length`` is L and ``strength`` is a. "mistral_large4" and "ssmax" are learned and need ``num_heads``. Keys and the
    softmax scale are unchanged. p is the query's coordinate; code that counts cache slots instead differs with padding
    or packed texts. Rows of those of the text's length must hold one document each. ChunkLlama scales queries and keys,
    and Qwen2.5-1M keys; both keep in a cache the keys as they were scaled when the text was shorter, which is not done
    here.

    Shapes: query (batch, heads, queries, head_dim), any floating dtype; computed in float64 and rounded once.
    Positions have one axis, may be fractional, and must not be negative, except for the forms of the text's length.
    Errors: ValueError for an unknown form, an argument that the form needs or does not take, queries with another
    number of heads, and rows of several documents in a form of the text's length; PositionError for a negative
    position, where it can be read without synchronizing a GPU.
    Source: the models of those names in transformers (modeling_llama4, _ministral3, _mistral4, _inkling, _beam,
    _mistral_large4); ssmax: Nakanishi 2025, "Scalable-Softmax Is Superior for Attention" (arXiv 2501.19399), where n is
    the size of the row, after its abstract and other implementations, not the paper's text (one initializes s to 0.43,
    others to 1); rerope: ``rerope_patch.py`` of github.com/bojone/rerope; chunkllama: ``get_mscale`` of
    ``chunkllama_attn_replace.py`` of github.com/HKUNLP/ChunkLlama, a factor of cos and sin of both sides; qwen2_5_1m:
    ``dual_chunk_flash_attn.py`` of github.com/vllm-project/vllm.
    """

    def __init__(
        self, form: Form, *, length: int | None = None, strength: float | None = None, num_heads: int | None = None
    ) -> None:
        super().__init__()
        check_choice("form", form, (*DEFAULTS, *LEARNED))
        self.form: Form = form
        if (num_heads is not None) != (form in LEARNED):
            which = "is needed by" if form in LEARNED else "is not for"
            raise ValueError(f"num_heads {which} form {form!r}, got {num_heads}")
        default_length, default_strength = DEFAULTS.get(form, (None, None))
        if length is not None and form in LEARNED:
            raise ValueError(f"length is not for form {form!r}, got {length}")
        if strength is not None and form in (*LEARNED, "rerope"):
            raise ValueError(f"strength is not for form {form!r}, got {strength}")
        length = default_length if length is None else whole("length", length, least=2)
        if length is None and form not in LEARNED:
            raise ValueError(f"length must be given for form {form!r}, got None")
        strength = default_strength if strength is None else number("strength", strength)
        self.length, self.strength = length, strength
        self.num_heads = None if num_heads is None else whole("num_heads", num_heads)
        if self.num_heads is not None:
            self.s = nn.Parameter(torch.empty(self.num_heads))
            of_b = nn.Parameter(torch.empty(self.num_heads)) if form == "mistral_large4" else None
            self.b: nn.Parameter | None = of_b
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """s = 0 and b = 1 for "mistral_large4", s = 0.43 for "ssmax"."""
        if self.form == "mistral_large4" and self.b is not None:
            nn.init.zeros_(self.s)
            nn.init.ones_(self.b)
        elif self.form == "ssmax":
            nn.init.constant_(self.s, 0.43)

    @property
    def needs_lengths(self) -> bool:
        return self.form in OF_ROWS

    @property
    def needs_raw_keys(self) -> bool:
        """False: keys are unchanged, so they can be cached."""
        return False

    def _factor(self, n: Float64[Tensor, "rows tokens"]) -> Float64[Tensor, "rows tokens"]:
        """c(n) of the forms that are the same for all heads."""
        L, a = self.length, self.strength
        assert L is not None
        if self.form == "rerope":
            return (n.log() / math.log(L)).clamp(min=1.0)
        assert a is not None
        if self.form == "beam":
            return (1 + n / L) ** a
        if self.form in ("inkling", "qwen2_5_1m"):
            return log_length_scale(n, L, a)
        if self.form == "chunkllama":
            return log_length_scale(n, L, a) ** 2
        return 1 + a * torch.log1p(torch.floor((n if self.form == "llama4" else n - 1) / L))

    def _learned(self, log_n: Float[Tensor, "rows tokens"], context: Context) -> Float[Tensor, "rows heads tokens"]:
        """c(n) of the learned forms, for every head of the shard."""
        c = context.of_heads(self.s, 0).to(log_n.dtype)[:, None] * log_n[:, None]
        return c if self.b is None else c + context.of_heads(self.b, 0).to(log_n.dtype)[:, None]

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE) -> Rotation:
        coords = positions.scalar("QueryScale")
        if self.needs_lengths:
            lengths = positions.lengths if context.lengths is None else context.lengths
            of_rows = self._factor(in_double(lengths)[:, None]).to(dtype=dtype, device=coords.device)
            return Rotation(TokenScale(of_rows[:, None, :, None]), identity)
        real = positions.document != PADDING
        if is_readable(coords) and bool((coords < 0).logical_and(real).any()):
            lowest = coords.masked_fill(~real.expand(coords.shape), 0).min().item()
            raise PositionError(f"QueryScale encodes positions from 0 on, got {lowest}")
        n = in_double(coords).clamp(min=0) + 1  # padding may be negative, and unread positions
        if self.form in LEARNED:
            factor = self._learned(n.log().to(dtype=dtype, device=coords.device), context)
        else:
            factor = self._factor(n).to(dtype=dtype, device=coords.device)[:, None]
        return Rotation(TokenScale(factor[..., None], factor.size(1) if self.form in LEARNED else None), identity)


ENTRY = Entry(
    name="query_scale",
    scheme=QueryScale,
    paper="Nakanishi 2025, and models of 2024–26",
    laws=frozenset({Law.ABSOLUTE, Law.UNIQUE, Law.DIRECTED, Law.LENGTH_FREE, Law.FRACTIONAL, Law.DETERMINISTIC}),
    cost="one product per query and layer",
    build=lambda shape: QueryScale("ssmax", num_heads=shape.num_heads),
    learned="1 or 2 per head in two of its forms",
    does="scales queries by their position or the length of the text, by the formula of one of nine models",
    limits="encodes the query's position, not the keys'",
    formula=lines(
        r"s_{ij} = c(n) \, \frac{q_i \cdot k_j}{\sqrt{d}}, \qquad n = p_i + 1",
        r"c(n) = \allowbreak \begin{cases} 1 + a \, \ln(1 + \lfloor n / L \rfloor) & \mbox{llama4} \\ "
        r"1 + a \, \ln(1 + \lfloor (n - 1) / L \rfloor) & \mbox{ministral3} \\ "
        r"1 + a \, \ln \max(1, n / L) & \mbox{inkling} \\ (1 + n / L)^a & \mbox{beam} \\ "
        r"\max(1, \ln n / \ln L) & \mbox{rerope} \\ s_h \, \ln n + b_h & \mbox{mistral\_large4} \\ "
        r"s_h \, \ln n & \mbox{ssmax} \end{cases}",
        r"\mbox{with } n \mbox{ the length of the text: } c(n) = "
        r"\allowbreak \begin{cases} (1 + a \, \ln \max(1, n / L))^2 & \mbox{chunkllama} \\ "
        r"1 + a \, \ln \max(1, n / L) & \mbox{qwen2\_5\_1m} \end{cases}",
    ),
    symbols={"length": "L", "strength": "a"},
    example='posenc.attention(q, k, v, posenc.RoPE(64) + posenc.QueryScale("llama4", length=8192), is_causal=True)',
    users="Llama 4 without RoPE, Ministral 3, Mistral 4 and Large 4, Inkling, Beam, ChunkLlama, Qwen2.5-1M",
    url="https://arxiv.org/abs/2501.19399",
    avoid="**By itself.** It encodes where a query is, and not where the keys are. Compose it with `RoPE`.",
)
