"""Schemes and schedules put in place of a model's own positions, and attention in place of a layer's own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from posenc.huggingface.adapters import ADAPTERS, BOUND, adapted
from posenc.huggingface.attention import NAME
from posenc.huggingface.described import ranges
from posenc.huggingface.layers import attentions, rescale, rotaries
from posenc.huggingface.patched import Patched, named, text_config
from posenc.huggingface.placing import PLAN, Plan
from posenc.huggingface.rotary import PosencRotary, read_turns
from posenc.positions import Positions
from posenc.scheme import Schedule, Scheme, check_window

# Models that add a learned table of positions to their input: the name of the table.
TABLES = {"gpt2": "wpe", "bert": "position_embeddings"}


class PosencTable(nn.Module):
    """Stands in for a learned table of positions: the vectors that a scheme adds, or zeros."""

    def __init__(self, original: nn.Embedding, scheme: Scheme | None) -> None:
        super().__init__()
        self.original, self.scheme = original, scheme
        self.seen: Tensor | None = None  # the position_ids of the last pass, for layers that are not given them

    @property
    def weight(self) -> Tensor:
        """The table that is not used."""
        return self.original.weight

    def forward(self, ids: Tensor) -> Tensor:
        """What is added to the input at these positions."""
        self.seen = ids
        weight = self.original.weight
        table = None if self.scheme is None else self.scheme.table(Positions(ids.long()))
        if table is None:
            return weight.new_zeros((*ids.shape, weight.size(1)))
        return table.to(weight.dtype)


def put_adapted(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Exchanges the attention of every layer of a family that has one of its own."""
    config = text_config(base)
    name, forward = ADAPTERS[config.model_type]
    modules = [m for m in base.modules() if type(m).__name__ == name]
    schemes = _by_layer(base, what, len(modules))
    was = config._attn_implementation_internal

    def back() -> None:
        config._attn_implementation_internal = was

    patched._restore.append(back)
    config._attn_implementation_internal = NAME  # so that the model asks for posenc's mask
    for module in base.modules():
        if getattr(module, "use_alibi", False):  # Falcon would lay the mask out, to add its bias to it
            patched._set(module, "use_alibi", False)
    counts = config.model_type in ("bloom", "mpt") or getattr(config, "alibi", False)
    for n, module in enumerate(modules):
        scheme, window = schemes[n]
        patched._exchange(module, adapted(type(module), {"forward": forward}))
        patched._replace(module, PLAN, Plan(scheme, window, counts=counts))
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
            patched._exchange(module, adapted(type(module), methods))
    patched.changes.append("attention: posenc's, in place of the model's own, with the weights of each layer")
    said: dict[str, list[int]] = {}
    for layer, scheme in enumerate(schemes):
        said.setdefault(repr(scheme), []).append(layer)
    patched.changes += [f"layer{'s' * (len(which) > 1)} {ranges(which)}: {scheme}" for scheme, which in said.items()]


def _by_layer(
    base: Any, what: Schedule | Scheme, layers: int
) -> list[tuple[Any, tuple[int | None, int | None] | None]]:
    """Scheme and window of every layer; None: the model's own window."""
    if not isinstance(what, Schedule):
        _check_scheme(base, what, False)
        return [(what, None)] * layers
    if len(what) != layers:
        raise ValueError(f"what must be a Schedule of {layers} layers like {named(base)}, got one of {len(what)}")
    for scheme, _ in what:
        _check_scheme(base, scheme, text_config(base).model_type in TABLES)
    return [(scheme, check_window(window)) for scheme, window in what]


def put_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
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
    if not isinstance(what, Schedule):
        _check_scheme(base, what, table is not None)
    layers = sorted({module.layer_idx for module in modules})
    schemes = [(what, None)] * len(layers) if not isinstance(what, Schedule) else _by_layer(base, what, len(layers))
    patched._through_posenc()
    source: nn.Module | None = None
    for parent, name, module in found:
        turns = read_turns(module)
        source = PosencRotary(module, turns, dict.fromkeys(turns))
        patched._replace(parent, name, source)
        patched.changes.append("the model's own rotation: off")
    if table is not None:
        for parent in list(base.modules()):
            original = parent._modules.get(table)
            if isinstance(original, nn.Embedding):
                adds = {id(scheme): scheme for scheme, _ in schemes if "add" in scheme.doors}
                adder = next(iter(adds.values()), None)
                source = PosencTable(original, adder)
                patched._replace(parent, table, source)
                instead = "nothing" if adder is None else repr(adder)
                patched.changes.append(f"the model's learned table {table}: not added, {instead} is")
    for module in modules:
        scheme, window = schemes[layers.index(module.layer_idx)]
        patched._replace(module, PLAN, Plan(scheme, window, source))
        rescale(patched, module, next((s for s in map(_scaling, scheme.modules()) if s is not None), None))
    patched.changes.extend(in_words(what))
    if getattr(config, "attn_temperature_tuning", False):
        patched.changes.append("the model's factor of queries by their place in the cache stays")


def _scaling(scheme: nn.Module) -> Any:
    """The scaling of a scheme that turns; None of others."""
    return getattr(scheme, "scaling", None) if isinstance(scheme, Scheme) else None


def _check_scheme(base: Any, scheme: Any, has_table: bool) -> None:
    config, name = text_config(base), type(scheme).__name__
    if "add" in scheme.doors and not has_table:
        raise ValueError(
            f"{name} adds to the input, and {named(base)} has no table of positions in whose place it could stand"
        )
    heads, wanted = config.num_attention_heads, getattr(scheme, "num_heads", None)
    if wanted is not None and wanted != heads:
        raise ValueError(f"{name} is made for {wanted} heads, and {named(base)} has {heads}")
    if scheme.features:
        raise ValueError(
            f"{name} needs what each layer makes of its tokens ({', '.join(scheme.features)}), which the layers of "
            f"{named(base)} do not make: build it into a model of your own"
        )
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    for part in scheme.parts if not hasattr(config, "qk_rope_head_dim") else ():
        made = getattr(part, "head_dim", None)
        if made is not None and made != width:
            raise ValueError(f"{type(part).__name__} is made for head_dim {made}, and {named(base)} has {width}")


def in_words(what: Any) -> list[str]:
    """A scheme, or the lines that a schedule prints."""
    if not isinstance(what, Schedule):
        return [f"every layer: {what!r}"]
    return [line.strip() for line in repr(what).removeprefix("Schedule(").removesuffix(")").strip().splitlines()]
