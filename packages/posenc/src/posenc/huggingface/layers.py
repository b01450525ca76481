"""Finds the rotary modules and attention layers of a model of transformers, their pairing of channels and the scale of
their scores, and replaces rotary modules.

A rotary module takes the model's ``position_ids`` once per forward pass and returns cos and sin for all layers. Its
frequencies and output form are not taken from its name: it is called with a few positions, and the result is compared.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from posenc.compat import no_grad
from posenc.encoding.rotation import Rotation
from posenc.huggingface.attention import NAME, check_runs
from posenc.huggingface.layer_positions import LAYER_SCHEME, LayerScheme
from posenc.huggingface.masks import Visible
from posenc.huggingface.patched import Patched, text_config
from posenc.models.forward_pass import EXCHANGES
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Visibility
from posenc.rotation.phases import frequencies
from posenc.rotation.scaling_parameters import ROPE_TYPES
from posenc.scheme import Scheme
from posenc.schemes.rope import RoPE

CosSinForm: TypeAlias = Literal["twice", "each twice", "once", "complex"]
"""The order of pairs in cos and sin: all pairs twice, each pair twice in a row, once, or one complex number each."""

PROBE_POSITIONS = (3, 1, 7)  # positions that distinguish the forms, small enough for precise angles in float32
TOLERANCE = 1e-5  # far above the rounding of angles up to 7 in float32, 1e-6, and far below the error of another form


@dataclass(frozen=True)
class ModelRotation:
    """The rotation of one layer type by a rotary module: pair k by p base^(-2k/rotary_dim), before any scaling. ``own``
    describes the model's scaling. ``allocation`` is the axis of each pair, if positions have several axes."""

    base: float
    rotary_dim: int
    form: CosSinForm
    own: str
    allocation: tuple[int, ...] | None = None

    def rope(self, scaling: Any = None) -> RoPE:
        """The rotation, with another scaling than the model's."""
        axes = 1 if self.allocation is None else max(self.allocation) + 1
        return RoPE(self.rotary_dim, self.base, axes=axes, allocation=self.allocation, scaling=scaling)


def is_rotary(module: nn.Module) -> bool:
    """Whether it is a module of transformers that returns cos and sin for positions."""
    return "Rotary" in type(module).__name__ and any(name.endswith("inv_freq") for name, _ in module.named_buffers())


def read_rotations(module: nn.Module) -> dict[str | None, ModelRotation]:
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


def _read(probe: Any, kind: str | None, config: Any, parameters: dict[str, Any]) -> ModelRotation:
    name = type(probe).__name__ if kind is None else f"{type(probe).__name__} of {kind}"
    rope_type, base = parameters.get("rope_type", "default"), parameters.get("rope_theta")
    if rope_type not in ROPE_TYPES or base is None:
        raise ValueError(f"{name} has rope_type {rope_type!r} of base {base}, and posenc knows {', '.join(ROPE_TYPES)}")
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
    form, allocation = _cos_sin_form(probe, name, kind)
    own, factor = "none" if rope_type == "default" else rope_type, parameters.get("factor")
    own += "" if own == "none" or factor is None else f" by {factor:g}"
    return ModelRotation(float(base), rotary_dim, form, own, allocation)


def _cos_sin_form(probe: Any, name: str, kind: str | None) -> tuple[CosSinForm, tuple[int, ...] | None]:
    """The form of cos and sin, and the axis of each pair."""
    prefix = "" if kind is None else f"{kind}_"
    device = getattr(probe, f"{prefix}inv_freq").device
    line = torch.tensor(PROBE_POSITIONS, device=device)
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
    forms: dict[int, tuple[CosSinForm, ...]] = {pairs: ("once",), 2 * pairs: ("twice", "each twice")}
    for form in ("complex",) if is_complex else forms.get(cos.size(-1), ()):
        got = [x.float()[..., ::2] if form == "each twice" else x.float()[..., :pairs] for x in (cos, sin)]
        laid = [_arrange(y, form) for y in got]
        if not all(torch.equal(x.float(), y) for x, y in zip((cos, sin), laid, strict=True)):
            continue
        fits = [
            (got[0] - scale * a.cos()).abs().amax((0, 1)) + (got[1] - scale * a.sin()).abs().amax((0, 1)) for a in axes
        ]
        nearest = torch.stack(fits).min(0)
        if got[0].shape == axes[0].shape and bool((nearest.values < TOLERANCE * 2 * max(1.0, scale)).all()):
            return form, tuple(nearest.indices.tolist()) if has_axes else None
    raise ValueError(f"{name} returns cos and sin in a form that posenc does not know, {tuple(cos.shape)}")


def _arrange(x: Tensor, form: CosSinForm) -> Tensor:
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
        self,
        original: nn.Module,
        rotations: dict[str | None, ModelRotation],
        ropes: dict[str | None, RoPE | None],
        config: Any,
    ) -> None:
        super().__init__()
        self.original = original
        self.rotations, self.ropes, self.config_of_model = rotations, ropes, config
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
        rotations, rope = self.rotations[layer_type], self.ropes[layer_type]
        ids = position_ids
        if rotations.allocation is not None:  # (axes, rows, tokens), or the same for all axes
            axes = max(rotations.allocation) + 1
            ids = ids.expand(axes, *ids.shape[-2:]).movedim(0, -1)
        if rope is None or EXCHANGES:
            check_runs(self.config_of_model)
        if rope is None:
            shape = (*ids.shape[:2], rotations.rotary_dim // 2)
            cos, sin = x.new_ones(shape, dtype=torch.float32), x.new_zeros(shape, dtype=torch.float32)
        else:
            cos, sin = rope.tokens(Positions(ids)).cos_sin()
        cos, sin = cos.to(x.device), sin.to(x.device)
        if rotations.form == "complex":
            return torch.complex(cos, sin)
        return _arrange(cos, rotations.form).to(x.dtype), _arrange(sin, rotations.form).to(x.dtype)

    def extra_repr(self) -> str:
        """The rotation of each type of layer."""
        said = (f"{'' if kind is None else f'{kind}: '}{rope or 'in attention'}" for kind, rope in self.ropes.items())
        return ", ".join(said)


def rotaries(base: Any) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Parent, name and rotary module, for each of the text model; those of an image tower have another
    configuration."""
    config = text_config(base)
    for parent in base.modules():
        for name, module in parent.named_children():
            same = getattr(module, "config", None)
            if is_rotary(module) and (same is config or type(same) is type(config)):
                yield parent, name, module


def attentions(base: Any) -> list[Any]:
    """The self-attention of every layer, in order."""
    config, found = text_config(base), []
    for name, module in base.named_modules():
        index = getattr(module, "layer_idx", None)
        takes = inspect.signature(module.forward).parameters
        if "Attention" not in type(module).__name__ or not isinstance(index, int) or "hidden_states" not in takes:
            continue
        same = getattr(module, "config", None)
        crosses = getattr(module, "is_cross_attention", False) or name.endswith(".EncDecAttention")  # of T5
        if (same is config or type(same) is type(config)) and not crosses:
            found.append(module)
    return sorted(found, key=lambda module: module.layer_idx)


def own_window(module: Any) -> tuple[int | None, int | None] | Chunk | None:
    """The window or chunks that the configuration gives this layer, in a causal model; (None, None) without any, None
    if they are unknown."""
    config, kinds = module.config, getattr(module.config, "layer_types", None)
    width = getattr(config, "sliding_window", None)
    kind = kinds[module.layer_idx] if kinds is not None else "full_attention" if width is None else "sliding_attention"
    if kind == "full_attention":
        return None, None
    if kind == "chunked_attention":
        return Chunk(config.attention_chunk_size)
    if kind != "sliding_attention" or width is None or not getattr(config, "use_sliding_window", True):
        return None
    is_causal = getattr(module, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
    return (width - 1, 0) if is_causal else None


def kind_of(module: Any, rotations: Mapping[str | None, ModelRotation]) -> str | None:
    """The type of the layer, which selects its frequencies; None if all layers have the same."""
    if set(rotations) == {None}:
        return None
    return str(module.config.layer_types[module.layer_idx])


def rescale(patched: Patched, module: Any, scaling: Any) -> None:
    """Adapts the softmax scale to another scaling, in models whose scale includes YaRN's (0.1 mscale_all_dim ln s +
    1)^2, such as DeepSeek-V3. Their files in transformers have the function ``yarn_apply_mscale``."""
    theirs = getattr(sys.modules.get(type(module).__module__), "yarn_apply_mscale", None)
    if theirs is None or not hasattr(module, "scaling"):
        return
    plain = getattr(module, "qk_head_dim", math.nan) ** -0.5
    own = theirs(module.config.rope_parameters, plain)
    if not math.isclose(own, module.scaling, rel_tol=1e-9):
        raise ValueError(
            f"{type(module).__name__} scales its scores by {module.scaling:g}, and not by 1/sqrt(qk_head_dim) with the "
            "mscale of its configuration, so posenc cannot tell the right scale for another scaling"
        )
    new = plain * getattr(scaling, "score_factor", 1.0)
    if math.isclose(new, module.scaling, rel_tol=1e-9):
        return
    said = f"scale of the scores: {new:g} instead of {module.scaling:g}, since mscale_all_dim differs"
    patched.set(module, "scaling", new)
    if said not in patched.changes:
        patched.changes.append(said)


def pairing(base: Any, module: Any, rotations: ModelRotation) -> tuple[str, int, int] | None:
    """How queries and keys are paired into channels when they reach attention: (layout, first channel, head_dim).
    None for a layer that does not rotate.

    Found by comparison: the layer is called with its own cos and sin, and with cos 1, sin 0 and posenc's rotation.
    """
    takes = inspect.signature(module.forward).parameters
    if "position_embeddings" not in takes:
        raise ValueError(
            f"{type(module).__name__} does not take position_embeddings, so posenc cannot rotate in its place"
        )
    probe = _probe(module)
    places = torch.tensor([[0, 2, 3, 7]])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, 4, text_config(base).hidden_size, generator=generator, dtype=torch.float64)
    seen: list[int] = []

    def run(x: Tensor, rotary: PosencRotary, layer_scheme: LayerScheme | None) -> Tensor:
        if layer_scheme is not None:
            probe._modules[LAYER_SCHEME] = layer_scheme
        tokens = Positions(places, order=torch.arange(4)[None])
        mask = Visible(tokens, tokens, Visibility(is_causal=True), 1)
        kind = next(iter(rotary.rotations))
        with torch.no_grad():
            out = probe(
                hidden_states=x,
                position_embeddings=rotary(x, places, kind),
                attention_mask=mask,
                position_ids=places,
                **({"shared_kv_states": {}} if "shared_kv_states" in takes else {}),  # of Gemma 4
            )
        probe._modules.pop(LAYER_SCHEME, None)
        return out[0] if isinstance(out, tuple) else out

    plain = nn.Identity()
    off = PosencRotary(plain, {None: rotations}, {None: None}, probe.config)
    watch = _Widths(seen)
    # Large inputs can saturate a trained layer's softmax, so that positions have no effect; small ones make it flat.
    for x in (drawn * size for size in (8.0, 1.0, 0.125, 2.0**-6)):
        own = run(x, PosencRotary(plain, {None: rotations}, {None: rotations.rope()}, probe.config), None)
        effect = float((own - run(x, off, LayerScheme(watch))).abs().max())
        if effect > 1e-6 * float(own.abs().max()):
            break
    else:
        if effect == 0:
            return None
    head_dim = seen[0]
    for first in dict.fromkeys((0, head_dim - rotations.rotary_dim)):
        for layout in ("half", "interleaved"):
            rope = RoPE(head_dim, rotations.base, layout=layout, rotary_dim=rotations.rotary_dim, first_channel=first)
            error = float((own - run(x, off, LayerScheme(rope))).abs().max())
            if error < 1e-2 * effect:  # the error of another pairing is about as large as the effect
                return layout, first, head_dim
    raise ValueError(
        f"{type(module).__name__} of layer {module.layer_idx} rotates its channels in a way that posenc does not know"
    )


def layout_in_attention(base: Any) -> str | None:
    """The layout of the pairs that a model rotates, as queries and keys reach its attention; None if it rotates
    nothing, or in a way that posenc does not know."""
    for _, _, rotary in rotaries(base):
        rotations = read_rotations(rotary)
        for module in attentions(base):
            try:
                pairs = pairing(base, module, rotations[kind_of(module, rotations)])
            except ValueError:
                return None
            if pairs is not None:
                return pairs[0]
    return None


def _probe(module: Any) -> Any:
    """A copy of a layer on the CPU, in double precision. If weights are on meta, where accelerate's offloading leaves
    them too, the copy has random ones: which channels make a pair does not depend on weights."""
    if any(x.is_meta for x in (*module.parameters(), *module.buffers())):
        try:
            with torch.device("cpu"), torch.random.fork_rng([]):
                torch.manual_seed(0)
                probe = type(module)(copy.deepcopy(module.config), module.layer_idx)
        except Exception as error:
            raise ValueError(
                f"{type(module).__name__} of layer {module.layer_idx} is on meta, and another one could not be made "
                f"from its configuration: load the weights before patching the model ({error})"
            ) from None
    else:
        probe = copy.deepcopy(module)
        if any(hasattr(each, "_hf_hook") for each in probe.modules()):  # they would move inputs to their device
            from accelerate.hooks import remove_hook_from_submodules

            remove_hook_from_submodules(probe)
    probe = probe.to(device="cpu", dtype=torch.float64).eval()
    probe.config._attn_implementation_internal = NAME
    return probe


class _Widths(Scheme):
    """Records the width of the queries and keys that it gets, and changes nothing."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self._seen = seen

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Any = None) -> Any:

        def note(x: Tensor) -> Tensor:
            self._seen.append(x.size(-1))
            return x

        return Rotation(note, note)
