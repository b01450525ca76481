"""Reads the rotary modules of transformers' models, and replaces them.

A rotary module takes the model's ``position_ids`` once per forward pass and returns cos and sin for all layers. Its
frequencies and output form are not taken from its name: it is called with a few positions, and the result is compared.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from posenc.compat import no_grad
from posenc.huggingface.attention import check_runs
from posenc.models.forward_pass import EXCHANGES
from posenc.positions.positions import Positions
from posenc.rotation.given import KINDS
from posenc.rotation.phases import frequencies
from posenc.schemes.rope import RoPE

Form: TypeAlias = Literal["twice", "each twice", "once", "complex"]
"""The order of pairs in cos and sin: all pairs twice, each pair twice in a row, once, or one complex number each."""

PROBE = (3, 1, 7)  # positions that distinguish the forms, small enough for precise angles in float32
CLOSE = 1e-5  # far above the rounding of angles up to 7 in float32, 1e-6, and far below the error of another form


@dataclass(frozen=True)
class Turns:
    """The rotation of one layer type by a rotary module: pair k by p base^(-2k/rotary_dim), before any scaling. ``own``
    describes the model's scaling. ``allocation`` is the axis of each pair, if positions have several axes."""

    base: float
    rotary_dim: int
    form: Form
    own: str
    allocation: tuple[int, ...] | None = None

    def rope(self, scaling: Any = None) -> RoPE:
        """The rotation, with another scaling than the model's."""
        axes = 1 if self.allocation is None else max(self.allocation) + 1
        return RoPE(self.rotary_dim, self.base, axes=axes, allocation=self.allocation, scaling=scaling)


def is_rotary(module: nn.Module) -> bool:
    """Whether it is a module of transformers that returns cos and sin for positions."""
    return "Rotary" in type(module).__name__ and any(name.endswith("inv_freq") for name, _ in module.named_buffers())


def read_turns(module: nn.Module) -> dict[str | None, Turns]:
    """The rotation of a rotary module, by type of layer. ValueError for an unsupported module."""
    name = type(module).__name__
    config: Any = getattr(module, "config", None)
    given = getattr(config, "rope_parameters", None)
    if not isinstance(given, dict):
        raise ValueError(f"{name} has no rope_parameters in its configuration, so its base is not known")
    if any(buffer.is_meta for buffer in module.buffers()):  # it has no weights, so another one is the same
        with torch.device("cpu"):
            probe: Any = type(module)(config=config)
    else:
        probe = copy.deepcopy(module)  # some change their buffers when they are called
    types: list[str | None] = [
        n.removesuffix("_inv_freq")
        for n, _ in probe.named_buffers()
        if n.endswith("_inv_freq") and not n.endswith("original_inv_freq")
    ]
    if not types:
        types = [None]
    return {kind: _read(probe, kind, config, given if kind is None else given[kind]) for kind in types}


def _read(probe: Any, kind: str | None, config: Any, parameters: dict[str, Any]) -> Turns:
    name = type(probe).__name__ if kind is None else f"{type(probe).__name__} of {kind}"
    rope_type, base = parameters.get("rope_type", "default"), parameters.get("rope_theta")
    if rope_type not in KINDS or base is None:
        raise ValueError(f"{name} has rope_type {rope_type!r} of base {base}, and posenc knows {', '.join(KINDS)}")
    kinds = {} if kind is None else {"layer_type": kind}
    if kind is not None and getattr(config, "per_layer_config", None):  # of other heads than the others
        config = config.per_layer_config[kind]
    default, _ = probe.compute_default_rope_parameters(config, device=None, **kinds)
    own_dim = 2 * default.numel()
    expected = frequencies(own_dim, float(base))
    if not torch.allclose(default.double().cpu(), expected, rtol=1e-5, atol=0):
        raise ValueError(f"{name} does not rotate by base^(-2k/{own_dim}) with base {base:g} from its configuration")
    # Scalings read partial_rotary_factor where, as in Mistral 4, the module without one does not.
    rotary_dim = 2 * getattr(probe, "inv_freq" if kind is None else f"{kind}_inv_freq").numel()
    form, allocation = _form(probe, name, kind)
    own, factor = "none" if rope_type == "default" else rope_type, parameters.get("factor")
    own += "" if own == "none" or factor is None else f" by {factor:g}"
    return Turns(float(base), rotary_dim, form, own, allocation)


def _form(probe: Any, name: str, kind: str | None) -> tuple[Form, tuple[int, ...] | None]:
    """The form of cos and sin, and the axis of each pair."""
    prefix = "" if kind is None else f"{kind}_"
    device = getattr(probe, f"{prefix}inv_freq").device
    line = torch.tensor(PROBE, device=device)
    x = torch.zeros((1, 1), dtype=torch.float32, device=device)
    kinds = () if kind is None else (kind,)
    has_axes = "mrope_section" in getattr(probe.config, "rope_parameters", {}) or hasattr(probe, "mrope_section")
    ids = torch.stack([line * (n + 1) for n in range(3)])[:, None] if has_axes else line[None]
    with torch.no_grad():
        given = probe(x, ids, *kinds)
    is_complex = isinstance(given, Tensor)
    cos, sin = (given.real, given.imag) if is_complex else given
    # Read after the call, which changes them if the scaling depends on the length.
    theta, scale = getattr(probe, f"{prefix}inv_freq"), float(getattr(probe, f"{prefix}attention_scaling", 1.0))
    pairs = theta.numel()
    axes = [c * theta.float() for c in (ids.float()[..., None] if has_axes else ids.float()[None, ..., None])]
    for form in _forms(cos.size(-1), pairs, is_complex):
        got = [_once(x.float(), form, pairs) for x in (cos, sin)]
        laid = [_laid(y, form) for y in got]
        if not all(torch.equal(x.float(), y) for x, y in zip((cos, sin), laid, strict=True)):
            continue
        fits = [
            (got[0] - scale * a.cos()).abs().amax((0, 1)) + (got[1] - scale * a.sin()).abs().amax((0, 1)) for a in axes
        ]
        nearest = torch.stack(fits).min(0)
        if got[0].shape == axes[0].shape and bool((nearest.values < CLOSE * 2 * max(1.0, scale)).all()):
            return form, tuple(nearest.indices.tolist()) if has_axes else None
    raise ValueError(f"{name} returns cos and sin in a form that posenc does not know, {tuple(cos.shape)}")


def _forms(width: int, pairs: int, is_complex: bool) -> tuple[Form, ...]:
    if is_complex:
        return ("complex",)
    return ("once",) if width == pairs else ("twice", "each twice") if width == 2 * pairs else ()


def _once(x: Tensor, form: Form, pairs: int) -> Tensor:
    return x[..., :pairs] if form == "twice" else x[..., ::2] if form == "each twice" else x


def _laid(x: Tensor, form: Form) -> Tensor:
    if form == "twice":
        return torch.cat((x, x), -1)
    return x.repeat_interleave(2, -1) if form == "each twice" else x


class PosencRotary(nn.Module):
    """Replaces a rotary module: returns cos and sin of posenc's rotation, exact to float32 at any position, in the form
    that the model expects. ``ropes`` are the rotations by layer type; None means that posenc rotates queries and keys
    in attention, so cos is 1 and sin 0. Layer types that are not in ``ropes`` use the original module.

    The original module is kept and moves with the model. ``config`` is that of the model, whose attention must be
    posenc's if posenc rotates in attention.
    """

    def __init__(
        self, original: nn.Module, turns: dict[str | None, Turns], ropes: dict[str | None, RoPE | None], config: Any
    ) -> None:
        super().__init__()
        self.original = original
        self.turns, self.ropes, self.config_of_model = turns, ropes, config
        self.seen: Tensor | None = None  # the position_ids of the last forward pass, for layers that do not get them

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # a model may ask its rotary module for its configuration
            return getattr(super().__getattr__("original"), name)

    @no_grad
    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """cos and sin at the positions."""
        self.seen = position_ids
        if layer_type not in self.ropes:
            return self.original(x, position_ids, layer_type)
        turns, rope = self.turns[layer_type], self.ropes[layer_type]
        ids = position_ids
        if turns.allocation is not None:  # (axes, rows, tokens), or the same for all axes
            axes = max(turns.allocation) + 1
            ids = ids.expand(axes, *ids.shape[-2:]).movedim(0, -1)
        if rope is None or EXCHANGES:
            check_runs(self.config_of_model)
        if rope is None:
            shape = (*ids.shape[:2], turns.rotary_dim // 2)
            cos, sin = x.new_ones(shape, dtype=torch.float32), x.new_zeros(shape, dtype=torch.float32)
        else:
            cos, sin = rope.tokens(Positions(ids)).cos_sin()
        cos, sin = cos.to(x.device), sin.to(x.device)
        if turns.form == "complex":
            return torch.complex(cos, sin)
        return _laid(cos, turns.form).to(x.dtype), _laid(sin, turns.form).to(x.dtype)

    def extra_repr(self) -> str:
        """The rotation of each type of layer."""
        said = (f"{'' if kind is None else f'{kind}: '}{rope or 'in attention'}" for kind, rope in self.ropes.items())
        return ", ".join(said)
