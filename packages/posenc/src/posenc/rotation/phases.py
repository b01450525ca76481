"""Phases p * theta_k in float64, maps of tokens, and the rotation of channel pairs, for sinusoids and RoPE."""

from __future__ import annotations

import functools
import importlib
import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, TypeAlias

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_choice, check_type, one_or, shown
from posenc.positions.positions import PositionError, Positions
from posenc.rotation import onnx
from posenc.rotation.launch import launch

FOR_KEY_HEADS = ": build it for as many heads as keys have"

TokenMap: TypeAlias = Callable[[Tensor], Tensor]
"""A map per token: x (batch, heads, tokens, head_dim) to the same batch, heads and tokens, in the same dtype."""


def identity(x: Tensor) -> Tensor:
    """The identity map."""
    return x


@dataclass(frozen=True, eq=False)
class TokenScale:
    """Multiplies x (batch, heads, tokens, channels) by a number per token, in float32 or wider, rounded once."""

    factor: Float[Tensor, "rows heads tokens 1"]
    heads: int | None = None  # the number of heads of x; None: any

    def __call__(self, x: Float[Tensor, "batch heads tokens channels"]) -> Float[Tensor, "batch heads tokens channels"]:
        """The scaled x, in x's dtype. Raises ValueError if the shapes do not match."""
        check_fits("the scale", self.factor.shape[:-1], x, self.heads)
        dtype = torch.promote_types(x.dtype, torch.float32)
        return (x.to(dtype) * self.factor.to(dtype)).to(x.dtype)


@dataclass(frozen=True, eq=False)
class MapSequence:
    """Maps that are applied one after the other."""

    maps: tuple[TokenMap, ...]

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The mapped x."""
        return reduce(lambda y, token_map: token_map(y), self.maps, x)


@dataclass(frozen=True, eq=False)
class OfHeads:
    """A map of keys, or of queries, (batch, heads, tokens, head_dim) with this number of heads. The wrapped map also
    accepts those with more heads."""

    token_map: TokenMap
    heads: int
    side: Literal["keys", "queries"] = "keys"

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The mapped x. Raises ValueError for another number of heads."""
        return self.fitted_to(x)(x)

    def fitted_to(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> TokenMap:
        """The wrapped map. Raises ValueError for another number of heads."""
        if x.dim() == 4 and x.size(1) != self.heads:
            hint = FOR_KEY_HEADS if self.side == "keys" else ""
            raise ValueError(f"the rotation was made for {self.side} of {self.heads} heads, got {x.size(1)}{hint}")
        return self.token_map


def kind_of(token_map: TokenMap) -> Hashable:
    """What a map does, by its name and the channels and heads that it changes. Queries and keys must not be mapped by
    two maps of a kind."""
    inside = token_map.token_map if isinstance(token_map, OfHeads) else token_map
    name, attributes = getattr(inside, "__qualname__", type(inside).__qualname__), getattr(inside, "__dict__", {})
    return name, *(attributes[part] for part in ("first", "heads") if isinstance(attributes.get(part), (int, range)))


def check_fits(what: str, shape: Sequence[int], x: Tensor, heads: int | None = None, hint: str = "") -> None:
    """ValueError, ending with ``hint`` for a wrong number of heads, unless x is (batch, heads, tokens, channels) and
    the (batch, heads, tokens) that ``what`` was made for broadcast to it. ``heads`` is their exact number, if given."""
    is_misfit = x.dim() != 4 or any(not one_or(m, n) for m, n in zip(shape, x.shape[:-1], strict=True))
    if is_misfit or (heads is not None and heads != x.size(1)):
        hint = hint if x.dim() == 4 and not one_or(shape[1], x.size(1)) else ""
        raise ValueError(f"{what} was made for (batch, heads, tokens) {tuple(shape)}, got {tuple(x.shape)}{hint}")


def shared_by(of_heads: Tensor, heads: int) -> Tensor:
    """A tensor (rows, key heads, ...) repeated for ``heads`` query heads; unchanged if ``heads`` is not a multiple."""
    group, over = heads // of_heads.size(1), heads % of_heads.size(1)  # symbolic sizes do not support divmod
    return of_heads if over or group <= 1 else of_heads.repeat_interleave(group, 1)


def map_bands(
    maps: Sequence[Sequence[tuple[TokenMap, TokenMap]]], query: Tensor, key: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of each band. ``maps`` are the query and key maps of consecutive rotations: a pair for each
    band, or one for all. Maps that bands share run once. Raises ValueError for several widths."""
    rotated = [(query, key)]
    for of_bands in maps:
        if len(of_bands) == len(rotated) == 1:
            rotated = [(of_q(q), of_k(k)) for (of_q, of_k), (q, k) in zip(of_bands, rotated, strict=True)]
            continue
        rotated = rotated if len(rotated) > 1 else rotated * len(of_bands)
        of_bands = of_bands if len(of_bands) > 1 else list(of_bands) * len(rotated)
        results: list[tuple[TokenMap, Tensor, Tensor]] = []
        rotated = [
            (_map_once(of_q, q, results), _map_once(of_k, k, results))
            for (of_q, of_k), (q, k) in zip(of_bands, rotated, strict=True)
        ]
    widths = [x.size(-1) for pair in rotated for x in pair]
    if len(rotated) > 1 and len(set(widths)) > 1:
        raise ValueError(
            f"bands must give queries and keys the width that they have for near pairs, {widths[0]}, got {widths}"
        )
    return rotated


def _map_once(token_map: TokenMap, x: Tensor, results: list[tuple[TokenMap, Tensor, Tensor]]) -> Tensor:
    """``token_map(x)``, found among ``results`` or put there."""
    for same, of, out in results:
        # By identity, not by id: a graph that depends on the id of a tensor would be recompiled for each tensor.
        if of is x and same is token_map:
            return out
    results.append((token_map, x, token_map(x)))
    return results[-1][2]


def several_scales(scales: Sequence[float | None]) -> str:
    """The error message for several rotations that each set the softmax scale."""
    return f"only one rotation can set the softmax scale, got {', '.join(map(shown, scales))}"


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FALLBACK_WARNING = "rotations on {} take PyTorch's operations, since the Triton kernel for them cannot run: {}"
UNTRIED_REASON = "a CUDA graph is captured, and nothing was rotated before; run once what is captured"
TRANSIENT_ERRORS = ("out of memory", "capturing")  # errors that say nothing of the next trial
_KERNEL_RUNS: dict[torch.device, bool] = {}
"""Whether the kernel runs, for each device that was tried: as many entries as there are devices, and none becomes
stale, since neither Triton nor the device changes within a process."""


@functools.cache
def _kernel() -> Any:
    """The kernel; None where there is no Triton. It is imported on first use."""
    try:
        return importlib.import_module("posenc.rotation.kernel").rotate
    except ImportError:
        return None


def kernel_runs_on(device: torch.device) -> bool:
    """Whether the kernel runs on a device, found out by running it. Warns where Triton is installed, but cannot compile
    for the device, or has no C compiler for what launches kernels. Nothing is remembered of a device without memory to
    spare, nor of one where a CUDA graph is captured, on this stream or by another thread."""
    if device.type != "cuda" or not torch.cuda.is_available() or _kernel() is None:
        return False
    if device in _KERNEL_RUNS:
        return _KERNEL_RUNS[device]
    if torch.cuda.is_current_stream_capturing():
        warnings.warn(FALLBACK_WARNING.format(device, UNTRIED_REASON), stacklevel=2)
        return False
    try:
        x = torch.ones(1, 1, 1, 2, device=device)
        rotate_into(x, x, x[..., :1], x[..., 1:], is_interleaved=False)
    except Exception as error:  # compilers raise many kinds
        warnings.warn(FALLBACK_WARNING.format(device, error), stacklevel=2)
        if not any(words in str(error) for words in TRANSIENT_ERRORS):
            _KERNEL_RUNS[device] = False
        return False
    _KERNEL_RUNS[device] = True
    return True


def kernel_supports(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel rotates x: it has no gradients of angles, and nothing but the kernel may be at work here."""
    return (
        not torch.compiler.is_compiling()
        and x.dtype in DTYPES
        and x.device == cos.device == sin.device
        and x.numel() > 0
        and cos.numel() > 0
        and cos.shape == sin.shape
        and not (torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad))
        and compat.is_plain_memory((x, cos, sin))
        and kernel_runs_on(x.device)
    )


def rotate_into(*given: Any, **how: Any) -> None:
    """`launch` of the kernel, with these arguments after it."""
    launch(_kernel(), *given, **how)


PairLayout = Literal["half", "interleaved"]


MAX_POSITION = 2**53  # beyond it float64 cannot represent every integer


def exact(device: torch.device | None) -> torch.device | None:
    """The device for float64: the device itself, or the CPU if it does not support float64 (MPS)."""
    return torch.device("cpu") if device is not None and device.type == "mps" else device


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that does not support it."""
    return torch.float64 if exact(device) == device else torch.float32


MAX_CONSTANTS = 1024
_CONSTANTS: dict[Hashable, Tensor] = {}
"""By the function, its numbers and the device, on which alone a constant depends, so that none becomes stale. At most
`MAX_CONSTANTS` are stored, a few for each scheme in use, and none makes room for another: CUDA graphs may read it."""


def in_double(x: Tensor) -> Float64[Tensor, "..."]:
    """x in float64, on a device that supports it."""
    return x.to(device=exact(x.device), dtype=torch.float64)


def constant(make: Callable[..., Tensor], *numbers: Hashable, device: torch.device) -> Tensor:
    """``make(*numbers, device)``, which nobody may change: computed and copied to the device once, and anew in each
    call while operations are traced, while a CUDA graph is captured, and where `MAX_CONSTANTS` others are stored."""
    if not compat.is_eager():
        return make(*numbers, device)
    key = make, numbers, device
    if key not in _CONSTANTS:
        is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if is_capturing or len(_CONSTANTS) >= MAX_CONSTANTS:
            return make(*numbers, device)
        with torch.inference_mode(False):
            on_cpu = make(*numbers, torch.device("cpu"))
            _CONSTANTS[key] = on_cpu.to(device)  # which waits for the copy: any stream may read it
    return _CONSTANTS[key]


def coords_of(
    positions: Positions, axes: int, scheme: str, made_by: str | None = None
) -> Shaped[Tensor, "rows tokens axes"]:
    """The coordinates of each token. Raises ValueError, naming ``scheme``, unless positions have ``axes`` axes, with
    the way to build the scheme for them or, if ``made_by`` is given, to make its positions. Also raises the
    PositionError of `check_representable`."""
    check_type("positions", positions, Positions)
    coords = positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]
    if coords.size(-1) != axes:
        takes, given = "one coordinate" if axes == 1 else f"{axes} coordinates", coords.size(-1)
        how = f"build it with axes={given}" if made_by is None else f"make them with {made_by}"
        if (axes, given, made_by) == (2, 1, None):
            how = f"make them with Positions.grid(height, width), or {how}"
        raise ValueError(f"{scheme} takes {takes} per token, got positions of {given} axes: {how}")
    check_representable(positions, scheme)
    return coords


def check_representable(positions: Positions, scheme: str) -> None:
    """PositionError, naming ``scheme``, for a position beyond 2**53, where float64 cannot represent every integer, if
    that is known without reading from a GPU."""
    if torch.compiler.is_compiling() or compat.is_transformed():
        return
    for end in positions.layout.bounds or ():
        if abs(end) > MAX_POSITION:
            raise PositionError(
                f"{scheme} encodes positions from -2**53 to 2**53, since float64 cannot represent every integer beyond "
                f"that, got {end}"
            )


def frequencies(dim: int, base: float, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
    """theta_k = base^(-2k/dim) radians per position, k = 0 .. dim/2 - 1, in decreasing order."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=exact(device)) / -dim
    return torch.pow(base, exponents)


def phases(coords: Shaped[Tensor, "..."], theta: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """p * theta_k in radians, one for each frequency.

    In float64, since at p = 2^20 a float32 product is already off by 0.06 rad.
    """
    return in_double(coords)[..., None] * theta


def phases_by_axis(
    coords: Shaped[Tensor, "rows tokens axes"], allocation: Sequence[int], theta: Float64[Tensor, "*rows pairs"]
) -> Float64[Tensor, "rows tokens pairs"]:
    """p_a * theta_k in radians, a = allocation[k]: the phase of pair k by the coordinate of its axis."""
    return in_double(torch.stack([coords[..., axis] for axis in allocation], -1)) * theta


def log_length_scale(n: Float64[Tensor, "..."], length: int, strength: float) -> Float64[Tensor, "..."]:
    """1 + strength ln max(1, n / length): a factor that is 1 up to ``length`` and then grows logarithmically."""
    return 1 + strength * (n / length).clamp(min=1.0).log()


def seeded_normal(count: int, seed: int, device: torch.device | None = None) -> Float64[Tensor, " count"]:
    """Samples from N(0, 1) that depend only on the seed: the same on every device, and computed there.

    A torch.Generator cannot be in a compiled graph, and a list of numbers would be copied to the GPU in every call.
    """
    x = torch.arange(1, count + 1, dtype=torch.int64, device=exact(device)) + seed * 1_000_003
    # splitmix64: a bijection of integers.
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        x = (x ^ ((x >> shift) & ((1 << (64 - shift)) - 1))) * factor
    x = x ^ ((x >> 31) & ((1 << 33) - 1))
    uniform = (((x >> 11) & ((1 << 53) - 1)).to(torch.float64) + 0.5) / 2**53
    return math.sqrt(2) * torch.erfinv(2 * uniform - 1)


@dataclass(frozen=True, eq=False)
class PairRotation:
    """Rotates pairs of channels of x (batch, heads, tokens, head_dim) by angles with these cos and sin.

    (a, b) -> (a cos - b sin, a sin + b cos), for 2 x pairs channels from ``first`` on; the others are unchanged.
    A pair is (k, k + pairs) in the "half" layout and (2k, 2k + 1) in the "interleaved" one. Half-precision x is rotated
    in float32 and rounded once.

    The gradient is rotated by (cos, -sin), the transpose, so cos and sin may include a factor. The backward pass saves
    only cos and sin, and x if they require a gradient.
    """

    cos: Float[Tensor, "rows heads tokens pairs"]
    sin: Float[Tensor, "rows heads tokens pairs"]
    layout: PairLayout
    head_dim: int
    first: int = 0  # the first rotated channel
    heads: range | None = None  # the rotated heads, of ``num_heads``; None: all
    num_heads: int = 0

    @classmethod
    def by(
        cls,
        angle: Float64[Tensor, "rows *heads tokens pairs"],
        like: Tensor,
        dtype: torch.dtype,
        layout: PairLayout,
        head_dim: int,
        first: int = 0,
        factor: float | Tensor = 1.0,
    ) -> PairRotation:
        """The rotation by these angles in radians, times a factor, in ``dtype``, on the device of ``like``. Angles
        (rows, tokens, pairs) apply to every head."""
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        cos, sin = angle.cos(), angle.sin()
        if isinstance(factor, Tensor) or factor != 1.0:
            cos, sin = cos * factor, sin * factor
        if torch.compiler.is_compiling():
            # Stacking materializes them: inductor would recompute them for every head and layer.
            cos, sin = torch.stack((cos, sin))
        cos, sin = (x.to(dtype=dtype, device=like.device) for x in (cos, sin))
        if angle.dim() == 3:
            cos, sin = cos[:, None], sin[:, None]
        return cls(cos, sin, layout, head_dim, first)

    def inverse(self) -> PairRotation:
        """The inverse rotation, if cos and sin include no factor."""
        return replace(self, sin=-self.sin)

    def __call__(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> Float[Tensor, "batch heads tokens head_dim"]:
        """The rotated x, in x's dtype. Raises ValueError if the shape of x does not match. If only some heads are
        rotated, x may have fewer heads, each shared by a group of query heads."""
        return self.fitted_to(x)._rotate(x)

    def fitted_to(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> PairRotation:
        """The same rotation with cos and sin for the heads of x, (rows or 1, heads or 1, tokens or 1, pairs). Raises
        the errors of a call."""
        if x.size(-1) != self.head_dim:
            raise ValueError(f"the rotation was made for head_dim {self.head_dim}, got q or k of head_dim {x.size(-1)}")
        fitting = self
        if x.dim() == 4 and self.cos.size(1) != 1:
            cos, sin = (shared_by(angle, x.size(1)) for angle in (self.cos, self.sin))
            fitting = self if cos is self.cos else replace(self, cos=cos, sin=sin)
        check_fits("the rotation", fitting.cos.shape[:-1], x, hint=FOR_KEY_HEADS)
        return fitting

    def of_tokens(self, tokens: slice) -> PairRotation:
        """The rotation of a slice of the tokens."""
        if self.cos.size(2) == 1:
            return self
        return replace(self, cos=self.cos[:, :, tokens], sin=self.sin[:, :, tokens])

    def heads_of(self, x: Tensor) -> tuple[int, int]:
        """The rotated heads of x, start and stop. Raises ValueError if they are not whole heads of x."""
        if self.heads is None:
            return 0, x.size(1)
        here = max(x.size(1), 1)
        group, over = self.num_heads // here, self.num_heads % here
        if over or group == 0 or self.heads.start % group or self.heads.stop % group:
            raise ValueError(
                f"the rotated heads {self.heads.start}..{self.heads.stop - 1} of {self.num_heads} must be whole "
                f"heads of q or k, got {x.size(1)} heads"
            )
        return self.heads.start // group, self.heads.stop // group

    def _is_one_pass(self, x: Tensor) -> bool:
        """Whether the Triton kernel rotates x, which reads channels and heads where it is told that they are."""
        return (
            kernel_supports(x, self.cos, self.sin)
            and self.first + 2 * self.cos.size(-1) <= x.size(-1)
            and (self.heads is None or self.cos.size(1) == 1)
        )

    def _rotate(self, x: Tensor) -> Tensor:
        if self._is_one_pass(x):
            return _rotate_by_kernel(x, self, 1.0)
        if self.heads is not None:
            start, stop = self.heads_of(x)
            return torch.cat((x[:, :start], replace(self, heads=None)(x[:, start:stop]), x[:, stop:]), 1)
        if self.first:
            rest = replace(self, first=0, head_dim=self.head_dim - self.first)
            return torch.cat((x[..., : self.first], rest(x[..., self.first :])), -1)
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self.cos.to(dtype), self.sin.to(dtype)
        if onnx.is_taken(cos):
            return onnx.rotary_embedding(x, cos, sin, self.layout == "interleaved")
        # inductor fuses plain operations best, and they support forward-mode derivatives.
        if torch.compiler.is_compiling() or compat.is_forward_mode():
            return _as_one_expression(x, cos, sin, self.layout)
        return _rotate(x, cos, sin, self.layout)


def _pairs(x: Tensor, pairs: int, layout: PairLayout) -> tuple[Tensor, Tensor]:
    if layout == "half":
        return x[..., :pairs], x[..., pairs : 2 * pairs]
    return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]


def _join_pairs(a: Tensor, b: Tensor, layout: PairLayout) -> Tensor:
    return torch.stack((a, b), -2 if layout == "half" else -1).flatten(-2)


def _as_one_expression(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
    """The rotation for inductor, which fuses it into one loop. Rounded before the channels are joined, since inductor
    would otherwise write them in float32 first and round them in another loop."""
    a, b = (half.to(cos.dtype) for half in _pairs(x, cos.size(-1), layout))
    rotated = _join_pairs((a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype), layout)
    rest = x[..., 2 * cos.size(-1) :]
    return torch.cat((rotated, rest), -1) if rest.size(-1) else rotated


# Elements rotated at a time in half precision on the CPU, so that their float32 copies (4 MB) stay in cache.
_BLOCK_ELEMENTS = 2**20


def _rotate_pairs_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> None:
    """The rotation in three passes over memory: x times cos, then each half plus or minus the other times sin."""
    pairs = cos.size(-1)
    if x.size(-1) > 2 * pairs:
        out[..., 2 * pairs :] = x[..., 2 * pairs :]
        x, out = x[..., : 2 * pairs], out[..., : 2 * pairs]
    torch.mul(x, _join_pairs(cos, cos, layout), out=out)
    (a, b), (rotated_a, rotated_b) = _pairs(x, pairs, layout), _pairs(out, pairs, layout)
    rotated_a.addcmul_(b, sin, value=-1)
    rotated_b.addcmul_(a, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
    """The rotation, with a derivative where one is asked for: PyTorch binds its arguments anew in every call."""
    requires_grad = x.requires_grad or cos.requires_grad or sin.requires_grad
    if not (requires_grad and torch.is_grad_enabled()) and not compat.is_transformed():
        return _PairRotationFunction.forward(x, cos, sin, layout)
    rotated: Tensor = _PairRotationFunction.apply(x, cos, sin, layout)  # type: ignore[no-untyped-call]
    return rotated


class _PairRotationFunction(torch.autograd.Function):
    """The rotation in eager mode, where every operation is a pass over memory."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
        if x.dtype != cos.dtype and x.device.type != "cpu":
            return _PairRotationFunction.forward(x.to(cos.dtype), cos, sin, layout).to(x.dtype)
        out = torch.empty_like(x)
        if x.dtype == cos.dtype:
            _rotate_pairs_into(out, x, cos, sin, layout)
            return out
        tokens = max(1, _BLOCK_ELEMENTS * x.size(-2) // max(1, x.numel()))
        for start in range(0, x.size(-2), tokens):
            here = slice(start, start + tokens)
            wide = x[..., here, :].to(cos.dtype)
            rotated = torch.empty_like(wide)
            c, s = (angle if angle.size(-2) == 1 else angle[..., here, :] for angle in (cos, sin))
            _rotate_pairs_into(rotated, wide, c, s, layout)
            out[..., here, :] = rotated
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, PairLayout], output: Tensor) -> None:
        x, cos, sin, ctx.layout = inputs
        learned = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        ctx.save_for_backward(cos, sin, x if learned else None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (gradient,), (cos, sin, x) = gradients, ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _rotate(gradient, cos, -sin, ctx.layout)
        if x is None:
            return of_x, None, None, None
        (a, b), (c, d) = (_pairs(t.to(cos.dtype), cos.size(-1), ctx.layout) for t in (x, gradient))
        return of_x, (a * c + b * d).sum_to_size(cos.shape), (a * d - b * c).sum_to_size(sin.shape), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout
    ) -> tuple[Tensor, int]:
        x = x[None].expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        angles = (t if dim is None else t.movedim(dim, 0) for t, dim in ((cos, in_dims[1]), (sin, in_dims[2])))
        return _PairRotationFunction.apply(x, *torch.broadcast_tensors(*angles), layout), 0  # type: ignore[no-untyped-call]


def _rotate_by_kernel(x: Tensor, rotation: PairRotation, sign: float) -> Tensor:
    """x rotated by the Triton kernel, or with sign -1 rotated back."""
    if torch.is_grad_enabled() and x.requires_grad:
        rotated: Tensor = _KernelRotationFunction.apply(x, rotation.cos, rotation.sin, rotation, sign)  # type: ignore[no-untyped-call]
        return rotated
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty_like(x)  # with the order of x's dimensions in memory: that of a projection, if x is a view of one
    heads = rotation.heads_of(x)
    rotate_into(out, x, rotation.cos, rotation.sin, rotation.layout == "interleaved", rotation.first, heads, sign)
    return out


class _KernelRotationFunction(torch.autograd.Function):
    """Its gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, rotation: PairRotation, sign: float) -> Tensor:
        ctx.rotation, ctx.sign = rotation, sign
        ctx.save_for_backward(cos, sin)
        return _rotate_by_kernel(x, rotation, sign)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        rotation = replace(ctx.rotation, cos=cos, sin=sin)
        if rotation._is_one_pass(gradient):
            return _rotate_by_kernel(gradient, rotation, -ctx.sign), None, None, None, None
        return (rotation.inverse() if ctx.sign > 0 else rotation)(gradient), None, None, None, None
