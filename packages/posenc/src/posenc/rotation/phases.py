"""Phases p * theta_k in float64, and the rotation of channel pairs, for sinusoidal and rotary schemes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from posenc import compat
from posenc.arguments import check_type
from posenc.positions.positions import PositionError, Positions
from posenc.rotation import fused
from posenc.rotation.maps import FOR_KEY_HEADS, check_fits, shared_by

PairLayout = Literal["half", "interleaved"]


FURTHEST = 2**53  # beyond it float64 cannot represent every integer


def exact(device: torch.device | None) -> torch.device | None:
    """The device for float64: the device itself, or the CPU if it does not support float64 (MPS)."""
    return torch.device("cpu") if device is not None and device.type == "mps" else device


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device that does not support it."""
    return torch.float64 if exact(device) == device else torch.float32


_CONSTANTS: dict[Hashable, Tensor] = {}


def in_double(x: Tensor) -> Float64[Tensor, "..."]:
    """x in float64, on a device that supports it."""
    return x.to(device=exact(x.device), dtype=torch.float64)


def constant(make: Callable[..., Tensor], *numbers: Hashable, device: torch.device) -> Tensor:
    """``make(*numbers, device)``, which nobody may change: made and copied to the device once, where nothing traces,
    and before a capture. It is never freed, since CUDA graphs may read it."""
    if not compat.is_undisturbed():
        return make(*numbers, device)
    asked = make, numbers, device
    if asked not in _CONSTANTS:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return make(*numbers, device)
        with torch.inference_mode(False):
            made = make(*numbers, torch.device("cpu"))
            _CONSTANTS[asked] = made.to(device)  # which waits for the copy: any stream may read it
    return _CONSTANTS[asked]


def coords_of(
    positions: Positions, axes: int, scheme: str, made_by: str | None = None
) -> Shaped[Tensor, "rows tokens axes"]:
    """The coordinates of each token. Raises ValueError, naming ``scheme``, unless positions have ``axes`` axes, with
    the way to build the scheme for them or, if ``made_by`` is given, to make its positions. Also raises the
    PositionError of `check_held`."""
    check_type("positions", positions, Positions)
    coords = positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]
    if coords.size(-1) != axes:
        takes, given = "one coordinate" if axes == 1 else f"{axes} coordinates", coords.size(-1)
        how = f"build it with axes={given}" if made_by is None else f"make them with {made_by}"
        if (axes, given, made_by) == (2, 1, None):
            how = f"make them with Positions.grid(height, width), or {how}"
        raise ValueError(f"{scheme} takes {takes} per token, got positions of {given} axes: {how}")
    check_held(positions, scheme)
    return coords


def check_held(positions: Positions, scheme: str) -> None:
    """PositionError, naming ``scheme``, for a position beyond 2**53, where float64 cannot represent every integer, if
    that is known without reading from a GPU."""
    if torch.compiler.is_compiling() or compat.is_transformed():
        return
    for end in positions.layout.bounds or ():
        if abs(end) > FURTHEST:
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


def grown(n: Float64[Tensor, "..."], length: int, strength: float) -> Float64[Tensor, "..."]:
    """1 + strength ln max(1, n / length): a factor that is 1 up to ``length`` and then grows logarithmically."""
    return 1 + strength * (n / length).clamp(min=1.0).log()


def alibi_slopes(heads: int, dtype: torch.dtype, device: torch.device | None = None) -> Float[Tensor, " heads"]:
    """ALiBi's slopes: 2^(-8h/H) for a power of two, else those of the next lower one and every other of twice as many.

    They are computed on the device: a list of numbers would be copied to the GPU in every graph.
    """
    power = 2 ** int(math.log2(heads))
    h = torch.arange(heads, dtype=dtype, device=device)
    return torch.exp2(-torch.where(h < power, 8 * (h + 1) / power, 8 * (2 * (h - power) + 1) / (2 * power)))


def drawn(count: int, seed: int, device: torch.device | None = None) -> Float64[Tensor, " count"]:
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
        return self.fitted_to(x)._turned(x)

    def fitted_to(self, x: Float[Tensor, "batch heads tokens head_dim"]) -> PairRotation:
        """The same rotation with cos and sin for the heads of x, (rows or 1, heads or 1, tokens or 1, pairs). Raises
        the errors of a call."""
        if x.size(-1) != self.head_dim:
            raise ValueError(f"the rotation was made for head_dim {self.head_dim}, got q or k of head_dim {x.size(-1)}")
        fitted = self
        if x.dim() == 4 and self.cos.size(1) != 1:
            cos, sin = (shared_by(angle, x.size(1)) for angle in (self.cos, self.sin))
            fitted = self if cos is self.cos else replace(self, cos=cos, sin=sin)
        check_fits("the rotation", fitted.cos.shape[:-1], x, hint=FOR_KEY_HEADS)
        return fitted

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
            fused.takes(x, self.cos, self.sin)
            and self.first + 2 * self.cos.size(-1) <= x.size(-1)
            and (self.heads is None or self.cos.size(1) == 1)
        )

    def _turned(self, x: Tensor) -> Tensor:
        if self._is_one_pass(x):
            return _turned_at_once(x, self, 1.0)
        if self.heads is not None:
            start, stop = self.heads_of(x)
            return torch.cat((x[:, :start], replace(self, heads=None)(x[:, start:stop]), x[:, stop:]), 1)
        if self.first:
            rest = replace(self, first=0, head_dim=self.head_dim - self.first)
            return torch.cat((x[..., : self.first], rest(x[..., self.first :])), -1)
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = self.cos.to(dtype), self.sin.to(dtype)
        # inductor fuses plain operations best, and they support forward-mode derivatives.
        if torch.compiler.is_compiling() or compat.is_forward_mode():
            return _as_one_expression(x, cos, sin, self.layout)
        return _turned(x, cos, sin, self.layout)


def turned_to(
    coords: Shaped[Tensor, "rows tokens"], head_dim: int, base: float, layout: PairLayout, dtype: torch.dtype
) -> PairRotation:
    """The rotation of all channel pairs of head_dim by p base^(-2k/head_dim), in ``dtype``."""
    angle = phases(coords, frequencies(head_dim, base, coords.device))
    return PairRotation.by(angle, coords, dtype, layout, head_dim)


def _pairs(x: Tensor, pairs: int, layout: PairLayout) -> tuple[Tensor, Tensor]:
    """Views of the first and the second channel of every pair."""
    if layout == "half":
        return x[..., :pairs], x[..., pairs : 2 * pairs]
    return x[..., 0 : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]


def _joined(a: Tensor, b: Tensor, layout: PairLayout) -> Tensor:
    """Joins the first and the second channel of every pair."""
    return torch.stack((a, b), -2 if layout == "half" else -1).flatten(-2)


def _as_one_expression(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
    """The rotation for inductor, which fuses it into one loop. Rounded before the channels are joined, since inductor
    would otherwise write them in float32 first and round them in another loop."""
    a, b = (half.to(cos.dtype) for half in _pairs(x, cos.size(-1), layout))
    turned = _joined((a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype), layout)
    rest = x[..., 2 * cos.size(-1) :]
    return torch.cat((turned, rest), -1) if rest.size(-1) else turned


# Elements rotated at a time in half precision on the CPU, so that their float32 copies (4 MB) stay in cache.
_BLOCK = 2**20


def _turn_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> None:
    """The rotation in three passes over memory: x times cos, then each half plus or minus the other times sin."""
    pairs = cos.size(-1)
    if x.size(-1) > 2 * pairs:
        out[..., 2 * pairs :] = x[..., 2 * pairs :]
        x, out = x[..., : 2 * pairs], out[..., : 2 * pairs]
    torch.mul(x, _joined(cos, cos, layout), out=out)
    (a, b), (turned_a, turned_b) = _pairs(x, pairs, layout), _pairs(out, pairs, layout)
    turned_a.addcmul_(b, sin, value=-1)
    turned_b.addcmul_(a, sin)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
    """The turn, with a derivative where one is asked for: PyTorch binds its arguments anew in every call."""
    is_kept = x.requires_grad or cos.requires_grad or sin.requires_grad
    if not (is_kept and torch.is_grad_enabled()) and not compat.is_transformed():
        return _Turn.forward(x, cos, sin, layout)
    turned: Tensor = _Turn.apply(x, cos, sin, layout)  # type: ignore[no-untyped-call]
    return turned


class _Turn(torch.autograd.Function):
    """The rotation in eager mode, where every operation is a pass over memory."""

    @staticmethod
    def forward(x: Tensor, cos: Tensor, sin: Tensor, layout: PairLayout) -> Tensor:
        if x.dtype != cos.dtype and x.device.type != "cpu":
            return _Turn.forward(x.to(cos.dtype), cos, sin, layout).to(x.dtype)
        out = torch.empty_like(x)
        if x.dtype == cos.dtype:
            _turn_into(out, x, cos, sin, layout)
            return out
        tokens = max(1, _BLOCK * x.size(-2) // max(1, x.numel()))
        for start in range(0, x.size(-2), tokens):
            here = slice(start, start + tokens)
            wide = x[..., here, :].to(cos.dtype)
            turned = torch.empty_like(wide)
            c, s = (angle if angle.size(-2) == 1 else angle[..., here, :] for angle in (cos, sin))
            _turn_into(turned, wide, c, s, layout)
            out[..., here, :] = turned
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
            of_x = _turned(gradient, cos, -sin, ctx.layout)
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
        return _Turn.apply(x, *torch.broadcast_tensors(*angles), layout), 0  # type: ignore[no-untyped-call]


def _turned_at_once(x: Tensor, turn: PairRotation, sign: float) -> Tensor:
    """x rotated by the Triton kernel, or with sign -1 rotated back."""
    if torch.is_grad_enabled() and x.requires_grad:
        turned: Tensor = _TurnAtOnce.apply(x, turn.cos, turn.sin, turn, sign)  # type: ignore[no-untyped-call]
        return turned
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty_like(x)  # with the order of x's dimensions in memory: that of a projection, if x is a view of one
    heads = turn.heads_of(x)
    fused.rotate_into(out, x, turn.cos, turn.sin, turn.layout == "interleaved", turn.first, heads, sign)
    return out


class _TurnAtOnce(torch.autograd.Function):
    """Its gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, turn: PairRotation, sign: float) -> Tensor:
        ctx.turn, ctx.sign = turn, sign
        ctx.save_for_backward(cos, sin)
        return _turned_at_once(x, turn, sign)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin = ctx.saved_tensors
        turn = replace(ctx.turn, cos=cos, sin=sin)
        if turn._is_one_pass(gradient):
            return _turned_at_once(gradient, turn, -ctx.sign), None, None, None, None
        return (turn.inverse() if ctx.sign > 0 else turn)(gradient), None, None, None, None
