"""Ready schedules: which layer of a published model rotates with which base, scaling and window, and which has none.

Each function gives a `Schedule` of the model's own numbers, and every one of them can be changed. Layers are told by
their numbers, from 0, in lists named for what these layers have: ``nope_layers`` have no position, ``global_layers``
see the whole text. In configurations of transformers, ``no_rope_layers`` is a list of flags in which 1 means that the
layer does rotate; here such a list is a ValueError.

>>> smollm3(num_layers=8)
Schedule(
  layers 0-2, 4-6: RoPE(128, base=5000000.0, layout='half', rotary_dim=128, axes=1), whole text
  layers 3, 7: NoPE() (no position), whole text
)

What a schedule does not say is the model's own: norms of queries and keys, the scale of the softmax (Gemma's
query_pre_attn_scalar), and sinks, which are an argument of attention (gpt-oss).
Sources: transformers' modeling and configuration files of each model were read, and the tests hold each schedule to
them; the numbers of the published checkpoints are second-hand, from copies of their configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from posenc.arguments import shown, whole
from posenc.positions.tiles import Chunk, Window
from posenc.rotation.scalings import PositionInterpolation, Scaling, YaRN
from posenc.schedule import Schedule
from posenc.scheme import Scheme
from posenc.schemes.mla import MLA
from posenc.schemes.nope import NoPE
from posenc.schemes.query_scale import QueryScale
from posenc.schemes.rope import RoPE

GEMMA3_SCALING = PositionInterpolation(8.0)
GPT_OSS_SCALING = YaRN(32.0, 4096, truncate=False)
DEEPSEEK_V3_SCALING = YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)


def gemma3(
    num_layers: int = 34,
    head_dim: int = 256,
    *,
    local_base: float = 10_000.0,
    global_base: float = 1_000_000.0,
    global_scaling: Scaling | None = GEMMA3_SCALING,
    global_layers: Iterable[int] | None = None,
    window: int = 1024,
) -> Schedule:
    """Gemma 3: five layers with a window and a small base, then one of the whole text with a large base.

    The numbers are those of 4B. 12B has 48 layers, 27B 62 layers and head_dim 128, 1B 26 layers, a window of 512 and no
    scaling. ``global_layers`` are by default 5, 11, 17, ...; the scaling is theirs alone.
    """
    whole_text = _layers("global_layers", global_layers, num_layers, every=6)
    near = RoPE(head_dim, base=local_base)
    far = RoPE(head_dim, base=global_base, scaling=global_scaling)
    return _schedule(num_layers, whole_text, (far, None), (near, window))


def smollm3(
    num_layers: int = 36,
    head_dim: int = 128,
    *,
    base: float = 5_000_000.0,
    scaling: Scaling | None = None,
    nope_layers: Iterable[int] | None = None,
) -> Schedule:
    """SmolLM3: every fourth layer has no position, the others rotate; all see the whole text.

    ``nope_layers`` are by default 3, 7, 11, .... Past 64K tokens the model's card has the scaling YaRN(2.0, 65536).
    """
    bare = _layers("nope_layers", nope_layers, num_layers, every=4)
    return _schedule(num_layers, bare, (NoPE(), None), (RoPE(head_dim, base=base, scaling=scaling), None))


def cohere2(
    num_layers: int = 32,
    head_dim: int = 128,
    *,
    base: float = 50_000.0,
    nope_layers: Iterable[int] | None = None,
    window: int = 4096,
) -> Schedule:
    """Command R7B and A: three layers rotate within a window, the fourth sees the whole text and has no position.

    The numbers are those of R7B; A has 64 layers. Pairs are interleaved. ``nope_layers`` are by default 3, 7, 11, ...,
    and see the whole text.
    """
    bare = _layers("nope_layers", nope_layers, num_layers, every=4)
    return _schedule(num_layers, bare, (NoPE(), None), (RoPE(head_dim, base, "interleaved"), window))


def gpt_oss(
    num_layers: int = 36,
    head_dim: int = 64,
    *,
    base: float = 150_000.0,
    scaling: Scaling | None = GPT_OSS_SCALING,
    global_layers: Iterable[int] | None = None,
    window: int = 128,
) -> Schedule:
    """gpt-oss: a window in every other layer, from the first on; all layers rotate alike, with YaRN not truncated.

    The numbers are those of 120b; 20b has 24 layers. ``global_layers`` are by default 1, 3, 5, .... Every layer has
    sinks besides, a learned number for each head: ``attention(..., sinks=)``.
    """
    whole_text = _layers("global_layers", global_layers, num_layers, every=2)
    rope = RoPE(head_dim, base=base, scaling=scaling)
    return _schedule(num_layers, whole_text, (rope, None), (rope, window))


def llama4(
    num_layers: int = 48,
    head_dim: int = 128,
    *,
    base: float = 500_000.0,
    scaling: Scaling | None = None,
    nope_layers: Iterable[int] | None = None,
    query_length: int | None = 8192,
    query_strength: float = 0.1,
    chunk: int | None = 8192,
) -> Schedule:
    """Llama 4: three layers rotate; the fourth has no position, but queries times 1 + 0.1 ln(1 + floor((p + 1)/8192)).

    ``nope_layers`` are by default 3, 7, 11, ...; pairs are interleaved. ``query_length`` is the 8192 of `QueryScale`,
    and None leaves the queries alone.
    Layers that rotate see, of the keys before them, those of the query's own ``chunk`` of 8192 tokens; None is all.
    Maverick has no scaling, and Scout Llama3(16.0, 8192, high_freq_factor=1.0).
    """
    bare = _layers("nope_layers", nope_layers, num_layers, every=4)
    far: Scheme = NoPE()
    if query_length is not None:
        far = QueryScale("llama4", length=query_length, strength=query_strength)
    near = RoPE(head_dim, base, "interleaved", scaling=scaling)
    return _schedule(num_layers, bare, (far, None), (near, None if chunk is None else Chunk(whole("chunk", chunk))))


def deepseek_v3(
    num_layers: int = 61,
    head_dim: int = 192,
    rope_dim: int = 64,
    *,
    base: float = 10_000.0,
    scaling: Scaling | None = DEEPSEEK_V3_SCALING,
) -> Schedule:
    """DeepSeek-V3: in all layers the last 64 of 192 channels turn, interleaved, with YaRN, and see the whole text.

    The part of the key that turns is one head for all (see `MLA`); the scale of the softmax has YaRN's factor in it,
    and cos and sin have not, since mscale and mscale_all_dim are equal.
    """
    return _schedule(
        whole("num_layers", num_layers), set(), (NoPE(), None), (MLA(head_dim, rope_dim, base, scaling=scaling), None)
    )


def _layers(name: str, given: Any, num_layers: Any, every: int) -> set[int]:
    """The numbers of the layers that the list names; by default every so manyth, the last of each group."""
    count = whole("num_layers", num_layers)
    if given is None:
        return set(range(every - 1, count, every))
    if isinstance(given, str | Tensor) or not isinstance(given, Iterable):
        raise ValueError(f"{name} must be numbers of layers, got {shown(given)}")
    listed = [whole(f"{name}[{n}]", layer, 0, count - 1) for n, layer in enumerate(given)]
    if len(set(listed)) < len(listed):
        raise ValueError(f"{name} must name each layer once: it is a list of numbers, not of flags, got {listed}")
    return set(listed)


def _schedule(
    num_layers: int, special: set[int], theirs: tuple[Scheme, Window], others: tuple[Scheme, Window]
) -> Schedule:
    layers: Sequence[tuple[Scheme, Window]] = [theirs if n in special else others for n in range(num_layers)]
    return Schedule(layers)
