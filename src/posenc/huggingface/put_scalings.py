"""Applies a scaling to a model's own rotary frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import nn

from posenc.arguments import is_number, shown
from posenc.huggingface.adapters import ADAPTERS, check_rotates
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.divided import ROTARY
from posenc.huggingface.layers import attentions, kind_of, pairing, rescale, rotaries
from posenc.huggingface.patched import Patched, named, text_config
from posenc.huggingface.placing import PLAN, Plan
from posenc.huggingface.put_schemes import in_words, put_adapted
from posenc.huggingface.rotary import PosencRotary, Turns, read_turns
from posenc.rotation.given import scaling_of
from posenc.schemes.rope import RoPE


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
    return scaling_of({name: value for name, value in what.items() if name not in own}, theta, head_dim, rotary_dim)


def put_scaling(patched: Patched, base: Any, what: Any) -> None:
    """Applies a scaling, or one for each layer type, to the model's rotary frequencies."""
    found = list(rotaries(base))
    check_rotates(text_config(base))
    if text_config(base).model_type in ADAPTERS and (not found or getattr(what, "needs_lengths", False)):
        _scale_adapted(patched, base, what)
        return
    if not found:
        raise ValueError(
            f"{named(base)} has no rotary module that posenc knows, so there are no frequencies to put a scaling on"
        )
    for parent, name, module in found:
        turns = read_turns(module)
        scalings = {
            kind: _read(base, each, turns[kind].base, turns[kind].rotary_dim)
            for kind, each in _by_type(base, what, turns).items()
        }
        ropes: dict[str | None, RoPE | None] = {}
        deferred: dict[str | None, RoPE] = {}
        for kind, turn in turns.items():
            if kind not in scalings:
                continue
            if turn.own.startswith("proportional"):
                others = ", ".join(repr(k) for k, each in turns.items() if not each.own.startswith("proportional"))
                raise ValueError(
                    f"layers of type {kind} of {named(base)} have rope_type 'proportional', by which most channels do "
                    f"not rotate, and no scaling replaces that: give {{layer type: scaling}} of {others or 'no layers'}"
                )
            ropes[kind] = rope = turn.rope(scalings[kind])
            _check_scaling(rope)
            if rope.needs_lengths:
                ropes[kind], deferred[kind] = None, rope
            where = "every rotating layer" if kind is None else f"layers of type {kind}"
            own = "" if turn.own == "none" else f", instead of {turn.own}"
            how = "; in attention, with unrotated keys in the cache" if rope.needs_lengths else ""
            by = "without a scaling" if scalings[kind] is None else f"scaled by {scalings[kind]!r}"
            patched.changes.append(f"{where}: base {turn.base:g}, {turn.rotary_dim} channels, {by}{own}{how}")
            patched.changes += _other_length(scalings[kind], module)
        rotary = PosencRotary(module, turns, ropes, text_config(base))
        if deferred:
            patched.through_posenc()
            _defer(patched, base, rotary, deferred)
        patched.replace(parent, name, rotary)
        for attention in attentions(base):
            kind = kind_of(attention, turns)
            if kind in scalings:
                rescale(patched, attention, scalings[kind])
                setattr(attention, ROTARY, (rotary,))  # in a tuple, so that it is not a part of this module as well
                patched.on_undo(partial(delattr, attention, ROTARY))


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
    put_adapted(patched, base, own)
    by = "without a scaling" if ropes[0].scaling is None else f"scaled by {ropes[0].scaling!r}"
    patched.changes.append(f"every rotating layer: {by}")


def _other_length(scaling: Any, rotary: Any) -> list[str]:
    """A remark on a scaling whose original length is neither that of the model nor that before the model's own
    scaling."""
    made, says = getattr(scaling, "original_length", None), getattr(rotary.config, "max_position_embeddings", None)
    before = rotary.config.rope_parameters.get("original_max_position_embeddings")
    if made is None or says is None or made in (says, before):
        return []
    return [f"{type(scaling).__name__} is made for {made} positions, the configuration has {before or says}"]


def _check_scaling(rope: RoPE) -> None:
    """ValueError for a scaling with an invalid result. One that depends on the length is checked in the first forward
    pass."""
    if not rope.needs_lengths:
        rope.frequencies()


def _by_type(base: Any, what: Any, turns: Mapping[str | None, Turns]) -> dict[str | None, Any]:
    if is_scaling(what):
        return dict.fromkeys(turns, what)
    if not what:
        raise ValueError("what must name the layer types that it maps to scalings, got {}")
    for kind, scaling in what.items():
        if kind not in turns and None in turns:
            raise ValueError(
                f"what names layers of type {shown(kind)}, and {named(base)} has no layer types: give the scaling alone"
            )
        if kind not in turns:
            known = ", ".join(str(k) for k in turns)
            raise ValueError(f"what names layers of type {shown(kind)}, and the model has those of {known}")
        if not is_scaling(scaling):
            raise ValueError(f"what must map layer types to scalings, got {shown(scaling)} for {shown(kind)}")
    return dict(what)


def _defer(patched: Patched, base: Any, rotary: PosencRotary, ropes: Mapping[str | None, RoPE]) -> None:
    """Moves the rotation into posenc's attention, in every layer that rotates."""
    turned = False
    found: dict[str | None, tuple[str, int, int] | None] = {}
    for module in attentions(base):
        kind = kind_of(module, rotary.turns)
        if kind not in ropes:
            continue
        if not getattr(module, "is_kv_shared_layer", False):  # else its keys are those of a layer before
            found[kind] = pairing(base, module, rotary.turns[kind])
        pairs = found[kind]
        if pairs is None:  # a layer without position
            continue
        turned = True
        layout, first, head_dim = pairs
        rope = ropes[kind]
        plan = Plan(
            RoPE(
                head_dim,
                rope.base,
                layout=layout,  # type: ignore[arg-type]
                rotary_dim=rope.rotary_dim,
                scaling=rope.scaling,
                first_channel=first,
            ),
            source=rotary,
        )
        patched.replace(module, PLAN, plan)
    if any(turn.allocation is not None for kind, turn in rotary.turns.items() if kind in ropes):
        raise ValueError(
            f"{named(base)} has positions of several axes, and a scaling that depends on the length needs those of "
            "all keys of a cache, which it does not provide: use one that does not, such as YaRN"
        )
    if not turned:
        raise ValueError(f"{named(base)} has no layer whose rotation posenc can do in attention")
