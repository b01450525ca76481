"""Measures a scheme's vectors, scores and outputs on tokens of known content."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posenc.arguments import check_choice, check_type, shown, whole
from posenc.backends.api import attention, logits
from posenc.encoding.context import projected_at_random
from posenc.encoding.encoding import Encoding
from posenc.lowering.distances import Block
from posenc.lowering.forms import bucket
from posenc.positions.positions import PositionError, Positions
from posenc.scheme import Scheme, with_random_parameters
from posenc.schemes.catalog import entries_of, scheme_from_names
from posenc.schemes.entry import Shape
from posenc.schemes.nope import NoPE

Build: TypeAlias = Callable[[Shape], Scheme]
Places: TypeAlias = "Tensor | Sequence[int] | Sequence[float]"
"""Positions of tokens, (tokens,) or (tokens, axes)."""

SHAPE = Shape(dim=96, num_heads=6, head_dim=16, max_positions=1024)
"""The model that schemes are measured in; six heads would reveal a rule that holds only for powers of two."""

FARTHEST = 2**31
"""The largest position that is tried in the search for a scheme's limit."""

CONTENTS = 4  # random contents that are tried, the rows of a batch
MASKED_SCORE = -1e4  # replaces a score of -inf, so that it can be compared
EPS = 2.0**-52  # of float64, the default dtype of a probe


@dataclass(frozen=True)
class Finding:
    """The result of measuring a law.

    ``holds`` is None if the law does not apply to the scheme; ``words`` then give the reason, otherwise they explain
    ``value``. ``threshold`` is the limit for the value, and ``numbers`` has further measurements.
    """

    holds: bool | None
    value: float | None
    threshold: float | None
    words: str
    numbers: Mapping[str, float | int] = field(default_factory=dict)


def not_applicable(words: str) -> Finding:
    return Finding(None, None, None, words)


@dataclass(frozen=True, eq=False)
class Probe:
    """A scheme with fixed random contents and projections, so that its effect can be measured.

    ``build`` makes the scheme for a shape; its parameters are drawn with ``seed``. Content, projections and parameters
    are in ``dtype``, as in a model of that dtype. Raises the scheme's own error if it accepts neither one, two nor
    three coordinates per token.

    >>> probe = Probe.named("rope")
    >>> places = torch.arange(5)
    >>> probe.internals(places, places).shape  # contents, heads, queries, keys, 1
    torch.Size([4, 6, 5, 5, 1])
    """

    build: Build
    shape: Shape = SHAPE
    seed: int = 0
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        if not callable(self.build):
            raise ValueError(f"build must be a function of a Shape, got {shown(self.build)}")
        check_type("shape", self.shape, Shape)
        whole("seed", self.seed, -(2**63), 2**64 - 1)  # the range of a generator's seed
        check_choice("dtype", self.dtype, (torch.float16, torch.bfloat16, torch.float32, torch.float64))

    @classmethod
    def named(cls, names: str, shape: Shape = SHAPE) -> "Probe":
        """A probe of a scheme of the catalog, ``"rope"``, or of a composition, ``"rope+alibi"``. ValueError for an
        unknown name."""
        entries_of(names)
        return cls(lambda shape: scheme_from_names(names, shape), shape)

    @cached_property
    def scheme(self) -> Scheme:
        """The scheme. Parameters that are initialised to zero are drawn from N(0, 1), so that there is an effect to
        measure. The state of PyTorch's global generator is restored."""
        with torch.random.fork_rng(devices=()):
            torch.default_generator.manual_seed(self.seed)
            return with_random_parameters(self.build(self.shape)).to(self.dtype).requires_grad_(False)

    # -- tokens -------------------------------------------------------------------------------------------------------

    @cached_property
    def axes(self) -> int:
        """The fewest coordinates per token that the scheme accepts."""
        refused = self.refusal(1)
        if refused is None:
            return 1
        for axes in (2, 3):
            if self.refusal(axes) is None:
                return axes
        raise refused

    def refusal(self, axes: int) -> ValueError | None:
        """The scheme's error for tokens with this many coordinates; None if it accepts them."""
        places = torch.arange(2)[:, None].expand(2, axes)
        positions = Positions(places[None] if axes > 1 else places[None, :, 0], segment=torch.zeros(1, 2).long())
        x = self.content(2, equal=True)
        try:
            self._internals(positions, positions, x, x)
        except ValueError as error:
            return error
        return None

    def with_axes(self, axes: int) -> "Probe | None":
        """The scheme, built for this many coordinates per token; None if that is not possible."""
        if self.refusal(axes) is None:
            return self
        if axes == 1:  # a shape without a grid was refused
            return None
        pairs = 2 * axes  # each axis has pairs of channels, a sine and a cosine
        dim, head_dim = (max(size - size % pairs, pairs) for size in (self.shape.dim, self.shape.head_dim))
        shape = replace(self.shape, dim=dim, head_dim=head_dim, grid=(self.shape.max_positions,) * axes)
        other = replace(self, shape=shape)
        return other if other.refusal(axes) is None else None

    def positions(self, places: Places, segment: Int[Tensor, " tokens"] | None = None) -> Positions:
        """Positions with these coordinates, in segment 0 by default. If tokens have several coordinates, a number p
        stands for (p, p + 3, p + 6): on a line through the origin, all rotations would commute."""
        places = torch.as_tensor(places)
        if places.dim() == 1 and self.axes > 1:
            places = places[:, None] + 3 * torch.arange(self.axes)
        segment = torch.zeros(len(places), dtype=torch.int64) if segment is None else segment
        return Positions(places[None], segment=segment[None])

    def draw(self, *size: int, seed: int) -> Tensor:
        """Numbers from N(0, 1); the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(self.dtype)

    def content(self, tokens: int, equal: bool = False) -> Float[Tensor, "contents tokens dim"]:
        """The tokens without positions, from N(0, 1). ``equal``: all tokens of a content are equal."""
        drawn = self.draw(CONTENTS, 1 if equal else tokens, self.shape.dim, seed=1)
        return drawn.expand(-1, tokens, -1)

    def project(self, x: Float[Tensor, "batch tokens dim"], which: int) -> Float[Tensor, "batch heads tokens head_dim"]:
        """x as queries (0), keys (1) or values (2)."""
        heads, head_dim = self.shape.num_heads, self.shape.head_dim
        weight = self.draw(self.shape.dim, heads * head_dim, seed=2 + which) / self.shape.dim**0.5
        return (x @ weight).unflatten(-1, (heads, head_dim)).transpose(1, 2)

    # -- the scheme's effect ------------------------------------------------------------------------------------------

    def internals(
        self,
        queries: Places,
        keys: Places,
        *,
        content: Float[Tensor, "contents tokens dim"] | None = None,
        segment: Int[Tensor, " tokens"] | None = None,
        tied: bool = False,
    ) -> Float[Tensor, "contents heads queries keys channels"]:
        """The score of every pair of tokens, followed by the vector of the value door, if that is open.

        Without ``content`` all tokens are equal; with it, queries and keys are the same tokens. ``tied`` uses one
        projection for queries and keys.
        """
        query_positions, key_positions = _in_line(self.positions(queries, segment), self.positions(keys, segment))
        x = self.content(len(query_positions), equal=True) if content is None else content
        y = self.content(len(key_positions), equal=True) if content is None else content
        return self._internals(query_positions, key_positions, x, y, tied)

    def effect(self, queries: Places, keys: Places) -> Float[Tensor, "contents heads queries keys channels"]:
        """The effect of the scheme on equal tokens: its internals minus the score without it."""
        changed = self.internals(queries, keys)
        changed[..., :1] -= replace(self, build=lambda shape: NoPE()).internals(queries, keys)
        return changed

    def _internals(self, queries: Positions, keys: Positions, x: Tensor, y: Tensor, tied: bool = False) -> Tensor:
        dtype = torch.promote_types(self.dtype, torch.float32)
        encoding = self._with_features(self.scheme(queries, keys, dtype=dtype), x, y)
        query = self.project(encoding.add(x), 0)
        key = self.project(self.scheme.tokens(keys, dtype=dtype).add(y), 0 if tied else 1)
        scores = torch.nan_to_num(logits(query, key, encoding), neginf=MASKED_SCORE)
        parts = [scores[..., None]]
        block = Block(query, key, queries, keys, self.shape.head_dim**-0.5)
        for term in encoding.values:
            vectors, index = bucket(term, block)
            parts.append(vectors[:, index].movedim(0, 1).expand(*scores.shape, -1).to(scores.dtype))
        return torch.cat(parts, -1)

    @staticmethod
    def _with_features(encoding: Encoding, x: Tensor, y: Tensor) -> Encoding:
        """The encoding with its features, fixed random projections of the tokens' content."""
        wanted = encoding.wanted
        return encoding.with_projected(projected_at_random(wanted, x, seed=20), projected_at_random(wanted, y, seed=20))

    def _tokens(self, positions: Positions, dtype: torch.dtype) -> Encoding:
        """The token doors, with the features of equal tokens."""
        content = self.content(len(positions), equal=True)[:1]
        return self._with_features(self.scheme.tokens(positions, dtype=dtype), content, content)

    @cached_property
    def turns_pairs(self) -> bool:
        """Whether distant pairs are rotated differently, so that no token has a rotation of its own."""
        if "rotate" not in self.scheme.doors:
            return False
        return self.scheme.tokens(self.positions([0])).banded is not None

    @property
    def sees_pairs(self) -> bool:
        """Whether it acts on pairs of tokens: through a pair door, or with bands of rotations."""
        return bool({"score", "value"} & set(self.scheme.doors)) or self.turns_pairs

    def vectors(self, places: Places) -> Float[Tensor, "tokens channels"] | None:
        """A row for each position: the vector it adds, and a fixed query and a fixed key after rotation. None if the
        token doors do not depend on the position."""
        doors = {"add"} if self.turns_pairs else {"add", "rotate"}
        if not doors & set(self.scheme.doors):
            return None
        positions = self.positions(places)
        encoding = self._tokens(positions, torch.promote_types(self.dtype, torch.float32))
        rows = [table[0].to(self.dtype) for table in encoding.tables]
        if encoding.rotations and not self.turns_pairs and self._turns_by_position:
            rows += [x[0].transpose(0, 1).flatten(1) for x in self._turned(encoding, len(positions), self.dtype)]
        return torch.cat(rows, -1) if rows else None

    def _turned(self, encoding: Encoding, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A fixed query and a fixed key, rotated as at each position."""
        sizes = (1, self.shape.num_heads, 1, self.shape.head_dim)
        query, key = (self.draw(*sizes, seed=seed).to(dtype).expand(-1, -1, tokens, -1) for seed in (5, 6))
        return encoding.rotate_query(query), encoding.rotate_key(key)

    @cached_property
    def _turns_by_position(self) -> bool:
        """Whether the rotation depends on the position."""
        last = FARTHEST if self.limit is None else self.limit
        encoding = self._tokens(self.positions([0, 1, last]), torch.float64)
        turned = self._turned(encoding, 3, torch.float64)
        return any(not torch.equal(x, x[:, :, :1].expand_as(x)) for x in turned)

    def maps(self, places: Places) -> tuple[Tensor, Tensor] | None:
        """The rotate door's maps of queries and of keys in head 0, matrices (tokens, head_dim, head_dim) of float64;
        None if it is closed, has bands, or changes the width."""
        if "rotate" not in self.scheme.doors or self.turns_pairs:
            return None
        positions = self.positions(places)
        encoding = self._tokens(positions, torch.float64)
        basis = torch.eye(self.shape.head_dim, dtype=torch.float64)[:, None, None]
        basis = basis.expand(-1, self.shape.num_heads, len(positions), -1)
        turned = encoding.rotate_query(basis), encoding.rotate_key(basis)
        if any(x.shape != basis.shape for x in turned):
            return None
        query, key = (x[:, 0].permute(1, 2, 0) for x in turned)
        return query, key

    def output(
        self, places: Places, content: Float[Tensor, "contents tokens dim"], segment: Int[Tensor, " tokens"]
    ) -> Float[Tensor, "contents heads tokens head_dim"]:
        """The output of attention among these tokens, without a mask."""
        encoding = self.scheme(self.positions(places, segment), dtype=torch.float64)
        encoding = self._with_features(encoding, content, content)
        x = encoding.add(content)
        query, key, value = (self.project(x, number) for number in range(3))
        # An explicit mask that hides nothing is accepted by schemes that require causality.
        everything = torch.ones(query.size(2), key.size(2), dtype=torch.bool)
        out = attention(query, key, value, encoding, attn_mask=everything, backend="reference")
        assert isinstance(out, Tensor)
        return out

    # -- its limit ----------------------------------------------------------------------------------------------------

    def encodes(self, places: Sequence[int]) -> bool:
        """Whether tokens at these positions have a finite encoding."""
        try:
            found = self.internals(places, places)
        except PositionError:
            return False
        return bool(found.isfinite().all())

    @cached_property
    def limit(self) -> int | None:
        """The largest position that can be encoded beside position 0, by bisection; None if there is no limit."""
        if self.encodes([0, FARTHEST]):
            return None
        low, high = 0, FARTHEST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.encodes([0, middle]) else (low, middle)
        return low

    @cached_property
    def end(self) -> str:
        """The limit in words: of positions, or only of distances."""
        what = "distances" if self.encodes([FARTHEST, FARTHEST]) else "positions"
        return f"{what} end at {self.limit}"

    @cached_property
    def sees_coordinates(self) -> bool:
        """Whether coordinates affect the scheme, for a fixed order."""
        return self._tells(torch.tensor([0, 2, 3, 5, 7, 9, 11, 14]))

    @cached_property
    def sees_places(self) -> bool:
        """Whether coordinates or order affect the scheme."""
        return self.sees_coordinates or self._tells(torch.tensor([5, 0, 9, 2, 14, 7, 11, 3]))

    def _tells(self, far: Tensor) -> bool:
        near = torch.arange(8)
        here, there = self.internals(near, near), self.internals(far, far)
        # Sums along the order may be computed in another way, with other rounding errors.
        return bool((there - here).abs().max() > 100 * torch.finfo(here.dtype).eps * max(1.0, here.abs().max().item()))


def _in_line(queries: Positions, keys: Positions) -> tuple[Positions, Positions]:
    """The same positions with the order of their coordinates, over queries and keys together, for schemes that depend
    on the tokens between two. Tokens of a grid keep their order."""
    if queries.coords.dim() != 2:
        return queries, keys
    line = torch.unique(torch.cat((queries.coords, keys.coords), 1))
    in_line = [
        Positions(p.coords, order=torch.searchsorted(line, p.coords.to(line.dtype)), segment=p.segment)
        for p in (queries, keys)
    ]
    return in_line[0], in_line[1]
