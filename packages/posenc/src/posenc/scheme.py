"""`Scheme`, the base class of positional encodings, and their composition."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, Literal, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from posenc.arguments import check_type, naming, number, one_or, shown, whole
from posenc.encoding.claims import check_bound
from posenc.encoding.context import WHOLE, Feature, wanted_by_both
from posenc.encoding.encoding import DOORS, ROTATED_IN_PAIRS, Context, Encoding
from posenc.encoding.rotation import Rotation
from posenc.encoding.staleness import by_value, is_counted
from posenc.encoding.terms import SKIP_BELOW, ScoreTerms, Value, horizon
from posenc.positions.positions import Positions
from posenc.rotation.phases import several_scales


class Scheme(nn.Module):
    """Base class of positional encodings: a module that owns the parameters. Calling it with positions returns an
    `Encoding`.

    A subclass overrides the methods of the doors that it uses, and nothing else: `table` for add, `rotation` for
    rotate, `score` for score, `value` for value.

    Schemes have no buffers: constants are computed from the configuration, so they cannot go stale, be cast with the
    module, or stay on ``meta``. A scheme with parameters initializes them in ``reset_parameters()``.

    >>> scheme = RoPE(64) + ALiBi(8)            # schemes compose
    >>> encoding = scheme(Positions.arange(5))
    """

    zero_initialized: ClassVar[bool] = False
    """Whether the parameters are initialized to zeros and have no effect until trained. Figures and measurements of the
    scheme alone then draw them from N(0, 1)."""

    looks_back: str | None = None
    """If it encodes only keys up to the query: what to use for both sides, which errors of `attention` name."""

    reads_positions: ClassVar[bool] = True
    """Whether its terms depend on positions. Where nothing in a call does, `attention` needs none."""

    heads_of: ClassVar[Literal["query", "key"]] = "query"
    """Whether ``num_heads`` counts query heads or key heads, which are fewer in grouped-query attention."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = naming(cls.__init__)  # type: ignore[method-assign]

    @property
    def features(self) -> Mapping[str, Feature]:
        """The features that every layer projects from its hidden state for this scheme (a gate, a vector), by name."""
        return {}

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The vectors to add to the input, (rows, tokens, dim), in ``dtype``."""
        return None

    def rotation(
        self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context = WHOLE
    ) -> Rotation | None:
        """The maps of queries and keys at these positions. Their tensors are in ``dtype``."""
        return None

    def score(self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE) -> ScoreTerms:
        """The terms that modify the scores, applied from left to right."""
        return ()

    def value(
        self, query_positions: Positions, key_positions: Positions, context: Context = WHOLE
    ) -> tuple[Value, ...]:
        """The terms that are added to the output."""
        return ()

    def horizon(
        self, length: int, *, query_norm: float, key_norm: float, scale: float, skip_below: float = SKIP_BELOW
    ) -> Int[Tensor, " heads"]:
        """How many keys of a causal text of ``length`` tokens a query needs in each head, including its own.

        All earlier keys together have at most ``skip_below`` of its attention weight, so a cache may drop them.
        ``query_norm`` and ``key_norm`` are the largest norms of queries and keys after rotation, as numbers
        (``.item()``); ``scale`` multiplies their product, usually 1/sqrt(head_dim). Formula: with the bias b(r) at
        distance r, the least W with b(-d) + scale |q| |k| < b(0) - scale |q| |k| + ln(skip_below / length) for all d >=
        W. It is ``length`` for a scheme that does not decay, or whose decay depends on content. Returns (heads,), or
        (1,) where all heads are the same.

        >>> posenc.ALiBi(4).horizon(4096, query_norm=9.0, key_norm=11.0, scale=0.125).tolist()
        [221, 884, 3536, 4096]
        """
        whole("length", length)
        if not 0 <= number("skip_below", skip_below) < 1:
            raise ValueError(f"skip_below must be within [0, 1), got {shown(skip_below)}")
        query_norm, key_norm = number("query_norm", query_norm, above=0), number("key_norm", key_norm, above=0)
        score_terms = self(Positions.arange(length), doors=("score",)).score_terms
        return horizon(score_terms, length, query_norm, key_norm, number("scale", scale, above=0), skip_below)

    @property
    def scale(self) -> float | None:
        """The softmax scale that its rotation requires, or None; also for queries and keys that are already rotated."""
        return None

    @property
    def for_decoders(self) -> bool:
        """Whether it is for causal attention only: it hides later keys, rewards them, or takes them for nearer ones."""
        return self.looks_back is not None

    @property
    def needs_lengths(self) -> bool:
        """Whether rotations depend on the current length of the text. If those of keys do, `needs_raw_keys` is true."""
        return False

    @property
    def needs_raw_keys(self) -> bool:
        """Whether a cache must keep unrotated keys, which are rotated in every call: because the rotation depends on
        the current length of the text, on another key or, with ``bands``, on the query."""
        return self.needs_lengths

    def reset_parameters(self) -> None:
        """Initializes the parameters. Does nothing for schemes without parameters."""

    def another(self) -> Scheme:
        """A copy for another layer, with its own, newly initialized parameters."""
        other = copy.deepcopy(self)
        other.reset_parameters()
        return other

    def tokens(
        self,
        query_positions: Positions,
        key_positions: Positions | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        context: Context | None = None,
    ) -> Encoding:
        """An `Encoding` of the token doors only, add and rotate, whose results can be cached.

        ``dtype`` is that of the encoding's tensors: float32, or float64 for float64 inputs. Half precision is too
        coarse for phases and raises ValueError.
        """
        return self(query_positions, key_positions, dtype=dtype, context=context, doors=("add", "rotate"))

    def pairs(
        self, query_positions: Positions, key_positions: Positions | None = None, *, context: Context | None = None
    ) -> Encoding:
        """An `Encoding` of the pair doors, score and value, for queries and keys that are already rotated. It keeps
        the scale of their rotation. Raises ValueError for a scheme that rotates distant pairs differently."""
        if needs_raw_keys(self):
            check_type("query_positions", query_positions, Positions)
            if self(query_positions[:1], context=context, doors=("rotate",)).banded is not None:
                raise ValueError(ROTATED_IN_PAIRS)
        return self(query_positions, key_positions, context=context, doors=("score", "value"))

    def forward(
        self,
        query_positions: Positions,
        key_positions: Positions | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        context: Context | None = None,
        doors: tuple[str, ...] = DOORS,
    ) -> Encoding:
        """Binds the scheme to positions. ``key_positions`` default to ``query_positions``.

        See `tokens` for ``dtype`` and `Context` for ``context``; ``doors`` are the names of the doors to open.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        check_type("query_positions", query_positions, Positions)
        check_type("key_positions", key_positions, Positions, None)
        check_type("context", context, Context, None)
        unknown = [door for door in doors if door not in DOORS]
        if unknown:
            raise ValueError(f"doors must be among {', '.join(DOORS)}, got {shown(unknown[0])}")
        keys = query_positions if key_positions is None else key_positions
        return self.bind(query_positions, keys, dtype, Context() if context is None else context, doors)

    def bind(
        self, queries: Positions, keys: Positions, dtype: torch.dtype, context: Context, doors: tuple[str, ...]
    ) -> Encoding:
        """``forward`` after its arguments are checked."""
        if self.needs_lengths and context.lengths is None:
            context = replace(context, lengths=torch.maximum(*torch.broadcast_tensors(queries.lengths, keys.lengths)))
        rows = max(queries.rows, keys.rows)
        if context.lengths is not None and rows != 1 and not one_or(context.lengths.size(0), rows):
            raise ValueError(f"lengths must have 1 or {rows} rows like the positions, got {context.lengths.size(0)}")
        mine = context._of_keys() if self.heads_of == "key" else context
        mine._check_heads(type(self).__name__, getattr(self, "num_heads", None))
        of, made = by_value(self, queries.device, is_read=bool(set(self.doors) & set(doors) - {"add"}))
        table = of.table(queries, dtype) if "add" in doors else None
        rotation = of.rotation(queries, dtype, mine) if "rotate" in doors else None
        if rotation is not None and rotation.scale is None and self.scale is not None:
            rotation = replace(rotation, scale=self.scale)
        elif rotation is not None and rotation.scale is not None and rotation.scale != self.scale:
            raise ValueError(
                f"the scale of {type(self).__name__} must equal that of its rotation, {shown(rotation.scale)}, got "
                f"{shown(self.scale)}: set only the scheme's `scale`, which calls with rotated keys use too"
            )
        if rotation is not None and keys is not queries:
            of_keys = of.rotation(keys, dtype, mine)
            assert of_keys is not None
            bands = (replace(a, key=b.key) for a, b in zip(rotation.bands, of_keys.bands, strict=True))
            rotation = replace(rotation, key=of_keys.key, value=of_keys.value, bands=tuple(bands))
        encoding = Encoding(
            queries,
            keys,
            tables=() if table is None else (table,),
            rotations=() if rotation is None else (rotation,),
            score_terms=of.score(queries, keys, mine) if "score" in doors else (),
            values=of.value(queries, keys, mine) if "value" in doors else (),
            context=context,
            wanted=self.features,
            looks_back=() if self.looks_back is None else ((type(self).__name__, self.looks_back),),
            _scale=self.scale if rotation is None and {"score", "value"} & set(doors) else None,
            _made_with=made,
            _is_counted=is_counted(self),
        )
        check_bound(self, encoding)
        return encoding

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors that this scheme opens: those whose methods it overrides."""
        methods = zip(DOORS, ("table", "rotation", "score", "value"), strict=True)
        return tuple(door for door, name in methods if getattr(type(self), name) is not getattr(Scheme, name))

    def __add__(self, other: Scheme) -> Scheme:
        """The composition of both schemes. Terms are applied from left to right."""
        if not is_scheme(other):
            return _not_composed(other)
        return Composition(*_parts(self), *_parts(other))

    def __radd__(self, other: Any) -> Scheme:
        """The same if the left operand is wrapped and has no ``__add__``, or is the 0 that ``sum`` begins with."""
        if type(other) is int and other == 0:
            return self
        return Composition(*_parts(other), *_parts(self)) if is_scheme(other) else _not_composed(other)

    @property
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that this one is composed of: ``(self,)`` unless it is a composition."""
        return (self,)

    def extra_repr(self) -> str:
        """The constructor arguments that are kept as attributes."""
        arguments = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter)
            several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if several or value is parameter or inspect.ismethod(value) or isinstance(value, (Tensor, nn.Module)):
                continue
            if parameter.default is parameter.empty:
                arguments.append(repr(value))
            elif parameter.kind is not parameter.KEYWORD_ONLY or value != parameter.default:
                arguments.append(f"{name}={value!r}")
        return ", ".join(arguments)


def is_scheme(x: object) -> bool:
    """Whether x is a scheme or wraps one (`torch.compile`, FSDP, checkpointing)."""
    return isinstance(x, Scheme) or (isinstance(x, nn.Module) and hasattr(x, "doors") and hasattr(x, "parts"))


def bare_parts(scheme: Any) -> list[Scheme]:
    """The schemes that this one is composed of, unwrapped: to read their attributes, not to call them."""
    if isinstance(scheme, Scheme) and scheme.parts == (scheme,):
        return [scheme]
    return [bare for part in scheme.parts for bare in bare_parts(part)]


def needs_raw_keys(scheme: Scheme) -> bool:
    """`Scheme.needs_raw_keys` of any part of a scheme, which may be wrapped."""
    return any(part.needs_raw_keys for part in bare_parts(scheme))


def wanted_by(scheme: Scheme) -> Mapping[str, Feature]:
    """`Scheme.features` of all parts of a scheme, which may be wrapped."""
    return reduce(wanted_by_both, (part.features for part in bare_parts(scheme)), {})


@torch.no_grad()
def with_random_parameters(scheme: Scheme) -> Scheme:
    """The same scheme, with the parameters of its zero-initialized parts drawn from N(0, 1), so that they show."""
    for part in scheme.parts:
        for parameter in part.parameters() if part.zero_initialized else ():
            nn.init.normal_(parameter)
    return scheme


def to_pass(x: object) -> str:
    """The end of an error message for something that is no scheme: what to pass instead."""
    if isinstance(x, Positions):
        return ": call a scheme with them, scheme(positions)"
    if isinstance(x, type) and issubclass(x, Scheme):
        return f": make a scheme of it, {x.__name__}(...)"
    if isinstance(x, str):
        return ": make a scheme, such as posenc.ALiBi(num_heads)"
    if callable(x) and not isinstance(x, (nn.Module, type)):
        return ": a scaling belongs to a scheme, RoPE(head_dim, scaling=...)"
    return ""


def _not_composed(x: object) -> Any:
    """NotImplemented, or a TypeError that says what to add to a scheme instead."""
    how = ": for no encoding, leave it out or add NoPE()" if x is None else to_pass(x)
    if how:
        raise TypeError(f"a scheme is composed with schemes, got {shown(x)}{how}")
    return NotImplemented


def _parts(x: Any) -> tuple[Any, ...]:
    """The parts of a scheme. A wrapper is a single part, since the wrapper must be called."""
    return x.parts if isinstance(x, Scheme) else (x,)


M = TypeVar("M", bound=nn.Module)


def uninitialized(kind: type[M], *sizes: int, **how: Any) -> M:
    """An uninitialized PyTorch layer, whose parameters the scheme's `reset_parameters` initializes."""
    device = torch.empty(0).device  # the default device, which ``with torch.device(...)`` sets
    made = kind(*sizes, **how, device="meta")
    for name, parameter in list(made.named_parameters()):  # `to_empty` cannot under FakeTensorMode
        setattr(made, name, nn.Parameter(torch.empty_like(parameter, device=device)))
    return made


def uninitialized_table(rows: int, width: int) -> nn.Embedding:
    """An embedding like `uninitialized`, which would import PyTorch's compiler to draw its numbers on ``meta``."""
    return nn.Embedding.from_pretrained(torch.empty(rows, width), freeze=False)


class Composition(Scheme):
    """Several schemes as one: ``rope + alibi``. Terms are applied in the order of the parts.

    A part may be wrapped, by `torch.compile`, FSDP or checkpointing: it is called as a module. Raises ValueError for
    two parts that rotate the same channels of the same heads.
    """

    def __init__(self, *parts: Scheme) -> None:
        super().__init__()
        for part in parts:
            if not is_scheme(part):
                raise ValueError(f"parts must be schemes, got {shown(part)}")
        self.schemes = nn.ModuleList(parts)
        turning = [part for part in parts if "rotate" in part.doors]
        for n, part in enumerate(turning):
            for other in turning[:n]:
                channels, others = (set(getattr(p, "channels", ())) for p in (part, other))
                heads, other_heads = (getattr(p, "heads", None) for p in (part, other))
                of_others = heads is not None and other_heads is not None and not set(heads) & set(other_heads)
                if channels & others and not of_others:
                    raise ValueError(
                        f"{type(other).__name__} and {type(part).__name__} rotate the same channels, so every token "
                        "would be rotated twice: use one of them, or give each its own channels"
                    )
        adding = [part for part in parts if "add" in part.doors and hasattr(part, "dim")]
        if len({part.dim for part in adding}) > 1:
            widths = " and ".join(f"{part.dim} of {type(part).__name__}" for part in adding)
            raise ValueError(f"schemes that add vectors to one input must have one dim, got {widths}")
        _ = self.scale  # raises where two parts have one

    @property
    def parts(self) -> tuple[Scheme, ...]:
        return tuple(self.schemes)  # type: ignore[arg-type]  # a wrapper stands for its scheme

    @property
    def doors(self) -> tuple[str, ...]:
        opened = {door for part in self.parts for door in part.doors}
        return tuple(door for door in DOORS if door in opened)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor | None:
        tables = [table for part in self.parts if (table := part.table(positions, dtype)) is not None]
        return reduce(torch.add, tables) if tables else None

    def bind(
        self, queries: Positions, keys: Positions, dtype: torch.dtype, context: Context, doors: tuple[str, ...]
    ) -> Encoding:
        """The sum of the encodings of all parts."""
        encoding = Encoding(queries, keys, context=context, _is_counted=True)  # it has no terms
        _ = self.features  # raises where two parts use one name for different features
        for part in self.parts:
            encoding = encoding + part(queries, keys, dtype=dtype, context=context, doors=doors)
        return encoding

    @property
    def features(self) -> Mapping[str, Feature]:
        return wanted_by(self)

    @property
    def scale(self) -> float | None:
        scales = [part.scale for part in bare_parts(self) if part.scale is not None]
        if len(scales) > 1:
            raise ValueError(several_scales(scales))
        return scales[0] if scales else None

    @property
    def for_decoders(self) -> bool:
        return any(part.for_decoders for part in bare_parts(self))

    @property
    def needs_lengths(self) -> bool:
        return any(part.needs_lengths for part in bare_parts(self))

    @property
    def needs_raw_keys(self) -> bool:
        return needs_raw_keys(self)

    def another(self) -> Composition:
        return Composition(*(part.another() for part in self.parts))

    def reset_parameters(self) -> None:
        for part in self.parts:
            part.reset_parameters()
