"""What is checked: something that PyTorch code builds, how it is called, and what it claims.

Everything in this file is plain PyTorch and imports nothing of posenc: the script that repeats a finding holds a copy
of what it needs from here.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

PADDING = -1  # the document that no token belongs to
VOCABULARY = 48  # tokens are drawn from so many


REFUSALS = (TypeError, ValueError, NotImplementedError, AssertionError)  # how code says that it takes no such dtype


class NotApplicableError(Exception):
    """The subject cannot take part in a trial: the message says why."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, as plain lists: what a subject is run on. All rows have as many tokens.

    ``positions``: None leaves them to the subject, 0, 1, 2, … . ``document``: tokens see their own alone; -1 is
    padding. ``order``: what causality goes by, where it is not the index. ``chunks``: the lengths in which a cache is
    fed; none: all at once. ``queries`` and ``keys``: which tokens ask and which are asked; None: all. ``grid``: rows
    and columns of patches, in raster order.
    """

    ids: list[list[int]]
    positions: list[list[Any]] | None = None
    document: list[list[int]] | None = None
    order: list[list[int]] | None = None
    chunks: tuple[int, ...] = ()
    queries: tuple[int, ...] | None = None
    keys: tuple[int, ...] | None = None
    grid: tuple[int, int] | None = None

    @property
    def tokens(self) -> int:
        return len(self.ids[0])

    @property
    def real(self) -> list[list[bool]]:
        """Where there is a token and no padding."""
        document = self.document or [[0] * len(row) for row in self.ids]
        return [[d != PADDING for d in row] for row in document]

    def pick(self, tokens: Sequence[int], row: int | None = None) -> "Batch":
        """These tokens alone, in this order, of one row or of all; without chunks, queries and keys."""
        rows = range(len(self.ids)) if row is None else [row]

        def of(field: list[list[Any]] | None) -> list[list[Any]] | None:
            return None if field is None else [[field[r][n] for n in tokens] for r in rows]

        return Batch(of(self.ids) or [], of(self.positions), of(self.document), of(self.order))

    def moved(self, by: int) -> "Batch":
        """All positions moved by as much, those of padding too."""
        given = self.positions or [list(range(self.tokens))] * len(self.ids)
        moved = [[[x + by for x in p] if isinstance(p, list) else p + by for p in row] for row in given]
        return replace(self, positions=moved)

    def owed(self, x: Tensor) -> Tensor:
        """x (rows, tokens, …) with zeros where there is padding, of which nothing is owed."""
        if self.document is None:
            return x
        real = torch.tensor(self.real, device=x.device)
        return x.masked_fill(~real.view(*real.shape, *[1] * (x.dim() - 2)), 0.0)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is checked. One of the kinds below: `Rotary`, `Bias`, `Attention`, `Layer`, `Model`.

    ``build(**options)`` makes it, a module or anything else, and ``call(made, …)`` calls it; both are functions (or
    classes) at the top level of a file, so that a script can be made of them. **What call's parameters are named says
    what the subject can do**; each kind lists those it knows.

    Claims, which checks hold it to:

    - ``causal``: a token sees none after it. ``relative``: moving all positions by the same amount changes nothing;
      False: it does; None: nothing is claimed.
    - ``max_positions``: positions 0 … max_positions - 1 are those it has.
    - ``distinct_to``: positions (distances, for a bias) up to which no two neighbours look the same; None: no claim.
    - ``threshold``: the length past which it does something else, such as that which a dynamic scaling begins at;
      outputs may then go by the length so far. None: there is none.
    - ``linear_memory``: the memory of a call grows with the length, not with its square.
    - ``computes_in``: the dtype that it computes in within, where that is a lower one: kernels of bfloat16.
    - ``compiles``, ``exports``: it compiles as one graph, and exports with a dynamic length.
    - ``axes``: coordinates of a position; 2 for the rows and columns of an image.
    - ``varied``: for each of the options, another value, which must change the outputs or be refused.
    - ``refused``: options that ``build`` must refuse, such as ``{"unknown": 1}`` or ``{"head_dim": 15}``, each by name.
    - ``backends``: options that must change no output, such as ``({"backend": "flash"}, {"backend": "math"})``.
    - ``state``: buffers in its state_dict that neither follow from the options nor are drawn, such as running means.
    - ``symmetric``: only how far apart two places of a grid are counts, not in which direction.
    - ``flat``: options that build the same for one axis, which it must agree with on the diagonal: (p, p, p) for p.
    - ``registers``: the first tokens of a row with a ``grid`` have no place on it (class tokens, registers).
    - ``jitter``: the parameters are moved by N(0, jitter²) after building, where they begin as zeros or too small for
      positions to matter.
    """

    build: Callable[..., Any]
    call: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    causal: bool = False
    relative: bool | None = None
    max_positions: int | None = None
    distinct_to: int | None = None
    threshold: int | None = None
    linear_memory: bool = False
    computes_in: torch.dtype | None = None
    compiles: bool = False
    exports: bool = False
    axes: int = 1
    varied: Mapping[str, Any] = field(default_factory=dict)
    refused: Sequence[Mapping[str, Any]] = ()
    backends: Sequence[Mapping[str, Any]] = ()
    state: Sequence[str] = ()
    symmetric: bool = False
    flat: Mapping[str, Any] | None = None
    registers: int = 0
    jitter: float = 0.0
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    seed: int = 0

    def make(self, **changed: Any) -> Any:
        """The thing itself, in the subject's dtype and in evaluation mode, the same at every call."""
        with torch.random.fork_rng(devices=()):
            (torch.default_generator if self.device == "cpu" else torch).manual_seed(self.seed)  # torch's takes 1 ms
            made = self.build(**{**self.options, **changed})
            if isinstance(made, nn.Module):
                with torch.no_grad():
                    for parameter in made.parameters():
                        if parameter.requires_grad:  # what is frozen, such as a table of sines, is as it must be
                            parameter.add_(self.jitter * torch.randn(parameter.shape))
                made = made.to(self.device, self.dtype).eval()
        return made

    def takes(self, name: str) -> bool:
        """Whether ``call`` has a parameter of that name."""
        return name in inspect.signature(self.call).parameters

    def needs(self, name: str) -> bool:
        """Whether ``call`` has a parameter of that name and no default for it."""
        return self.takes(name) and inspect.signature(self.call).parameters[name].default is inspect.Parameter.empty

    def can(self, what: str) -> bool:
        """Whether it can be told "positions" of each token, "padding", "document" or "order"; whether it has a "cache",
        "queries" that are not the keys, and an "lse"."""
        return self.takes(what)

    def run(self, made: Any, batch: Batch) -> Tensor:
        """What comes out for every token that asks: (rows, tokens, …)."""
        raise NotImplementedError

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        """The output (rows, heads, queries, head_dim), and, where ``lse`` asks for it, the log-sum-exp (rows, heads,
        queries)."""
        raise NotApplicableError("call gives no log-sum-exp, so parts of the keys cannot be merged")

    def vectors(self, batch: Batch, size: int, which: int = 0) -> Tensor:
        """A vector for each token, the same wherever the token stands: (rows, tokens, size)."""
        table = torch.randn(VOCABULARY, size, generator=torch.Generator().manual_seed(which), dtype=torch.float64)
        return table[torch.tensor(batch.ids)].to(self.device, self.dtype)

    def places(self, batch: Batch) -> Tensor:
        """The positions of the tokens, (rows, tokens[, axes])."""
        if batch.positions is not None:
            return torch.tensor(batch.positions, device=self.device)
        if batch.grid is not None and self.axes == 2:
            height, width = batch.grid
            raster = [[0, 0]] * self.registers
            raster += [[row, column] for row in range(height) for column in range(width)]
            return torch.tensor([raster] * len(batch.ids), device=self.device)
        line = torch.arange(batch.tokens, device=self.device).expand(len(batch.ids), -1)
        return line if self.axes == 1 else line[..., None].expand(-1, -1, self.axes)

    def require_plain_positions(self, batch: Batch, what: str = "positions") -> None:
        """NotApplicableError where the batch has positions and ``call`` cannot be told."""
        if batch.positions is not None and not torch.equal(
            self.places(batch), torch.arange(batch.tokens, device=self.device).expand(len(batch.ids), -1)
        ):
            raise NotApplicableError(f"call takes no {what}")

    def visible(self, batch: Batch) -> Tensor:
        """Which token sees which, (rows, tokens, tokens)."""
        shape = (len(batch.ids), batch.tokens)
        document = torch.tensor(batch.document or [[0] * batch.tokens] * shape[0]).view(shape)
        order = torch.tensor(batch.order or [list(range(batch.tokens))] * shape[0]).view(shape)
        seen = (document[:, :, None] == document[:, None, :]) & (document != PADDING)[:, None, :]
        if self.causal:
            seen = seen & (order[:, None, :] <= order[:, :, None])
        return seen.to(self.device)


def attend(
    query: Tensor, key: Tensor, value: Tensor, visible: Tensor, bias: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(query key' / √d + bias) value, dense, and the log of the sum of each row; zeros where nothing is seen."""
    scores = query @ key.transpose(-1, -2) / query.size(-1) ** 0.5 + bias
    scores = scores.masked_fill(~visible[:, None], -torch.inf)
    weights = torch.where(visible.any(-1)[:, None, :, None], scores.softmax(-1), 0.0)
    return weights.to(value.dtype) @ value, scores.logsumexp(-1)


@dataclass(frozen=True, kw_only=True)
class _Heads(Subject):
    """A subject between queries and keys (rows, heads, tokens, head_dim), which are given to it."""

    heads: int = 3
    head_dim: int = 16

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("positions")  # the rest is done here, around it

    def run(self, made: Any, batch: Batch) -> Tensor:
        return self.partial(made, batch, lse=False)[0].transpose(1, 2)

    def projected(self, batch: Batch) -> list[Tensor]:
        """Query, key and value of every token, (rows, heads, tokens, head_dim) each."""
        size = (self.heads, self.head_dim)
        return [
            self.vectors(batch, self.heads * self.head_dim, which).unflatten(-1, size).transpose(1, 2)
            for which in (1, 2, 3)
        ]

    def rows_and_columns(self, batch: Batch) -> list[tuple[list[int], list[int], list[int]]]:
        """Which tokens ask, which are asked, and which of these are new, at each step."""
        everyone = list(range(batch.tokens))
        if not batch.chunks:
            keys = everyone if batch.keys is None else list(batch.keys)
            return [(everyone if batch.queries is None else list(batch.queries), keys, keys)]
        ends = [sum(batch.chunks[: n + 1]) for n in range(len(batch.chunks))]
        return [
            (everyone[end - size : end], everyone[:end], everyone[end - size : end])
            for end, size in zip(ends, batch.chunks, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class Rotary(_Heads):
    """A rotation of queries and keys: ``call(made, x, positions)`` or ``call(made, query, key, positions)``.

    x, query and key are (rows, heads, tokens, head_dim), positions (rows, tokens) of int64, with ``axes`` above 1
    (rows, tokens, axes). It gives x rotated, or query and key. In place of ``positions`` it may take ``offset``, the
    position of the first token, or nothing: tokens are then at 0, 1, 2, … .

    Further claims: ``frequencies``, radians per position of each pair of channels, or ``base``, for
    base^(-2c/rotary_dim); ``layout``, "half" (channels c and c + rotary_dim/2 are a pair) or "interleaved" (2c and 2c +
    1); ``rotary_dim``, the channels that are rotated (None: all); ``scale``, what the length of a rotated vector is
    multiplied by (attention factors; None: it depends on the position); ``other_layout``: options that build the same
    in the other layout.
    """

    frequencies: Sequence[float] | None = None
    base: float | None = None
    layout: str | None = None
    rotary_dim: int | None = None
    scale: float | None = 1.0
    other_layout: Mapping[str, Any] = field(default_factory=dict)

    def rotate(self, made: Any, x: Tensor, positions: Tensor, which: int = 0) -> Tensor:
        """x (rows, heads, tokens, head_dim) as a query (0) or a key (1), at positions (rows, tokens[, axes])."""
        names = list(inspect.signature(self.call).parameters)[1:]
        given: dict[str, Any] = {name: x for name in names if name in ("x", "query", "key")}
        if "positions" in names:
            given["positions"] = positions
        else:
            start = int(positions[0, 0]) if positions.dim() == 2 else 0
            run = torch.arange(start, start + x.size(2), device=x.device).expand(x.size(0), -1)
            if positions.dim() != 2 or not torch.equal(positions, run):
                raise NotApplicableError("call takes no positions of each token")
            if start and "offset" not in names:
                raise NotApplicableError("call takes neither positions nor an offset")
            if "offset" in names:
                given["offset"] = start
        out = self.call(made, **given)
        return out[which] if isinstance(out, tuple) else out

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.projected(batch)
        positions, visible = self.places(batch), self.visible(batch)
        rotated: list[Tensor] = []  # a cache keeps keys as they were rotated when they were new
        parts = []
        for rows, columns, new in self.rows_and_columns(batch):
            asking = self.rotate(made, query[:, :, rows], positions[:, rows], 0)
            rotated.append(self.rotate(made, key[:, :, new], positions[:, new], 1))
            seen = visible[:, rows][:, :, columns]
            parts.append(attend(asking, torch.cat(rotated, 2), value[:, :, columns], seen))
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)


@dataclass(frozen=True, kw_only=True)
class Bias(_Heads):
    """What is added to the scores: ``call(made, query_positions, key_positions)``, (rows, queries[, axes]) and (rows,
    keys[, axes]) of int64, gives (heads, queries, keys) or (rows, heads, queries, keys).

    It may take ``query_length, key_length`` instead: keys are then at 0 … key_length - 1 and queries are the last of
    them. Further claims, where it is minus a slope times the distance: ``slopes``, that of every head; or
    ``heads_option``, the option that says how many heads there are, for those that ALiBi publishes for any number.
    """

    slopes: Sequence[float] | None = None
    heads_option: str = ""

    def can(self, what: str) -> bool:
        return what != "positions" or self.takes("query_positions")

    def bias(self, made: Any, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """(rows, heads, queries, keys)"""
        if self.takes("query_positions"):
            bias = self.call(made, query_positions=query_positions, key_positions=key_positions)
        else:
            queries, keys = query_positions.size(1), key_positions.size(1)
            line = torch.arange(keys, device=key_positions.device)
            if not (
                key_positions.dim() == 2
                and torch.equal(key_positions, line.expand_as(key_positions))
                and torch.equal(query_positions, line[keys - queries :].expand_as(query_positions))
            ):
                raise NotApplicableError("call takes lengths and no positions")
            bias = self.call(made, query_length=queries, key_length=keys)
        return bias if bias.dim() == 4 else bias[None]

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.projected(batch)
        positions, visible = self.places(batch), self.visible(batch)
        parts = []
        for rows, columns, _ in self.rows_and_columns(batch):
            bias = self.bias(made, positions[:, rows], positions[:, columns])
            seen = visible[:, rows][:, :, columns]
            parts.append(attend(query[:, :, rows], key[:, :, columns], value[:, :, columns], seen, bias))
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)


@dataclass(frozen=True, kw_only=True)
class Attention(_Heads):
    """Attention as a function: ``call(made, query, key, value, …)`` gives (rows, heads, queries, head_dim).

    It may take ``query_positions`` and ``key_positions`` (rows, tokens[, axes]); ``query_document`` and
    ``key_document`` (rows, tokens), where -1 is padding; ``query_order`` and ``key_order`` (rows, tokens), for
    causality; or ``visible`` (rows, 1, queries, keys) in place of documents, order and causality. With ``return_lse``
    it is asked for (output, log-sum-exp of the scores). Without positions, keys are at 0 … and queries are the last of
    them.
    """

    def can(self, what: str) -> bool:
        if what in ("padding", "document", "order"):
            return self.takes("visible") or self.takes("query_order" if what == "order" else "query_document")
        return self.takes({"positions": "query_positions", "lse": "return_lse"}.get(what, "query"))

    def partial(self, made: Any, batch: Batch, lse: bool = True) -> tuple[Tensor, Tensor]:
        query, key, value = self.projected(batch)
        parts = [
            self._step(made, batch, query[:, :, rows], key[:, :, columns], value[:, :, columns], rows, columns, lse)
            for rows, columns, _ in self.rows_and_columns(batch)
        ]
        return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)

    def _step(
        self,
        made: Any,
        batch: Batch,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: list[int],
        columns: list[int],
        lse: bool,
    ) -> tuple[Tensor, Tensor]:
        lower_right = rows == columns[len(columns) - len(rows) :]
        facts = {"positions": self.places(batch)}
        if batch.document is not None or self.needs("query_document"):
            one = [[0] * batch.tokens] * len(batch.ids)
            facts["document"] = torch.tensor(batch.document or one, device=self.device)
        if batch.order is not None or self.needs("query_order") or (self.causal and self.takes("query_order")):
            line = [list(range(batch.tokens))] * len(batch.ids)
            facts["order"] = torch.tensor(batch.order or line, device=self.device)
        given: dict[str, Any] = {}
        if self.takes("visible"):
            given["visible"] = self.visible(batch)[:, None, rows][..., columns]
        for name, value_of in facts.items():
            if self.takes(f"query_{name}"):
                given |= {f"query_{name}": value_of[:, rows], f"key_{name}": value_of[:, columns]}
            elif name == "positions":
                self.require_plain_positions(batch)
                if not lower_right or columns != list(range(len(columns))):
                    raise NotApplicableError("call takes no positions, so queries are the last of the keys")
            elif not self.takes("visible"):
                raise NotApplicableError(f"call takes no query_{name}")
        if lse:
            return self.call(made, query, key, value, **given, return_lse=True)
        out = self.call(made, query, key, value, **given)
        return out, out.new_full(out.shape[:3], torch.nan)


@dataclass(frozen=True, kw_only=True)
class Layer(Subject):
    """A module from vectors to vectors: ``call(made, x, …)``, x (rows, tokens, dim), gives (rows, tokens, …).

    It may take ``positions`` (rows, tokens[, axes]), of the tokens of x; ``padding`` (rows, tokens so far), True where
    there is a token; ``document`` (rows, tokens so far), -1 for padding; ``order`` (rows, tokens), for causality;
    ``cache``, None at first: it then gives (output, cache); ``memory`` (rows, keys, dim), the tokens that are asked,
    and ``memory_positions``; ``grid``, (height, width). A parameter with a default is left out where there is nothing
    to say.
    """

    dim: int = 32

    def can(self, what: str) -> bool:
        if what == "padding":
            return self.takes("padding") or self.takes("document")
        return self.takes({"queries": "memory"}.get(what, what))

    def content(self, batch: Batch) -> Tensor:
        return self.vectors(batch, self.dim)

    def run(self, made: Any, batch: Batch) -> Tensor:
        x = self.content(batch)
        if batch.keys is not None:
            raise NotApplicableError("call gives no log-sum-exp, so parts of the keys cannot be merged")
        if batch.queries is not None:
            if not self.takes("memory"):
                raise NotApplicableError("call takes no memory, so queries are the keys")
            rows = list(batch.queries)
            out = self._call(made, x[:, rows], batch, rows, memory=x)[0]
            alone = self._call(made, x[:, rows[:1]], batch, rows[:1], memory=x)[0]
            if not torch.allclose(out[:, :1], alone, rtol=1e-3, atol=1e-3 * float(out.detach().abs().max())):
                raise NotApplicableError(
                    "what comes for a token of x goes by the others of x: they are no mere queries"
                )
            return out
        outputs, cache, end = [], None, 0
        for size in batch.chunks or (batch.tokens,):
            rows = list(range(end, end + size))
            end += size
            with torch.set_grad_enabled(torch.is_grad_enabled() and not batch.chunks):  # a cache is for inference
                out, cache = self._call(made, x[:, rows], batch, rows, cache=cache)
            outputs.append(out)
        return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]

    def _call(self, made: Any, x: Tensor, batch: Batch, rows: list[int], **known: Any) -> tuple[Tensor, Any]:
        parameters = inspect.signature(self.call).parameters
        positions = self.places(batch)
        end = batch.tokens if "memory" in known or not rows else rows[-1] + 1
        document = torch.tensor(batch.document, device=self.device) if batch.document is not None else None
        facts: dict[str, Any] = {
            "positions": positions[:, rows] if batch.positions is not None else None,
            "padding": document[:, :end] != PADDING if document is not None else None,
            "document": document[:, :end] if document is not None else None,
            "order": torch.tensor(batch.order, device=self.device)[:, rows] if batch.order is not None else None,
            "memory_positions": positions if "memory" in known and batch.positions is not None else None,
            "grid": batch.grid,
            "cache": None,
            "memory": None,
            **known,
        }
        needed = {
            "positions": positions[:, rows],
            "padding": torch.ones(len(batch.ids), end, device=self.device).bool(),
        }
        needed |= {
            "document": torch.zeros(len(batch.ids), end, device=self.device).long(),
            "memory_positions": positions,
            "memory": x,
        }
        given = {}
        for name, value in facts.items():
            if name not in parameters:
                if name in ("positions", "memory_positions") and value is not None:
                    self.require_plain_positions(batch, name)
                elif (
                    name == "document"
                    and document is not None
                    and len(set(document.flatten().tolist()) - {PADDING}) > 1
                ):
                    raise NotApplicableError("call takes no document")
                elif name == "padding" and value is not None and not value.all() and "document" not in parameters:
                    raise NotApplicableError("call takes no padding")
                elif name in ("order", "grid") and value is not None:
                    raise NotApplicableError(f"call takes no {name}")
                elif name == "cache" and batch.chunks:
                    raise NotApplicableError("call takes no cache")
            elif value is not None:
                given[name] = value
            elif parameters[name].default is inspect.Parameter.empty:
                given[name] = needed.get(name)
        out = self.call(made, x, **given)
        return out if "cache" in parameters else (out, None)


@dataclass(frozen=True, kw_only=True)
class Model(Layer):
    """A model from token ids to vectors or logits: a `Layer` whose x are ids (rows, tokens) of int64, below 48."""

    def content(self, batch: Batch) -> Tensor:
        return torch.tensor(batch.ids, device=self.device)
