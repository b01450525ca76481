"""Schedules of published models: the scheme, scaling and window of each layer.

Each function returns a `Schedule` with the model's values as defaults. Layers are listed by number, from 0:
``nope_layers`` have no positional encoding, ``global_layers`` attend to the whole text. (In configurations of
transformers, ``no_rope_layers`` is a list of flags where 1 means that the layer rotates; passing it here raises
ValueError.)

>>> smollm3(num_layers=8)
Schedule(
  layers 0-2, 4-6: RoPE(128, base=5000000.0, layout='half', rotary_dim=128, axes=1), whole text
  layers 3, 7: NoPE() (no position), whole text
)

Not included: norms of queries and keys, the softmax scale (Gemma's query_pre_attn_scalar), and sinks, which are an
argument of attention (gpt-oss).
Sources: transformers' modeling and configuration files of each model, which the tests compare with; the values of
published checkpoints are from copies of their configurations.
"""

from collections.abc import Iterable
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
    """Gemma 3: five layers with a window and a small base, then one global layer with a large base.

    Defaults are those of 4B. 12B has 48 layers, 27B 62 layers and head_dim 128, 1B 26 layers, a window of 512 and no
    scaling. ``global_layers`` default to 5, 11, 17, ...; only they are scaled.
    """
    near = RoPE(head_dim, base=local_base)
    far = RoPE(head_dim, base=global_base, scaling=global_scaling)
    return _schedule(num_layers, "global_layers", global_layers, 6, (far, None), (near, window))


def smollm3(
    num_layers: int = 36,
    head_dim: int = 128,
    *,
    base: float = 5_000_000.0,
    scaling: Scaling | None = None,
    nope_layers: Iterable[int] | None = None,
) -> Schedule:
    """SmolLM3: every fourth layer has no positional encoding, the others RoPE; all attend to the whole text.

    ``nope_layers`` default to 3, 7, 11, .... Beyond 64K tokens the model card recommends YaRN(2.0, 65536).
    """
    rope = RoPE(head_dim, base=base, scaling=scaling)
    return _schedule(num_layers, "nope_layers", nope_layers, 4, (NoPE(), None), (rope, None))


def cohere2(
    num_layers: int = 32,
    head_dim: int = 128,
    *,
    base: float = 50_000.0,
    nope_layers: Iterable[int] | None = None,
    window: int = 4096,
) -> Schedule:
    """Command R7B and A: three layers with RoPE and a window, then a global layer without positional encoding.

    Defaults are those of R7B; A has 64 layers. Pairs are interleaved. ``nope_layers``, which are global, default to 3,
    7, 11, ....
    """
    rope = RoPE(head_dim, base, "interleaved")
    return _schedule(num_layers, "nope_layers", nope_layers, 4, (NoPE(), None), (rope, window))


def gpt_oss(
    num_layers: int = 36,
    head_dim: int = 64,
    *,
    base: float = 150_000.0,
    scaling: Scaling | None = GPT_OSS_SCALING,
    global_layers: Iterable[int] | None = None,
    window: int = 128,
) -> Schedule:
    """gpt-oss: a window in every other layer, from the first on; all layers have the same RoPE, with untruncated YaRN.

    Defaults are those of 120b; 20b has 24 layers. ``global_layers`` default to 1, 3, 5, .... Every layer also has
    sinks, a learned number per head: ``attention(..., sinks=)``.
    """
    rope = RoPE(head_dim, base=base, scaling=scaling)
    return _schedule(num_layers, "global_layers", global_layers, 2, (rope, None), (rope, window))


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
    """Llama 4: three layers with RoPE, then one without, whose queries are times 1 + 0.1 ln(1 + floor((p + 1)/8192)).

    ``nope_layers`` default to 3, 7, 11, ...; pairs are interleaved. ``query_length`` is the 8192 of `QueryScale`; None
    does not scale queries. Layers with RoPE attend only within the query's own ``chunk`` of 8192 tokens; None is the
    whole text. Maverick has no scaling, Scout Llama3(16.0, 8192, high_freq_factor=1.0).
    """
    far: Scheme = NoPE()
    if query_length is not None:
        far = QueryScale("llama4", length=query_length, strength=query_strength)
    near = RoPE(head_dim, base, "interleaved", scaling=scaling)
    window = None if chunk is None else Chunk(whole("chunk", chunk))
    return _schedule(num_layers, "nope_layers", nope_layers, 4, (far, None), (near, window))


def deepseek_v3(
    num_layers: int = 61,
    head_dim: int = 192,
    rope_dim: int = 64,
    *,
    base: float = 10_000.0,
    scaling: Scaling | None = DEEPSEEK_V3_SCALING,
) -> Schedule:
    """DeepSeek-V3: all layers are global and rotate the last 64 of 192 channels, interleaved, with YaRN.

    All heads share the rotated part of the key (see `MLA`). The softmax scale includes YaRN's factor; cos and sin do
    not, since mscale and mscale_all_dim are equal.
    """
    return Schedule([(MLA(head_dim, rope_dim, base, scaling=scaling), None)] * whole("num_layers", num_layers))


def _schedule(
    num_layers: Any, name: str, given: Any, every: int, special: tuple[Scheme, Window], others: tuple[Scheme, Window]
) -> Schedule:
    """One pair for the layers ``given`` by ``name``, by default the last of ``every`` few; another for the others."""
    count = whole("num_layers", num_layers)
    given = range(every - 1, count, every) if given is None else given
    if isinstance(given, (str, Tensor)) or not isinstance(given, Iterable):
        raise ValueError(f"{name} must be numbers of layers, got {shown(given)}")
    listed = [whole(f"{name}[{n}]", layer, 0, count - 1) for n, layer in enumerate(given)]
    if len(set(listed)) < len(listed):
        raise ValueError(f"{name} must be a list of distinct layer numbers, not of flags, got {listed}")
    return Schedule([special if n in listed else others for n in range(count)])
