"""Finds where positions enter a model of transformers, by asking a model of its class and configuration, and takes them
out there until `undo`: at rotary modules, tables, sinusoids and scales of queries. Whatever is left is an error that
says so."""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from posenc.arguments import shown
from posenc.compat import no_grad
from posenc.huggingface.asking import _angles, _by_axis, _candidates, _numbers, _ruled, _turning, _window
from posenc.huggingface.attention import NAME, REFUSED, LayerScheme, check_runs
from posenc.huggingface.loading import OwnAttentionError
from posenc.huggingface.questions import (
    COUNTED,
    FRESH,
    PLACES,
    ROWS,
    SILENT,
    WARM,
    Answer,
    Asked,
    asks,
    built,
    is_own,
    length_of,
    within,
)
from posenc.models.forward_pass import EXCHANGES
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, check_window
from posenc.scheme import Scheme
from posenc.schemes.rope import RoPE

BY_SLOT = "attn_temperature_tuning"
"""The attribute of attention that scales queries by their slot in the cache, and not by position_ids."""

Kind = str | None
"""A type of layers that a rotary module is told of, or None."""

HELD: WeakKeyDictionary[nn.Module, list[tuple[Any, str, Any, Any]]] = WeakKeyDictionary()
"""What patched models have set in configurations, which they may share: the name, the value and that before all."""

LOCK = threading.RLock()
"""Held while a model is patched or put back, since models of several threads may share a configuration."""


def transformer(model: nn.Module) -> Any:
    """The model of transformers inside wrappers such as those of PEFT and torch.compile."""
    from transformers import PreTrainedModel

    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, PreTrainedModel):
            return module
    raise ValueError(f"model must be a model of transformers, got {shown(model)}")


def text_config(base: Any) -> Any:
    """The configuration of the text part, which in most models is the whole."""
    return base.config.get_text_config()


def named(base: Any) -> str:
    """A model's name in errors: its class and its model_type."""
    return f"{type(base).__name__} ({text_config(base).model_type})"


class Patched:
    """A patched model, with a description of the changes and `undo`.

    >>> patched = patch(model, YaRN(4.0, 4096))
    >>> print(patched)
    >>> patched.undo()
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.changes: list[str] = []
        self._restore: list[Callable[[], Any]] = []

    def undo(self) -> None:
        """Restores the model exactly. Calling it again changes nothing."""
        with LOCK:
            while self._restore:
                self._restore[-1]()
                self._restore.pop()  # only now: after an error it can be called again

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        done = "patched" if self._restore else "not patched"
        return "\n".join([f"{type(self.model).__name__}, {done}:", *(f"  {change}" for change in self.changes)])

    def on_undo(self, back: Callable[[], Any]) -> None:
        """Registers a function that `undo` calls, the last one first."""
        self._restore.append(back)

    def replace(self, parent: nn.Module, name: str, new: nn.Module) -> None:
        """Sets a submodule until `undo`."""
        old = parent._modules.get(name)

        def back() -> None:
            if old is None:
                del parent._modules[name]
            else:
                parent._modules[name] = old.train(new.training)  # in its place in the order

        parent._modules[name] = new.train((old or parent).training)
        self.on_undo(back)

    def give(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """Gives a module another forward method until `undo`, which accelerate's hooks call too."""
        own = vars(module)
        place = "_old_forward" if "_old_forward" in own else "forward"
        made, was = functools.partial(function, module), own.get(place)
        own[place] = made
        self.on_undo(functools.partial(_take_back, module, made, was))

    def set(self, module: Any, name: str, value: Any) -> None:
        """Sets an attribute of a module until `undo`."""
        self.on_undo(functools.partial(setattr, module, name, getattr(module, name)))
        setattr(module, name, value)

    def hold(self, config: Any, name: str, value: Any, *before: Any) -> tuple[Any, ...]:
        """Sets an attribute of a configuration until `undo` of the last model that holds it. Returns its value before
        the first of them, which ``before`` is if it is not there any more, or nothing if it had none."""

        def others() -> list[tuple[Any, str, Any, Any]]:
            models = [model for of in HELD.keyrefs() if (model := of()) not in (None, self.model)]
            every = [each for model in models for each in HELD.get(model, ())]
            return [each for each in every if each[0] is config and each[1] == name]

        def back() -> None:
            HELD[self.model] = [each for each in HELD[self.model] if each is not mine]
            for now in next(((each[2],) for each in others()), before) or ():
                return setattr(config, name, now)
            vars(config).pop(name, None)

        with LOCK:
            own = (vars(config)[name],) if name in vars(config) else ()
            before = next((each[3] for each in others()), before or own)
            HELD.setdefault(self.model, []).append(mine := (config, name, value, before))
            setattr(config, name, value)
            self.on_undo(back)
        return before

    def watch_ids(self) -> None:
        """Makes `Positions` in place of position_ids an error by name until `undo`."""
        self.on_undo(transformer(self.model).register_forward_pre_hook(_check_ids, with_kwargs=True).remove)

    def through_posenc(self) -> None:
        """Makes posenc the attention implementation of all of the model's configurations until `undo`."""
        model: Any = transformer(self.model)
        configs = list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())
        place, kind, was = (
            "_attn_implementation_internal",
            type(text_config(model)),
            text_config(model)._attn_implementation,
        )
        before = [getattr(config, place, None) for config in configs]
        try:
            with suppress(OwnAttentionError):
                model.set_attn_implementation(NAME)
            runs = text_config(model)._attn_implementation == NAME
        finally:  # a copied layer may have a configuration of its own, which the model does not know
            for config, old in zip(configs, before, strict=True):
                self.hold(config, place, NAME if runs and type(config) is kind else getattr(config, place, None), old)
        if not runs:
            raise ValueError(
                f"{type(model).__name__} has its own attention, which cannot be replaced: posenc supports neither a "
                "scheme nor a scaling that depends on the length in it"
            )
        if was != NAME:
            self.changes.append(f"attention: posenc instead of {was!r}")


def _take_back(module: nn.Module, made: Any, was: Any) -> None:
    for place in ("forward", "_old_forward"):  # hooks may have come or gone since
        if vars(module).get(place) is made:
            if place == "forward" and was is None:
                vars(module).pop(place)
            else:
                vars(module)[place] = was or type(module).forward.__get__(module)


def _check_ids(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    if any(isinstance(each, Positions) for each in (given.get("position_ids"), *args)):
        raise ValueError(
            "position_ids must be a tensor (rows, tokens), got Positions: pass position_ids=positions.coords, and "
            "padding by attention_mask=(positions.document >= 0).long()"
        )


# -- what modules do by position --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turns:
    """What a rotary module gives: the angle a position of each pair, the pair of each column, whether sin comes before
    cos, the factor of both, and the axis of each pair, if positions have several."""

    theta: Tensor
    columns: list[int]
    is_swapped: bool
    factor: float
    allocation: tuple[int, ...] | None

    @staticmethod
    def of(z: Tensor, places: Tensor, by_axis: list[Tensor] | None = None) -> Turns:
        """From its cos + i sin, (tokens, columns), and those along each of several axes."""
        is_swapped = float(z[0].real.abs().max()) < float(z[0].imag.abs().max())
        each = [torch.complex(x.imag, x.real) if is_swapped else x for x in by_axis or [z]]
        angles = torch.stack([_angles(x[None], places) for x in each])
        every = angles.sum(0)
        pairs, half = torch.arange(len(every)), len(every) // 2
        forms = ((pairs % half, every[:half]), (pairs // 2, every[::2])) if len(every) % 2 == 0 else ()
        columns, theta = next((form for form in forms if torch.equal(form[1][form[0]], every)), (pairs, every))
        first = [columns.tolist().index(n) for n in range(len(theta))]
        allocation = None if by_axis is None else tuple(angles.abs().argmax(0)[first].tolist())
        return Turns(theta, columns.tolist(), is_swapped, float(z[0].abs().max()), allocation)

    def turn(self, theta: Tensor) -> bool:
        """Whether keys turn by them, the first pairs alone or all, in either direction."""
        return len(theta) <= len(self.theta) and torch.allclose(theta.abs(), self.theta[: len(theta)], 1e-4, 1e-8)

    def rope(self, base: float, scaling: Any) -> RoPE:
        """A rotation of the same pairs."""
        axes = 1 if self.allocation is None else max(self.allocation) + 1
        return RoPE(2 * len(self.theta), base, axes=axes, allocation=self.allocation, scaling=scaling)

    def own(self, name: str, config: Any, places: Tensor) -> RoPE:
        """The first rotation by a base and scaling of the configuration that does so. ValueError if there is none."""
        for base, scaling in _candidates(config, length_of(config)):
            with suppress(ValueError):
                rope = self.rope(base, scaling)
                theta, factor = rope.frequencies(lengths=places[-1:].double() + 1 if rope.needs_lengths else None)
                is_size = math.isclose(float(torch.as_tensor(factor).amax()), self.factor, rel_tol=1e-4)
                if is_size and torch.allclose(theta[0], self.theta, 1e-4, 1e-8):
                    return rope
        seen = _numbers(self.theta)
        raise ValueError(f"{name} turns by {seen} a position, by no base and scaling of its configuration")


def _by_token(out: Any, tokens: int) -> Tensor | None:
    """What a module gives, (tokens, columns): cos + i sin, or one tensor; None if it is neither."""
    parts = out if isinstance(out, tuple) else (out,)
    if len(parts) > 2 or not all(isinstance(x, Tensor) and x.shape == parts[0].shape for x in parts):
        return None
    dims = [n for n in range(parts[0].dim() - 1) if parts[0].size(n) == tokens]
    if not dims or not (parts[0].is_floating_point() or parts[0].is_complex()):
        return None
    z = torch.complex(*parts) if len(parts) == 2 else parts[0]
    z = z.to(torch.complex128 if z.is_complex() else torch.float64)
    return z.movedim(dims[0], 0).reshape(tokens, -1)


def rotaries(base: Any) -> Iterator[nn.Module]:
    """The rotary modules of the text; those of an image tower have another configuration."""
    config = text_config(base)
    for module in base.modules():
        same = getattr(module, "config", None)
        buffers = [name for name, _ in module.named_buffers() if name.endswith("inv_freq")]
        if "Rotary" in type(module).__name__ and buffers and (same is config or type(same) is type(config)):
            yield module


@torch.no_grad()
def ask_rotary(module: Any) -> dict[Kind, tuple[Turns, RoPE]]:
    """What a rotary module does, by type of layers, and its rotation. ValueError for one that posenc does not know."""
    if any(buffer.is_meta for buffer in module.buffers()):  # it has no weights, so another one is the same
        with torch.device("cpu"):
            probe: Any = type(module)(config=module.config)
    else:
        probe = copy.deepcopy(module).cpu()
    names = [name for name, _ in probe.named_buffers() if name.endswith("inv_freq") and "original" not in name]
    places = within(PLACES, length_of(module.config) or 4096)
    found: dict[Kind, tuple[Turns, RoPE]] = {}
    for name in names:
        stem = name.removesuffix("inv_freq")
        if (original := getattr(probe, f"{stem}original_inv_freq", None)) is not None:  # as before a long text
            getattr(probe, name).copy_(original)
        kind = stem.rstrip("_") or None
        ask = functools.partial(probe, torch.zeros(1, 1, 1, dtype=torch.float64))
        kinds = () if kind is None else (kind,)
        z, axes = _by_token(ask(places[None], *kinds), len(places)), None
        if z is None or not z.is_complex():
            raise ValueError(f"{type(module).__name__} returns cos and sin in a form that posenc does not know")
        with suppress(Exception):  # of transformers, for a module that takes no axes
            every = [ask(places * axis[:, None, None], *kinds) for axis in torch.eye(3, dtype=torch.long)]
            each = [_by_token(x, len(places)) for x in every]
            axes = [x for x in each if x is not None and x.shape == z.shape]
        turns = Turns.of(z, places, axes if axes is not None and len(axes) == 3 else None)
        found[kind] = turns, turns.own(type(module).__name__, module.config, places)
    return found


class Seam:
    """A hook on a module that gives something by position: cos and sin of posenc's rotation, exact to float32, in the
    module's own form. ``ropes`` are the rotations by type of layers; None: cos is 1 and sin 0, since posenc rotates in
    attention. Other types are left alone. What is no rotation becomes zeros."""

    def __init__(self, turns: Mapping[Kind, Turns], ropes: Mapping[Kind, RoPE | None], config: Any) -> None:
        self.turns, self.ropes, self.config = turns, ropes, config
        self.seen: Tensor | None = None
        """The position_ids of the last forward pass, for layers that do not get them."""

    def put(self, patched: Patched, module: nn.Module) -> Seam:
        """Hooks it to a module until `undo`."""
        patched.on_undo(module.register_forward_hook(self, with_kwargs=True, prepend=True).remove)
        return self

    @no_grad
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
        given = (*args, *kwargs.values())
        kind = next((each for each in given if isinstance(each, str)), None)
        if self.turns:
            tensors = [each for each in given if isinstance(each, Tensor)]
            self.seen = next((each for each in tensors if not each.is_floating_point()), tensors[-1])
        if kind not in self.ropes:
            return out
        rope = self.ropes[kind]
        if self.config is not None and (rope is None or EXCHANGES):
            check_runs(self.config)
        parts = out if isinstance(out, tuple) else (out,)
        if rope is None:
            cos_sin = [torch.ones_like(parts[0]), torch.zeros_like(parts[-1])]
        else:
            ids: Any = self.seen
            if rope.allocation is not None:  # (axes, rows, tokens), or the same for all axes
                ids = ids.expand(rope.axes, *ids.shape[-2:]).movedim(0, -1)
            both = rope.tokens(Positions(ids)).cos_sin()
            cos_sin = [x[..., self.turns[kind].columns].to(parts[0].device).view(parts[0].shape) for x in both]
        if len(parts) == 2:
            first, second = (x.to(parts[0].dtype) for x in cos_sin)
            return (second, first) if self.turns[kind].is_swapped else (first, second)
        if rope is None:
            return cos_sin[0] if out.is_complex() else cos_sin[1]
        return torch.complex(*cos_sin).to(out.dtype)


def at_zero(names: list[str], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A hook before attention, which it tells of position 0 and a scale of 1, so that queries are not scaled."""
    told = {name: x for name, x in kwargs.items() if name in names and isinstance(x, Tensor)}
    level = {name: torch.full_like(x, float(x.is_floating_point())) for name, x in told.items()}
    return args, kwargs | level


class PosencTable(nn.Embedding):
    """A table whose rows are positions, after the ``first`` ones: gives the vectors that a scheme adds, or zeros. The
    unused table keeps its name, so that weights are saved and loaded as before."""

    scheme: Scheme | None
    first: int
    config_of_model: Any
    seen: Tensor | None

    @staticmethod
    def of(original: nn.Embedding, scheme: Scheme | None, first: int, config: Any) -> PosencTable:
        """The table in place of another one, with the same weight."""
        made: PosencTable = _empty_table(type(original))
        hooked = ("forward", "_hf_hook", "_old_forward")  # of accelerate, which would load the weights
        vars(made).update({name: value for name, value in vars(original).items() if name not in hooked})
        made._modules = {**original._modules}
        made.scheme, made.first, made.config_of_model, made.seen = scheme, first, config, None
        return made

    def forward(self, rows: Tensor) -> Tensor:
        """The vectors to add to the input; padding has the row before that of position 0."""
        if self.config_of_model is not None:
            check_runs(self.config_of_model)
        self.seen = (rows - self.first).clamp(min=0).view(-1, rows.size(-1))
        table = None if self.scheme is None else self.scheme.table(Positions(self.seen.long()))
        if table is None:
            return torch.zeros(*rows.shape, self.embedding_dim, dtype=self.weight.dtype, device=rows.device)
        return table.to(self.weight.dtype).view(*rows.shape, -1)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle, which does not find a class that is no attribute of a Python module."""
        return _empty_table, (type(self).__bases__[0],), vars(self)


def _empty_table(kind: type) -> Any:
    """The code of a table, with another lookup."""
    kind = nn.Embedding if kind is PosencTable else kind
    bases = (PosencTable,) if kind is nn.Embedding else (kind, PosencTable)
    return object.__new__(type(f"Posenc{kind.__name__}", bases, {"__module__": kind.__module__}))


def is_patched(module: nn.Module) -> bool:
    """Whether it is what `patch` puts in, or has a seam on it."""
    put = isinstance(module, LayerScheme | PosencTable)
    return put or any(isinstance(each, Seam) for each in module._forward_hooks.values())


# -- where positions enter --------------------------------------------------------------------------------------------


@dataclass
class Attention:
    """The attention of a layer: its module, heads, channels, what turns its keys, and which keys it sees."""

    layer: int
    path: str
    heads: int
    key_heads: int
    head_dim: int
    turning: Any
    window: Any
    """(left, right) or a `Chunk`; (None, None) without any."""
    causal: bool
    scaled_by: list[str]
    """What tells it to scale its queries."""
    refused: str | None
    """Why no scheme can be put into it."""


class Seams:
    """Where positions enter a part of a model: ``turns`` are its rotary modules by path and type of layers, ``tables``
    the first row of its tables, ``added`` other modules that add what is not learned, and ``attentions`` what reaches
    attention, in the order of layers."""

    def __init__(self, base: Any) -> None:
        from transformers import PreTrainedModel

        kind = type(text_config(base))  # the part of the text, which in most models is the whole
        self.base, self.part = (
            base,
            next(each for each in base.modules() if isinstance(each, PreTrainedModel) and type(each.config) is kind),
        )
        try:
            self._ask()
        except (ValueError, OSError) as error:  # the latter for code without a file
            raise ValueError(f"the positions of {named(base)} could not be found: {error}") from error

    def _ask(self) -> None:
        config = self.part.config
        model = self._built(config)
        if all(is_own(module) or not asks(module) for module in model.modules()):
            raise ValueError("none of its modules calls transformers' attention functions, where positions are seen")
        self.asked = asked = Asked(config, model=model)
        if "input_ids" not in asked.parameters:
            raise ValueError(
                f"it takes {next(iter(asked.parameters))}, and a scheme is put into models of input_ids alone"
            )
        asked.even = True
        asked.reset(1)
        self._given: dict[str, dict[Kind, Tensor]] = {}
        self._told: dict[str, list[str]] = {}
        notes: list[Any] = []
        for path, module in asked.model.named_modules():
            if asks(module):
                told_of = functools.partial(self._note_told, path)
                notes.append(module.register_forward_pre_hook(told_of, with_kwargs=True))
            elif not isinstance(module, nn.Embedding) and not any(map(asks, module.modules())):
                given_by = functools.partial(self._note_given, path)
                notes.append(module.register_forward_hook(given_by, with_kwargs=True))
        # A new scheme may run past the trained length, where a factor of queries may begin; a learned table ends there.
        ends = [min(length_of(config) or 4096, ROWS if asked.takes_ids else COUNTED)]
        if asked.takes_ids and not asked(within(PLACES, ends[0])).tables:
            ends = [ROWS, *ends]
        answer = self._first(ends)
        for note in notes:
            note.remove()
        in_line = asked(torch.arange(min(24, length_of(config) or 24)), by_ids=False)
        self.turns = {
            path: {kind: Turns.of(z, self.places) for kind, z in of.items()}
            for path, of in self._given.items()
            if all(z.is_complex() for z in of.values())
        }
        self.attentions, self.tables = [*self._attentions(answer, in_line)], self._tables(in_line)
        inner = [path for path in self._given if not any(each.startswith(f"{path}.") for each in self._given)]
        adding = [*asked.sinusoids, *(path for path in inner if path not in self.turns)]
        self.added = [path for path in adding if path not in self.tables]
        self.has_bias = any(call.bias is not None for call in answer.calls)
        turn = any(each.turning is not None for each in self.attentions)
        self.has_axes = turn and bool(_by_axis(asked, self.places))

    def _built(self, config: Any) -> nn.Module:
        """The model without weights, of its own class or, if that needs more than the configuration and has the forward
        of a class of transformers, of the latter."""
        kind: Any = type(self.part)
        try:
            return built(config, kind=kind)
        except ValueError:
            base = next(each for each in kind.__mro__ if each.__module__.startswith("transformers."))
            if base is kind or base.forward is not kind.forward:
                raise
            model = built(config, kind=base)
        for path, module in model.named_modules():
            of = type(module)
            if path and of.__module__.startswith("transformers.") and type(self.module(path)) is not of:
                raise ValueError(f"{kind.__name__} has other modules than {base.__name__}, such as {path}")
        return model

    def _first(self, ends: list[int]) -> Answer:
        """The first answer that the model gives to positions below one of the ends."""
        for end in ends:
            self._given.clear()
            self._told.clear()
            self.places, self.fresh = (within(places, end) for places in (PLACES, FRESH))
            try:
                return self.asked(self.places)
            except ValueError:
                if end == ends[-1]:
                    raise
        raise AssertionError

    def _note_given(self, path: str, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        """Notes what a module gives by position: cos and sin, or what is added and not made of vectors."""
        given, z = (*args, *kwargs.values()), _by_token(out, self.asked.tokens)
        is_real = any(isinstance(x, Tensor) and x.is_floating_point() for x in given)
        if z is None or (is_real and not z.is_complex()):
            return
        size = z.abs()
        turns = float((size - size[:1]).abs().max()) < 1e-5 * float(size.max())
        if float((z - z[:1]).abs().max()) > 0 and (turns or not z.is_complex()):
            kind = next((each for each in given if isinstance(each, str)), None)
            self._given.setdefault(path, {})[kind] = z[WARM:] if self.asked.takes_ids else z[self.places]

    def _note_told(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Notes which arguments of an attention differ by position, beside cos, sin and masks."""
        tensors = {name: x for name, x in kwargs.items() if isinstance(x, Tensor)}
        self._told[path] = [
            name
            for name, x in tensors.items()
            if name not in ("attention_mask", "hidden_states")
            and any(bool((x != x.narrow(n, 0, 1)).any()) for n in range(x.dim()))
        ]

    def _tables(self, answer: Answer) -> dict[str, int]:
        """The first row of tables that were looked up by position; those of pairs of positions are of a bias."""
        found = {}
        for name, (_, rows) in answer.tables.items():
            if len(rows) == len(answer.places):
                found[name.removesuffix(".weight")] = rows[0]
                if rows != (answer.places + rows[0]).tolist():
                    raise ValueError(f"positions {answer.places[:4].tolist()} ... are rows {rows[:4]} ... of {name}")
        for path, (added, table) in self.asked.sinusoids.items():
            if table is not None and isinstance(self.asked.model.get_submodule(path), nn.Embedding):
                for row in (table == added[:1]).all(1).nonzero()[:1]:
                    found[path] = int(row)
        return found

    def _attentions(self, answer: Answer, masks: Answer) -> Iterator[Attention]:
        config, paths = self.part.config, {module: path for path, module in self.asked.model.named_modules()}
        windows: dict[tuple[Any, bool], Any] = {}
        for call, seen in zip(answer.calls, masks.calls, strict=True):
            causal = bool(call.options.get("is_causal", getattr(call.module, "is_causal", True)))
            if (seen.mask, causal) not in windows:
                try:
                    window, sees = _window(_ruled(seen, masks.calls, config, causal), config, causal)
                    windows[seen.mask, causal] = window, sees, None
                except ValueError as error:
                    windows[seen.mask, causal] = None, causal, str(error)
            window, sees, refused = windows[seen.mask, causal]
            unknown = [n for n, x in call.options.items() if x is not False and (n in REFUSED or n not in SILENT)]
            if call.bias is not None and call.mask is not None and call.mask.dtype == torch.bool:
                refused = "a bias by position is in its mask"
            if unknown:
                refused = f"it also gives its attention function {', '.join(unknown)}"
            turning = None
            with suppress(ValueError):
                turning = _turning(call.key[0], self.places)
            size, path = call.query.norm(dim=-1), paths[call.module]
            scaled = self._told[path] if float((size / size[..., :1] - 1).abs().max()) > 1e-6 else []
            scaled = [BY_SLOT] if getattr(call.module, BY_SLOT, False) else scaled
            window = window if isinstance(window, Chunk) else check_window(window)
            sizes = call.query.size(1), call.key.size(1), call.query.size(3)
            yield Attention(call.layer, path, *sizes, turning, window, sees, scaled, refused)

    def module(self, path: str, model: Any = None) -> Any:
        """The module at a path. ValueError if the model has none there, since it was changed after it was made."""
        try:
            return (self.part if model is None else model).get_submodule(path)
        except AttributeError:
            raise ValueError(f"{named(self.base)} must have the module {path!r} of its configuration") from None

    def check(self) -> None:
        """ValueError unless a scheme can be put into every layer."""
        if self.has_axes:
            raise ValueError(
                f"{named(self.base)} has positions of several axes, and a scheme needs those of all keys of a cache, "
                "which it does not provide: use a scaling that does not depend on the length, such as YaRN"
            )
        for each in self.attentions:
            if each.refused is not None:
                raise ValueError(f"{named(self.base)} cannot be patched in layer {each.layer}: {each.refused}")
        if not self.attentions:
            raise ValueError(f"{named(self.base)} has no layer whose attention goes through transformers' table")

    def take_out(self, patched: Patched, model: Any, config: Any, adder: Scheme | None = None) -> list[Any]:
        """Switches off what a model does by position until `undo`. The seams that get the model's position_ids."""
        sources: list[Any] = [
            Seam(turns, dict.fromkeys(turns), config).put(patched, self.module(path, model))
            for path, turns in self.turns.items()
        ]
        for path in self.added:
            Seam({}, {None: None}, config).put(patched, self.module(path, model))
        for path, first in self.tables.items():
            original = self.module(path, model)
            if not isinstance(original, nn.Embedding):
                raise ValueError(f"{path} of {named(self.base)} must be a torch.nn.Embedding, got {shown(original)}")
            parent, _, name = path.rpartition(".")
            sources.append(table := PosencTable.of(original, adder, first, config))
            patched.replace(model.get_submodule(parent), name, table)
        for each in self.attentions:
            module = self.module(each.path, model)
            if BY_SLOT in each.scaled_by:
                patched.set(module, BY_SLOT, False)
            elif each.scaled_by:
                level = functools.partial(at_zero, each.scaled_by)
                patched.on_undo(module.register_forward_pre_hook(level, with_kwargs=True).remove)
        return sources

    def verify(self) -> None:
        """ValueError, saying what, if anything still differs by position in a model with the same seams."""
        self.take_out(Patched(self.asked.model), self.asked.model, None)
        try:
            answer = self.asked(self.fresh)
            left = [name for name, (_, rows) in answer.tables.items() if len(rows) == self.asked.tokens]
            left += [name for name, (added, _) in self.asked.sinusoids.items() if bool((added != added[:1]).any())]
            left += ["vectors that are added to its tokens"] * bool(self.asked.added)
            for call in answer.calls:
                for name in ("query", "key", "value"):
                    x = getattr(call, name)
                    if float((x - x[:, :, :1]).abs().max()) > 1e-6 * float(x.abs().max()):
                        left.append(f"the {name} of layer {call.layer}")
            if left:
                raise ValueError(f"{', '.join(left[:3])} still differ by position")
        except ValueError as error:
            raise ValueError(f"the own positions of {named(self.base)} cannot all be switched off: {error}") from error
