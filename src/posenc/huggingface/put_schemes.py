"""Schemes and schedules put in place of a model's own positions, and attention in place of a layer's own."""

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
from posenc.lowering.distances import coordinates
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, check_window
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme, bare_parts

# Models that add a learned table of positions to their input: the name of the table.
TABLES = {"gpt2": "wpe", "bert": "position_embeddings"}


class PosencTable(nn.Module):
    """Stands in for a learned table of positions: the vectors that a scheme adds, or zeros. The table, which is not
    used, keeps its name, so that weights are saved and loaded as ever. ``config`` is the model's, whose attention must
    be posenc's.
    """

    def __init__(self, weight: Tensor, scheme: Scheme | None, config: Any) -> None:
        super().__init__()
        self.weight, self.scheme, self.config_of_model = weight, scheme, config
        self.seen: Tensor | None = None  # the position_ids of the last pass, for layers that are not given them

    def forward(self, ids: Tensor) -> Tensor:
        """What is added to the input at these positions."""
        check_runs(self.config_of_model)
        self.seen = ids
        table = None if self.scheme is None else self.scheme.table(Positions(ids.long()))
        if table is None:
            return self.weight.new_zeros((*ids.shape, self.weight.size(1)))
        return table.to(self.weight.dtype)


def put_adapted(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Exchanges the attention of every layer of a family that has one of its own."""
    config = text_config(base)
    name, forward = ADAPTERS[config.model_type]
    modules = [m for m in base.modules() if type(m).__name__ == name]
    schemes = _by_layer(base, what, len(modules))
    was = config._attn_implementation_internal

    def back() -> None:
        config._attn_implementation_internal = was

    patched.on_undo(back)
    config._attn_implementation_internal = NAME  # so that the model asks for posenc's mask
    for module in base.modules():
        if getattr(module, "use_alibi", False):  # Falcon would lay the mask out, to add its bias to it
            patched.set(module, "use_alibi", False)
    counts = config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False)
    for n, module in enumerate(modules):
        scheme, window = schemes[n]
        patched.exchange(module, adapted(type(module), {"forward": forward}))
        patched.replace(module, PLAN, Plan(scheme, window, counts=counts))
    patched.changes.append("attention: posenc's, in place of the model's own")
    patched.changes.extend(in_words(what))


def put_bound(patched: Patched, base: Any) -> None:
    """Exchanges the attention of every layer of a family whose positions are made of the layers' own weights."""
    scheme_of, classes = BOUND[text_config(base).model_type]
    attention = next(iter(classes))
    schemes = [scheme_of(module) for module in base.modules() if type(module).__name__ == attention]
    for module in base.modules():
        methods = classes.get(type(module).__name__)
        if methods is not None:
            patched.exchange(module, adapted(type(module), methods))
    patched.changes.append("attention: posenc's, in place of the model's own, with the weights of each layer")
    said: dict[str, list[int]] = {}
    for layer, scheme in enumerate(schemes):
        said.setdefault(repr(scheme), []).append(layer)
    patched.changes += [f"layer{'s' * (len(which) > 1)} {ranges(which)}: {scheme}" for scheme, which in said.items()]


def _by_layer(
    base: Any, what: Schedule | Scheme, layers: int
) -> list[tuple[Any, tuple[int | None, int | None] | Chunk | None]]:
    """Scheme and window of every layer; None: the model's own window."""
    if not isinstance(what, Schedule):
        _check_scheme(base, what)
        return [(what, None)] * layers
    if len(what) != layers:
        raise ValueError(f"what must be a Schedule of {layers} layers like {named(base)}, got one of {len(what)}")
    for scheme in what.schemes:
        _check_scheme(base, scheme)
    return [(scheme, window if isinstance(window, Chunk) else check_window(window)) for scheme, window in what]


def _give_back(table: PosencTable, original: nn.Embedding) -> None:
    """The weight to the table that it was of: loading may have put another in its place."""
    original.weight = table.weight


def put_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Puts a scheme, or one for each layer with its window, in place of the model's rotation or learned table."""
    modules, config = attentions(base), text_config(base)
    if config.model_type in ADAPTERS:
        put_adapted(patched, base, what)
        return
    table = TABLES.get(config.model_type)
    found = list(rotaries(base))
    if not modules or not (table or found):
        raise ValueError(
            f"{named(base)} has neither rotary modules nor a learned table that posenc knows, so posenc cannot tell "
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
                instead = "nothing" if adder is None else repr(adder)
                patched.changes.append(f"the model's learned table {table}: not added, {instead} is")
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
    """Switches off that a layer scales queries by their position, as those of Llama 4 and Ministral 3 do; whether it
    did. The latter is told by the function of transformers that gives the factor.
    """
    if getattr(module, "attn_temperature_tuning", False):
        patched.set(module, "attn_temperature_tuning", False)
        return True
    if not hasattr(sys.modules.get(type(module).__module__), "get_llama_4_attn_scale"):
        return False
    patched.exchange(module, adapted(type(module), {"forward": unscaled}))
    return True


def _scaling(scheme: nn.Module) -> Any:
    """The scaling of a scheme that turns; None of others."""
    return getattr(scheme, "scaling", None) if isinstance(scheme, Scheme) else None


def _check_scheme(base: Any, scheme: Any) -> None:
    """ValueError for a scheme that this model cannot have, as far as its arguments tell."""
    config = text_config(base)
    heads, has_table = config.num_attention_heads, config.model_type in TABLES
    wanted = {}
    several = hasattr(config, "qk_rope_head_dim") or "head_dim" in (getattr(config, "per_layer_attributes", None) or ())
    if not several:
        wanted["head_dim"] = getattr(config, "head_dim", None) or config.hidden_size // heads, "head_dim {}"
    for part in bare_parts(scheme):
        name = type(part).__name__
        if "add" in part.doors and not has_table:
            raise ValueError(
                f"{name} adds to the input, and {named(base)} has no table of positions in whose place it could stand"
            )
        if part.features:
            raise ValueError(
                f"{name} needs what each layer makes of its tokens ({', '.join(part.features)}), which the layers of "
                f"{named(base)} do not make: build it into a model of your own"
            )
        made = getattr(part, "num_heads", None)
        counts = _key_heads(base) if part.heads_of == "key" else {heads}
        if made is not None and made not in counts:
            raise ValueError(
                f"{name} is made for {made} {'key ' * (part.heads_of == 'key')}heads, and {named(base)} has "
                f"{' or '.join(map(str, sorted(counts)))}"
            )
        dim = {"dim": (config.hidden_size, "dim {}")} if "add" in part.doors else {}
        for argument, (its, words) in (wanted | dim).items():
            made = getattr(part, argument, None)
            if made is not None and made != its:
                raise ValueError(f"{name} is made for {words.format(made)}, and {named(base)} has {its}")
        _check_bound(base, part)


def _key_heads(base: Any) -> set[int]:
    """How many heads keys have as they reach attention, in each of the layers."""
    config = text_config(base)
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):  # of Falcon
        return {1}
    groups = {getattr(module, "num_key_value_groups", 1) for module in attentions(base)} or {1}
    return {config.num_attention_heads // group for group in groups}


@torch.no_grad()
def _check_bound(base: Any, part: Scheme) -> None:
    """ValueError for a scheme made for keys behind the query where a query sees those after it, or the other way round,
    and, in its own words, for one of other positions than a line.
    """
    always = not getattr(text_config(base), "is_causal", True)  # transformers makes its masks by it
    sees = {not always and getattr(module, "is_causal", True) for module in attentions(base)}
    device = next((parameter.device for parameter in part.parameters()), None)
    at, name = Positions.arange(1, device=device), type(part).__name__
    pieces = part(at).pieces
    if part.for_decoders and False in sees:
        other = next((piece.looks_back for piece in pieces if piece.looks_back), None)
        raise ValueError(
            f"{name} {'as it is made ' * (other is not None)}encodes keys behind the query alone, and {named(base)} "
            f"lets a query see those after it: {f'make it with {other}' if other else 'take a scheme for both sides'}"
        )
    for piece in pieces:
        if piece.distance is not None:
            coordinates(piece.distance, at)
        if not isinstance(piece, Bias):
            continue
        if piece.hides and True in sees and bool(piece.at(torch.tensor([-1], device=device)).isneginf().any()):
            raise ValueError(
                f"{name} as it is made has heads that see keys after the query alone, and {named(base)} hides these "
                "from every query: make it in its causal form"
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
