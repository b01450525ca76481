"""Finds the rotary modules and attention layers of a model of transformers, their pairing of channels and the scale
of their scores."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding.rotation import Rotation
from posenc.huggingface.attention import NAME
from posenc.huggingface.masks import Visible
from posenc.huggingface.patched import Patched, text_config
from posenc.huggingface.placing import PLAN, Plan
from posenc.huggingface.rotary import PosencRotary, Turns, is_rotary, read_turns
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Visibility
from posenc.scheme import Scheme
from posenc.schemes.rope import RoPE


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


def kind_of(module: Any, turns: Mapping[str | None, Turns]) -> str | None:
    """The type of the layer, which selects its frequencies; None if all layers have the same."""
    if set(turns) == {None}:
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


def pairing(base: Any, module: Any, turns: Turns) -> tuple[str, int, int] | None:
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

    def run(x: Tensor, rotary: PosencRotary, plan: Plan | None) -> Tensor:
        if plan is not None:
            probe._modules[PLAN] = plan
        tokens = Positions(places, order=torch.arange(4)[None])
        mask = Visible(tokens, tokens, Visibility(is_causal=True), 1)
        kind = next(iter(rotary.turns))
        with torch.no_grad():
            out = probe(
                hidden_states=x,
                position_embeddings=rotary(x, places, kind),
                attention_mask=mask,
                position_ids=places,
                **({"shared_kv_states": {}} if "shared_kv_states" in takes else {}),  # of Gemma 4
            )
        probe._modules.pop(PLAN, None)
        return out[0] if isinstance(out, tuple) else out

    plain = nn.Identity()
    off = PosencRotary(plain, {None: turns}, {None: None}, probe.config)
    watch = _Widths(seen)
    # Large inputs can saturate a trained layer's softmax, so that positions have no effect; small ones make it flat.
    for x in (drawn * size for size in (8.0, 1.0, 0.125, 2.0**-6)):
        own = run(x, PosencRotary(plain, {None: turns}, {None: turns.rope()}, probe.config), None)
        effect = float((own - run(x, off, Plan(watch))).abs().max())
        if effect > 1e-6 * float(own.abs().max()):
            break
    else:
        if effect == 0:
            return None
    head_dim = seen[0]
    for first in dict.fromkeys((0, head_dim - turns.rotary_dim)):
        for layout in ("half", "interleaved"):
            rope = RoPE(head_dim, turns.base, layout=layout, rotary_dim=turns.rotary_dim, first_channel=first)
            error = float((own - run(x, off, Plan(rope))).abs().max())
            if error < 1e-2 * effect:  # the error of another pairing is about as large as the effect
                return layout, first, head_dim
    raise ValueError(
        f"{type(module).__name__} of layer {module.layer_idx} rotates its channels in a way that posenc does not know"
    )


def layout_in_attention(base: Any) -> str | None:
    """The layout of the pairs that a model rotates, as queries and keys reach its attention; None if it rotates
    nothing, or in a way that posenc does not know."""
    for _, _, rotary in rotaries(base):
        turns = read_turns(rotary)
        for module in attentions(base):
            try:
                pairs = pairing(base, module, turns[kind_of(module, turns)])
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
