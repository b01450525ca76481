"""Tiny random models of transformers, and what their own code does with positions, layer by layer."""

import copy
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.falcon import modeling_falcon

from posenc import ALiBi, Chunk, Positions, QueryScale, RoPE, Scheme
from posenc.huggingface import ModelPositions
from posenc.huggingface.questions import asks, is_own
from posenc.positions.tiles import Visibility, visible
from tests.huggingface.configs import ADAPTED, ALIKE, DECODERS, ENCODERS, FAMILIES, OTHERS, SIZES, SMALL

transformers.logging.set_verbosity_error()


def config_of(name: str, **changes: Any) -> Any:
    """The configuration of a row of the table, with other keys."""
    model_type = name.split()[0]
    own = OTHERS[name] if name in OTHERS else SIZES | (FAMILIES | ALIKE).get(name, {})
    given = copy.deepcopy(own | changes)
    return AutoConfig.for_model(model_type, **given)


def small_config(name: str, **changes: Any) -> Any:
    """The configuration of a model that is run."""
    row = {"falcon alibi": "falcon", "gemma3": "gemma3_text", "llama4": "llama4_text"}.get(name, name)
    sizes = {} if name in ("bloom", "mpt") else SMALL  # which name them otherwise
    return config_of(row, **sizes | (DECODERS | ADAPTED | ENCODERS)[name] | changes)


def model_of(config: Any, kind: Any = None, attention: str = "posenc_watched") -> nn.Module:
    """The model without a head, or one of a ``kind``, in float64, with weights that make scores of size 1."""
    torch.manual_seed(3)
    config = copy.deepcopy(config)
    config._experts_implementation = "eager"  # the others take no float64
    config.use_cache = False  # which would have the layers of an encoder
    build = AutoModel.from_config if kind is None else kind._from_config
    return build(config, attn_implementation=attention).double().eval()


def exact_alibi() -> Any:
    """Falcon's ALiBi without its rounding to bfloat16, as a context."""

    def exact(attention_mask: Tensor, num_heads: int, dtype: torch.dtype) -> Tensor:
        places = (attention_mask.cumsum(-1) - 1) * attention_mask
        slopes = torch.tensor(ALiBi(num_heads).slopes, dtype=torch.float64)
        return (slopes[None, :, None] * places[:, None]).reshape(-1, 1, places.size(1)).to(dtype)

    return patch.object(modeling_falcon, "build_alibi_tensor", exact)


@dataclass
class Call:
    """What a layer gave to its attention function."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scaling: float
    softcap: float | None
    has_sinks: bool
    bias: Tensor | None


CALLS: list[Call] = []


def _watched(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kw: Any
) -> Any:
    sinks, bias = kw.get("s_aux") is not None, kw.get("position_bias")
    CALLS.append(Call(query, key, attention_mask, kw["scaling"], kw.get("softcap"), sinks, bias))
    return query.new_zeros(query.size(0), query.size(2), query.size(1), value.size(3)), None


ALL_ATTENTION_FUNCTIONS.register("posenc_watched", _watched)
ALL_MASK_ATTENTION_FUNCTIONS.register("posenc_watched", eager_mask)


@contextmanager
def _inputs(model: nn.Module) -> Iterator[list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]]:
    """What each attention module is called with."""
    seen: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    hooks = [
        module.register_forward_pre_hook(lambda m, args, kwargs: seen.append((m, args, dict(kwargs))), with_kwargs=True)
        for module in model.modules()
        if asks(module) and not is_own(module)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def run(model: nn.Module, ids: Tensor, position_ids: Tensor) -> tuple[list[Call], list[Any]]:
    """What every layer gave to its attention function, and was called with."""
    CALLS.clear()
    given = {"input_ids": ids, "position_ids": position_ids, "use_cache": False}
    takes = inspect.signature(model.forward).parameters
    with torch.no_grad(), _inputs(model) as seen:
        model(**{name: value for name, value in given.items() if name in takes})
    return CALLS.copy(), seen


SCALES_BEFORE = {"openai_privacy_filter"}
"""Models that multiply queries and keys by d^(-1/4) each, before they hand them over with a scale of 1."""

BY_PLACE = {"position_embeddings", "position_ids", "attention_scaling"}
"""What a layer is told of positions."""


def again(model: nn.Module, seen: Any, at_zero: Any, call: int = 0) -> Call:
    """The same layer on the same vectors, with the cos and sin of other positions."""
    module, args, kwargs = seen
    zero = {name: at_zero[2][name] for name in BY_PLACE & set(kwargs)}
    tuned = getattr(module, "attn_temperature_tuning", False)  # Llama 4's depends on the slot, which is never 0
    CALLS.clear()
    try:
        module.attn_temperature_tuning = False
        with torch.no_grad():
            module(*args, **(kwargs | zero))
    finally:
        module.attn_temperature_tuning = tuned
    return CALLS[call]


TOKENS = 14


def positions_of(axes: int, factor: int = 11) -> tuple[Tensor, Positions]:
    """Positions far apart, up to 2,000, as a model takes them and as we do; on three axes t != h != w."""
    line = torch.arange(TOKENS) ** 2 * factor + 3
    if axes == 1:
        return line[None], Positions(line[None])
    coords = torch.stack([line, line.flip(0) + 1, (line * 5) % 1999], -1)
    return coords.permute(1, 0)[:, None], Positions(coords[None], order=torch.arange(TOKENS)[None])


def disagreements(config: Any, said: ModelPositions) -> list[str]:
    """Where the model's own code and what was read of its configuration are not the same, layer by layer."""
    return compared(config, said)[0]


def compared(config: Any, said: ModelPositions, kind: Any = None) -> tuple[list[str], int, float]:
    """Where the model's own code and what was read of its configuration are not the same, layer by layer; the number
    of scores that were compared, and their largest difference as a share of the largest score of the layer.

    Rotations are compared by the scores they give, since a model may permute the channels of both sides. The model
    takes phases in float32, p theta (1 + 2^-23) at most, and cos and sin after that: so scores differ by
    (p 2^-22 + 2^-20) |q| |k| at most.
    """
    model = model_of(config, kind)
    axes = getattr(said.schedule[0][0], "axes", 1)
    if "position_ids" not in inspect.signature(model.forward).parameters and any(s.doors for s, _ in said.schedule):
        raise ValueError("model must take position_ids, to be asked for the same vectors at position 0")
    ids = (torch.arange(TOKENS) % 60 + 2)[None]
    length = (kind is not None and said.length) or 2000
    position_ids, positions = positions_of(axes) if length >= 2000 else positions_of(1, 3 if length > 600 else 1)
    line = torch.arange(TOKENS)[None]
    calls, seen = run(model, ids, position_ids)
    _, at_zero = run(model, ids, position_ids * 0)
    masks, _ = run(model, ids, line if axes == 1 else line[None].expand(3, -1, -1))
    # Some run all their layers several times.
    found = [] if len(calls) % len(said.layers) == 0 else [f"{len(calls)} layers"]
    count, worst = 0, 0.0
    twice = len(calls) // max(len(seen), 1) or 1  # calls of one attention module
    for n, call in enumerate(calls[: len(said.layers) * twice]):
        (scheme, window), layer = said.schedule[n // twice], said.layers[n // twice]
        seen_by, seen_at_zero = seen[n // twice], at_zero[n // twice]
        plain = again(model, seen_by, seen_at_zero, n % twice) if BY_PLACE & set(seen_by[2]) else call
        turns = seen_at_zero[2].get("position_embeddings")
        factor = (
            1.0 if turns is None else max(float(x.real.max()) for x in (turns if isinstance(turns, tuple) else [turns]))
        )
        scale = plain.query.size(-1) ** -0.5 if layer.scale is None else layer.scale
        query, key = plain.query.clone(), plain.key.clone()
        _undo(query, key, scheme, factor)
        by_slot = config.model_type == "llama4_text" and isinstance(scheme, QueryScale)
        encoding = scheme.tokens(Positions(line) if by_slot else positions, dtype=torch.float64)
        query, key = _in_ours(config, query), _in_ours(config, key)
        expected = _scores(*encoding.rotate(query, key))
        came = _scores(call.query, call.key)
        bound = (float(position_ids.max()) * 2**-22 + 2**-20) * factor**2
        bound = bound * query.norm(dim=-1)[..., None] * key.norm(dim=-1).max()
        count += came.numel()
        worst = max(worst, float((expected - came).abs().max() / came.abs().max()))
        if not ((expected - came).abs() <= bound).all():  # nor NaN
            found.append(f"layer {n}: scores")
        if abs(call.scaling / scale - 1) > 1e-12 and config.model_type not in SCALES_BEFORE:
            found.append(f"layer {n}: scale {call.scaling} for {scale}")
        if call.softcap != layer.softcap or call.has_sinks != layer.sinks:
            found.append(f"layer {n}: softcap or sinks")
        if not torch.equal(_seen(masks[n].mask), _visible(said.causal, window)):
            found.append(f"layer {n}: visibility")
    return found, count, worst


def _undo(query: Tensor, key: Tensor, scheme: Scheme, factor: float) -> None:
    """Takes off what position 0 has too: the factor of cos and sin on the channels that turn, and that of queries."""
    for part in scheme.parts:
        if isinstance(part, QueryScale):
            query /= part.tokens(Positions.arange(1), dtype=torch.float64).rotate_query(
                torch.ones_like(query[:, :, :1])
            )
        for x in (query, key) if isinstance(part, RoPE) else ():
            x[..., part.channels.start : part.channels.stop] /= factor


MOVES = {"axk2", "bailing_hybrid", "dots3_note_text", "longcat_flash", "deepseek_v32", "glm_moe_dsa"}
"""Models that move channels whatever their configuration says."""


def _in_ours(config: Any, x: Tensor) -> Tensor:
    """DeepSeek's code moves the turned channels from (2k, 2k + 1) to (k, k + d/2) as it turns them."""
    if not (getattr(config, "rope_interleave", False) or config.model_type in MOVES):
        return x
    first = config.qk_nope_head_dim
    turned = x[..., first:].unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
    return torch.cat((x[..., :first], turned), -1)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    return query @ key.repeat_interleave(query.size(1) // key.size(1), 1).mT


def _seen(mask: Tensor | None) -> Tensor:
    """Which keys a mask leaves; none is made where every token sees every other."""
    return torch.ones(TOKENS, TOKENS, dtype=torch.bool) if mask is None else (mask[0, 0] == 0).expand(TOKENS, -1)


def _visible(causal: bool, window: Any) -> Tensor:
    line = Positions.arange(TOKENS)
    chunk, window = (window.size, None) if isinstance(window, Chunk) else (TOKENS, window)
    left, right = (None, None) if window is None else (window - 1, 0) if isinstance(window, int) else window
    seen = visible(line, line, Visibility(causal, left, right))
    seen = torch.ones(TOKENS, TOKENS, dtype=torch.bool) if seen is None else seen[0]
    block = torch.arange(TOKENS) // chunk
    return seen & (block[:, None] == block)


class Scores(TorchFunctionMode):
    """Notes the queries and keys that are multiplied first before each softmax, and what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.product: Any = None
        self.found: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if func is torch.full and isinstance(args[-1], float):
            kwargs.setdefault("dtype", torch.float64)
        if name in ("matmul", "bmm", "baddbmm") and self.product is None:
            self.product = [x if x.dim() == 4 else x[None] for x in args[-2:]]
        elif name == "softmax" and self.product is not None:
            query, key = self.product[0], self.product[1].mT
            self.found.append((query, key, args[0].view(1, query.size(1), query.size(2), key.size(2))))
        elif name == "dropout":  # of weights or of what attention gives
            self.product = None
        return func(*args, **kwargs)


SCALED = {"clvp_decoder", "deberta", "deberta-v2", "flaubert", "mvp", "trocr", "xglm", "xlm"}
"""Models whose code divides queries or keys by the square root of their channels before it multiplies them."""


def compared_by_softmax(config: Any, said: ModelPositions, kind: Any) -> tuple[list[str], int, float]:
    """As `compared`, of attention that has code of its own: what its softmax takes, from a text of one token, whose
    queries and keys at position 0 are those of all positions before they turn."""
    model: Any = model_of(config, kind, "eager")
    with torch.no_grad(), Scores() as seen:
        model(input_ids=torch.full((1, TOKENS), 5))
    found = [] if len(seen.found) == len(said.layers) else [f"{len(seen.found)} layers"]
    count, worst = 0, 0.0
    for n, ((query, key, came), (scheme, window), layer) in enumerate(
        zip(seen.found, said.schedule, said.layers, strict=False)
    ):
        visible = _visible(said.causal, window).expand_as(came)
        if not torch.equal(came > -5000, visible):
            found.append(f"layer {n}: visibility")
        if scheme.doors:
            query, key = (x[:, :, :1].repeat(1, 1, TOKENS, 1) for x in (query, key))
        encoding = scheme.tokens(Positions.arange(TOKENS), dtype=torch.float64)
        scale = query.size(-1) ** -0.5 if layer.scale is None else layer.scale
        ours, came = _scores(*encoding.rotate(query, key))[visible], came[visible]
        ours *= scale * math.sqrt(query.size(-1)) if config.model_type in SCALED else scale
        size = float(came.abs().max())
        count, worst = count + came.numel(), max(worst, float((ours - came).abs().max()) / size)
        if worst > 1e-5:
            found.append(f"layer {n}: scores")
    return found, count, worst
