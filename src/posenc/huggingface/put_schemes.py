"""Replaces a model's own positions by a scheme or schedule, and a layer's own attention by posenc's."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from posenc.encoding.pieces import Bias
from posenc.huggingface.adapters import ADAPTERS, BOUND, adapted, is_adapted, unscaled
from posenc.huggingface.attention import NAME, check_runs
from posenc.huggingface.layers import attentions, has_window, rescale, rotaries
from posenc.huggingface.patched import Patched, named, text_config
from posenc.huggingface.placing import PLAN, Plan
from posenc.huggingface.rotary import PosencRotary, read_turns
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, check_window
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme, bare_parts

# Models that add a learned table of positions to their input: the name of the table.
TABLES = {"gpt2": "wpe", "bert": "position_embeddings"}


class PosencTable(nn.Module):
    """Replaces a learned table of positions: returns the vectors that a scheme adds, or zeros. The unused table keeps
    its name, so that weights are saved and loaded as before. ``config`` is that of the model, whose attention must be
    posenc's.
    """

    def __init__(self, weight: Tensor, scheme: Scheme | None, config: Any) -> None:
        super().__init__()
        self.weight, self.scheme, self.config_of_model = weight, scheme, config
        self.seen: Tensor | None = None  # the position_ids of the last forward pass, for layers that do not get them

    def forward(self, ids: Tensor) -> Tensor:
        """The vectors to add to the input at these positions."""
        check_runs(self.config_of_model)
        self.seen = ids
        table = None if self.scheme is None else self.scheme.table(Positions(ids.long()))
        if table is None:
            return self.weight.new_zeros((*ids.shape, self.weight.size(1)))
        return table.to(self.weight.dtype)


def put_adapted(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces the attention of every layer of a family in `ADAPTERS`."""
    config = text_config(base)
    name, forward = ADAPTERS[config.model_type]
    modules = [m for m in base.modules() if type(m).__name__ == name]
    schemes = _by_layer(base, what, len(modules))
    patched.set(config, "_attn_implementation_internal", NAME)  # so that the model asks for posenc's mask
    for module in base.modules():
        if getattr(module, "use_alibi", False):  # else Falcon adds its bias to the mask
            patched.set(module, "use_alibi", False)
    counts = config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False)
    for n, module in enumerate(modules):
        scheme, window = schemes[n]
        patched.exchange(module, adapted(type(module), {"forward": forward}))
        patched.replace(module, PLAN, Plan(scheme, window, counts=counts))
    patched.changes.append("attention: posenc's instead of the model's own")
    patched.changes.extend(in_words(what))


def put_bound(patched: Patched, base: Any) -> None:
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
        return [(what, None)] * layers
    if len(what) != layers:
        raise ValueError(f"what must be a Schedule of {layers} layers like {named(base)}, got one of {len(what)}")
    for scheme in what.schemes:
        _check_scheme(base, scheme)
    return [(scheme, window if isinstance(window, Chunk) else check_window(window)) for scheme, window in what]


def _give_back(table: PosencTable, original: nn.Embedding) -> None:
    """Returns the weight to the original table: loading may have replaced it."""
    original.weight = table.weight


def put_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Replaces the model's rotation or learned table by a scheme, or by one for each layer with its window."""
    modules, config = attentions(base), text_config(base)
    if config.model_type in ADAPTERS:
        put_adapted(patched, base, what)
        return
    table = TABLES.get(config.model_type)
    found = list(rotaries(base))
    if not modules or not (table or found):
        raise ValueError(
            f"{named(base)} has neither rotary modules nor a learned table that posenc knows, so posenc does not know "
            "what a scheme would replace"
        )
    layers = sorted({module.layer_idx for module in modules})
    schemes = _by_layer(base, what, len(layers))
    adder = _adder(base, schemes)
    patched.through_posenc()
    source: nn.Module | None = None
    for parent, name, module in found:
        turns = read_turns(module)
        source = PosencRotary(module, turns, dict.fromkeys(turns), config)
        patched.replace(parent, name, source)
        patched.changes.append("the model's own rotation: off")
    if table is not None:
        for parent in list(base.modules()):
            original = parent._modules.get(table)
            if isinstance(original, nn.Embedding):
                source = PosencTable(original.weight, adder, config)
                patched.replace(parent, table, source)
                patched.on_undo(partial(_give_back, source, original))
                instead = "" if adder is None else f", replaced by {adder!r}"
                patched.changes.append(f"the model's learned table {table}: not added{instead}")
    scaled = False
    for module in modules:
        scheme, window = schemes[layers.index(module.layer_idx)]
        scaled |= _unscale(patched, module)
        plan = Plan(scheme, window, source, by_source=is_adapted(module), has_window=has_window(module))
        patched.replace(module, PLAN, plan)
        rescale(patched, module, next((s for s in map(_scaling, scheme.modules()) if s is not None), None))
    if scaled:
        patched.changes.append("the model's own factor of queries by their position: off")
    patched.changes.extend(in_words(what))


def _unscale(patched: Patched, module: Any) -> bool:
    """Switches off a layer's scaling of queries by their position, as in Llama 4 and Ministral 3, and returns whether
    it had one. The latter's file in transformers has the function ``get_llama_4_attn_scale``."""
    if getattr(module, "attn_temperature_tuning", False):
        patched.set(module, "attn_temperature_tuning", False)
        return True
    if not hasattr(sys.modules.get(type(module).__module__), "get_llama_4_attn_scale"):
        return False
    patched.exchange(module, adapted(type(module), {"forward": unscaled}))
    return True


def _scaling(scheme: nn.Module) -> Any:
    """The scaling of a rotary scheme; None for others."""
    return getattr(scheme, "scaling", None) if isinstance(scheme, Scheme) else None


def _check_scheme(base: Any, scheme: Any) -> None:
    """ValueError for a scheme that does not fit this model."""
    config = text_config(base)
    heads, has_table = config.num_attention_heads, config.model_type in TABLES
    wanted: dict[str, int] = {}
    several = hasattr(config, "qk_rope_head_dim") or "head_dim" in (getattr(config, "per_layer_attributes", None) or ())
    if not several:
        wanted["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // heads
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
        for argument, its in (wanted | ({"dim": config.hidden_size} if "add" in part.doors else {})).items():
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
    pieces = part(at).pieces
    if part.for_decoders and False in sees:
        raise ValueError(
            f"{name} encodes only keys up to the query, and in {named(base)} queries attend to later keys: use "
            f"{part.looks_back or 'a bidirectional scheme'}"
        )
    for piece in pieces:
        hides = isinstance(piece, Bias) and piece.hides and True in sees
        if hides and bool(piece.at(torch.tensor([-1], device=device)).isneginf().any()):
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
