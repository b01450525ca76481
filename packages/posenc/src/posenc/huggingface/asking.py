"""Reads a model's positions by asking it: every token gets the same vector, so whatever differs between tokens where
queries and keys reach attention is position.

The model is built from its configuration with all its layers and heads, and costs little: a linear layer gives the same
random vector for every token, and what has no attention in it gives zeros. What each layer hands to its attention
function is recorded at chosen positions, fitted to RoPE, NoPE, `QueryScale` and windows, and compared with the model
again at other positions and with other weights. What does not fit is a ValueError that says what was seen."""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from posenc.backends.api import logits
from posenc.huggingface import indexers
from posenc.huggingface.questions import (
    BY_SLOT,
    FRESH,
    PLACES,
    ROWS,
    SILENT,
    SIZES,
    SLOTS,
    WARM,
    Answer,
    Asked,
    Call,
    built,
    is_own,
    length_of,
    within,
)
from posenc.huggingface.reading import AXES, Keys, Layer, ModelPositions, scaled, summarize_model
from posenc.huggingface.towers import Tower, input_of
from posenc.huggingface.variants import Frequencies
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Window, window_words
from posenc.rotation.scaling_parameters import ScalingParameters
from posenc.rotation.scalings import LongRoPE, NTKAware, YaRN
from posenc.schedule import ranges
from posenc.scheme import Scheme
from posenc.schemes.axial_rope import AxialRoPE
from posenc.schemes.indexer import Indexer
from posenc.schemes.inkling import Inkling
from posenc.schemes.nope import NoPE
from posenc.schemes.query_scale import QueryScale
from posenc.schemes.rope import RoPE
from posenc.schemes.rope_3d import RoPE3D
from posenc.schemes.t5 import T5
from posenc.schemes.transformer_xl import TransformerXL

Scalings = list[tuple[float, Any]]  # with their bases
FOUND = "found by asking transformers' code, as queries and keys reach attention"


def positions_by_asking(keys: Keys) -> ModelPositions:
    """The positions of a model, as its own code does them. ValueError, saying what was seen, for what is not RoPE on
    one axis or a grid, NoPE, a scale of queries by position, a learned table or sinusoids, and for windows that are
    neither of keys nor chunks nor squares of patches.
    """
    try:
        return _positions(keys, even=False)
    except ValueError as error:
        with suppress(ValueError):
            said = _positions(keys, even=True)
            return replace(said, remarks=(*said.remarks, "learned weights multiply queries and keys after they turn"))
        pad = keys.get("pad_token_id")
        if "padding_idx" in str(error) if pad is None else type(pad) is int and pad < 0:
            found: list[ModelPositions] = []
            with suppress(ValueError):
                found = [_positions(_padded(keys, token), even=False) for token in (1, 2)]
            if found and repr(found[0]) == repr(found[1]):  # positions do not follow from it
                return found[0]
            if found:
                keys.whole("pad_token_id", 0)
        raise


def _padded(keys: Keys, token: int) -> Keys:
    config = copy.deepcopy(keys.config)
    config.pad_token_id = token
    return Keys(config, keys.inside, keys.ignored)


def _positions(keys: Keys, even: bool) -> ModelPositions:
    config = keys.config
    stack = keys.inside if keys.inside in ("encoder", "decoder") else None
    for name, sizes in SIZES.items():
        size = getattr(config, name, None)
        for each in size if isinstance(size, (list, tuple)) else (size,):
            if isinstance(each, int) and each >= 0 and each not in sizes:
                raise ValueError(f"its {name} must be within {sizes[0]}..{sizes[-1]}, got {each}")
    count, length = getattr(config, f"{stack}_layers", getattr(config, "num_hidden_layers", 0)) or 0, length_of(config)
    count = count if isinstance(count, int) else 0  # LXMERT has a dictionary
    if (shared := getattr(config, "num_kv_shared_layers", None) or 0) >= count > 0:
        raise ValueError(f"all its layers take keys and values of another model: num_kv_shared_layers is {shared}")
    tuned = getattr(config, "floor_scale", None) if getattr(config, "attn_temperature_tuning", False) else None
    floor = getattr(config, "log_scaling_n_floor", None)
    if tuned is not None or floor is not None:  # it counts slots, of which there are few
        config = copy.deepcopy(config)
        for name in ("floor_scale", "log_scaling_n_floor"):
            setattr(config, name, WARM + 4)
        if hasattr(config, "rel_l2_clip_threshold"):  # so that some vectors are longer
            config.rel_l2_clip_threshold = 0.08
    model = built(config, stack)
    takes = inspect.signature(model.forward).parameters
    asked = (Asked if "input_ids" in takes or "grid_thw" in takes else Tower)(config, stack, model)
    asked.even = even
    asked.reset(1)
    scalings = _candidates(config, length)
    first, fresh = asked.places(length)
    end = int(first[-1]) + 1
    answer = asked(first)
    if asked.takes_ids and (biased := [call.bias for call in answer.calls if call.bias is not None]):
        still = [call.bias for call in asked(torch.zeros_like(first)).calls if call.bias is not None]
        if any(map(torch.equal, biased, still)):  # it counts slots
            asked.takes_ids, end = False, min(end, SLOTS)
            first, fresh = (within(places, end) + WARM for places in (PLACES, FRESH))
            answer = asked(first)
    answers = [asked.with_plain(answer)]
    is_normalized = asked.normalized
    asked.reset(2)
    answers.append(asked.with_plain(asked(fresh)))
    if any(getattr(scaling, "needs_lengths", False) for _, scaling in scalings) and length is not None:
        answers.append(asked.with_plain(asked(torch.tensor([*fresh.tolist(), 2 * end + 1]))))
    axes = _by_axis(asked, first)
    if axes:
        mixed = asked(torch.stack((fresh, fresh // 2, fresh // 3))[: len(axes), None])
    masks = asked.masks(end)
    table, remarks = input_of(asked, masks)
    layers: dict[int, tuple[Scheme, Window, Layer, bool]] = {}
    kinds: dict[int, tuple[Scheme, Window, Layer, bool]] = {}
    made: dict[str, Scheme] = {}
    chosen_by: dict[int, Indexer] = {}
    every = {id(calls): calls for each in (*answers, *axes) for calls in (each.calls, each.plain or each.calls)}
    for n, call in enumerate(answer.calls):
        where, plain = f"in layer {call.layer} ", [each.plain[n] for each in answers]
        alike = [
            m
            for m in kinds
            if "indices" not in call.options  # each layer has an indexer of its own, or takes another's choice
            and (call.bias is None or answer.buckets)  # and profiles of its own, or another's table
            and masks.calls[n].mask is masks.calls[m].mask
            and masks.calls[n].tokens == masks.calls[m].tokens
            and all(calls[n].same(calls[m]) for calls in every.values())
        ]
        if alike:
            if layers.setdefault(call.layer, kinds[alike[0]]) != kinds[alike[0]]:
                raise ValueError(where + "attention differs between the times it runs")
            continue
        try:
            at = [each.places for each in answers]
            try:
                scheme = _fit(call, plain[0], at[0], scalings, config, is_normalized, asked.axes)
            except ValueError:
                if tuned is None:
                    raise
                at = [torch.arange(WARM, WARM + places.size(-1)) for places in at]  # slots of a cache
                scheme = _fit(call, plain[0], at[0], scalings, config, is_normalized, asked.axes)
            for one, other, places in zip(answers[1:], plain[1:], at[1:], strict=True):
                _verify(scheme, one.calls[n], other, places)
            table_of = ""
            if call.bias is not None:
                table_of, scheme = _biased(scheme, [(each.calls[n], each) for each in answers[:2]], config)
            if tuned is not None and isinstance(scheme, QueryScale):
                scheme = QueryScale(scheme.form, length=tuned, strength=scheme.strength)
            if isinstance(scheme, Inkling):
                scheme.length = None if scheme.length is None else floor
                scheme.clip = getattr(keys.config, "rel_l2_clip_threshold", None)
            chosen = _indexed(scheme, [(each.calls[n], each.places) for each in (masks, *answers)], chosen_by)
            is_causal = bool(call.options.get("is_causal", getattr(call.module, "is_causal", True)))
            tried = masks.calls[n].tokens[1] // 2 * asked.is_own
            is_whole = asked.is_tower or (asked.is_own and masks.calls[n].tokens[1] == length)  # all masks are seen
            known = {} if is_whole else vars(config)
            bounds = SimpleNamespace(**{k: v for k, v in known.items() if type(v) is not int or v >= tried})
            window, causal = _window(_ruled(masks.calls[n], masks.calls, bounds, is_causal), bounds, is_causal)
            slides = call.options.get("sliding_window")
            reach = window if not isinstance(window, tuple) or window[0] is None else window[0] + 1
            if slides is not None and slides != reach:
                raise ValueError(f"the mask has {window_words(window)}, and attention is told of a window of {slides}")
        except ValueError as error:
            raise ValueError(where + str(error)) from error
        if axes:
            scheme = _allocated(scheme, [each.calls[n] for each in axes], first, scalings)
            _verify(scheme, mixed.calls[n], plain[1], mixed.places)
        if isinstance(asked, Tower):
            remarks += [each for each in asked.others(scheme, call) if each not in remarks]
        scheme = _by_weights(scheme, plain[0])
        scheme = made.setdefault(table_of or repr(scheme), scheme)
        layer = replace(_layer(call, (plain[0], plain[1])), **chosen)
        if (patches := masks.calls[n].tokens[1]) < asked.whole:
            side = math.isqrt(patches)
            sides = side, side * getattr(config, "patch_size", 1)
            if side**2 != patches or getattr(config, "window_size", side) not in sides:
                raise ValueError(f"attention is within parts of {patches} patches, which are not its window_size")
            layer = replace(layer, patches=side)
        said = kinds[n] = scheme, window, layer, causal
        if layers.setdefault(call.layer, said) != said:
            raise ValueError(where + "attention differs between the times it runs")
    parts = [part for scheme in made.values() for part in scheme.parts]
    by_slot = [name for name, value in vars(config).items() if value and BY_SLOT.search(name)]
    if by_slot and not any(isinstance(part, (QueryScale, Inkling)) for part in parts):
        raise ValueError(f"the configuration has {by_slot[0]}, and no query grows with its position")
    if len({causal for *_, causal in layers.values()}) > 1:
        raise ValueError("some layers are causal and others are not")
    notes = {
        f"those are the layers with attention, {ranges(sorted(layers))} of the model's {count}": (
            len(answer.calls) < count and set(range(count)) > set(layers)
        ),
        f"coordinates are {' and '.join(AXES[-asked.axes :])} of patches": asked.axes and not asked.is_tower,
        "transformers counts positions, and takes no position_ids": not asked.takes_ids and not asked.is_tower,
        f"its bias was seen up to distance {end - 1}": any(isinstance(x, Inkling) and x.extent >= end for x in parts),
        "its sinks are projected from hidden states": any("sinks" in call.options for call in answer.calls),
        "transformers scales queries by the slot in the cache, not by position_ids": tuned is not None,
        "transformers counts chunks by slots less left padding, not by position_ids": (
            any(isinstance(window, Chunk) for _, window, *_ in layers.values())
        ),
        "transformers takes the long list for the whole batch as soon as one of its rows is long": (
            any(isinstance(getattr(part, "scaling", None), LongRoPE) for part in parts)
        ),
        "attention of the decoder to the encoder has no positions": masks.across,
    }
    which = [layers[n] for n in sorted(layers)]
    return summarize_model(
        keys,
        [scheme for scheme, *_ in which],
        [window for _, window, *_ in which],
        [layer for _, _, layer, _ in which],
        input=table,
        causal=which[0][3],
        length=getattr(table, "max_positions", keys.get("max_source_positions")) if asked.is_tower else length,
        remarks=(f"{FOUND}: {type(model).__name__}", *remarks, *(note for note, holds in notes.items() if holds)),
    )


def _layer(call: Call, plain: tuple[Call, Call]) -> Layer:
    options, head_dim = call.options, call.query.size(-1)
    unknown = sorted(name for name, option in options.items() if name not in SILENT and option is not False)
    if unknown:
        raise ValueError(f"layer {call.layer} also gives its attention function {', '.join(unknown)}")
    scaling = options.get("scaling")
    by_code = _multiple("query", plain) * _multiple("key", plain)
    scale = None if scaling is None else scaled(float(scaling) * by_code, head_dim)
    cap = options.get("softcap")
    sinks = bool(options.keys() & {"s_aux", "sinks"})
    return Layer(scale=scale, softcap=None if cap is None else float(cap), sinks=sinks)


def _biased(scheme: Scheme, seen: list[tuple[Call, Answer]], config: Any) -> tuple[str, Scheme]:
    """The scheme of a layer that adds a bias to its scores, the same with any weights, and the name of its table."""
    if any(not isinstance(part, (NoPE, QueryScale)) for part in scheme.parts):
        raise ValueError("queries turn, and a bias is added to their scores too")
    for name, (weight, rows) in seen[0][1].buckets.items():
        biases = [(call.bias, *answer.buckets[name], answer.places) for call, answer in seen]
        made = [(bias, table[rows_of[at]].permute(2, 0, 1)) for bias, table, rows_of, at in biases]
        same = (b is not None and b.shape == x.shape and torch.allclose(x.double(), b, 1e-5, 1e-6) for b, x in made)
        if all(same):
            return name, _buckets(weight, rows, config)
    scale = next((part for part in scheme.parts if isinstance(part, QueryScale)), None)
    heads = seen[0][0].query.size(1)
    for weight in seen[-1][0].module.parameters():  # those of the last answer
        if weight.dim() == 2 and _is_mixed(*seen[-1], weight, scale, config):
            tuned: dict[str, Any] = {"clip": getattr(config, "rel_l2_clip_threshold", None)}
            tuned |= {} if scale is None else {"length": scale.length, "strength": scale.strength}
            return f"layer {seen[0][0].layer}", Inkling(heads, *weight.shape, **tuned)
    if (four := _with_four_terms(*seen[-1])) is not None:
        return f"layer {seen[0][0].layer}", four
    raise ValueError("a bias is added to its scores, which is none of T5, Inkling and Transformer-XL")


def _with_four_terms(call: Call, answer: Answer) -> TransformerXL | None:
    """`TransformerXL` with a layer's parameters, if it gives the layer's scores. In transformers' vectors of distances
    sines and cosines alternate; in posenc's all sines come first."""
    assert call.bias is not None
    heads, width = call.query.shape[1::2]
    of = {name: each.double() for name, each in call.module.named_parameters()}
    projections = [x for name, x in of.items() if re.search("pos|rel", name) and x.shape[:1] == (heads * width,)]
    vectors = [x for x in of.values() if x.shape == (heads, width)]
    scale, places = call.options.get("scaling", width**-0.5), answer.places
    key = call.key.repeat_interleave(heads // call.key.size(1), 1)
    theirs = scale * (call.query @ key.mT)[0] + call.bias[..., places]
    for W, (u, v) in itertools.product(projections, itertools.permutations(vectors, 2)):
        if W.dim() == 2 and not W.size(1) % 2:
            scheme = TransformerXL(heads, width, W.size(1), share_biases=False).double()
            turns = W.unflatten(-1, (-1, 2)).mT.reshape(heads, width, -1)
            scheme.projection.data, scheme.biases.content.data, scheme.biases.position.data = turns, u, v
            query, encoding = call.query - u[:, None], scheme(Positions(places[None]), dtype=torch.float64)
            size = ((query[0, :, :1] + v[:, None]) @ turns).norm(dim=-1, keepdim=True) * (W.size(1) / 2) ** 0.5
            bound = scale * size * ((places[:, None] - places).abs() * 2**-22 + 2**-20)  # phases are of float32
            if bool(((logits(query, key, encoding, scale=scale)[0] - theirs).abs() < bound).all()):
                scheme.reset_parameters()
                return scheme.float()
    return None


def _is_mixed(call: Call, answer: Answer, profiles: Tensor, scale: QueryScale | None, config: Any) -> bool:
    """Whether a bias is what a linear layer's vector makes of profiles by distance."""
    assert call.bias is not None
    heads, places = call.bias.size(0), answer.places
    distance = places[:, None] - torch.arange(call.bias.size(-1))
    inside = (distance >= 0) & (distance < profiles.size(1))
    grows = 1 if scale is None else scale._factor((places.double() + 1)[None])[0][:, None]
    mixes = [made.view(heads, -1) for made in call.made if made.numel() == heads * profiles.size(0)]
    if (clip := getattr(config, "rel_l2_clip_threshold", None)) is not None:  # after a learned scale
        scales = [each for each in call.module.parameters() if each.shape == (heads, profiles.size(0))]
        mixes = [mix * each.double() for mix, each in itertools.product(mixes, scales)]
        mixes = [mix * (clip / (mix.norm(dim=-1, keepdim=True) + 1e-6)).clamp(max=1) for mix in mixes]
    found = [(mix @ profiles.double())[:, distance.clamp(0, profiles.size(1) - 1)] * inside * grows for mix in mixes]
    most = float(call.bias.abs().max())
    return any(torch.allclose(ours, call.bias, 1e-5, 1e-6 * most) for ours in found)


def _buckets(weight: Tensor, rows: Tensor, config: Any) -> T5:
    """T5's buckets with the furthest distance that gives the rows that were looked up."""
    tokens = torch.arange(len(rows))
    far = tokens - tokens[:, None]
    furthest_of = dict.fromkeys(n for n in (*_values(config), 128) if type(n) is int)
    for is_both, furthest in itertools.product((False, True), furthest_of):
        with suppress(ValueError):
            scheme, here = T5(weight.size(1), weight.size(0), furthest, is_both), ... if is_both else far <= 0
            if torch.equal(scheme._bucket(far)[here], rows[here]):
                return scheme
    raise ValueError(f"its table of {weight.size(0)} rows is looked up by distance, and not as T5 does")


def _indexed(scheme: Scheme, seen: list[tuple[Call, Tensor]], found: dict[int, Indexer]) -> dict[str, Any]:
    """The indexer of a layer, or that of the layer whose choice it takes; ``found`` are those of layers before."""
    call, _ = seen[0]
    if "indices" not in call.options:
        return {}
    whose = indexers.layer_of(call)
    if whose not in found:
        found[whose] = indexers.indexer_of(scheme, *seen[0])
        for each in seen[1:]:
            indexers.verify(found[whose], *each)
    return {"indexer": found[whose], "indexer_of": None if whose == call.layer else whose}


def _multiple(name: str, calls: tuple[Call, Call]) -> float:
    """By what number a model's code multiplies what its linear layer gave, less a bias of its module, with any weights;
    1 if it does more. ValueError for more in attention that has code of its own."""
    found: list[float] = []
    for call in calls:
        heads, biases = getattr(call, name)[0, :, 0], [torch.zeros(()), *call.biases]
        dim, size = heads.size(-1), (heads**2).sum(-1, keepdim=True)
        for each, bias in itertools.product([x for x in call.made if not x.numel() % dim], biases):
            if bias.numel() in (1, heads.numel()):
                rows = each.double().view(1, -1, dim) + (bias.view(-1, 1, dim) if bias.dim() else bias)
                product, length = (rows @ heads[..., None]).squeeze(-1), (rows**2).sum(-1)
                fits = product**2 > (1 - 1e-12) * size * length
                c = (product / length)[torch.arange(len(heads)), fits.double().argmax(-1)]
                if bool(fits.any(-1).all()) and float((c - c[0]).abs().max()) < 1e-6 * abs(float(c[0])):
                    found.append(float(c[0]))
                    break
    if len(found) == len(calls) and all(math.isclose(c, found[0], rel_tol=1e-6) for c in found):
        return found[0] if abs(found[0] - 1) > 1e-6 else 1.0
    if is_own(calls[0].module):
        raise ValueError(
            f"layer {calls[0].layer} makes its {name} from its linear layers in a way that posenc does not recognise"
        )
    return 1.0


# -- which keys a query sees ------------------------------------------------------------------------------------------

QUERIES = (0, 1, 5, 23, 100, 1000, 5003, 70_001, 140_009)


BOUNDED = re.compile("window|slid|chunk|local|span|sparse|block_size|top_?k$|index|stride|compress")
UNBOUNDED = re.compile(
    "expert|cache|label|layer_types|moe|sparse_(en|de)coder|sparse_step|(unk|bos|eos|pad|mask)_index"
)
"""Keys that may bound what a query sees, and those of the same words that do not."""


def _ruled(call: Call, calls: list[Call], config: Any, is_causal: bool) -> Any:
    """The mask of a layer. A copy, as layers have it that share keys, has lost its rule: then that of layers that are
    told of the same window, where they have one."""
    if call.mask is None or getattr(call.mask, "rule", None) is not None:
        return call.mask
    told = call.options.get("sliding_window")
    masks = [each.mask for each in calls if each.options.get("sliding_window") == told]
    masks = [mask for mask in masks if getattr(mask, "rule", None) is not None and torch.equal(mask, call.mask)]
    return masks[0] if len({_window(mask, config, is_causal) for mask in masks}) == 1 else call.mask


def _window(mask: Any, config: Any, is_causal: bool) -> tuple[Window, bool]:
    """The window of a layer, and whether it is causal, from its mask."""
    if mask is None and is_causal:
        raise ValueError("attention gets no mask, and is causal in some implementations")
    if mask is None:
        return None, False
    rule = getattr(mask, "rule", None)
    is_seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if rule is None:
        seen, total = is_seen[0, 0], is_seen.size(-1)
        sees = {i: seen[i].nonzero().flatten() for i in range(len(seen))}
        bounds = [name for name, value in vars(config).items() if BOUNDED.search(name) and value]
        if bounds := [name for name in bounds if not UNBOUNDED.search(name)]:
            raise ValueError(
                f"attention makes a mask of its own, and by {bounds[0]} in its configuration more keys may be hidden "
                f"in texts longer than the {seen.size(1)} tokens that were tried"
            )
    else:
        sees, total = {}, math.inf
        numbers = [value for name, value in vars(config).items() if BOUNDED.search(name) and type(value) is int]
        for i in (*QUERIES, *(n + 9 for n in numbers if QUERIES[-1] <= n <= ROWS)):
            there = torch.arange(2 * i + 8 if i else 2**18)
            each = torch.as_tensor(rule(torch.tensor(0), torch.tensor(0), torch.tensor(i), there))
            sees[i] = torch.broadcast_to(each, there.shape).nonzero().flatten()
    ends = {i: (int(keys[0]), int(keys[-1])) for i, keys in sees.items() if len(keys)}
    if len(ends) < len(sees) or any(len(sees[i]) != last - first + 1 for i, (first, last) in ends.items()):
        raise ValueError("a query does not see one run of keys")
    causal = all(last == i for i, (_, last) in ends.items())
    if not causal and any(last <= i and i + 1 < total for i, (_, last) in ends.items()):
        raise ValueError(f"the last query sees keys {ends[max(ends)]}, and the first {ends[0]}")
    if all(first == 0 for first, _ in ends.values()):
        return None, causal
    furthest = max(ends)
    reach, beyond = furthest - ends[furthest][0], ends[0][1]
    runs = {i: (max(0, i - reach), min(i + beyond, i + 7)) for i in ends}
    if all((first, min(last, i + 7)) == runs[i] for i, (first, last) in ends.items()):
        return (reach + 1 if causal else (reach, beyond)), causal
    sizes = {first for first, _ in ends.values() if first}
    size = math.gcd(*sizes)
    for chunk in (size // k for k in range(1, size + 1) if size % k == 0):
        if causal and all(first == i // chunk * chunk for i, (first, _) in ends.items()):
            return Chunk(chunk), causal
    raise ValueError(f"query {furthest} sees keys {ends[furthest]}, which is neither a window nor a chunk")


# -- what turns -------------------------------------------------------------------------------------------------------


def _candidates(config: Any, length: int | None) -> Scalings:
    """Bases and scalings that the configuration names, in any of its dictionaries, without repetitions."""
    found: Scalings = []
    named = [value for name, value in vars(config).items() if re.search("theta|base", name)]
    bases = [float(value) for value in named if isinstance(value, (int, float)) and not isinstance(value, bool)]

    def search(value: Any, depth: int) -> None:
        if not isinstance(value, Mapping) or depth > 4:
            return
        if "rope_theta" in value or "rope_type" in value:
            base = value.get("rope_theta")
            every = bases if base is None else [base]
            try:
                read = ScalingParameters("rope_parameters", value)
                share = read.optional("partial_rotary_factor")
                scaling = read.scaling(read.kind({"su": "longrope", "mrope": "default"}), share or 1.0, length)
                found.extend((float(each), scaling) for each in every)
                if read.get("alpha") is not None:  # of HunYuan
                    found.extend((float(each), NTKAware(read.number("alpha"))) for each in every)
            except (ValueError, TypeError):
                found.extend((float(each), None) for each in every if isinstance(each, (int, float)))
        for each in value.values():
            search(each, depth + 1)

    search(vars(config), 0)
    found += [(base, None) for base in (*(base for base, _ in found), *bases, 10_000.0)]
    return list({(base, repr(scaling)): (base, scaling) for base, scaling in found if 1 < base < math.inf}.values())


def _fit(
    call: Call, plain: Call, places: Tensor, scalings: Scalings, config: Any, is_normalized: bool, axes: int
) -> Scheme:
    """The scheme of a layer."""
    if float((call.value - call.value[:, :, :1]).abs().max()) > 1e-9 * float(call.value.abs().max()):
        raise ValueError("values differ by position" + ", as keys do" * torch.equal(call.value, call.key))
    head_dim = call.query.size(-1)
    if call.key.size(-1) != head_dim:
        raise ValueError(f"queries have {head_dim} channels and keys {call.key.size(-1)}")
    for base, make in itertools.product(dict.fromkeys(base for base, _ in scalings), APART.get(axes, ())):
        with suppress(ValueError):
            _verify(scheme := make(head_dim, base=base), call, plain, places)
            return scheme
    scale, grows = _scale_of_queries(call, places, config)
    call, plain = (replace(each, query=each.query / grows[:, None]) for each in (call, plain))
    q, k = (_turning(x[0], places) for x in (call.query, call.key))
    if q is None and k is None:
        return NoPE() if scale is None else scale
    if q is None or k is None:
        raise ValueError("keys turn and queries do not" if q is None else "queries turn and keys do not")
    if q[:3] != k[:3]:
        raise ValueError(f"queries turn {_said(q)} and keys {_said(k)}")
    if float((q[3] - k[3]).abs().max()) > 1e-6 + 1e-5 * float(q[3].abs().max()):
        raise ValueError(f"queries turn by {_numbers(q[3])} and keys by {_numbers(k[3])} a position")
    if not is_normalized and any(isinstance(scaling, YaRN | LongRoPE) for _, scaling in scalings):
        raise ValueError("the factor of its cosines cannot be seen")
    rope = _rope(call, plain, places, q, scalings)
    return rope if scale is None else rope + scale


def _by_weights(scheme: Scheme, plain: Call) -> Scheme:
    """The scheme in the layout of the weights, if the model moves channels (2k, 2k + 1) to (k, k + d/2) before."""

    def is_made(x: Tensor, order: Tensor) -> bool:
        """Whether these numbers are in a row of what a linear layer gave, in another order."""
        starts = ((each, n) for each in plain.made for n in ((each - x[0]).abs() < 1e-6).nonzero().flatten().tolist())
        rows = (each[n : n + len(order)] for each, n in starts)
        return any(len(row) == len(order) and float((row[order] - x).abs().max()) < 1e-6 for row in rows)

    parts = list(scheme.parts)
    for n, part in enumerate(parts):
        if isinstance(part, RoPE) and part.layout == "half":
            inside = torch.arange(part.rotary_dim)
            both = [x[0, 0, 0, part.first_channel + inside] for x in (plain.query, plain.key)]
            moved = any(is_made(x, inside.view(-1, 2).mT.flatten()) for x in both)  # a norm hides the order
            if moved and not any(is_made(x, inside) for x in both):
                parts[n] = like(part, layout="interleaved")
    return functools.reduce(lambda a, b: a + b, parts)


def _rope(call: Call, plain: Call, places: Tensor, turned: Turning, scalings: Scalings) -> RoPE:
    """The first of what the configuration names, and of what was measured, that does what the layer does."""
    layout, first, width, theta = turned
    head_dim, pairs, size = call.query.size(-1), width // 2, theta.abs()
    factor = float(torch.div(*(x.query[0, 0, 0, first : first + width].norm() for x in (call, plain))))
    factor = 1.0 if abs(factor - 1) < 1e-6 else factor
    widths = dict.fromkeys((width, head_dim) if first == 0 and layout == "interleaved" else (width,))
    tries = [(each, *candidate) for each in widths for candidate in scalings]
    if pairs > 1 and float(size.min()) > 0 and bool((theta > 0).all() or (theta < 0).all()):  # geometric, of one sign
        base = float(f"{float((size[0] / size[-1]) ** (pairs / (pairs - 1))):.6g}")
        exact = (-(base ** (-torch.arange(pairs, dtype=torch.float64) / pairs))).tolist()
        tries += [(width, base, None), (width, base, Frequencies(tuple(exact), factor))] if base > 1 else []
    for (base, _), count in itertools.product(scalings, (pairs, pairs // 2)):  # in another order, or of each axis
        count = max(count, 1)
        index = (size.clamp(min=1e-30).log() * (-count / math.log(base))).round().clamp(0, count - 1)
        tries.append((width, base, Frequencies(tuple((base ** (-index / count)).tolist()), factor)))
    tries.append((width, 10_000.0, Frequencies(tuple(theta.tolist()), factor)))
    for each, base, scaling in tries:
        with suppress(ValueError):
            rope = RoPE(head_dim, base, layout, each, scaling=scaling, first_channel=first)
            _verify(rope, call, plain, places)
            return rope
    raise ValueError(f"queries turn {_said(turned)}, by {_numbers(theta)} a position, but not by p theta")


APART: dict[int, tuple[Callable[..., Scheme], ...]] = {
    2: (functools.partial(AxialRoPE, convention="gemma4"),),
    3: (functools.partial(RoPE3D, form="vjepa2"),),
}
"""What turns patches in pairs of each axis's own channels, or in none, by the number of axes."""

Turning = tuple[Any, int, int, Tensor]
"""The layout, the first channel, the number of channels, and the angle a position of each pair."""


def _turning(x: Tensor, places: Tensor) -> Turning | None:
    """What turns of x (heads, tokens, channels), or None."""
    moves = (x - x[:, :1]).abs().amax((0, 1)) > 3e-6 * float(x.abs().max())
    if not bool(moves.any()):
        return None
    channels = moves.nonzero().flatten().tolist()
    low, high = channels[0], channels[-1] + 1
    found: list[Turning] = []
    widths = range(high - low + (high - low) % 2, x.size(-1) - low + 1, 2)
    for layout, tried in (("half", widths), ("interleaved", widths[:1])):
        for width in tried:
            z = _pairs(x[..., low : low + width], layout)
            size = z.abs()
            if float((size - size[:, :1]).abs().max()) < 1e-6 * float(size.max()):
                found.append((layout, low, width, _angles(z, places)))
                break
    if len(found) != 1:
        raise ValueError(
            f"channels {low}..{high - 1} of {x.size(-1)} change with position, and do not turn in half or interleaved "
            "pairs"
        )
    return found[0]


def _pairs(x: Tensor, layout: str) -> Tensor:
    a, b = x.chunk(2, -1) if layout == "half" else (x[..., ::2], x[..., 1::2])
    return torch.complex(a.contiguous(), b.contiguous())


def _angles(z: Tensor, places: Tensor) -> Tensor:
    """The angle a position of each pair, from the first to the last place: each determines the turns of the next."""
    turn = torch.angle(z / z[:, :1])[0]
    theta = turn[1] / float(places[1] - places[0])
    for n, place in enumerate(places.tolist()[2:], 2):
        p = place - int(places[0])
        whole = torch.round((theta * p - turn[n]) / (2 * math.pi))
        theta = (turn[n] + 2 * math.pi * whole) / p
    return theta


def _by_axis(asked: Asked, places: Tensor) -> list[Answer]:
    """The answers with positions on one of the axes time, row and column alone; none for a model of one axis."""
    if not asked.takes_ids:
        return []
    axes = asked.axes or 3
    try:
        found = [asked(places * torch.eye(axes, dtype=torch.long)[axis][:, None, None]) for axis in range(axes)]
    except ValueError:
        return []
    return found if all(call.query.size(0) == 1 for each in found for call in each.calls) else []


def _allocated(scheme: Scheme, calls: list[Call], places: Tensor, scalings: Scalings) -> Scheme:
    """The scheme of a layer with the axis of each pair."""
    if not isinstance(scheme, RoPE):
        return scheme
    channels = slice(scheme.first_channel, scheme.first_channel + scheme.rotary_dim)
    theta = scheme.frequencies()[0][0]
    of_axes = torch.stack([_angles(_pairs(call.query[0, :, :, channels], scheme.layout), places) for call in calls])
    off, axes = (of_axes - theta).abs(), len(calls)
    allocation, turned = off.argmin(0).tolist(), of_axes.abs().sum(0) - theta.abs()
    if float((off.amin(0) / theta.abs()).max()) > 1e-3 or float(turned.abs().max()) > 1e-3:
        raise ValueError(f"pairs do not turn by one of {axes} axes each")
    of_each = allocation == sorted(allocation) and len(theta) % axes == 0 and not scheme.first_channel
    for base, _ in scalings if of_each else []:  # each axis has its own pairs
        rope = RoPE(scheme.head_dim, base, scheme.layout, scheme.rotary_dim, axes)
        if torch.allclose(rope.frequencies()[0].repeat(1, axes)[0], theta, 1e-5, 0):
            return rope
    for base, _ in scalings if axes == 2 and not scheme.head_dim % 4 else []:
        patches = AxialRoPE(scheme.head_dim, base=base)
        same = (patches.layout, patches.allocation) == (scheme.layout, tuple(allocation))
        if same and torch.allclose(patches.frequencies()[0][0], theta, 1e-5, 1e-6):
            return patches
    return like(scheme, allocation=allocation, axes=axes)


def like(rope: RoPE, **changes: Any) -> RoPE:
    """A rotation of the same channels and frequencies, but for some arguments."""
    same = {name: getattr(rope, name) for name in ("layout", "rotary_dim", "axes", "allocation", "scaling")}
    return RoPE(rope.head_dim, rope.base, **same | {"first_channel": rope.first_channel} | changes)


def _said(turned: Turning) -> str:
    return f"in {turned[0]} pairs of channels {turned[1]}..{turned[1] + turned[2] - 1}"


def _numbers(theta: Tensor) -> str:
    return ", ".join(f"{float(each):.5g}" for each in theta[:3]) + f" ... {float(theta[-1]):.3g}"


# -- queries scaled by position ---------------------------------------------------------------------------------------


def _scale_of_queries(call: Call, places: Tensor, config: Any) -> tuple[QueryScale | None, Tensor]:
    """The scale of queries by position, and its factors relative to the first place."""
    size = call.query.norm(dim=-1)[0]
    grows = size / size[:, :1]
    if float((grows - 1).abs().max()) < 1e-6:
        return None, torch.ones_like(grows[0])
    if float((grows - grows[:1]).abs().max()) > 1e-6:
        n = (places.double() + 1).log()
        line = (n - n[0]) / (n[-1] - n[0]) * (grows[:, -1:] - 1) + 1
        if float((line - grows).abs().max()) < 1e-5 * float(grows.abs().max()):
            raise ValueError("queries grow with ln(p + 1), in each head by learned numbers that are not read")
        raise ValueError("queries change their length with position in each head, so that they neither turn nor grow")
    numbers = [n for n in _values(config) if not isinstance(n, bool)]
    lengths = [None, *dict.fromkeys(int(n) for n in numbers if n >= 2 and float(n).is_integer())]
    strengths = [None, *dict.fromkeys(float(n) for n in numbers if 0 < n < 2)]
    forms: Any = ("llama4", "ministral3", "inkling", "beam", "rerope")
    for form, length, strength in itertools.product(forms, lengths, strengths):
        with suppress(ValueError):
            scheme = QueryScale(form, length=length, strength=strength)
            c = scheme._factor((places.double() + 1)[None])[0]
            if float((c / c[0] - grows[0]).abs().max()) < 1e-6 and abs(float(c[0]) - 1) < 1e-3:
                return scheme, c
    raise ValueError(f"queries grow with position by {_numbers(grows[0][1:])}")


def _values(config: Any) -> Iterator[Any]:
    stack: list[Any] = [vars(config)]
    for _ in range(10_000):
        if not stack:
            return
        value = stack.pop()
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield value


# -- the comparison ---------------------------------------------------------------------------------------------------


def _verify(scheme: Scheme, call: Call, plain: Call, places: Tensor) -> None:
    """ValueError unless the scheme makes of the first token what the model makes of the others.

    The model computes phases, cos and sin in float32, which is off by p 2^-22 + 2^-20 of a vector at most."""
    axes = max(getattr(part, "axes", 1) for part in scheme.parts)
    lines = places[None, None] if places.dim() == 1 else places
    coords = lines[0] if axes == 1 else lines.expand(max(axes, len(lines)), -1, -1).permute(1, 2, 0).contiguous()
    encoding = scheme.tokens(Positions(coords, order=torch.arange(places.size(-1))[None]), dtype=torch.float64)
    places = lines[0, 0]
    query, key = (x[:, :, :1].repeat(1, 1, x.size(2), 1) for x in (plain.query, plain.key))
    for part in scheme.parts:
        if isinstance(part, QueryScale):
            query /= part._factor(places[:1].double() + 1)[0]
    both = zip(encoding.rotate(query, key), (call.query, call.key), strict=True)
    for name, (ours, theirs) in zip(("queries", "keys"), both, strict=True):
        bound = (places.double() * 2**-22 + 2**-20)[:, None] * theirs.norm(dim=-1, keepdim=True)
        off = (ours - theirs).abs() - bound
        if bool((off > 0).any()):
            token = int((off > 0).any(-1).any(1)[0].nonzero()[0])
            raise ValueError(f"{name} at position {int(places[token])} are not those of {scheme}")
