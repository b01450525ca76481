"""`KVCache`: the keys and values of the tokens that a model has read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from posenc import compat
from posenc.arguments import shown, whole
from posenc.encoding.context import NOTHING, Features
from posenc.encoding.rotation import mark, mark_of
from posenc.positions.layout import Layout, Span, join, overlap, skipped
from posenc.positions.positions import PADDING, Positions
from posenc.positions.tiles import Chunk, Window, check_window, window_words
from posenc.positions.validation import check_parts, is_readable
from posenc.scheme import Scheme, bare_parts

NORMS_FEATURE = "posenc's norms of keys"  # kept with a layer's features
NORMS = f"feature {NORMS_FEATURE}"
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in what Python writes of a function


class KVCache:
    """The rotated keys, values and features of every layer, with their positions. For inference only.

    A layer with a window or a `Chunk` holds only the tokens that new ones may see, where the layout of positions is
    known (on a GPU: see `Positions.with_layout`). ``len`` is the number of tokens that were read.

    Buffers double when full, so that appending a token does not copy the cache every time. A compiled graph copies it.
    """

    _exchange: Any = None
    """How passes with this cache reach tokens that other processes hold: an `Exchange`, such as that of
    `posenc.distributed.ShardedCache`."""

    def __init__(self) -> None:
        # Positions as what a compiled graph can return: their tensors, and the document, order and line of a run.
        self._tensors: dict[str, Tensor | None] = {}
        self._run: tuple[int, int, int | None] | None = None
        self._known: Positions | None = None  # the same, with all that is known of their layout
        self._num_read = self._num_before = 0  # tokens, now and before the last pass
        self._num_evicted = 0  # of these, those that `evict` has dropped
        self._most_sinks: int | None = None  # of each document these first tokens are held; None: all
        self._layers: list[dict[str, Tensor]] = []  # views of buffers; each has the last tokens of `positions`
        self._pending: dict[int, dict[str, Tensor]] = {}  # the layers of the open pass
        self._windows: dict[int, Window] = {}
        self._is_whole = False  # whether a scheme makes keys of others too, so that none may be dropped
        self._layer_schemes: dict[int, Scheme | str] = {}  # the scheme of each layer's tokens, or its repr
        self._marks: dict[int, Any] = {}  # the marks of the keys of each layer, if all have the same

    def __repr__(self) -> str:
        return f"KVCache({len(self)} tokens, {len(self._layers)} layers)"

    def __len__(self) -> int:
        return self._num_read

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickle: without the schemes, which are the model's."""
        return vars(self) | {
            "_layer_schemes": {layer: scheme_text(scheme) for layer, scheme in self._layer_schemes.items()}
        }

    @property
    def positions(self) -> Positions | None:
        """The positions of the tokens that a layer holds; None: there are none."""
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling and self._known is not None:
            return self._known
        if not self._tensors:
            return None
        tensors: dict[str, Any] = self._tensors
        made = Positions(**tensors)
        if self._run is not None:
            (document, order, line), n = self._run, made.order.size(1)
            span = Span(0, n, document, order, coords=None if line is None else (line,))
            made._of(Layout(n, ((span,),), None if line is None else (line, line + n - 1)))
        if not is_compiling:
            self._known = made
        return made

    def _hold(self, positions: Positions | None) -> None:
        run = None if positions is None else positions.layout.run
        self._run = None if run is None else (run.document, run.order, run.line)
        self._tensors = {} if positions is None else positions._each(lambda x: x)
        self._known = None if torch.compiler.is_compiling() else positions

    def _fill(self, layer: int, scheme: Scheme) -> None:
        """Notes the scheme of a layer's tokens. ValueError for another scheme than that of the tokens it holds."""
        before = None if self.positions is None else self._layer_schemes.get(layer)
        if before is not None and before is not scheme and scheme_text(before) != scheme_text(scheme):
            raise ValueError(
                f"the cache holds tokens of layer {layer} that were encoded by {scheme_text(before)}, got "
                f"{scheme_text(scheme)}: use one scheme from the first token to the last, or begin with another "
                "KVCache()"
            )
        self._layer_schemes[layer] = scheme

    def _extended(self, positions: Positions) -> Positions:
        """The positions of the cached tokens and of new ones. Raises ValueError if these do not come after them, or if
        tokens between them are missing."""
        before = self.positions
        if before is None:
            return positions
        if overlap(join([before.layout, positions.layout], max(before.rows, positions.rows))) is not None:
            raise ValueError(
                "positions begin at or before the last token of the cache: continue it with "
                "cache.positions.following(n) or, if it holds one text, "
                "Positions.arange(n, start=len(cache)); give another text another document"
            )
        if self._most_sinks is not None and is_readable(positions.order):  # gaps of evicted tokens are not known
            # For each new token the highest order of its document here; the lowest int64 if there is none.
            same = positions.document[:, :, None] == before.document[:, None]
            same = same & (positions.document != PADDING)[:, :, None]
            lowest = torch.full((), torch.iinfo(torch.int64).min, device=positions.device)
            last = torch.where(same, before.order[:, None], lowest).amax(-1)
            if bool((positions.order <= last).any()):
                raise ValueError(
                    f"positions must come after order {int(last.max())}, the last that the cache holds, got "
                    f"{int(positions.order.min())}: continue it with cache.positions.following(n)"
                )
        skip = skipped(before.layout, positions.layout)
        if skip is not None:
            raise ValueError(
                f"positions must go on from the cache at order {skip[0]}, got {skip[1]}: continue it with "
                "cache.positions.following(n) or, where coordinates are to jump, "
                "cache.positions.following(n).with_coords(coords)"
            )
        return Positions.cat([before, positions], documents="same")

    def crop(self, tokens: int) -> None:
        """Keeps the first ``tokens`` tokens of every row and drops the others, such as a draft that was rejected.

        Raises ValueError where layers have dropped tokens that the next one may see: with windows or after `evict`, a
        cache goes back to where its last pass began, or to nothing.
        """
        whole("tokens", tokens, 0, len(self))
        if 0 < tokens < self._num_before and any(self._held(layer) < len(self) for layer in range(len(self._layers))):
            raise ValueError(
                f"tokens must be 0 or at least {self._num_before}, where the last pass began, since earlier ones were "
                f"dropped, got {tokens}"
            )
        gone, positions = len(self) - tokens, self.positions
        self._hold(positions[: len(positions) - gone] if positions is not None and tokens else None)
        self._layers = [
            {name: x[:, :, : x.size(2) - gone] for name, x in layer.items()} for layer in self._layers if tokens
        ]
        self._num_read, self._num_before = tokens, min(self._num_before, tokens)
        if not tokens:
            self._num_evicted, self._most_sinks = 0, None

    def evict(self, sinks: int, recent: int) -> None:
        """Drops the middle of every document: keeps its first ``sinks`` tokens and its last ``recent``, at their
        positions. A layer with a window keeps no more than before. Raises ValueError where some of the first tokens
        were dropped before: by windows that all layers have, or because fewer were kept.

        Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks", which also moves the
        remaining tokens together.
        """
        self._check_of_one_process("evict")
        whole("sinks", sinks, least=0)
        whole("recent", recent)
        if self._is_whole:
            raise ValueError("evict is not supported by schemes whose keys depend on others, such as KeyOffset")
        before = self.positions
        if before is None or before.order.size(1) <= sinks + recent:
            return
        most = self._sinks_held()
        if most is not None and sinks > most:
            raise ValueError(
                f"sinks must be at most {most}, since the cache has dropped the other first tokens of documents, "
                f"got {sinks}"
            )
        held = ends_of_documents(before, sinks, recent)
        chosen = held.any(0).nonzero()[:, 0]
        hidden = {"document": torch.where(held, before.document.expand(len(held), -1), PADDING)}
        self._hold(Positions(**before._each(lambda x: x) | hidden)[chosen])
        for n, layer in enumerate(self._layers):
            first = len(before) - self._held(n)
            index = chosen[chosen >= first] - first
            self._layers[n] = {name: x.index_select(2, index.to(x.device)) for name, x in layer.items()}
        self._num_before, self._most_sinks = len(self), sinks
        self._num_evicted += len(before) - len(chosen)

    def _sinks_held(self) -> int | None:
        """Of how many first tokens of each document it is known that they are held; None: of all."""
        held = 0 if self.positions is None else self.positions.order.size(1)
        return 0 if held < len(self) - self._num_evicted else self._most_sinks  # windows have dropped some

    def select(self, rows: Int[Tensor, " chosen"] | Bool[Tensor, " rows"]) -> None:
        """Keeps these rows of the batch, in this order: the indices of beams, which may be repeated, or a mask that is
        True for rows that go on."""
        self._check_of_one_process("select")
        batch = next((layer["key"].size(0) for layer in self._layers if layer), 0)
        if isinstance(rows, Tensor) and rows.dtype == torch.bool and rows.shape == (batch,):
            rows = rows.nonzero()[:, 0]
        is_index = isinstance(rows, Tensor) and rows.dim() == 1 and rows.dtype == torch.int64
        if not is_index or (is_readable(rows) and bool(((rows < 0) | (rows >= batch)).any())):
            found = rows.tolist() if is_index else shown(rows)
            raise ValueError(f"rows must be int64 within 0..{batch - 1}, or a bool tensor ({batch},), got {found}")
        self._layers = [
            {name: x.index_select(0, rows.to(x.device)) for name, x in layer.items()} for layer in self._layers
        ]
        positions = self.positions
        if positions is not None and positions.rows > 1:
            self._hold(Positions(**positions._each(lambda x: x.index_select(0, rows.to(x.device)))))

    @staticmethod
    def cat(caches: Sequence[KVCache]) -> KVCache:
        """A cache with the rows of all, such as those of requests that are to go on as one batch. Shorter ones are
        padded on the left. Continue it with ``cache.positions.following(n)``.

        Raises ValueError for caches without tokens, and for those that layers of other schemes, windows, shapes or
        dtypes have filled.
        """
        held = isinstance(caches, Sequence) and all(isinstance(cache, KVCache) and cache.positions for cache in caches)
        if not held or not caches:
            raise ValueError(f"caches must be KVCaches that hold tokens, got {shown(caches)}")
        parts = [cache.positions for cache in caches if cache.positions is not None]
        check_parts(parts, Positions, None)
        made, kinds = KVCache(), []
        for cache in caches:
            cache._check_of_one_process("cat")
            of_layers = [
                {name: (x.dtype, x.device, x.size(1), *x.shape[3:]) for name, x in layer.items() if name != NORMS}
                for layer in cache._layers
            ]
            schemes = [scheme_text(scheme) for scheme in cache._layer_schemes.values()]
            kinds.append((schemes, cache._windows, of_layers))
            if kinds[-1] != kinds[0]:
                raise ValueError(f"caches must be of the same layers, got {kinds[0]} and {kinds[-1]}")
        most, tensors = max(map(len, parts)), []
        for part, cache in zip(parts, caches, strict=True):
            wide = part.expand(cache._layers[0]["key"].size(0))._each(lambda x: x)
            pads = {name: PADDING if name == "document" else 0 for name, x in wide.items() if x is not None}
            tensors.append({name: padded(wide[name], 1, most, pad) for name, pad in pads.items()})
        made._hold(Positions(**{name: torch.cat([each[name] for each in tensors]) for name in tensors[0]}))
        for layers in zip(*(cache._layers for cache in caches), strict=True):
            num_held = max(layer["key"].size(2) for layer in layers)
            names = [name for name in layers[0] if all(name in layer for layer in layers)]
            joined = {name: torch.cat([padded(layer[name], 2, num_held) for layer in layers]) for name in names}
            made._layers.append(joined)
        made._num_read = max(map(len, caches))
        made._num_before = max(len(made) - len(cache) + cache._num_before for cache in caches)
        made._is_whole, made._num_evicted = caches[0]._is_whole, made._num_read - most
        held_sinks = [sinks for cache in caches if (sinks := cache._sinks_held()) is not None]
        made._most_sinks = min(held_sinks, default=None)
        made._layer_schemes, made._windows = dict(caches[0]._layer_schemes), dict(caches[0]._windows)
        return made

    def _check_of_one_process(self, name: str) -> None:
        if self._exchange is not None:
            raise ValueError(f"{name} is not supported by a {type(self).__name__}, whose tokens are divided")

    def _commit(self, positions: Positions, num_new: int) -> None:
        """The cache holds the tokens of the open pass, and of ``positions`` those that a layer has."""
        self._layers = [self._pending.get(n, {}) for n in range(max(len(self._layers), len(self._pending)))]
        self._pending = {}
        most: Any = 0
        for layer in self._layers:
            most = compat.sym_max(most, layer["key"].size(2)) if layer else most
        if self._exchange is None and self._layers:
            positions = last_tokens(positions, most)
        self._hold(positions)
        self._num_before = self._num_read
        self._num_read = self._num_read + num_new

    def _held(self, layer: int) -> Any:
        """How many tokens a layer holds."""
        return self._layers[layer]["key"].size(2) if layer < len(self._layers) and self._layers[layer] else 0

    def _needed(self, layer: int, positions: Positions, window: Window) -> Any:
        """How many of its tokens a layer needs for new ones at these positions."""
        held, before = self._held(layer), self.positions
        return held if before is None else compat.sym_min(held, needed(before.layout, positions.layout, window))

    def _set_window(self, layer: int, window: Window) -> None:
        """Notes the window of a layer. ValueError for another than that outside of which it has dropped tokens."""
        before = self._windows.get(layer, window)
        if before != window and self._held(layer) < self._num_read:
            raise ValueError(
                f"layer {layer} has dropped tokens outside of its {window_words(before)}, got a call with the "
                f"{window_words(window)}: pass the same window in every pass"
            )
        self._windows[layer] = window

    def _feature(self, layer: int, name: str) -> tuple[Tensor, Positions] | None:
        """A cached feature and the positions of its tokens."""
        cached = self._layers[layer].get(f"feature {name}") if layer < len(self._layers) else None
        positions = self.positions
        if cached is None or positions is None or not cached.size(2):
            return None
        return cached, last_tokens(positions, cached.size(2))

    def append(
        self, layer: int, key: Tensor, value: Tensor, features: Features = NOTHING, *, needed: int | None = None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Appends a layer's new keys and values, (batch, kv_heads, tokens, head_dim), and features of its keys, (batch,
        heads, tokens, ...), to the last ``needed`` of its tokens (None: all). Returns the keys, values and features of
        both. They are in the cache when the pass ends.

        Raises ValueError for a layer that was skipped or comes twice, and for tensors unlike the cached ones.
        """
        whole("layer", layer, 0, max(len(self._layers), len(self._pending)))
        for name, new in (("key", key), ("value", value)):
            if not isinstance(new, Tensor) or new.dim() != 4:
                raise ValueError(f"{name} must be a tensor (batch, kv_heads, tokens, head_dim), got {shown(new)}")
        if value.shape[:3] != key.shape[:3]:
            of_key, of_value = tuple(key.shape[:3]), tuple(value.shape[:3])
            raise ValueError(f"value must have (batch, kv_heads, tokens) = {of_key} like key, got {of_value}")
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise ValueError("a KVCache is for inference: call the model under torch.no_grad()")
        if layer in self._pending:
            raise ValueError(
                f"layer {layer} has these {key.size(2)} tokens already: pass a different layer= in every layer"
            )
        cached = self._layers[layer] if layer < len(self._layers) else {}
        if self._tensors and not cached:
            raise ValueError(
                f"layer {layer} was not called in an earlier pass: every layer must be called in every pass"
            )
        tensors = {"key": key, "value": value, **{f"feature {name}": x for name, x in features.items()}}
        # Norms are useless unless every token has them.
        if cached and (NORMS in cached) != (NORMS_FEATURE in features):
            features = {name: x for name, x in features.items() if name != NORMS_FEATURE}
            cached, tensors = ({name: x for name, x in each.items() if name != NORMS} for each in (cached, tensors))
        if cached and tensors.keys() != cached.keys():
            raise ValueError(f"the cache holds {', '.join(cached)} of this layer, got {', '.join(tensors)}")
        views: dict[str, Tensor] = {}
        for name, new in tensors.items():
            views[name] = append_tokens(cached.get(name), new, needed)
        self._pending[layer] = views
        marks = mark_of(key)  # None in a compiled graph
        if marks is not None and (not cached or marks == self._marks.get(layer)):
            mark(views["key"], marks)
        else:
            marks = None
        self._marks[layer] = marks
        return views["key"], views["value"], {name: views[f"feature {name}"] for name in features}


def needed(cached: Layout, new: Layout, window: Window) -> Any:
    """How many of the last cached tokens the new ones or later ones may see in this window, the last of each document
    among them; all, where a layout is not known."""
    size, left = (window.size, None) if isinstance(window, Chunk) else (None, check_window(window)[0])
    if cached.rows is None or new.rows is None or (left is None and size is None):
        return cached.tokens
    if size and any(span.line is None for row in (*cached.rows, *new.rows) for span in row):
        return cached.tokens
    first, place = cached.tokens - 1, "order" if size is None else "line"
    for row in range(max(len(cached.rows), len(new.rows))):
        begins: dict[int, Any] = {}  # where each document goes on
        for span in cached.of_row(row):
            end = getattr(span.cut(span.stop, span.stop), place)
            begins[span.document] = compat.sym_max(begins.get(span.document, end), end)
        for span in new.of_row(row):
            if span.document in begins:
                begins[span.document] = compat.sym_min(begins[span.document], getattr(span, place))
        for span in cached.of_row(row):
            begin, at = begins[span.document], getattr(span, place)
            lowest = (begin - 1) // size * size if size else begin - max(left or 0, 1)
            num_unseen = compat.sym_max(0, lowest - at) if size or span.order_step else 0
            if num_unseen < span.stop - span.start:
                first = compat.sym_min(first, span.start + num_unseen)
    return cached.tokens - first


def last_tokens(positions: Positions, n: Any) -> Positions:
    """The last ``n`` tokens, in a graph without asking whether these are all."""
    if not torch.compiler.is_compiling() and n == len(positions):
        return positions
    return positions[positions.order.size(1) - n :]


def ends_of_documents(positions: Positions, first: int, last: int) -> Bool[Tensor, "rows tokens"]:
    """Whether a token is one of the ``first`` or the ``last`` tokens of its document, by order."""
    order, document = positions.order, positions.document
    index = order.argsort(dim=-1, stable=True)
    index = index.gather(-1, document.gather(-1, index).argsort(dim=-1, stable=True))
    documents, place = document.gather(-1, index).contiguous(), torch.arange(len(positions), device=order.device)
    start, stop = (torch.searchsorted(documents, documents, right=right) for right in (False, True))
    is_end = ((place - start < first) | (stop - place <= last)) & (documents != PADDING)
    return torch.zeros_like(is_end).scatter(-1, index, is_end)


def padded(x: Tensor, dim: int, tokens: int, value: int = 0) -> Tensor:
    """The tensor with this value before its tokens, up to so many along ``dim``."""
    return torch.nn.functional.pad(x, (0, 0) * (x.dim() - 1 - dim) + (tokens - x.size(dim), 0), value=value)


def scheme_text(scheme: Scheme | str) -> str:
    """A scheme as its constructors are called, wherever it is wrapped, and wherever in memory functions and objects
    among its arguments are."""
    return scheme if isinstance(scheme, str) else ADDRESS.sub("", " + ".join(map(repr, bare_parts(scheme))))


def append_tokens(cached: Tensor | None, new: Tensor, needed: int | None = None) -> Tensor:
    """The last ``needed`` cached tokens (None: all) and the new ones, which are written behind them where their buffer
    has room. A compiled graph, whose operations must not depend on that, copies both."""
    if cached is None or not cached.size(2):
        cached = new[:, :, :0]
    elif (cached.shape[:2], cached.shape[3:]) != (new.shape[:2], new.shape[3:]):
        fixed = (*cached.shape[:2], "tokens", *cached.shape[3:])
        raise ValueError(f"the cache holds keys or values of shape {fixed}, got {tuple(new.shape)}")
    elif (cached.dtype, cached.device) != (new.dtype, new.device):
        raise ValueError(f"the cache holds {cached.dtype} on {cached.device}, got {new.dtype} on {new.device}")
    elif needed is not None:
        cached = cached[:, :, cached.size(2) - needed :]
    if torch.compiler.is_compiling():
        return torch.cat((cached, new), 2)
    start, stop = cached.size(2), cached.size(2) + new.size(2)
    if not start or _room(cached) < stop:
        buffer = new.new_empty(*new.shape[:2], max(stop, 2 * start), *new.shape[3:])
        buffer[:, :, :start] = cached
        cached = buffer
    both = cached.as_strided((*new.shape[:2], stop, *new.shape[3:]), cached.stride())
    both[:, :, start:] = new
    return both


def _room(view: Tensor) -> int:
    """The number of tokens, from the first one of this view on, for which its buffer has memory; 0 for a tensor whose
    tokens do not lie one after the other, and for one of inference mode outside of it, which may not be written."""
    if view.is_inference() and not torch.is_inference_mode_enabled():
        return 0
    _, per_head, per_token, *_ = view.stride()
    one = view[:1, :1, :1]
    if not one.is_contiguous() or per_token != one.numel() or not one.numel():
        return 0
    return (per_head - view.storage_offset() % per_head) // per_token
