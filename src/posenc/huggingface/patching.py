"""patch(): a scaling, a scheme or a schedule put into a model of transformers, and taken out again."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.huggingface.adapters import (
    ADAPTERS,
    BOUND,
    OTHERS,
    PUT_IN_PLACE,
    adapted,
    as_computed,
    check_rotates,
    is_adapted,
)
from posenc.huggingface.attention import NAME, PLAN, Plan, Visible
from posenc.huggingface.config import scheme_from_config
from posenc.huggingface.described import ranges
from posenc.huggingface.rotary import PosencRotary, Turns, is_rotary, read_turns
from posenc.positions import Positions
from posenc.schedule import Schedule
from posenc.scheme import Scheme, is_scheme
from posenc.schemes.rope import RoPE
from posenc.tiles import Chunk, Visibility, check_window


class Patched:
    """A model whose positions posenc has taken over, what was changed in words, and the way back.

    >>> patched = patch(model, YaRN(4.0, 4096))
    >>> print(patched)
    >>> patched.undo()
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.changes: list[str] = []
        self._restore: list[Callable[[], None]] = []
        self._exchanged: list[nn.Module] = []

    def undo(self) -> None:
        """Puts back what was there, bit for bit. Doing it again changes nothing. ValueError, and nothing is put back,
        while accelerate's hooks hold an attention of posenc's."""
        for module in self._exchanged:
            own = vars(module).get("forward")
            if own is not None and not _is_the_class_own(own, module):
                raise ValueError(
                    f"{type(module).__name__} got a forward of its own on the instance since it was patched, which "
                    "would run posenc's further: take it off with accelerate.hooks.remove_hook_from_submodules(model), "
                    "and undo() then"
                )
        self._exchanged.clear()
        while self._restore:
            self._restore.pop()()

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        done = "patched" if self._restore else "as it was"
        return "\n".join([f"{type(self.model).__name__}, {done}:", *(f"  {change}" for change in self.changes)])

    def _replace(self, parent: nn.Module, name: str, new: nn.Module | None) -> None:
        """Sets a submodule; None takes it away. Remembers which was there."""
        there = name in parent._modules
        old = parent._modules.get(name)

        def back() -> None:
            if there:
                parent._modules[name] = old
            else:
                parent._modules.pop(name, None)

        if new is None:
            parent._modules.pop(name, None)
        else:
            new.train(parent.training)
            parent._modules[name] = new
        self._restore.append(back)

    def _exchange(self, module: nn.Module, kind: type) -> None:
        """Makes the module one of another class. ValueError for one whose forward is the instance's own, as the hooks
        of accelerate make it: that of the class is not what runs."""
        was, own = type(module), vars(module).get("forward")
        if own is not None and not _is_the_class_own(own, module):
            raise ValueError(
                f"{was.__name__} has a forward of its own on the instance, as accelerate puts it there (device_map, "
                "offloading), so posenc's would not run: take it off with "
                "accelerate.hooks.remove_hook_from_submodules(model), patch or adapt, and dispatch the model again"
            )

        def back() -> None:
            module.__class__ = was
            vars(module).pop("forward", None)
            if own is not None:
                vars(module)["forward"] = own

        vars(module).pop("forward", None)
        module.__class__ = kind
        self._exchanged.append(module)
        self._restore.append(back)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        """Sets an attribute that is no module."""
        was = getattr(module, name)
        self._restore.append(lambda: setattr(module, name, was))
        setattr(module, name, value)

    def _through_posenc(self) -> None:
        """Sets posenc as the attention implementation, of every configuration that has another."""
        model: Any = _transformer(self.model)
        configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
        before = [(config, getattr(config, "_attn_implementation_internal", None)) for config in configs.values()]

        def back() -> None:
            for config, name in before:
                config._attn_implementation_internal = name

        self._restore.append(back)
        was = model.config.get_text_config()._attn_implementation
        model.set_attn_implementation(NAME)
        if model.config.get_text_config()._attn_implementation != NAME:
            raise ValueError(
                f"{type(model).__name__} has an attention of its own, which takes no other: posenc can give it neither "
                "a scheme nor a scaling that depends on the length"
            )
        if was != NAME:
            self.changes.append(f"attention: through posenc, in place of {was!r}")


def _is_the_class_own(forward: Any, module: nn.Module) -> bool:
    """Whether a forward on the instance is that of its class: accelerate leaves it there when a hook is taken off."""
    return getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module


def patch(model: nn.Module, what: Any) -> Patched:
    """Puts ``what`` in place of a model's own positions, until ``undo()`` or the end of the ``with`` block.

    - A *scaling*, such as ``YaRN(4.0, 4096)``, is put on the model's own rotary frequencies, in every layer that
      rotates, in place of the scaling that its configuration says. A mapping {layer type: scaling} puts it on the
      layers of these types alone, as Gemma 3 and its like name them. Where the model's scale of the scores has YaRN's
      mscale^2 in it (DeepSeek-V3), it becomes what goes with the new one. One that depends on the length (`DynamicNTK`,
      `LongRoPE`) is right from a cache and for each row by itself: keys are then kept unrotated.
    - A *scheme*, such as ``ALiBi(num_heads)`` or ``NoPE()``, replaces what the model does: its rotation is switched
      off, its learned table is not added. Layers share it, and its parameters are the model's.
    - A `Schedule` does so for each layer, with its window in place of the model's. Schemes see queries and keys as
      they reach the model's attention: DeepSeek-V3's rotated slice is in the half layout there.

    What was changed is in ``changes``, and printed. Configurations are not changed: what save_pretrained writes loads
    as the model was, without posenc. Parameters of a scheme are written too, and left out with a warning when loaded
    so; transformers writes no tensors that layers share, so give each layer one of its own, in a `Schedule` of
    ``scheme.another()``. Wrappers such as PEFT's are looked through.

    ValueError for a model that is patched already, and for one whose positions are not understood, by its name.
    """
    patched, base = _begin(model)
    if (kind := _text(base).model_type) in PUT_IN_PLACE:
        raise ValueError(
            f"{_named(base)} cannot be patched: {PUT_IN_PLACE[kind]}; adapt() runs it through posenc as it is"
        )
    try:
        if isinstance(what, Schedule) or is_scheme(what):
            _put_scheme(patched, base, what)
        elif isinstance(what, Mapping) or callable(what):
            _put_scaling(patched, base, what)
        else:
            raise ValueError(
                f"what must be a scaling, a scheme, a Schedule or {{layer type: scaling}}, got {shown(what)}"
            )
    except BaseException:
        patched.undo()
        raise
    return patched


def adapt(model: nn.Module) -> Patched:
    """Runs a model whose attention takes no other through posenc, with the positions that it has, until ``undo()`` or
    the end of the ``with`` block.

    - BLOOM, MPT, GPT-J and Falcon: with those that its configuration says. Falcon's ALiBi is there once and rounded to
      bfloat16, as in its published code and transformers' "sdpa"; ``patch(model, scheme_from_config(config).schedule)``
      gives it exactly.
    - Swin v2 and DeBERTa-v2: with the layers' own weights, which stay theirs and train.

    Models that take ``set_attn_implementation("posenc")`` need it not; for others, and for what a configuration says
    that posenc's schemes cannot, a ValueError says so by name. ``output_attentions`` is one too.
    """
    patched, base = _begin(model)
    config = _text(base)
    if config.model_type not in ADAPTERS | BOUND:
        raise ValueError(
            f"{_named(base)} is not among {', '.join(sorted(ADAPTERS | BOUND))}, whose attention posenc exchanges: use "
            "model.set_attn_implementation('posenc')"
        )
    try:
        if config.model_type in BOUND:
            _put_bound(patched, base)
        else:
            own = scheme_from_config(config).schedule
            _put_adapted(patched, base, Schedule([(as_computed(scheme), window) for scheme, window in own]))
    except BaseException:
        patched.undo()
        raise
    return patched


def _begin(model: nn.Module) -> tuple[Patched, Any]:
    base = _transformer(model)
    if (kind := _text(base).model_type) in OTHERS:
        raise ValueError(f"{_named(base)} cannot be patched: {OTHERS[kind]}")
    if any(isinstance(m, PosencRotary | Plan | PosencTable) or is_adapted(m) for m in base.modules()):
        raise ValueError("model is patched already: undo() that first, one patch replaces what another one reads")
    return Patched(model), base


def _transformer(model: nn.Module) -> Any:
    """The model of transformers inside of wrappers such as PEFT's or a compiled one."""
    from transformers import PreTrainedModel

    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"model must be a model of transformers, got {type(model).__name__}")


def _text(base: Any) -> Any:
    return base.config.get_text_config()


def _rotaries(base: Any) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Parent, name and rotary module of the text model; those of an image tower belong to another configuration."""
    config = _text(base)
    for parent in base.modules():
        for name, module in parent.named_children():
            same = getattr(module, "config", None)
            if is_rotary(module) and (same is config or type(same) is type(config)):
                yield parent, name, module


def _put_scaling(patched: Patched, base: Any, what: Any) -> None:
    found = list(_rotaries(base))
    check_rotates(_text(base))
    if _text(base).model_type in ADAPTERS and (not found or getattr(what, "needs_lengths", False)):
        _scale_adapted(patched, base, what)
        return
    if not found:
        raise ValueError(
            f"{_named(base)} has no rotary module that posenc knows, so there are no frequencies to put a scaling on"
        )
    for parent, name, module in found:
        turns = read_turns(module)
        scalings = _by_type(what, turns)
        ropes: dict[str | None, RoPE | None] = {}
        deferred: dict[str | None, RoPE] = {}
        for kind, turn in turns.items():
            if kind not in scalings:
                continue
            ropes[kind] = rope = turn.rope(scalings[kind])
            if rope.needs_lengths:
                ropes[kind], deferred[kind] = None, rope
            where = "every rotating layer" if kind is None else f"layers of type {kind}"
            own = "" if turn.own == "none" else f", in place of {turn.own}"
            how = "; in attention, from keys that are kept unrotated" if rope.needs_lengths else ""
            patched.changes.append(
                f"{where}: base {turn.base:g}, {turn.rotary_dim} channels, scaled by {scalings[kind]!r}{own}{how}"
            )
        rotary = PosencRotary(module, turns, ropes)
        if deferred:
            patched._through_posenc()
            _defer(patched, base, rotary, deferred)
        patched._replace(parent, name, rotary)
        for module in _attentions(base):
            kind = _kind(module, turns)
            if kind in scalings:
                _rescale(patched, module, scalings[kind])


def _rescale(patched: Patched, module: Any, scaling: Any) -> None:
    """The scale of the scores that goes with another scaling, in models whose own has YaRN's (0.1 mscale_all_dim ln s +
    1)^2 in it, as DeepSeek-V3's. They are told by the function of transformers that puts it there."""
    theirs = getattr(sys.modules.get(type(module).__module__), "yarn_apply_mscale", None)
    if theirs is None or not hasattr(module, "scaling"):
        return
    plain = getattr(module, "qk_head_dim", math.nan) ** -0.5
    own = theirs(module.config.rope_parameters, plain)
    if not math.isclose(own, module.scaling, rel_tol=1e-9):
        raise ValueError(
            f"{type(module).__name__} scales its scores by {module.scaling:g}, and not by 1/sqrt(qk_head_dim) with the "
            "mscale of its configuration, so posenc cannot tell what would be right with another scaling"
        )
    of_all = getattr(scaling, "mscale_all_dim", None) or 0.0
    new = plain * (0.1 * of_all * math.log(scaling.factor) + 1) ** 2 if of_all else plain
    if math.isclose(new, module.scaling, rel_tol=1e-9):
        return
    said = f"scale of the scores: {new:g}, in place of {module.scaling:g}, since mscale_all_dim is another"
    patched._set(module, "scaling", new)
    if said not in patched.changes:
        patched.changes.append(said)


def _scaling(scheme: nn.Module) -> Any:
    """The scaling of a scheme that turns; None of others."""
    return getattr(scheme, "scaling", None) if isinstance(scheme, Scheme) else None


def _by_type(what: Any, turns: Mapping[str | None, Turns]) -> dict[str | None, Any]:
    if not isinstance(what, Mapping):
        return dict.fromkeys(turns, what)
    for kind, scaling in what.items():
        if kind not in turns:
            known = ", ".join(str(k) for k in turns)
            raise ValueError(f"what names layers of type {shown(kind)}, and the model has those of {known}")
        if not callable(scaling):
            raise ValueError(f"what must map layer types to scalings, got {shown(scaling)} for {shown(kind)}")
    return dict(what)


def _defer(patched: Patched, base: Any, rotary: PosencRotary, ropes: Mapping[str | None, RoPE]) -> None:
    """Lets posenc turn queries and keys in the attention of every layer that turns."""
    found: dict[Any, tuple[str, int, int] | None] = {}
    for module in _attentions(base):
        kind = _kind(module, rotary.turns)
        if kind not in ropes:
            continue
        pairing = _pairing(base, module, rotary.turns[kind])
        if pairing is None:  # a layer without position
            continue
        layout, first, head_dim = pairing
        key = (kind, pairing)
        if key not in found:
            found[key] = None
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
        patched._replace(module, PLAN, plan)
    if any(turn.allocation is not None for kind, turn in rotary.turns.items() if kind in ropes):
        raise ValueError(
            f"{_named(base)} has positions of several axes, and a scaling that depends on the length needs the places "
            "of all keys of a cache, which it does not give: take one that does not, such as YaRN"
        )
    if not found:
        raise ValueError(f"{_named(base)} has no layer whose rotation posenc can do in attention")


def _attentions(base: Any) -> list[Any]:
    """The self-attention of every layer, in order."""
    config, found = _text(base), []
    for module in base.modules():
        index = getattr(module, "layer_idx", None)
        takes = inspect.signature(module.forward).parameters
        if "Attention" not in type(module).__name__ or not isinstance(index, int) or "hidden_states" not in takes:
            continue
        same = getattr(module, "config", None)
        if (same is config or type(same) is type(config)) and not getattr(module, "is_cross_attention", False):
            found.append(module)
    return sorted(found, key=lambda module: module.layer_idx)


def _kind(module: Any, turns: Mapping[str | None, Turns]) -> str | None:
    if set(turns) == {None}:
        return None
    return str(module.config.layer_types[module.layer_idx])


def _pairing(base: Any, module: Any, turns: Turns) -> tuple[str, int, int] | None:
    """Which channels of queries and keys make up pairs, as they reach attention: (layout, first channel, head_dim).
    None for a layer that does not turn.

    It is not read but tried: the layer is called with what it expects, and with cos 1, sin 0 and posenc's rotation.
    """
    if "position_embeddings" not in inspect.signature(module.forward).parameters:
        raise ValueError(
            f"{type(module).__name__} does not take position_embeddings, so posenc cannot turn in its place"
        )
    probe = copy.deepcopy(module).to(device="cpu", dtype=torch.float64).eval()
    probe.config._attn_implementation_internal = NAME
    places = torch.tensor([[0, 2, 3, 7]])
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(1, 4, _text(base).hidden_size, generator=generator, dtype=torch.float64)
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
            )
        probe._modules.pop(PLAN, None)
        return out[0] if isinstance(out, tuple) else out

    plain = nn.Identity()
    off = PosencRotary(plain, {None: turns}, {None: None})
    watch = _Widths(seen)
    # Large inputs can saturate a trained layer's softmax, and then positions change nothing; small ones make it flat.
    for x in (drawn * size for size in (8.0, 1.0, 0.125, 2.0**-6)):
        own = run(x, PosencRotary(plain, {None: turns}, {None: turns.rope()}), None)
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
            if error < 1e-2 * effect:  # another pairing is wrong by about the effect itself
                return layout, first, head_dim
    raise ValueError(
        f"{type(module).__name__} of layer {module.layer_idx} turns its channels in a way that posenc does not know"
    )


class _Widths(Scheme):
    """Does nothing but note how wide the queries are that it meets."""

    def __init__(self, seen: list[int]) -> None:
        super().__init__()
        self._seen = seen

    def rotation(self, positions: Positions, dtype: torch.dtype = torch.float32, context: Any = None) -> Any:
        from posenc.encoding import Rotation

        def note(x: Tensor) -> Tensor:
            self._seen.append(x.size(-1))
            return x

        return Rotation(note, note)


# -- schemes ----------------------------------------------------------------------------------------------------------

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


def _put_adapted(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    """Exchanges the attention of every layer of a family that has one of its own."""
    config = _text(base)
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
        patched._exchange(module, adapted(module, {"forward": forward}))
        patched._replace(module, PLAN, Plan(scheme, window, counts=counts))
    patched.changes.append("attention: posenc's, in place of the model's own")
    patched.changes.extend(_in_words(what))


def _put_bound(patched: Patched, base: Any) -> None:
    """Exchanges the attention of every layer of a family whose positions are made of the layers' own weights."""
    scheme_of, classes = BOUND[_text(base).model_type]
    attention = next(iter(classes))
    schemes = [scheme_of(module) for module in base.modules() if type(module).__name__ == attention]
    for module in base.modules():
        methods = classes.get(type(module).__name__)
        if methods is not None:
            patched._exchange(module, adapted(module, methods))
    patched.changes.append("attention: posenc's, in place of the model's own, with the weights of each layer")
    said: dict[str, list[int]] = {}
    for layer, scheme in enumerate(schemes):
        said.setdefault(repr(scheme), []).append(layer)
    patched.changes += [f"layer{'s' * (len(which) > 1)} {ranges(which)}: {scheme}" for scheme, which in said.items()]


def _scale_adapted(patched: Patched, base: Any, what: Any) -> None:
    own = scheme_from_config(_text(base)).schedule
    if isinstance(what, Mapping) or not any(isinstance(scheme, RoPE) for scheme in own.schemes):
        raise ValueError(f"{_named(base)} has no rotary frequencies to put a scaling on: {', '.join(_in_words(own))}")
    for scheme in own.schemes:
        if isinstance(scheme, RoPE):
            scheme.scaling = what
    _put_adapted(patched, base, own)
    patched.changes.append(f"every rotating layer: scaled by {what!r}")


def _by_layer(
    base: Any, what: Schedule | Scheme, layers: int
) -> list[tuple[Any, tuple[int | None, int | None] | Chunk | None]]:
    """Scheme and window of every layer; None: the model's own window."""
    if not isinstance(what, Schedule):
        _check_scheme(base, what, False)
        return [(what, None)] * layers
    if len(what) != layers:
        raise ValueError(f"what must be a Schedule of {layers} layers like {_named(base)}, got one of {len(what)}")
    for scheme, _ in what:
        _check_scheme(base, scheme, _text(base).model_type in TABLES)
    return [(scheme, window if isinstance(window, Chunk) else check_window(window)) for scheme, window in what]


def _put_scheme(patched: Patched, base: Any, what: Schedule | Scheme) -> None:
    modules, config = _attentions(base), _text(base)
    if config.model_type in ADAPTERS:
        _put_adapted(patched, base, what)
        return
    table = TABLES.get(config.model_type)
    rotaries = list(_rotaries(base))
    if not modules or not (table or rotaries):
        raise ValueError(
            f"{_named(base)} has neither rotary modules nor a learned table that posenc knows, so posenc cannot tell "
            "what a scheme would replace"
        )
    if not isinstance(what, Schedule):
        _check_scheme(base, what, table is not None)
    layers = sorted({module.layer_idx for module in modules})
    schemes = [(what, None)] * len(layers) if not isinstance(what, Schedule) else _by_layer(base, what, len(layers))
    patched._through_posenc()
    source: nn.Module | None = None
    for parent, name, module in rotaries:
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
        _rescale(patched, module, next((s for s in map(_scaling, scheme.modules()) if s is not None), None))
    patched.changes.extend(_in_words(what))
    if getattr(config, "attn_temperature_tuning", False):
        patched.changes.append("the model's factor of queries by their place in the cache stays")


def _check_scheme(base: Any, scheme: Any, has_table: bool) -> None:
    config, name = _text(base), type(scheme).__name__
    if "add" in scheme.doors and not has_table:
        raise ValueError(
            f"{name} adds to the input, and {_named(base)} has no table of positions in whose place it could stand"
        )
    heads, wanted = config.num_attention_heads, getattr(scheme, "num_heads", None)
    if wanted is not None and wanted != heads:
        raise ValueError(f"{name} is made for {wanted} heads, and {_named(base)} has {heads}")
    if scheme.features:
        raise ValueError(
            f"{name} needs what each layer makes of its tokens ({', '.join(scheme.features)}), which the layers of "
            f"{_named(base)} do not make: build it into a model of your own"
        )
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    for part in scheme.parts if not hasattr(config, "qk_rope_head_dim") else ():
        made = getattr(part, "head_dim", None)
        if made is not None and made != width:
            raise ValueError(f"{type(part).__name__} is made for head_dim {made}, and {_named(base)} has {width}")


def _in_words(what: Any) -> list[str]:
    """A scheme, or the lines that a schedule prints."""
    if not isinstance(what, Schedule):
        return [f"every layer: {what!r}"]
    return [line.strip() for line in repr(what).removeprefix("Schedule(").removesuffix(")").strip().splitlines()]


def _named(base: Any) -> str:
    return f"{type(base).__name__} ({_text(base).model_type})"
