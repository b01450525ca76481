"""What a scheme is, and how schemes are composed."""

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

from posenc.arguments import check_type, number, one_or, shown, whole
from posenc.encoding.encoding import DOORS, TURNED_IN_PAIRS, Context, Encoding, Rotation
from posenc.encoding.features import Feature, wanted_by_both
from posenc.encoding.horizon import SKIP_BELOW, horizon
from posenc.encoding.pieces import Piece, Value
from posenc.encoding.staleness import made_with
from posenc.positions.positions import Positions
from posenc.rotation.maps import one_scale


class Scheme(nn.Module):
    """A positional encoding: a module that owns the parameters; called with positions, it gives an `Encoding`.

    A subclass overrides the methods of the doors that it opens, and nothing else:

    - ``table(positions, dtype)`` for add,
    - ``rotation(positions, dtype, context)`` for rotate,
    - ``score(query_positions, key_positions, context)`` for score,
    - ``value(query_positions, key_positions, context)`` for value.

    There are no buffers: what follows from the configuration is computed from it, so nothing can go stale, be cast with
    the module, or be left on ``meta``. A scheme with parameters initialises them in ``reset_parameters()``.

    >>> scheme = RoPE(64) + ALiBi(8)            # schemes compose
    >>> encoding = scheme(Positions.arange(5))

    One that needs something of every token beside query and key, a gate or a vector that layers make of their hidden
    state, says so in ``features``.
    """

    begins_as_nothing: ClassVar[bool] = False
    """Whether what it learns begins as zeros and changes nothing until it is trained: pictures and measurements of the
    scheme by itself then draw it from N(0, 1)."""

    heads_of: ClassVar[Literal["query", "key"]] = "query"
    """Whose heads ``num_heads`` counts: keys have fewer than queries where several queries share one."""

    @property
    def features(self) -> Mapping[str, Feature]:
        """What every layer is to make of its hidden state for it, by name."""
        return {}

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The vectors to add, (rows, tokens, dim), in ``dtype``."""
        return None

    def rotation(
        self, positions: Positions, dtype: torch.dtype = torch.float32, context: Context | None = None
    ) -> Rotation | None:
        """The maps of queries and of keys at these positions, with what they hold in ``dtype``."""
        return None

    def score(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Piece, ...]:
        """The pieces that change the scores, applied from left to right."""
        return ()

    def value(
        self, query_positions: Positions, key_positions: Positions, context: Context | None = None
    ) -> tuple[Value, ...]:
        """The terms that add to the output."""
        return ()

    def horizon(
        self, length: int, *, query_norm: float, key_norm: float, scale: float, skip_below: float = SKIP_BELOW
    ) -> Int[Tensor, " heads"]:
        """How many keys of a causal text of ``length`` tokens a query needs, its own and those before, in every head.
        All keys further back together have no more than ``skip_below`` of its weight, so a cache may forget them.

        ``query_norm`` and ``key_norm`` are the greatest norms of queries and keys as attention multiplies them, after
        rotation, as numbers (``.item()``); ``scale`` is the factor of their product, often 1/sqrt(head_dim). Formula:
        with the bias b(r) at distance r, the least W with b(-d) + scale |q| |k| < b(0) - scale |q| |k| +
        ln(skip_below / length) for all d >= W. It is ``length`` for a scheme that does not fade, or fades by contents.
        The result has one number for each head, or a single one where all heads are alike.

        >>> posenc.ALiBi(4).horizon(4096, query_norm=9.0, key_norm=11.0, scale=0.125).tolist()
        [221, 884, 3536, 4096]
        """
        whole("length", length)
        if not 0 <= number("skip_below", skip_below) < 1:
            raise ValueError(f"skip_below must be within [0, 1), got {shown(skip_below)}")
        query_norm, key_norm = number("query_norm", query_norm, above=0), number("key_norm", key_norm, above=0)
        positions = Positions.arange(length)
        pieces = self(positions, doors=("score",)).pieces
        return horizon(pieces, length, query_norm, key_norm, number("scale", scale, above=0), skip_below)

    @property
    def scale(self) -> float | None:
        """The factor of the inner product that its rotation brings along, or None. It holds for queries and keys that
        are rotated already, so it is known without a rotation."""
        return None

    @property
    def for_decoders(self) -> bool:
        """Whether it is for causal attention alone: it hides the keys after a query, rewards them, or takes them for
        nearer than they are."""
        return False

    @property
    def needs_lengths(self) -> bool:
        """Whether a token's rotation depends on how long its text is by now. Then a cache cannot keep rotated keys."""
        return False

    @property
    def needs_raw_keys(self) -> bool:
        """Whether a cache must keep keys as they are, and have them turned in every call: because a rotation depends on
        how long the text is by now, or, with ``bands``, on the query that a key meets."""
        return self.needs_lengths

    def reset_parameters(self) -> None:
        """Draws the parameters anew. Schemes without any have nothing to do."""

    def another(self) -> Scheme:
        """A copy for another layer, with parameters of its own, freshly drawn."""
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
        """The token doors alone, for positions whose vectors or rotated keys are to be kept.

        ``dtype`` is that of what the encoding holds: float32, or float64 for float64 inputs, which would otherwise lose
        digits. Half precision cannot hold a phase and is a ValueError.
        """
        return self(query_positions, key_positions, dtype=dtype, context=context, doors=("add", "rotate"))

    def pairs(
        self,
        query_positions: Positions,
        key_positions: Positions | None = None,
        *,
        context: Context | None = None,
    ) -> Encoding:
        """The pair doors alone, for queries and keys whose token doors were opened before, with the scale that their
        rotation brings. ValueError for a scheme that turns far pairs otherwise than near ones: no token door of it can
        be opened before."""
        if needs_raw_keys(self):
            check_type("query_positions", query_positions, Positions)
            if self(query_positions[:1], context=context, doors=("rotate",)).banded is not None:
                raise ValueError(TURNED_IN_PAIRS)
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
        """Binds the scheme to positions; keys default to the queries' positions.

        ``dtype`` is as for `tokens`; ``context`` what else the scheme may need to know; ``doors`` those to open.
        """
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        check_type("query_positions", query_positions, Positions)
        check_type("key_positions", key_positions, Positions, None)
        check_type("context", context, Context, None)
        unknown = [door for door in doors if door not in DOORS]
        if unknown:
            raise ValueError(f"doors must be of {', '.join(DOORS)}, got {shown(unknown[0])}")
        keys = query_positions if key_positions is None else key_positions
        return self.bind(query_positions, keys, dtype, Context() if context is None else context, doors)

    def bind(
        self, queries: Positions, keys: Positions, dtype: torch.dtype, context: Context, doors: tuple[str, ...]
    ) -> Encoding:
        """What `forward` does once its arguments are checked: the encoding with these doors."""
        if self.needs_lengths and context.lengths is None:
            lengths = torch.maximum(*torch.broadcast_tensors(queries.lengths, keys.lengths))
            context = replace(context, lengths=lengths)
        rows = max(queries.rows, keys.rows)
        if context.lengths is not None and rows != 1 and not one_or(context.lengths.size(0), rows):
            raise ValueError(f"lengths must have 1 or {rows} rows like the positions, got {context.lengths.size(0)}")
        table = self.table(queries, dtype) if "add" in doors else None
        rotation = self.rotation(queries, dtype, context) if "rotate" in doors else None
        if rotation is not None and rotation.scale is None and self.scale is not None:
            rotation = replace(rotation, scale=self.scale)
        elif rotation is not None and rotation.scale is not None and rotation.scale != self.scale:
            raise ValueError(
                f"the scale of {type(self).__name__} must be that of its rotation, {shown(rotation.scale)}, or calls "
                f"with rotated keys would not have it, got {shown(self.scale)}: leave it to the scheme's `scale`"
            )
        if rotation is not None and keys is not queries:
            of_keys = self.rotation(keys, dtype, context)
            assert of_keys is not None
            bands = tuple(replace(a, key=b.key) for a, b in zip(rotation.bands, of_keys.bands, strict=True))
            rotation = replace(rotation, key=of_keys.key, value=of_keys.value, bands=bands)
        return Encoding(
            queries,
            keys,
            tables=() if table is None else (table,),
            rotations=() if rotation is None else (rotation,),
            pieces=self.score(queries, keys, context) if "score" in doors else (),
            values=self.value(queries, keys, context) if "value" in doors else (),
            context=context,
            wanted=self.features,
            _scale=self.scale if rotation is None and {"score", "value"} & set(doors) else None,
            _made_with=made_with(self),
        )

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors this scheme opens: those whose methods it overrides."""
        methods = zip(DOORS, ("table", "rotation", "score", "value"), strict=True)
        return tuple(door for door, name in methods if getattr(type(self), name) is not getattr(Scheme, name))

    def __add__(self, other: Scheme) -> Scheme:
        """Both schemes as one; their terms are opened from left to right."""
        if not is_scheme(other):
            return NotImplemented
        return Composition(*_parts(self), *_parts(other))

    def __radd__(self, other: Any) -> Scheme:
        """The same where the first of the two is wrapped, and so does not know how to be added."""
        return Composition(*_parts(other), *_parts(self)) if is_scheme(other) else NotImplemented

    @property
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that this one is composed of: itself, unless it is a composition."""
        return (self,)

    def extra_repr(self) -> str:
        """The arguments that it was made with, as far as it keeps them under their names."""
        said = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter)
            several = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            if several or value is parameter or inspect.ismethod(value) or isinstance(value, Tensor | nn.Module):
                continue
            if parameter.default is parameter.empty:
                said.append(repr(value))
            elif parameter.kind is not parameter.KEYWORD_ONLY or value != parameter.default:
                said.append(f"{name}={value!r}")
        return ", ".join(said)


def is_scheme(x: object) -> bool:
    """Whether x is a scheme, or a wrapper of one: `torch.compile`, FSDP, a checkpoint."""
    return isinstance(x, Scheme) or (isinstance(x, nn.Module) and hasattr(x, "doors") and hasattr(x, "parts"))


def bare_parts(scheme: Any) -> list[Scheme]:
    """The schemes that this one is composed of, out of their wrappers: to be asked what they are, not to be called."""
    if isinstance(scheme, Scheme) and scheme.parts == (scheme,):
        return [scheme]
    return [bare for part in scheme.parts for bare in bare_parts(part)]


def needs_raw_keys(scheme: Scheme) -> bool:
    """`Scheme.needs_raw_keys` of any part of a scheme, or of a wrapper of one."""
    return any(part.needs_raw_keys for part in bare_parts(scheme))


def wanted_by(scheme: Scheme) -> Mapping[str, Feature]:
    """`Scheme.features` of all parts of a scheme, or of a wrapper of one."""
    return reduce(wanted_by_both, (part.features for part in bare_parts(scheme)), {})


@torch.no_grad()
def awakened(scheme: Scheme) -> Scheme:
    """The same scheme, of which what `begins_as_nothing` is drawn from N(0, 1), so that there is something to see."""
    for part in scheme.parts:
        for parameter in part.parameters() if part.begins_as_nothing else ():
            nn.init.normal_(parameter)
    return scheme


def _parts(x: Any) -> tuple[Any, ...]:
    """The parts of a scheme; a wrapper is one part, since it must be called itself."""
    return x.parts if isinstance(x, Scheme) else (x,)


M = TypeVar("M", bound=nn.Module)


def undrawn(kind: type[M], *sizes: int, **how: Any) -> M:
    """A layer of PyTorch's for a scheme to hold, whose parameters are left for `reset_parameters` to draw."""
    device = torch.empty(0).device  # that of a surrounding ``with torch.device(...)``
    made: M = nn.utils.skip_init(kind, *sizes, **how, device=device)
    return made


class Composition(Scheme):
    """Several schemes as one: ``rope + alibi``. Terms are opened in the order of the parts.

    A part may be wrapped, by `torch.compile`, FSDP or a checkpoint: it is called as a module. Two parts that rotate the
    same channels of the same heads are a ValueError, since every token would be turned twice.
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
                        "would be turned twice: use one, or give each channels of its own"
                    )
        _ = self.scale  # two parts that bring one

    @property
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that this one is composed of, as they are: a wrapped one with its wrapper."""
        return tuple(self.schemes)  # type: ignore[arg-type]  # a wrapper passes for what it wraps

    @property
    def doors(self) -> tuple[str, ...]:
        """The names of the doors that any of the parts opens."""
        opened = {door for part in self.parts for door in part.doors}
        return tuple(door for door in DOORS if door in opened)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Tensor | None:
        """The sum of the vectors that the parts add."""
        tables = [table for part in self.parts if (table := part.table(positions, dtype)) is not None]
        return reduce(torch.add, tables) if tables else None

    def bind(
        self, queries: Positions, keys: Positions, dtype: torch.dtype, context: Context, doors: tuple[str, ...]
    ) -> Encoding:
        """The encodings of all parts, added."""
        encoding = Encoding(queries, keys, context=context)
        _ = self.features  # two parts that want different things by one name
        for part in self.parts:
            encoding = encoding + part(queries, keys, dtype=dtype, context=context, doors=doors)
        return encoding

    @property
    def features(self) -> Mapping[str, Feature]:
        """What any of the parts needs. ValueError where two ask for different things by one name."""
        return wanted_by(self)

    @property
    def scale(self) -> float | None:
        """That of the part that brings one. ValueError where two do."""
        scales = [part.scale for part in bare_parts(self) if part.scale is not None]
        if len(scales) > 1:
            raise ValueError(one_scale(scales))
        return scales[0] if scales else None

    @property
    def for_decoders(self) -> bool:
        """Whether any part is."""
        return any(part.for_decoders for part in bare_parts(self))

    @property
    def needs_lengths(self) -> bool:
        """Whether any part does."""
        return any(part.needs_lengths for part in bare_parts(self))

    @property
    def needs_raw_keys(self) -> bool:
        """Whether any part does."""
        return needs_raw_keys(self)

    def another(self) -> Composition:
        """A composition of copies of the parts."""
        return Composition(*(part.another() for part in self.parts))

    def reset_parameters(self) -> None:
        """Draws the parameters of every part anew."""
        for part in self.parts:
            part.reset_parameters()
