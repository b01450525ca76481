"""Replaces a model's own positions by a scheme or schedule, and a layer's own attention by posenc's."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from posenc.arguments import is_number, shown
from posenc.encoding.terms import Bias
from posenc.huggingface.adapters import ADAPTERS, BOUND, CACHES
from posenc.huggingface.attention import LAYER_SCHEME, NAME, ROTARY, WHOLE, LayerScheme
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.patched import Patched, named, text_config, transformer
from posenc.huggingface.seams import BY_SLOT, Kind, Seam, Seams, Turns, ask_rotary, hook, rescale, rotaries
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, check_window
from posenc.rotary import PairwiseRotary, Rotary
from posenc.rotation.scaling_parameters import read_scaling
from posenc.rotation.scalings import Proportional
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme, bare_parts
from posenc.schemes.rope import RoPE


def replace_adapted_attention(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces the attention of every layer of a family in `ADAPTERS`."""
    config = text_config(base)
    name, forward = ADAPTERS[config.model_type]
    modules = [m for m in base.modules() if type(m).__name__ == name]
    schemes = _by_layer(what, _taken(base, None))
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
        patched.give(module, {"forward": forward})
        patched.replace(module, LAYER_SCHEME, LayerScheme(scheme, None if window == WHOLE else window, counts=counts))
    patched.changes.append("attention: posenc's instead of the model's own")
    patched.changes.extend(in_words(what))


def replace_bound_attention(patched: Patched, base: Any) -> None:
    """Replaces the attention of every layer of a family in `BOUND`."""
    scheme_of, classes = BOUND[text_config(base).model_type]
    attention = next(iter(classes))
    schemes = [scheme_of(module) for module in base.modules() if type(module).__name__ == attention]
    for module in base.modules():
        patched.give(module, classes.get(type(module).__name__, {}))
    patched.changes.append("attention: posenc's instead of the model's own, with the weights of each layer")
    said: dict[str, list[int]] = {}
    for layer, scheme in enumerate(schemes):
        said.setdefault(repr(scheme), []).append(layer)
    patched.changes += [f"layer{'s' * (len(which) > 1)} {ranges(which)}: {scheme}" for scheme, which in said.items()]


@dataclass(frozen=True)
class Taken:
    """What a scheme must fit: of each layer, its numbers of heads and of key heads, its channels, and whether it is
    causal; the layout of pairs, and the width of a table of positions."""

    name: str
    layers: list[tuple[int, int, int, bool]]
    layout: str | None
    width: int | None = None


def _taken(base: Any, seams: Seams | None) -> Taken:
    """What the layers of a model have, by its seams, or by its configuration in a family of `ADAPTERS`."""
    if seams is not None:
        by_layer = {each.layer: each for each in seams.attentions}
        layers = [(each.heads, each.key_heads, each.head_dim, each.causal) for _, each in sorted(by_layer.items())]
        layout = next((each.turning[0] for each in seams.attentions if each.turning is not None), None)
        widths = [seams.module(path).embedding_dim for path in seams.tables]
        return Taken(named(base), layers, layout, widths[0] if len(widths) == 1 else None)
    config = text_config(base)
    own, heads = scheme_from_config(config).schedule, config.num_attention_heads
    is_multi = getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False)
    keys = 1 if is_multi else getattr(config, "num_kv_heads", None) or heads  # of Falcon
    layout = next((each.layout for each in own.schemes if isinstance(each, Rotary)), None)
    return Taken(named(base), [(heads, keys, config.hidden_size // heads, True)] * len(own), layout)


def _by_layer(what: Schedule | Scheme, taken: Taken) -> list[tuple[Any, Any]]:
    """Scheme and window of every layer; a window of None is the model's own. ValueError for what does not fit."""
    count = len(taken.layers)
    if not isinstance(what, Schedule):
        found: list[tuple[Any, Any]] = [(what, None)] * count
    elif len(what) != count:
        raise ValueError(f"what must be a Schedule of {count} layers like {taken.name}, got one of {len(what)}")
    else:
        found = [(scheme, w if isinstance(w, Chunk) else check_window(w)) for scheme, w in what]
    for scheme, layer in dict.fromkeys(zip((scheme for scheme, _ in found), taken.layers, strict=True)):
        for part in bare_parts(scheme):
            _check_part(part, taken, *layer)
    for part in (part for scheme, _ in found for part in scheme.modules()):
        if isinstance(part, Rotary | PairwiseRotary) and taken.layout not in (None, part.layout):
            raise ValueError(
                f"{type(part).__name__} must have layout={taken.layout!r}, the pairs of channels of queries and keys "
                f"in the attention of {taken.name}, got {part.layout!r}"
            )
    return found


@torch.no_grad()
def _check_part(part: Scheme, taken: Taken, heads: int, key_heads: int, head_dim: int, causal: bool) -> None:
    """ValueError for a scheme that does not fit a layer; raised by the scheme, for positions of several axes."""
    name, of_keys = type(part).__name__, part.heads_of == "key"
    if "add" in part.doors and taken.width is None:
        raise ValueError(f"{name} adds to the input, and {taken.name} has no table of positions that it could replace")
    if part.features:
        raise ValueError(
            f"{name} needs features that each layer projects from its tokens ({', '.join(part.features)}), which "
            f"the layers of {taken.name} do not: build it into your own model"
        )
    wanted = {"num_heads": key_heads if of_keys else heads, "head_dim": head_dim}
    for argument, its in (wanted | ({"dim": taken.width} if "add" in part.doors else {})).items():
        made, of = getattr(part, argument, None), "key " * of_keys * (argument == "num_heads")
        if made not in (None, its):
            raise ValueError(f"{name} is made for {of}{argument} {made}, and {taken.name} has {its}")
    device = next((parameter.device for parameter in part.parameters()), None)
    score_terms = part(Positions.arange(1, device=device)).score_terms
    if part.for_decoders and not causal:
        raise ValueError(
            f"{name} encodes only keys up to the query, and in {taken.name} queries attend to later keys: use "
            f"{part.looks_back or 'a bidirectional scheme'}"
        )
    for term in score_terms:
        masks = isinstance(term, Bias) and term.masks and causal
        if masks and bool(term.at(torch.tensor([-1], device=device)).isneginf().any()):
            raise ValueError(
                f"{name} in this form has heads that attend only to keys after the query, which {taken.name} masks: "
                "make it in its causal form"
            )


def replace_with_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces what a model does by position by a scheme, or by one for each layer with its window."""
    if text_config(base).model_type in ADAPTERS:
        replace_adapted_attention(patched, base, what)
        return
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
    taken = _taken(base, seams)
    schemes = _by_layer(what, taken)
    adder = _adder(base, schemes)
    source = next(iter(seams.take_out(patched, seams.part, text_config(base), adder)), None)
    seams.verify()
    off = ["rotation"] * bool(seams.turns) + ["sinusoids"] * bool(seams.added) + ["bias"] * seams.has_bias
    off += ["factor of queries by their position"] * any(each.scaled_by for each in seams.attentions)
    patched.changes += [f"the model's own {each}: off" for each in off]
    if any(BY_SLOT in each.scaled_by for each in seams.attentions):
        patched.changes.append("positions are the position_ids, where the model's own factor counts slots of the cache")
    instead = "" if adder is None else f", replaced by {adder!r}"
    patched.changes += [f"the model's learned table {path}: not added{instead}" for path in seams.tables]
    order = sorted({each.layer for each in seams.attentions})
    put: dict[str, tuple[Any, Any]] = {}
    for each in seams.attentions:
        module, (scheme, window) = seams.module(each.path), schemes[order.index(each.layer)]
        if put.setdefault(each.path, (scheme, window)) != (scheme, window):
            raise ValueError(
                f"layers of {named(base)} share their attention, and must have the same, got {shown(what)}"
            )
        kept = None if window == each.window else window  # the model's own mask has it, in static caches and graphs too
        layer_scheme = LayerScheme(
            scheme,
            kept,
            source,
            counts=source is None and not seams.asked.takes_ids,
            by_source="position_ids" in each.scaled_by,
            own=each.window,
        )
        patched.replace(module, LAYER_SCHEME, layer_scheme)
        scalings = (getattr(part, "scaling", None) for part in scheme.modules() if isinstance(part, Scheme))
        rescale(patched, module, next((s for s in scalings if s is not None), None))
    patched.changes.extend(in_words(what))


def _adder(base: Any, schemes: list[tuple[Any, Any]]) -> Scheme | None:
    """The scheme that adds to the input, which all layers share."""
    adding: dict[tuple[int, ...], tuple[Any, Any]] = {}
    for scheme, _ in schemes:
        parts = tuple(part for part in bare_parts(scheme) if "add" in part.doors)
        if parts:
            adding.setdefault(tuple(map(id, parts)), (scheme, parts))
    if len(adding) > 1:
        names = [" + ".join(type(part).__name__ for part in parts) for _, parts in adding.values()]
        raise ValueError(
            f"what must add the same to the input in every layer, since {named(base)} adds to it once, got "
            f"{' and '.join(names)}: give layers one scheme that adds"
        )
    return next((scheme for scheme, _ in adding.values()), None)


def in_words(what: Any) -> list[str]:
    """A scheme, or the lines that a schedule prints."""
    if not isinstance(what, Schedule):
        return [f"every layer: {what!r}"]
    return [line.strip() for line in repr(what).removeprefix("Schedule(").removesuffix(")").strip().splitlines()]


def is_scaling(what: Any) -> bool:
    """Whether it may be a scaling: an instance, a function of theta, or transformers' dictionary."""
    return _is_dictionary(what) or (callable(what) and not isinstance(what, type | nn.Module))


def _is_dictionary(what: Any) -> bool:
    return isinstance(what, Mapping) and ("rope_type" in what or isinstance(what.get("type"), str))


def _read(base: Any, what: Any, theta: float, rotary_dim: int) -> Any:
    """The scaling of transformers' dictionary, whose other keys must be those of the model; others as they are."""
    if not _is_dictionary(what):
        return what
    config = text_config(base)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    own = {"rope_theta": (theta, what.get("rope_theta") == theta)}
    if what.get("rope_type", what.get("type")) != "proportional":
        share = what.get("partial_rotary_factor")
        own["partial_rotary_factor"] = rotary_dim / head_dim, is_number(share) and int(head_dim * share) == rotary_dim
    for name, (value, agrees) in own.items():
        if what.get(name) is not None and not agrees:
            raise ValueError(
                f"what has {name} = {shown(what[name])}, and {named(base)} has {value:g}: only the scaling is "
                f"replaced, so leave {name} out, or change it in the configuration and load the model again"
            )
    return read_scaling({name: value for name, value in what.items() if name not in own}, theta, head_dim, rotary_dim)


def replace_scaling(patched: Patched, base: Any, what: Any) -> None:
    """Applies a scaling, or one for each layer type, to the model's rotary frequencies."""
    config = text_config(base)
    if config.model_type in ADAPTERS:
        _scale_adapted(patched, base, what)
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
        ropes = {kind: _rescaled(base, kinds, kind, of[kind], every[kind]) for kind in of if kind in every}
        now = {kind: None if rope.needs_lengths else rope for kind, rope in ropes.items()}
        seam = hook(patched, rotary, Seam({kind: turns for kind, (turns, _) in of.items()}, now, config))
        for kind, rope in ropes.items():
            turns, own = of[kind]
            put.append((kind, turns, seam, rope))
            where = "every rotating layer" if kind is None else f"layers of type {kind}"
            instead = "" if own.scaling is None else f", instead of {own.scaling!r}"
            how = "; in attention, with unrotated keys in the cache" if rope.needs_lengths else ""
            by = "without a scaling" if rope.scaling is None else f"scaled by {rope.scaling!r}"
            said[f"{where}: base {own.base:g}, {own.rotary_dim} channels, {by}{instead}{how}"] = None
            said |= dict.fromkeys(_other_length(rope.scaling, own.scaling, config))
    patched.changes += said
    types = getattr(config, "layer_types", ())
    for module in base.modules():
        index = getattr(module, "layer_idx", None)
        if isinstance(index, int) and type(getattr(module, "config", None)) is type(config):
            of_kind = None if None in kinds else types[index]
            mine = next(((seam, rope) for kind, _, seam, rope in put if kind == of_kind), None)
            if mine is not None:
                rescale(patched, module, mine[1].scaling)
                setattr(module, ROTARY, mine[:1])  # in a tuple, so that it is not a part of this module as well
                patched.on_undo(partial(delattr, module, ROTARY))
    if any(rope.needs_lengths for *_, rope in put):
        patched.through_posenc()
        _defer(patched, base, put)


def _defer(patched: Patched, base: Any, put: list[tuple[Kind, Turns, Seam, RoPE]]) -> None:
    """Moves rotations into posenc's attention, in every layer that rotates."""
    seams = Seams(base)
    seams.check()
    for each in seams.attentions:
        of_kind = None if put[0][0] is None else text_config(base).layer_types[each.layer]
        mine = [(seam, rope) for kind, turns, seam, rope in put if kind == of_kind and each.turns_by(turns)]
        if mine and mine[0][1].needs_lengths:
            (seam, rope), (layout, first, _, theta) = mine[0], each.turning
            if bool((theta < 0).any()):
                raise ValueError(f"{named(base)} turns the other way, and posenc cannot rotate in its place")
            channels: dict[str, Any] = {"layout": layout, "rotary_dim": rope.rotary_dim, "first_channel": first}
            scheme = RoPE(each.head_dim, rope.base, scaling=rope.scaling, **channels)
            patched.replace(seams.module(each.path), LAYER_SCHEME, LayerScheme(scheme, source=seam, own=each.window))


def _rescaled(base: Any, kinds: Mapping[Kind, RoPE], kind: Kind, found: tuple[Turns, RoPE], given: Any) -> RoPE:
    """A rotation of the model with a scaling, which may be transformers' dictionary."""
    turns, own = found
    if isinstance(own.scaling, Proportional):
        others = ", ".join(repr(k) for k, each in kinds.items() if not isinstance(each.scaling, Proportional))
        raise ValueError(
            f"layers of type {kind} of {named(base)} have rope_type 'proportional', by which most channels do not "
            f"rotate, and no scaling replaces that: give {{layer type: scaling}} of {others or 'no layers'}"
        )
    rope = turns.rope(own.base, _read(base, given, own.base, own.rotary_dim))
    _check_scaling(rope)
    return rope


def _scale_adapted(patched: Patched, base: Any, what: Any) -> None:
    own = scheme_from_config(text_config(base)).schedule
    ropes = [scheme for scheme in own.schemes if isinstance(scheme, RoPE)]
    if not ropes:
        raise ValueError(f"{named(base)} has no rotary frequencies to put a scaling on: {', '.join(in_words(own))}")
    if not is_scaling(what):  # for layer types
        raise ValueError(f"{named(base)} has no layer types, got {shown(what)}: give the scaling alone")
    for rope in ropes:
        rope.scaling = _read(base, what, rope.base, rope.rotary_dim)
        _check_scaling(rope)
    replace_adapted_attention(patched, base, own)
    by = "without a scaling" if ropes[0].scaling is None else f"scaled by {ropes[0].scaling!r}"
    patched.changes.append(f"every rotating layer: {by}")


def _other_length(scaling: Any, own: Any, config: Any) -> list[str]:
    """A remark on a scaling whose original length is neither that of the model nor that before the model's own
    scaling."""
    made, before = getattr(scaling, "original_length", None), getattr(own, "original_length", None)
    length = getattr(config, "max_position_embeddings", None)
    if made is None or length is None or made in (length, before):
        return []
    return [f"{type(scaling).__name__} is made for {made} positions, the configuration has {before or length}"]


def _check_scaling(rope: RoPE) -> None:
    """ValueError for a scaling with an invalid result. One that depends on the length is checked in the first forward
    pass."""
    if not rope.needs_lengths:
        rope.frequencies()


def _by_type(base: Any, what: Any, rotations: Mapping[Kind, RoPE]) -> dict[Kind, Any]:
    if is_scaling(what):
        return dict.fromkeys(rotations, what)
    if not what:
        raise ValueError("what must name the layer types that it maps to scalings, got {}")
    for kind, scaling in what.items():
        if kind not in rotations and None in rotations:
            raise ValueError(
                f"what names layers of type {shown(kind)}, and {named(base)} has no layer types: give the scaling alone"
            )
        if kind not in rotations:
            known = ", ".join(str(k) for k in rotations)
            raise ValueError(f"what names layers of type {shown(kind)}, and the model has those of {known}")
        if not is_scaling(scaling):
            raise ValueError(f"what must map layer types to scalings, got {shown(scaling)} for {shown(kind)}")
    return dict(what)
