"""`patch`: replaces the positional encoding of a model of transformers."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from posenc.arguments import is_number, shown
from posenc.encoding.terms import Bias
from posenc.huggingface.adapters import ADAPTERS, CACHES, UNSUPPORTED
from posenc.huggingface.attention import LAYER_SCHEME, NAME, ROTARY, WHOLE, LayerScheme
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.loading import MARK, RECORD
from posenc.huggingface.seams import (
    BY_SLOT,
    LOCK,
    Attention,
    Kind,
    Patched,
    PosencTable,
    Seam,
    Seams,
    Turns,
    ask_rotary,
    is_patched,
    named,
    rotaries,
    text_config,
    transformer,
)
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, check_window
from posenc.rotary import PairwiseRotary, Rotary
from posenc.rotation.scaling_parameters import read_scaling
from posenc.rotation.scalings import Proportional
from posenc.schedule import Schedule
from posenc.scheme import Scheme, bare_parts, is_scheme
from posenc.schemes.rope import RoPE

STACKS = {"encoder", "decoder"}


def patch(model: nn.Module, what: Any) -> Patched:
    """Replaces a model's positional encoding by ``what``, until ``undo()`` or the end of the ``with`` block.

    - A *scaling*, such as ``YaRN(4.0, 4096)``, is applied to the model's own rotary frequencies, in every layer that
      rotates, instead of the scaling of its configuration; transformers' dictionary, such as ``{"rope_type": "linear",
      "factor": 4.0}``, is one too. A mapping {layer type: scaling} applies only to layers of these types (Gemma 3 has
      several). If the model's softmax scale includes YaRN's mscale^2 (DeepSeek-V3), it is
      adapted to the new scaling. A scaling that depends on the length (`DynamicNTK`, `LongRoPE`) is exact with a cache
      and for each row separately: the cache then keeps unrotated keys.
    - A *scheme*, such as ``ALiBi(num_heads)`` or ``NoPE()``, replaces the model's positions: its rotation is switched
      off, its learned table, sinusoids and T5's bias are not added, and queries are not scaled by position. What does
      so is found by asking a model of the same class and configuration, and none of it may be left. Layers share the
      scheme, and its parameters become the model's.
    - A `Schedule` does the same for each layer, with its window instead of the model's.
    - A mapping {"encoder": scheme, "decoder": scheme}, or of one of them, is for T5, BART and the like; each
      may be a `Schedule`. Attention of the decoder to the encoder has no positions.

    Schemes get queries and keys as they reach the model's attention, and must pair channels in the layout that these
    have there (DeepSeek-V3: half). The changes are listed in ``changes`` and printed. The configuration says what was
    put in, and transformers refuses to load a model that save_pretrained has written so, saying how to load it. A
    scheme's parameters are saved too, once if layers share them. Works inside wrappers such as PEFT's, and on meta.

    BLOOM, MPT, GPT-J and Falcon, which compute their own attention, get posenc's with what is put in:
    ``patch(model, scheme_from_config(model.config).schedule)`` leaves their positions as they are.

    Raises ValueError for a model that is already patched, whose configuration says that something else was put in, or
    whose positions are not understood, and for a scheme that does not fit the model.
    """
    base = transformer(model)
    with LOCK:
        if (kind := text_config(base).model_type) in UNSUPPORTED:
            raise ValueError(f"{named(base)} cannot be patched: {UNSUPPORTED[kind]}")
        if any(map(is_patched, base.modules())):
            raise ValueError("model is patched already: undo() that first")
        patched = Patched(model)
        try:
            _put(patched, base, what)
            _heed_peft(patched, base)
            patched.watch_ids()
            said = " ".join(re.sub(" at 0x[0-9a-f]+", "", repr(what)).split())  # in one line, without addresses
            if (before := patched.hold(base.config, RECORD, said)) not in ((), (None,), (said,)):
                raise ValueError(
                    f"what must be what {RECORD} of the model's configuration says, {before[0]}, got {said}: put that "
                    f"in, or first `del model.config.{RECORD}` if another is wanted"
                )
            patched.hold(base.config, "attn_implementation", MARK)
        except BaseException:
            patched.undo()
            raise
    return patched


def _put(patched: Patched, base: Any, what: Any) -> None:
    """Puts a scheme or a scaling into a model. ValueError for what is neither."""
    if isinstance(what, Schedule) or is_scheme(what):
        replace_with_scheme(patched, base, what)
    elif base.config.is_encoder_decoder and isinstance(what, Mapping) and what and what.keys() <= STACKS:
        for name, scheme in what.items():
            patched.changes.append(f"{name}:")
            replace_with_scheme(patched, getattr(base, f"get_{name}")(), scheme)
    elif isinstance(what, Mapping) or is_scaling(what):
        replace_scaling(patched, base, what)
    else:
        raise ValueError(f"what must be a scaling, a scheme, a Schedule or {{layer type: scaling}}, got {shown(what)}")


def _heed_peft(patched: Patched, base: Any) -> None:
    """ValueError for prefix tuning if posenc rotates keys in attention; a remark if PEFT would not save a scheme's
    parameters."""
    wrappers = [getattr(module, "peft_config", None) for module in patched.model.modules()]
    methods = [config.peft_type for configs in wrappers if isinstance(configs, dict) for config in configs.values()]
    holders = (module for module in base.modules() if isinstance(module, LayerScheme | PosencTable))
    schemes = [module.scheme for module in holders if module.scheme]
    turning = [part for scheme in schemes for part in bare_parts(scheme) if "rotate" in part.doors]
    if "PREFIX_TUNING" in methods and turning:
        raise ValueError(
            f"{type(turning[0]).__name__} in attention rotates all keys of the cache, but those that prefix tuning has "
            "learned are already rotated: use a scheme that does not rotate keys, a scaling that does not depend on "
            "the length, or prompt tuning"
        )
    learned = [scheme for scheme in schemes if any(p.requires_grad for p in scheme.parameters())]
    if methods and learned:
        names = " and ".join(dict.fromkeys(type(part).__name__ for scheme in learned for part in bare_parts(scheme)))
        patched.changes.append(f"PEFT does not save the parameters of {names}: save the scheme separately")


# -- schemes ----------------------------------------------------------------------------------------------------------


def replace_own_attention(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces the attention of every layer of a family in `ADAPTERS`."""
    config = text_config(base)
    name, forward = ADAPTERS[config.model_type]
    modules = [m for m in base.modules() if type(m).__name__ == name]
    heads, own = config.num_attention_heads, scheme_from_config(config).schedule.schemes
    turning = next(((each.layout,) for each in own if isinstance(each, Rotary)), None)
    sizes = [(heads, getattr(module, "num_kv_heads", heads), config.hidden_size // heads) for module in modules]
    layers = [Attention(n, "", *each, turning, WHOLE, True, [], None) for n, each in enumerate(sizes)]
    schemes = _by_layer(what, base, layers)
    takes = inspect.signature(type(modules[0]).forward).parameters
    if not set(CACHES) & set(takes):
        raise ValueError(f"{name} must take its cache as {' or '.join(CACHES)}, got {', '.join(takes)}")
    patched.set(config, "_attn_implementation_internal", NAME)  # so that the model asks for posenc's mask
    for module in base.modules():
        if getattr(module, "use_alibi", False):  # else Falcon adds its bias to the mask
            patched.set(module, "use_alibi", False)
    counts = config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False)
    for n, module in enumerate(modules):
        scheme, window = schemes[n]
        patched.give(module, forward)
        patched.replace(module, LAYER_SCHEME, LayerScheme(scheme, None if window == WHOLE else window, counts=counts))
    patched.changes += ["attention: posenc's instead of the model's own", *in_words(what)]


def _by_layer(
    what: Any, base: Any, attentions: list[Attention], width: int | None = None
) -> dict[int, tuple[Any, Any]]:
    """Scheme and window of every layer; a window of None is the model's own. ``width`` is that of the model's table.
    ValueError for what does not fit."""
    layers = {each.layer: each for each in sorted(attentions, key=lambda each: each.layer)}
    found: list[tuple[Any, Any]] = [(what, None)] * len(layers)
    if isinstance(what, Schedule):
        found = [(scheme, w if isinstance(w, Chunk) else check_window(w)) for scheme, w in what]
    if len(found) != len(layers):
        raise ValueError(f"what must be a Schedule of {len(layers)} layers like {named(base)}, got one of {len(found)}")
    alike = {
        (s, a.heads, a.key_heads, a.head_dim, a.causal): a for (s, _), a in zip(found, layers.values(), strict=True)
    }
    for (scheme, *_), layer in alike.items():
        for part in bare_parts(scheme):
            _check_part(part, named(base), layer, width)
    layout = next((each.turning[0] for each in attentions if each.turning is not None), None)
    for part in (part for scheme, _ in found for part in scheme.modules()):
        if isinstance(part, Rotary | PairwiseRotary) and layout not in (None, part.layout):
            raise ValueError(
                f"{type(part).__name__} must have layout={layout!r}, the pairs of channels of queries and keys in the "
                f"attention of {named(base)}, got {part.layout!r}"
            )
    return dict(zip(layers, found, strict=True))


@torch.no_grad()
def _check_part(part: Scheme, model: str, layer: Attention, width: int | None) -> None:
    """ValueError for a scheme that does not fit a layer; raised by the scheme, for positions of several axes."""
    name, of_keys = type(part).__name__, part.heads_of == "key"
    if "add" in part.doors and width is None:
        raise ValueError(f"{name} adds to the input, and {model} has no table of positions that it could replace")
    if part.features:
        raise ValueError(
            f"{name} needs features that each layer projects from its tokens ({', '.join(part.features)}), which "
            f"the layers of {model} do not: build it into your own model"
        )
    sizes = {"num_heads": layer.key_heads if of_keys else layer.heads, "head_dim": layer.head_dim}
    for argument, its in (sizes | ({"dim": width} if "add" in part.doors else {})).items():
        made, of = getattr(part, argument, None), "key " * of_keys * (argument == "num_heads")
        if made not in (None, its):
            raise ValueError(f"{name} is made for {of}{argument} {made}, and {model} has {its}")
    device = next((parameter.device for parameter in part.parameters()), None)
    terms = part(Positions.arange(1, device=device)).score_terms
    if part.for_decoders and not layer.causal:
        raise ValueError(
            f"{name} encodes only keys up to the query, and in {model} queries attend to later keys: use "
            f"{part.looks_back or 'a bidirectional scheme'}"
        )
    masks = [term for term in terms if isinstance(term, Bias) and term.masks and layer.causal]
    if any(bool(term.at(torch.tensor([-1], device=device)).isneginf().any()) for term in masks):
        raise ValueError(
            f"{name} in this form has heads that attend only to keys after the query, which {model} masks: make it in "
            "its causal form"
        )


def replace_with_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces what a model does by position by a scheme, or by one for each layer with its window."""
    if text_config(base).model_type in ADAPTERS:
        return replace_own_attention(patched, base, what)
    if base.config.is_encoder_decoder and base.get_encoder() is not base.get_decoder():
        raise ValueError(
            f"what must be {{'encoder': scheme, 'decoder': scheme}}, or one of them, for {named(base)}, which has two "
            f"stacks of layers, got {shown(what)}"
        )
    if base.config.is_encoder_decoder and base is transformer(patched.model):
        raise ValueError(
            f"model must be the whole, got {named(base)}, one of its two stacks, whose configuration is not saved: "
            "patch(model, {'encoder': scheme, 'decoder': scheme}), or one of them"
        )
    patched.through_posenc()
    seams = Seams(base)
    seams.check()
    widths = [seams.module(path).embedding_dim for path in seams.tables]
    schemes = _by_layer(what, base, seams.attentions, widths[0] if len(widths) == 1 else None)
    adder = _adder(base, schemes)
    source = next(iter(seams.take_out(patched, seams.part, text_config(base), adder)), None)
    seams.verify()
    scaled = [name for each in seams.attentions for name in each.scaled_by]
    off = {"rotation": seams.turns, "sinusoids": seams.added, "bias": seams.has_bias}
    off["factor of queries by their position"] = scaled
    patched.changes += [f"the model's own {each}: off" for each, was in off.items() if was]
    if BY_SLOT in scaled:
        patched.changes.append("positions are the position_ids, where the model's own factor counts slots of the cache")
    instead = "" if adder is None else f", replaced by {adder!r}"
    patched.changes += [f"the model's own table {path}: not added{instead}" for path in seams.tables]
    put: dict[str, tuple[Any, Any]] = {}
    for each in seams.attentions:
        module, (scheme, window) = seams.module(each.path), schemes[each.layer]
        if put.setdefault(each.path, (scheme, window)) != (scheme, window):
            raise ValueError(
                f"layers of {named(base)} share their attention, and must have the same, got {shown(what)}"
            )
        kept = None if window == each.window else window  # the model's own mask has it, in static caches and graphs too
        counts, by_source = source is None and not seams.asked.takes_ids, "position_ids" in each.scaled_by
        patched.replace(module, LAYER_SCHEME, LayerScheme(scheme, kept, source, counts, by_source, each.window))
        scalings = (getattr(part, "scaling", None) for part in scheme.modules() if isinstance(part, Scheme))
        rescale(patched, module, next((s for s in scalings if s is not None), None))
    patched.changes += in_words(what)


def _adder(base: Any, schemes: Mapping[int, tuple[Any, Any]]) -> Scheme | None:
    """The scheme that adds to the input, which all layers share."""
    adding: dict[tuple[Scheme, ...], Any] = {}
    for scheme, _ in schemes.values():
        if parts := tuple(part for part in bare_parts(scheme) if "add" in part.doors):
            adding.setdefault(parts, scheme)
    if len(adding) > 1:
        names = [" + ".join(type(part).__name__ for part in parts) for parts in adding]
        raise ValueError(
            f"what must add the same to the input in every layer, since {named(base)} adds to it once, got "
            f"{' and '.join(names)}: give layers one scheme that adds"
        )
    return next(iter(adding.values()), None)


def in_words(what: Any) -> list[str]:
    """A scheme, or the lines that a schedule prints."""
    if not isinstance(what, Schedule):
        return [f"every layer: {what!r}"]
    return [line.strip() for line in repr(what).removeprefix("Schedule(").removesuffix(")").strip().splitlines()]


# -- scalings ---------------------------------------------------------------------------------------------------------


def is_scaling(what: Any) -> bool:
    """Whether it may be a scaling: an instance, a function of theta, or transformers' dictionary."""
    return _is_dictionary(what) or (callable(what) and not isinstance(what, type | nn.Module))


def _is_dictionary(what: Any) -> bool:
    return isinstance(what, Mapping) and ("rope_type" in what or isinstance(what.get("type"), str))


def _scaled(base: Any, rope: RoPE, what: Any) -> RoPE:
    """A rotation with a scaling, or with that of transformers' dictionary, whose other keys must be the model's. The
    result of one that depends on the length is checked in the first forward pass."""
    if _is_dictionary(what):
        config, theta, rotary_dim = text_config(base), rope.base, rope.rotary_dim
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        own = {"rope_theta": (theta, what.get("rope_theta") == theta)}
        if what.get("rope_type", what.get("type")) != "proportional":
            share = what.get("partial_rotary_factor")
            same = is_number(share) and int(head_dim * share) == rotary_dim
            own["partial_rotary_factor"] = rotary_dim / head_dim, same
        for name, (value, agrees) in own.items():
            if what.get(name) is not None and not agrees:
                raise ValueError(
                    f"what has {name} = {shown(what[name])}, and {named(base)} has {value:g}: only the scaling is "
                    f"replaced, so leave {name} out, or change it in the configuration and load the model again"
                )
        rest = {name: value for name, value in what.items() if name not in own}
        what = read_scaling(rest, theta, head_dim, rotary_dim)
    rope.scaling = what
    if not rope.needs_lengths:
        rope.frequencies()
    return rope


def replace_scaling(patched: Patched, base: Any, what: Any) -> None:
    """Applies a scaling, or one for each layer type, to the model's rotary frequencies."""
    config = text_config(base)
    if config.model_type in ADAPTERS:
        schedule = scheme_from_config(config).schedule
        turning = [scheme for scheme in schedule.schemes if isinstance(scheme, RoPE)]
        if not turning:
            raise ValueError(
                f"{named(base)} has no rotary frequencies to put a scaling on: {', '.join(in_words(schedule))}"
            )
        if not is_scaling(what):  # for layer types
            raise ValueError(f"{named(base)} has no layer types, got {shown(what)}: give the scaling alone")
        for rope in turning:
            _scaled(base, rope, what)
        replace_own_attention(patched, base, schedule)
        patched.changes.append(f"every rotating layer: {_by(turning[0].scaling)}")
        return
    found = {module: ask_rotary(module) for module in rotaries(base)}
    if not found:
        raise ValueError(
            f"{named(base)} has no rotary module that posenc knows, so there are no frequencies to put a scaling on"
        )
    kinds = {kind: own for of in found.values() for kind, (_, own) in of.items()}
    every = _by_type(base, what, kinds)
    said: dict[str, None] = {}
    put: list[tuple[Kind, Turns, Seam, RoPE]] = []
    for rotary, of in found.items():
        ropes: dict[Kind, RoPE] = {}
        for kind, (turns, own) in of.items():
            if kind not in every:
                continue
            if isinstance(own.scaling, Proportional):
                others = ", ".join(repr(k) for k, each in kinds.items() if not isinstance(each.scaling, Proportional))
                raise ValueError(
                    f"layers of type {kind} of {named(base)} have rope_type 'proportional', by which most channels do "
                    f"not rotate, and no scaling replaces that: give {{layer type: scaling}} of {others or 'no layers'}"
                )
            ropes[kind] = rope = _scaled(base, turns.rope(own.base, None), every[kind])
            where = "every rotating layer" if kind is None else f"layers of type {kind}"
            instead = "" if own.scaling is None else f", instead of {own.scaling!r}"
            how = "; in attention, with unrotated keys in the cache" if rope.needs_lengths else ""
            said[f"{where}: base {own.base:g}, {own.rotary_dim} channels, {_by(rope.scaling)}{instead}{how}"] = None
            made, before = (getattr(each.scaling, "original_length", None) for each in (rope, own))
            length, name = getattr(config, "max_position_embeddings", None), type(rope.scaling).__name__
            if made is not None and length is not None and made not in (length, before):
                said[f"{name} is made for {made} positions, the configuration has {before or length}"] = None
        now = {kind: None if rope.needs_lengths else rope for kind, rope in ropes.items()}
        seam = Seam({kind: turns for kind, (turns, _) in of.items()}, now, config).put(patched, rotary)
        put += [(kind, of[kind][0], seam, rope) for kind, rope in ropes.items()]
    patched.changes += said
    types = getattr(config, "layer_types", ())
    for module in base.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and type(getattr(module, "config", None)) is type(config):
            of_kind = None if None in kinds else types[index]
            for _, _, seam, rope in [each for each in put if each[0] == of_kind][:1]:
                rescale(patched, module, rope.scaling)
                setattr(module, ROTARY, (seam,))  # in a tuple, so that it is not a part of this module as well
                patched.on_undo(partial(delattr, module, ROTARY))
    if any(rope.needs_lengths for *_, rope in put):
        patched.through_posenc()
        _defer(patched, base, put)


def _by(scaling: Any) -> str:
    return "without a scaling" if scaling is None else f"scaled by {scaling!r}"


def _by_type(base: Any, what: Any, rotations: Mapping[Kind, RoPE]) -> dict[Kind, Any]:
    if is_scaling(what):
        return dict.fromkeys(rotations, what)
    if not what:
        raise ValueError("what must name the layer types that it maps to scalings, got {}")
    for kind, scaling in what.items():
        if kind not in rotations:
            has = f"the model has those of {', '.join(map(str, rotations))}"
            if None in rotations:
                has = f"{named(base)} has no layer types: give the scaling alone"
            raise ValueError(f"what names layers of type {shown(kind)}, and {has}")
        if not is_scaling(scaling):
            raise ValueError(f"what must map layer types to scalings, got {shown(scaling)} for {shown(kind)}")
    return dict(what)


def _defer(patched: Patched, base: Any, put: list[tuple[Kind, Turns, Seam, RoPE]]) -> None:
    """Moves rotations into posenc's attention, in every layer that rotates."""
    seams = Seams(base)
    seams.check()
    for each in (each for each in seams.attentions if each.turning is not None):
        of_kind = None if put[0][0] is None else text_config(base).layer_types[each.layer]
        layout, first, _, theta = each.turning
        for seam, rope in [(seam, rope) for kind, turns, seam, rope in put if kind == of_kind and turns.turn(theta)][
            :1
        ]:
            if not rope.needs_lengths:
                continue
            if bool((theta < 0).any()):
                raise ValueError(f"{named(base)} turns the other way, and posenc cannot rotate in its place")
            channels: dict[str, Any] = {"layout": layout, "rotary_dim": rope.rotary_dim, "first_channel": first}
            scheme = RoPE(each.head_dim, rope.base, scaling=rope.scaling, **channels)
            patched.replace(seams.module(each.path), LAYER_SCHEME, LayerScheme(scheme, source=seam, own=each.window))


def rescale(patched: Patched, module: Any, scaling: Any) -> None:
    """Adapts the softmax scale to another scaling, in models whose scale includes YaRN's (0.1 mscale_all_dim ln s +
    1)^2, such as DeepSeek-V3. Their files in transformers have the function ``yarn_apply_mscale``."""
    theirs = getattr(sys.modules.get(type(module).__module__), "yarn_apply_mscale", None)
    if theirs is None or not hasattr(module, "scaling"):
        return
    plain = getattr(module, "qk_head_dim", math.nan) ** -0.5
    if not math.isclose(theirs(module.config.rope_parameters, plain), module.scaling, rel_tol=1e-9):
        raise ValueError(
            f"{type(module).__name__} scales its scores by {module.scaling:g}, and not by 1/sqrt(qk_head_dim) with the "
            "mscale of its configuration, so posenc cannot tell the right scale for another scaling"
        )
    new = plain * getattr(scaling, "score_factor", 1.0)
    if not math.isclose(new, module.scaling, rel_tol=1e-9):
        said = f"scale of the scores: {new:g} instead of {module.scaling:g}, since mscale_all_dim differs"
        patched.changes += [said] * (said not in patched.changes)
        patched.set(module, "scaling", new)
