"""Checks the arguments of attention, binds the scheme to its positions, and makes a `Call`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from posenc import compat
from posenc.arguments import check_choice, check_flag, check_type, is_number, missing_axis, one_or, shown, swapped_axes
from posenc.backends.call import Call, DeferredRotation, RotatedBand, cleared
from posenc.encoding.encoding import Encoding
from posenc.encoding.staleness import live
from posenc.encoding.terms import gives_weights, skipped_by_default
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Visibility, Window, check_window, distances, sees_later, tiles
from posenc.positions.validation import is_readable
from posenc.rotation.phases import OfHeads, PairRotation
from posenc.schedule import BOUND_BY_LAYER, Schedule
from posenc.scheme import Scheme, bare_parts, is_scheme, to_pass

FOR_PADDING = "for a tokenizer's mask pass scheme(Positions.padded(mask))"
POSITIONS_REQUIRED_BY: list[str] = []
"""Why positions must be given: messages of the contexts that are open in which tokens are a part of a text."""
Align: TypeAlias = Literal["lower_right", "upper_left"]
DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32, torch.float64))


class Options(NamedTuple):
    """The arguments of `attention` that are neither tensors nor positions."""

    is_causal: bool = False
    align: Align | None = None
    window: Window = None
    dropout_p: float = 0.0
    scale: float | None = None
    enable_gqa: bool = False
    backend: str = "auto"
    return_lse: bool = False
    skip_below: float | None = None

    def check(self) -> None:
        """ValueError for an option that no call may have. `named` checks the backend."""
        if not _is_number(self.dropout_p) or not 0 <= self.dropout_p < 1:
            raise ValueError(f"dropout_p must be within [0, 1), got {shown(self.dropout_p)}")
        if self.scale is not None and not (_is_number(self.scale) and -math.inf < self.scale < math.inf):
            raise ValueError(f"scale must be a finite number or None, got {shown(self.scale)}")
        flag: object = self.is_causal
        if not isinstance(flag, torch.SymBool):  # under torch.compile
            check_flag("is_causal", flag)
        check_flag("enable_gqa", self.enable_gqa)
        check_flag("return_lse", self.return_lse)
        if not isinstance(self.window, Chunk):
            check_window(self.window)
        if self.skip_below is not None and not (is_number(self.skip_below) and 0 <= self.skip_below < 1):
            raise ValueError(f"skip_below must be within [0, 1), or None for 2**-32, got {shown(self.skip_below)}")


class Request(NamedTuple):
    """The arguments of `attention` and of `explain`; or of `logits`, which neither masks nor reads the value."""

    query: Tensor
    key: Tensor
    value: Tensor
    encoding: Encoding | Scheme | None
    query_positions: Positions | None = None
    key_positions: Positions | None = None
    attn_mask: Tensor | None = None
    sinks: Tensor | None = None
    key_norms: Tensor | None = None
    options: Options = Options()

    @staticmethod
    def of(**arguments: Any) -> Request:
        """The request of these arguments, options among them."""
        options = {name: arguments.pop(name) for name in Options._fields if name in arguments}
        return Request(**arguments, options=Options(**options))

    def bound(self) -> Request:
        """The request with an encoding, the one that is given or the scheme bound to the positions, and tensors of one
        batch. Raises the errors of all that an encoding depends on."""
        query, key, encoding, align = self.query, self.key, self.encoding, self.options.align
        _check_tensors(query, key, self.value)
        if isinstance(encoding, Tensor):
            raise ValueError(
                f"encoding must be an Encoding, a Scheme or None; pass a mask as attn_mask=, got {shown(encoding)}"
            )
        if isinstance(encoding, Schedule):
            raise ValueError(BOUND_BY_LAYER)
        if encoding is not None and not isinstance(encoding, Encoding) and not is_scheme(encoding):
            raise ValueError(
                f"encoding must be an Encoding, a Scheme or None, got {shown(encoding)}{to_pass(encoding)}"
            )
        check_type("query_positions", self.query_positions, Positions, None)
        check_type("key_positions", self.key_positions, Positions, None)
        has_positions = self.query_positions is not None or self.key_positions is not None
        if align is not None:
            check_choice("align", align, ("lower_right", "upper_left"))
            if isinstance(encoding, Encoding) or has_positions:
                raise ValueError(f"align must be None where there are positions, which say it, got {align!r}")
        of_batch = self.with_equal_batch()
        if isinstance(encoding, Encoding):
            if has_positions:
                raise ValueError("encoding is bound to positions already: pass it without positions, or pass a scheme")
            encoding.check(of_batch.query, of_batch.key)
            encoding.check_token_doors(query, key)  # as they came: an expanded tensor has no mark
            return of_batch
        if POSITIONS_REQUIRED_BY and encoding is not None and not has_positions:
            raise ValueError(POSITIONS_REQUIRED_BY[-1])
        if align is None and query.size(2) > key.size(2) and self._reads_positions(encoding):
            raise ValueError(
                f"queries are by default the last of the keys, but there are {query.size(2)} queries and "
                f"{key.size(2)} keys: pass query_positions and key_positions, align='upper_left' where both begin at "
                "position 0, or align='lower_right' where both end at the same"
            )
        positions = default_positions(query, key, self.query_positions, self.key_positions, align)
        with nullcontext() if torch.compiler.is_compiling() else live():  # for this call alone
            made = of_scheme(encoding, *positions, torch.promote_types(query.dtype, torch.float32))
        made.check(of_batch.query, of_batch.key)
        made.check_token_doors(query, key)
        return of_batch._replace(encoding=made)

    def with_equal_batch(self) -> Request:
        """The request with those of query, key and value that have a batch of 1 expanded to the others' batch, as
        PyTorch does."""
        if self.query.size(0) == self.key.size(0) == self.value.size(0):
            return self
        tensors = {"query": self.query, "key": self.key, "value": self.value}
        like, batch = next(((name, x.size(0)) for name, x in tensors.items() if x.size(0) != 1), ("query", 1))
        for name, x in tensors.items():
            if not one_or(x.size(0), batch):
                raise ValueError(f"{name} must have batch {batch} like {like}, or 1, got {x.size(0)}")
        query, key, value = (x.expand(batch, -1, -1, -1) for x in tensors.values())
        norms = self.key_norms
        if isinstance(norms, Tensor) and norms.dim() == 3 and norms.size(0) == 1:
            norms = norms.expand(batch, -1, -1)
        return self._replace(query=query, key=key, value=value, key_norms=norms)

    def _reads_positions(self, scheme: Scheme | None) -> bool:
        """Whether the call is without positions, and its result depends on them."""
        if (self.query_positions, self.key_positions) != (None, None):
            return False
        terms = [] if scheme is None else [part for part in bare_parts(scheme) if part.doors and part.reads_positions]
        return self.options.is_causal or self.options.window is not None or len(terms) > 0

    def settled(self) -> dict[str, Any]:
        """The fields of the call that are the same for every call with the same arguments, apart from the numbers in
        their tensors. Raises the errors of the arguments that `bound` does not check."""
        encoding, query, key, attn_mask, options = self.encoding, self.query, self.key, self.attn_mask, self.options
        assert isinstance(encoding, Encoding)
        options.check()
        if attn_mask is not None:
            _check_mask(attn_mask, (*query.shape[:3], key.size(2)), query)
        if attn_mask is not None and attn_mask.is_floating_point() and gives_weights(encoding.score_terms):
            raise ValueError(
                "attn_mask must be bool, True = may attend, where scores are logarithms of weights that are not "
                f"normalized again, got {shown(attn_mask)}"
            )
        _check_sinks(self.sinks, query)
        if self.sinks is not None and gives_weights(encoding.score_terms):
            raise ValueError(f"sinks must be None for a scheme whose weights do not sum to 1, got {shown(self.sinks)}")
        _check_norms(self.key_norms, key)
        encoding.check_trained(query, key)
        scale, window, skip_below = options.scale, options.window, options.skip_below
        if scale is None:
            scale = encoding.scale if encoding.scale is not None else 1 / math.sqrt(query.size(-1))
        if isinstance(window, Chunk):
            encoding, window = encoding.in_chunks(window.size), None
        if skip_below is None:
            skip_below = skipped_by_default(torch.promote_types(query.dtype, torch.float32))
        banded = encoding.banded
        return {
            "query_positions": encoding.query_positions,
            "key_positions": encoding.key_positions,
            "score_terms": encoding.score_terms,
            "values": encoding.values,
            "visibility": Visibility(options.is_causal, *check_window(window)),
            "dropout_p": options.dropout_p,
            "scale": scale,
            "return_lse": options.return_lse or self.sinks is not None or gives_weights(encoding.score_terms),
            "heads": encoding.context.heads,
            "skip_below": skip_below,
            "chunk": None if banded is None else banded.chunk,
            "rotation": _deferred(encoding, query, key),
        }

    def call(self, settled: Mapping[str, Any], store: dict[str, Any] | None = None) -> Call:
        """The call, of what is `settled` and this request's tensors. Values are rotated, and so are queries and keys
        (for each band of distances, where the encoding has bands) unless their rotation is left to the backend."""
        encoding, query, key, value = self.encoding, self.query, self.key, self.value
        assert isinstance(encoding, Encoding)
        attn_mask = self.attn_mask
        if attn_mask is not None:
            attn_mask = attn_mask.reshape((1,) * (4 - attn_mask.dim()) + attn_mask.shape)
        if compat.is_autocast(query):  # as PyTorch's own attention does
            query, key, value = (x.to(torch.get_autocast_dtype(query.device.type)) for x in (query, key, value))
        call = Call(
            query=query,
            key=key,
            value=value,
            attn_mask=attn_mask,
            query_features=encoding.query_features,
            key_features=encoding.key_features,
            key_norms=self.key_norms,
            **settled,
        ).with_store(store)
        return _rotated(call, encoding).with_store(store) if encoding.rotations else call

    def checked(self) -> tuple[Request, dict[str, Any], Call]:
        """The request with its encoding, what is `settled`, and the call. Raises the errors of `attention`."""
        request = self.bound()
        settled = request.settled()
        call = request.call(settled)
        assert isinstance(request.encoding, Encoding)
        _check_direction(call, request.encoding.looks_back)
        _check_value_door(call)
        return request, settled, call


def _rotated(call: Call, encoding: Encoding) -> Call:
    """The call with rotated values and, unless their rotation is left to the backend, queries and keys. What takes no
    part is cleared before: the gradient of a learned rotation would be a product of it and zero."""
    if call.rotation is not None:
        value = encoding.rotate_value(call.value)
        return call if value is call.value else replace(call, value=value)
    if not any(rotation.needs_whole_documents for rotation in encoding.rotations):  # whose keys take from unseen ones
        call = cleared(call)
    (query, key), *others = encoding.rotate_bands(call.query, call.key)
    reaches = [band.reach for rotation in encoding.rotations for band in rotation.bands]
    bands = tuple(RotatedBand(reach, *each) for reach, each in zip(reaches, others, strict=True))
    return replace(call, query=query, key=key, value=encoding.rotate_value(call.value), bands=bands)


def _deferred(encoding: Encoding, query: Tensor, key: Tensor) -> DeferredRotation | None:
    """The rotation of queries and keys that may be left to the backend, which then makes no rotated copy of them; None
    where they must be rotated first.

    It must be a single rotation of channel pairs of all heads, without a gradient, on the CPU, since only the CPU
    kernel supports it. Terms that read queries or keys separately read rotated ones, so they exclude it.
    """
    if len(encoding.rotations) != 1 or encoding.banded is not None:
        return None
    if any(term.reads_vectors for term in encoding.score_terms):
        return None
    (rotation,) = encoding.rotations
    if rotation.feature is not None:  # each layer has its own, and layers share a plan
        return None
    maps = []
    for each, x in ((rotation.query, query), (rotation.key, key)):
        each = each.fitted_to(x) if isinstance(each, OfHeads) else each
        if not isinstance(each, PairRotation) or each.heads is not None or each.cos.device.type != "cpu":
            return None
        if each.cos.requires_grad or each.sin.requires_grad:
            return None
        maps.append(each.fitted_to(x))
    pairs = [(each.layout, each.first, each.cos.size(-1)) for each in maps]
    if pairs[0] != pairs[1] or compat.is_forward_mode() or compat.is_transformed():
        return None
    return DeferredRotation(*maps)


def of_scheme(
    scheme: Scheme | None, query_positions: Positions, key_positions: Positions, dtype: torch.dtype
) -> Encoding:
    if scheme is None:
        return Encoding(query_positions, key_positions)
    if "add" in scheme.doors:
        adding = [type(part).__name__ for part in bare_parts(scheme) if "add" in part.doors]
        raise ValueError(
            f"{' and '.join(adding)} add{'s' * (len(adding) == 1)} to the input, before query, key and value are "
            "projected from it: make encoding = scheme(positions), call x = encoding.add(x), and pass the encoding"
        )
    return scheme(query_positions, key_positions, dtype=dtype)


def default_positions(
    query: Tensor, key: Tensor, query_positions: Positions | None, key_positions: Positions | None, align: Align | None
) -> tuple[Positions, Positions]:
    for name, x, positions in (("query", query, query_positions), ("key", key, key_positions)):
        if positions is not None and positions.order.size(1) != x.size(2):
            given = f"{len(positions)}{swapped_axes(name, x, len(positions))}"
            raise ValueError(f"{name}_positions must have {x.size(2)} tokens like {name}, got {given}")
    if key_positions is None and query_positions is not None:
        if query.size(2) != key.size(2):
            raise ValueError(
                f"key_positions must be given with query_positions where there are {query.size(2)} queries and "
                f"{key.size(2)} keys, got None"
            )
        key_positions = query_positions
    if align == "upper_left" and query.size(2) != key.size(2):
        longest = Positions.arange(max(query.size(2), key.size(2)), device=key.device)
        return longest[: query.size(2)], longest[: key.size(2)]
    behind = key.size(2) - query.size(2)
    if key_positions is None:
        key_positions = Positions.arange(key.size(2), device=key.device)
        if behind < 0:  # the first queries come before every key
            return Positions.arange(query.size(2), start=behind, device=key.device), key_positions
    if query_positions is None:
        if behind < 0:
            raise ValueError(
                f"query_positions must be given with key_positions where there are {query.size(2)} queries and "
                f"{key.size(2)} keys, got None"
            )
        # For equal lengths the same object, so that derived data is computed once; a graph is for both.
        query_positions = key_positions if compat.is_known(behind == 0) else key_positions[behind:]
    return query_positions, key_positions


def _is_number(value: object) -> bool:
    return is_number(value) or isinstance(value, (torch.SymInt, torch.SymFloat))


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.dim() != 4 or not x.is_floating_point():
            given = f"{shown(x)}{missing_axis(name, x)}"
            raise ValueError(f"{name} must be a floating tensor (batch, heads, tokens, head_dim), got {given}")
        if type(x) not in compat.PLAIN and hasattr(x, "to_local"):
            raise ValueError(
                f"{name} must be a tensor of this process, got a DTensor {tuple(x.shape)}: pass {name}.to_local() and, "
                "if it is sharded by heads, a scheme bound with context=Context(heads=range(first, last)); if by "
                "tokens, call posenc.distributed.attention"
            )
        if x.dtype not in DTYPES:
            raise ValueError(f"{name} must be float16, bfloat16, float32 or float64, got {x.dtype}")
        if x.device != query.device:
            raise ValueError(f"{name} must be on {query.device} like query, got {x.device}")
        if x.dtype != query.dtype and not (compat.is_autocast(query) and compat.is_autocast(x)):
            raise ValueError(f"{name} must be {query.dtype} like query, got {x.dtype}")
    if query.size(-1) == 0:
        raise ValueError(f"query must have a head_dim above 0, got {tuple(query.shape)}")
    if key.size(-1) != query.size(-1):
        raise ValueError(f"key must have head_dim {query.size(-1)} like query, got {key.size(-1)}")
    if value.shape[1:3] != key.shape[1:3]:
        raise ValueError(
            f"value must have heads and tokens {tuple(key.shape[1:3])} like key, got {tuple(value.shape[1:3])}"
        )
    if key.size(1) == 0 or query.size(1) % key.size(1):
        raise ValueError(f"query heads must be a multiple of key heads, got {query.size(1)} and {key.size(1)}")


def _check_mask(mask: Tensor, shape: tuple[int, ...], query: Tensor) -> None:
    if not isinstance(mask, Tensor) or (mask.dtype != torch.bool and not mask.is_floating_point()):
        numbers = f"; {FOR_PADDING}; for 0/1 use mask == 1" if isinstance(mask, Tensor) else ""
        raise ValueError(
            "attn_mask must be a tensor of bool (True = may attend) or float (added to scores), got "
            f"{shown(mask)}{numbers}"
        )
    if hasattr(mask, "variant"):  # of torch.nn.attention.bias; it has no numbers
        variant = mask.variant.name.lower()
        raise ValueError(f"attn_mask must be a plain tensor, got a CausalBias: pass is_causal=True, align={variant!r}")
    if mask.device != query.device:
        raise ValueError(f"attn_mask must be on {query.device} like query, got {mask.device}")
    if mask.dim() == 1:  # PyTorch takes none either
        raise ValueError(
            f"attn_mask must have an axis of queries and one of keys, (queries, keys) = {shape[2:]}, got "
            f"{tuple(mask.shape)}: for a mask of the keys pass attn_mask[None]"
        )
    if not 2 <= mask.dim() <= 4 or any(not one_or(m, n) for m, n in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise ValueError(
            f"attn_mask must broadcast to (batch, heads, queries, keys) = {shape}, got {tuple(mask.shape)}"
            + (f"; {FOR_PADDING}" if tuple(mask.shape) == (shape[0], shape[-1]) else "")
        )


def _check_sinks(sinks: Tensor | None, query: Tensor) -> None:
    if sinks is None:
        return
    batch, heads, queries = query.shape[:3]
    is_floating = isinstance(sinks, Tensor) and sinks.is_floating_point()
    if not is_floating or tuple(sinks.shape) not in ((heads,), (batch, heads, queries)):
        raise ValueError(
            f"sinks must be a floating tensor ({heads},), a logit for each head, or ({batch}, {heads}, {queries}), one "
            f"for each head and query, got {shown(sinks)}"
        )
    if sinks.device != query.device:
        raise ValueError(f"sinks must be on {query.device} like query, got {sinks.device}")


def _check_norms(key_norms: Tensor | None, key: Tensor) -> None:
    if key_norms is None:
        return
    is_tensor = isinstance(key_norms, Tensor) and key_norms.is_floating_point() and not key_norms.requires_grad
    if not is_tensor or key_norms.shape != key.shape[:3] or key_norms.device != key.device:
        shape = tuple(key.shape[:3])
        raise ValueError(
            f"key_norms must be a floating tensor {shape} on {key.device}, the norm of each key, without a gradient, "
            f"got {shown(key_norms)}"
        )


def _check_direction(call: Call, looks_back: tuple[tuple[str, str], ...]) -> None:
    """ValueError if a scheme for keys up to the query is used for later keys, as far as is known."""
    if not looks_back or call.visibility.furthest == 0 or torch.compiler.is_compiling():
        return
    mask = call.attn_mask
    # A mask with a row per query may be causal. A mask whose row several queries share cannot be.
    if mask is not None and (call.query.size(2) == 1 or (mask.size(2) != 1 and mask.stride(2) != 0)):
        return
    if 0 in (call.query.size(2), call.key.size(2)):
        return
    ends = None
    if call.layouts is not None:
        ends = distances(list(tiles(*call.layouts, call.visibility, call.query.size(0))))
    if ends is None:
        positions = call.query_positions, call.key_positions
        is_ahead = is_readable(positions[0].order) and sees_later(*positions, call.visibility.furthest)
    else:
        is_ahead = ends[1] > 0
    if is_ahead:
        name, other = looks_back[0]
        raise ValueError(
            f"{name} encodes only keys up to the query, but without a causal mask queries attend to later keys: pass "
            f"is_causal=True (with or without attn_mask), or use {other}"
        )


@compat.no_grad  # a check of the first layer alone, which checkpointing does not repeat
def _check_value_door(call: Call) -> None:
    """ValueError if the vectors of the value door have another width or number of heads."""
    for term in call.values:
        vectors = call.of_heads(
            term.vectors(torch.zeros(1, dtype=torch.int64, device=call.query.device)), term.distance.scheme
        )
        if vectors.size(-1) != call.value.size(-1):
            raise ValueError(
                f"value must have a value_dim of {vectors.size(-1)} for the value door, got {call.value.size(-1)}"
            )
