"""Replaces a model's own positions by a scheme or schedule, and a layer's own attention by posenc's."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.arguments import is_number, shown
from posenc.encoding.terms import Bias
from posenc.huggingface.adapters import ADAPTERS, BOUND, CACHES, adapted, is_adapted, unscaled
from posenc.huggingface.attention import NAME, check_runs
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.layer_positions import LAYER_SCHEME, ROTARY, LayerScheme
from posenc.huggingface.layers import (
    ModelRotation,
    PosencRotary,
    attentions,
    kind_of,
    layout_in_attention,
    own_window,
    pairing,
    read_rotations,
    rescale,
    rotaries,
)
from posenc.huggingface.patched import Patched, named, text_config, transformer
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, check_window
from posenc.rotary import PairwiseRotary, Rotary
from posenc.rotation.scaling_parameters import read_scaling
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme, bare_parts
from posenc.schemes.rope import RoPE

BERTS = ("bert", "bert-generation", "data2vec-text", "electra", "ernie", "roc_bert")
ROBERTAS = ("camembert", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
TABLES = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), "wpe"),
    **dict.fromkeys((*BERTS, *ROBERTAS), "position_embeddings"),
    "opt": "embed_positions",
}
"""Models that add a learned table of positions to their input: the name of the table."""


BIASED = "has_relative_attention_bias"
"""The attribute of T5's attention that says whether a layer computes the bias of its stack. T5 counts its tokens."""

WHOLE = (None, None)
"""The window of a layer without one."""


class PosencTable(nn.Module):
    """Replaces a learned table of positions: returns the vectors that a scheme adds, or zeros. The unused table keeps
    its name, so that weights are saved and loaded as before. ``config`` is that of the model, whose attention must be
    posenc's. ``first`` is the row of position 0, in models that look up rows: in RoBERTa that after the padding's.
    """

    def __init__(self, weight: Tensor, scheme: Scheme | None, config: Any, first: int = 0) -> None:
        super().__init__()
        self.weight, self.scheme, self.config_of_model, self.first = weight, scheme, config, first
        self.seen: Tensor | None = None  # the position_ids of the last forward pass, for layers that do not get them

    def forward(self, ids: Tensor, *_: Any, position_ids: Tensor | None = None) -> Tensor:
        """The vectors to add to the input at these positions. OPT passes its mask first, and position_ids by name."""
        check_runs(self.config_of_model)
        if self.first or position_ids is not None:  # padding has the row before that of position 0
            ids = (ids if position_ids is None else position_ids) - self.first
            ids = ids.masked_fill(ids == -1, 0)
        self.seen = ids
        table = None if self.scheme is None else self.scheme.table(Positions(ids.long()))
        if table is None:
            return torch.zeros((*ids.shape, self.weight.size(1)), dtype=self.weight.dtype, device=ids.device)
        return table.to(self.weight.dtype)


def replace_adapted_attention(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces the attention of every layer of a family in `ADAPTERS`."""
    config = text_config(base)
    name, forward = ADAPTERS[config.model_type]
    modules = [m for m in base.modules() if type(m).__name__ == name]
    schemes = _by_layer(base, what, len(modules))
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
        patched.exchange(module, adapted(type(module), {"forward": forward}))
        patched.replace(module, LAYER_SCHEME, LayerScheme(scheme, None if window == WHOLE else window, counts=counts))
    patched.changes.append("attention: posenc's instead of the model's own")
    patched.changes.extend(in_words(what))


def replace_bound_attention(patched: Patched, base: Any) -> None:
    """Replaces the attention of every layer of a family in `BOUND`."""
    scheme_of, classes = BOUND[text_config(base).model_type]
    attention = next(iter(classes))
    schemes = [scheme_of(module) for module in base.modules() if type(module).__name__ == attention]
    for module in base.modules():
        methods = classes.get(type(module).__name__)
        if methods is not None:
            patched.exchange(module, adapted(type(module), methods))
    patched.changes.append("attention: posenc's instead of the model's own, with the weights of each layer")
    said: dict[str, list[int]] = {}
    for layer, scheme in enumerate(schemes):
        said.setdefault(repr(scheme), []).append(layer)
    patched.changes += [f"layer{'s' * (len(which) > 1)} {ranges(which)}: {scheme}" for scheme, which in said.items()]


def _by_layer(
    base: Any, what: Schedule | Scheme, layers: int
) -> list[tuple[Any, tuple[int | None, int | None] | Chunk | None]]:
    """Scheme and window of every layer; a window of None is the model's own."""
    if not isinstance(what, Schedule):
        _check_scheme(base, what)
        _check_layout(base, [what])
        return [(what, None)] * layers
    if len(what) != layers:
        raise ValueError(f"what must be a Schedule of {layers} layers like {named(base)}, got one of {len(what)}")
    for scheme in what.schemes:
        _check_scheme(base, scheme)
    _check_layout(base, [scheme for scheme, _ in what])
    return [(scheme, window if isinstance(window, Chunk) else check_window(window)) for scheme, window in what]


def _check_layout(base: Any, schemes: Sequence[Scheme]) -> None:
    """ValueError for a rotation whose pairs of channels are not those that the model was trained with."""
    rotary_parts = [
        part for scheme in schemes for part in scheme.modules() if isinstance(part, Rotary | PairwiseRotary)
    ]
    if not rotary_parts:
        return
    config = text_config(base)
    own: str | None
    if config.model_type in ADAPTERS:
        own = next((s.layout for s in scheme_from_config(config).schedule.schemes if isinstance(s, Rotary)), None)
    else:
        own = layout_in_attention(base)
    for part in rotary_parts:
        if own is not None and part.layout != own:
            raise ValueError(
                f"{type(part).__name__} must have layout={own!r}, the pairs of channels of queries and keys in the "
                f"attention of {named(base)}, got {part.layout!r}"
            )


def _give_back(table: PosencTable, original: nn.Embedding) -> None:
    """Returns the weight to the original table: loading may have replaced it."""
    original.weight = table.weight


def replace_with_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces the model's rotation, learned table or bias by a scheme, or by one for each layer with its window."""
    modules, config = attentions(base), text_config(base)
    if config.model_type in ADAPTERS:
        replace_adapted_attention(patched, base, what)
        return
    table = TABLES.get(config.model_type)
    found = list(rotaries(base))
    biased = [module for module in modules if hasattr(module, BIASED)]
    if found and not modules:
        raise ValueError(
            f"{named(base)} takes scalings only: its attention layers have no layer_idx, by which posenc finds them"
        )
    if not modules or not (table or found or biased):
        raise ValueError(
            f"{named(base)} has neither rotary modules nor a learned table or bias that posenc knows, so posenc does "
            "not know what a scheme would replace"
        )
    if config.is_encoder_decoder and base.get_encoder() is not base.get_decoder():
        raise ValueError(
            f"what must be {{'encoder': scheme, 'decoder': scheme}}, or one of them, for {named(base)}, which has two "
            f"stacks of layers, got {shown(what)}"
        )
    if biased and config.is_encoder_decoder and base is transformer(patched.model):
        raise ValueError(
            f"model must be the whole, got {named(base)}, one of its two stacks, whose configuration is not saved: "
            "patch(model, {'encoder': scheme, 'decoder': scheme}), or one of them"
        )
    if any(rotation.allocation is not None for _, _, rotary in found for rotation in read_rotations(rotary).values()):
        raise ValueError(
            f"{named(base)} has positions of several axes, and a scheme needs those of all keys of a cache, which it "
            "does not provide: use a scaling that does not depend on the length, such as YaRN"
        )
    layers = sorted({module.layer_idx for module in modules})
    schemes = _by_layer(base, what, len(layers))
    adder = _adder(base, schemes)
    patched.through_posenc()
    source: nn.Module | None = None
    for parent, name, module in found:
        rotations = read_rotations(module)
        source = PosencRotary(module, rotations, dict.fromkeys(rotations), config)
        patched.replace(parent, name, source)
        patched.changes.append("the model's own rotation: off")
    if table is not None:
        for parent in list(base.modules()):
            original = parent._modules.get(table)
            if isinstance(original, nn.Embedding):
                first = 0 if original.padding_idx is None else original.padding_idx + 1
                source = PosencTable(original.weight, adder, config, first)
                patched.replace(parent, table, source)
                patched.on_undo(partial(_give_back, source, original))
                instead = "" if adder is None else f", replaced by {adder!r}"
                patched.changes.append(f"the model's learned table {table}: not added{instead}")
    for module in biased:
        patched.set(module, BIASED, False)  # so that it computes none; attention ignores what it passes instead
    if biased:
        patched.changes.append("the model's own bias: off")
    for module in modules:
        scheme, window = schemes[layers.index(module.layer_idx)]
        _unscale(patched, module)
        own = own_window(module)
        kept = None if window == own else window  # the model's own mask has it, in static caches and graphs too
        layer_scheme = LayerScheme(
            scheme, kept, source, bool(biased), by_source=is_adapted(module), has_window=own != WHOLE
        )
        patched.replace(module, LAYER_SCHEME, layer_scheme)
        scalings = (getattr(part, "scaling", None) for part in scheme.modules() if isinstance(part, Scheme))
        rescale(patched, module, next((s for s in scalings if s is not None), None))
    patched.changes.extend(in_words(what))


def _unscale(patched: Patched, module: Any) -> None:
    """Switches off a layer's scaling of queries by their position, as in Llama 4 and Ministral 3. The latter's file in
    transformers has the function ``get_llama_4_attn_scale``."""
    off = "the model's own factor of queries by their position: off"
    if getattr(module, "attn_temperature_tuning", False):
        patched.set(module, "attn_temperature_tuning", False)
        said = [off, "positions are the position_ids, where the model's own factor counts the slots of the cache"]
    elif hasattr(sys.modules.get(type(module).__module__), "get_llama_4_attn_scale"):
        patched.exchange(module, adapted(type(module), {"forward": unscaled}))
        said = [off]
    else:
        return
    patched.changes += [each for each in said if each not in patched.changes]


def _check_scheme(base: Any, scheme: Any) -> None:
    """ValueError for a scheme that does not fit this model."""
    config = text_config(base)
    heads, has_table = config.num_attention_heads, config.model_type in TABLES
    wanted: dict[str, int] = {}
    several = hasattr(config, "qk_rope_head_dim") or "head_dim" in (getattr(config, "per_layer_attributes", None) or ())
    if not several:
        wanted["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // heads
    width = getattr(config, "embedding_size", config.hidden_size)  # of ELECTRA's table
    for part in bare_parts(scheme):
        name = type(part).__name__
        if "add" in part.doors and not has_table:
            raise ValueError(
                f"{name} adds to the input, and {named(base)} has no table of positions that it could replace"
            )
        if part.features:
            raise ValueError(
                f"{name} needs features that each layer projects from its tokens ({', '.join(part.features)}), which "
                f"the layers of {named(base)} do not: build it into your own model"
            )
        made = getattr(part, "num_heads", None)
        counts = _key_heads(base) if part.heads_of == "key" else {heads}
        if made is not None and made not in counts:
            raise ValueError(
                f"{name} is made for {made} {'key ' * (part.heads_of == 'key')}heads, and {named(base)} has "
                f"{' or '.join(map(str, sorted(counts)))}"
            )
        for argument, its in (wanted | ({"dim": width} if "add" in part.doors else {})).items():
            made = getattr(part, argument, None)
            if made is not None and made != its:
                raise ValueError(f"{name} is made for {argument} {made}, and {named(base)} has {its}")
        _check_bound(base, part)


def _key_heads(base: Any) -> set[int]:
    """The numbers of key heads that reach attention, over all layers."""
    config = text_config(base)
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):  # of Falcon
        return {1}
    groups = {getattr(module, "num_key_value_groups", 1) for module in attentions(base)} or {1}
    return {config.num_attention_heads // group for group in groups}


@torch.no_grad()
def _check_bound(base: Any, part: Scheme) -> None:
    """ValueError for a causal scheme in a bidirectional model, for heads that would attend to no key in a causal model,
    and, raised by the scheme, for positions of several axes."""
    always = not getattr(text_config(base), "is_causal", True)  # transformers makes its masks by it
    sees = {not always and getattr(module, "is_causal", True) for module in attentions(base)}
    device = next((parameter.device for parameter in part.parameters()), None)
    at, name = Positions.arange(1, device=device), type(part).__name__
    score_terms = part(at).score_terms
    if part.for_decoders and False in sees:
        raise ValueError(
            f"{name} encodes only keys up to the query, and in {named(base)} queries attend to later keys: use "
            f"{part.looks_back or 'a bidirectional scheme'}"
        )
    for score_term in score_terms:
        masks = isinstance(score_term, Bias) and score_term.masks and True in sees
        if masks and bool(score_term.at(torch.tensor([-1], device=device)).isneginf().any()):
            raise ValueError(
                f"{name} in this form has heads that attend only to keys after the query, which {named(base)} masks: "
                "make it in its causal form"
            )


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
    found = list(rotaries(base))
    config = text_config(base)
    if config.model_type == "falcon" and config.alibi:
        raise ValueError("falcon with alibi=True does not rotate: there are no frequencies to put a scaling on")
    if config.model_type in ADAPTERS and (not found or getattr(what, "needs_lengths", False)):
        _scale_adapted(patched, base, what)
        return
    if not found:
        raise ValueError(
            f"{named(base)} has no rotary module that posenc knows, so there are no frequencies to put a scaling on"
        )
    for parent, name, module in found:
        rotations = read_rotations(module)
        scalings = {
            kind: _read(base, each, rotations[kind].base, rotations[kind].rotary_dim)
            for kind, each in _by_type(base, what, rotations).items()
        }
        ropes: dict[str | None, RoPE | None] = {}
        deferred: dict[str | None, RoPE] = {}
        for kind, rotation in rotations.items():
            if kind not in scalings:
                continue
            if rotation.own.startswith("proportional"):
                others = ", ".join(repr(k) for k, each in rotations.items() if not each.own.startswith("proportional"))
                raise ValueError(
                    f"layers of type {kind} of {named(base)} have rope_type 'proportional', by which most channels do "
                    f"not rotate, and no scaling replaces that: give {{layer type: scaling}} of {others or 'no layers'}"
                )
            ropes[kind] = rope = rotation.rope(scalings[kind])
            _check_scaling(rope)
            if rope.needs_lengths:
                ropes[kind], deferred[kind] = None, rope
            where = "every rotating layer" if kind is None else f"layers of type {kind}"
            own = "" if rotation.own == "none" else f", instead of {rotation.own}"
            how = "; in attention, with unrotated keys in the cache" if rope.needs_lengths else ""
            by = "without a scaling" if scalings[kind] is None else f"scaled by {scalings[kind]!r}"
            patched.changes.append(f"{where}: base {rotation.base:g}, {rotation.rotary_dim} channels, {by}{own}{how}")
            patched.changes += _other_length(scalings[kind], module)
        rotary = PosencRotary(module, rotations, ropes, config)
        if deferred:
            patched.through_posenc()
            _defer(patched, base, rotary, deferred)
        patched.replace(parent, name, rotary)
        for attention in attentions(base):
            kind = kind_of(attention, rotations)
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
    replace_adapted_attention(patched, base, own)
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


def _by_type(base: Any, what: Any, rotations: Mapping[str | None, ModelRotation]) -> dict[str | None, Any]:
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


def _defer(patched: Patched, base: Any, rotary: PosencRotary, ropes: Mapping[str | None, RoPE]) -> None:
    """Moves the rotation into posenc's attention, in every layer that rotates."""
    is_deferred = False
    found: dict[str | None, tuple[str, int, int] | None] = {}
    for module in attentions(base):
        kind = kind_of(module, rotary.rotations)
        if kind not in ropes:
            continue
        if not getattr(module, "is_kv_shared_layer", False):  # else its keys are those of a layer before
            found[kind] = pairing(base, module, rotary.rotations[kind])
        pairs = found[kind]
        if pairs is None:  # a layer without position
            continue
        is_deferred = True
        layout, first, head_dim = pairs
        rope = ropes[kind]
        layer_scheme = LayerScheme(
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
        patched.replace(module, LAYER_SCHEME, layer_scheme)
    if any(rotation.allocation is not None for kind, rotation in rotary.rotations.items() if kind in ropes):
        raise ValueError(
            f"{named(base)} has positions of several axes, and a scaling that depends on the length needs those of "
            "all keys of a cache, which it does not provide: use one that does not, such as YaRN"
        )
    if not is_deferred:
        raise ValueError(f"{named(base)} has no layer whose rotation posenc can do in attention")
