"""Reads the keys of a configuration, with an error for every key about positions that is not read, into
`ModelPositions`: a model's scheme and window of each layer and the rest of its attention."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from posenc.arguments import number, shown, whole
from posenc.positions.tiles import Window, window_words
from posenc.rotation.scaling_parameters import ScalingParameters
from posenc.schedule import Schedule, ranges
from posenc.scheme import Scheme
from posenc.schemes.indexer import Indexer
from posenc.schemes.nope import NoPE
from posenc.schemes.query_scale import QueryScale
from posenc.schemes.rope import RoPE

POSITIONAL = re.compile(
    "rope|rota|posit|pos_?emb|theta|window|slid|alibi|yarn|mscale|chunk|soft_?cap|softmax|logit_cap|temperature|sink"
    "|relative|bucket|layer_types|attn_scale|floor_scale|scale_attn|pre_attn|bidirect|prefix_lm|sequence_id|max_seq"
    "|nope|ntk|logn|xpos|interpolat|dilat|max_distance|attn_temp|(local|global)_att|att(entio)?n_(pattern|span|context)"
    "|(attention|attn|query|key|qk|score)s?_(in_|out_)?(multiplier|re_?scal|scal)"
)
"""Names of keys that are about positions, or about factors of scores."""

NOT_POSITIONAL = re.compile(
    "chunk_size_feed_forward|attention_softmax_in_fp32|mamba_chunk_size|masked_softmax_fusion|mtp_layer_types"
    "|mlp_layer_types|final_logit_softcapping"  # of the vocabulary
    "|ignore_keys_at_rope_validation|interpolate_factor|max_sequence_length"  # of transformers, Phi-4-mini, Vicuna 16k
    "|use_sliding_window"  # read by the families that use it
)

CEILINGS: Mapping[str, int] = {
    "layers?$|depths?$|blocks$|parts$": 2**12,
    "heads?$|buckets$|axes$": 2**12,
    "dim$|hidden_size$|d_model$|n_embd$|width$": 2**20,
    "labels$": 2**20,  # transformers makes a dictionary of them
    "positions?$|embeddings$": 2**30,
}
"""The largest whole number of keys whose names end so, and most entries: what is made of them costs time or memory."""

ENTRIES = 2**20  # of any other list or dictionary
DEPTH = 32  # of dictionaries and lists in one another
BYTES = 2**26  # of a file


def check_sizes(name: str, value: Any, depth: int = DEPTH) -> None:
    """ValueError, naming the key, for what exceeds `CEILINGS`, `ENTRIES` or `DEPTH` in a value of a file."""
    most = next((most for end, most in CEILINGS.items() if re.search(end, name)), None)
    if isinstance(value, Mapping | list | tuple):
        if depth == 0:
            raise ValueError(f"{name} must be nested at most {DEPTH} deep, got more")
        if len(value) > (most or ENTRIES):
            raise ValueError(f"{name} must have at most {most or ENTRIES} entries, got {len(value)}")
        named = value.items() if isinstance(value, Mapping) else ((name, each) for each in value)
        for inner, each in named:
            check_sizes(str(inner), each, depth - 1)
    elif isinstance(value, int) and most is not None and abs(value) > most:
        raise ValueError(f"{name} must be at most {most}, got {shown(value)}")


def reason(error: Exception) -> str:
    """An error of transformers in words. It may have any type, since its code computes with the values of a
    configuration before it checks them."""
    if type(error).__name__ == "UnpicklingError":
        return "its weights are pickled Python objects, which can run any code when read: save them as safetensors"
    said = re.sub(r"<module '([^']+)' from [^>]*>", r"\1", " ".join(str(error).split()))
    kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
    return f"{kind}{said[:300]}{'...' if len(said) > 300 else ''}"


EXTRAS = re.compile(
    "window|slid|chunk|yarn|ntk|logn|xpos|interpolat|dilat|sink|nope|scal|soft|temp|tun|interleav|mrope"
)
"""Keys about what a model may have beside its positions: false is then the same as none."""


@lru_cache(maxsize=1024)
def default_keys(kind: Any) -> Mapping[str, Any]:
    """The keys that a class of configurations knows, with their defaults."""
    try:
        return dict(vars(kind()))
    except Exception:  # a class that needs arguments, of which transformers has a few
        return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def positional(config: Any, given: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """The keys of a configuration, or of its dictionary, that are about positions, with a value other than None.

    False counts for a key that takes away what a model has (``use_rope``), unless it is the default."""
    kind: Any = type(config)
    for name, value in (vars(config) if given is None else given).items():
        if value is None or not POSITIONAL.search(name.lower()) or NOT_POSITIONAL.fullmatch(name) or name[0] == "_":
            continue
        if value is False and (EXTRAS.search(name.lower()) or default_keys(kind).get(name) is False):
            continue
        yield name, value


class Keys:
    """A configuration of transformers. ``keys(name)`` reads a required key, ``keys.get(name)`` one that may be missing
    or None."""

    def __init__(self, config: Any, inside: str | None = None, ignored: tuple[str, ...] = ()) -> None:
        self.config, self.inside, self.ignored = config, inside, ignored
        self.model_type: str = config.model_type

    def __call__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ValueError(f"{self.model_type} needs the key {name!r}, got none")
        return value

    def get(self, name: str) -> Any:
        """The value, or None where there is none."""
        return getattr(self.config, name, None)

    def whole(self, name: str, least: int = 1) -> int:
        """A required key that is a whole number of at least ``least``."""
        return whole(f"{self.model_type}'s {name}", self(name), least)

    def number(self, name: str) -> float:
        """A required key that is a number above 0."""
        return number(f"{self.model_type}'s {name}", self(name), above=0)

    def parameters(self, of_type: str | None = None) -> ScalingParameters:
        """rope_parameters, or those of a layer type, whose entries the caller reads."""
        read = ScalingParameters(f"{self.model_type}'s rope_parameters", self("rope_parameters"), self.ignored)
        return read if of_type is None else ScalingParameters(read.named(of_type), read.get(of_type), self.ignored)

    def wrong(self, name: str, why: str) -> ValueError:
        """The error for an invalid value of a key."""
        return ValueError(f"{self.model_type}'s {name} {why}, got {shown(self.get(name))}")

    def refuse(self, name: str, *but: Any, why: str) -> None:
        """ValueError for a key with a value other than None and ``but``."""
        if self.get(name) not in (None, *but):
            raise self.wrong(name, why)

    def unread(self, name: str, value: Any) -> ValueError:
        """The error for a key that changes nothing."""
        return ValueError(
            f"{self.model_type} has the key {name!r} = {shown(value)}, which is about positions, and {self.model_type} "
            f"does not read it: if it means nothing, pass ignore=({name!r},)"
        )


@dataclass(frozen=True)
class Layer:
    """The properties of a layer's attention besides its scheme and window.

    - ``scale``: the factor of q . k, if it is not 1/sqrt(head_dim);
    - ``softcap``: scores become c tanh(s / c), after positions are applied;
    - ``sinks``: whether the softmax has a learned logit per head, from the model's weights, in its denominator;
    - ``images``: whether tokens of one image attend to one another in any order, if the caller marks them;
    - ``patches``: the side of the windows of patches that attend to one another; ``shift`` moves their borders.
    """

    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False
    images: bool = False
    patches: int | None = None
    shift: int = 0
    indexer: Indexer | None = None
    indexer_of: int | None = None

    def __str__(self) -> str:
        said = {
            f"windows of {self.patches} x {self.patches} patches": self.patches is not None,
            f"shifted by {self.shift}": self.shift,
            f"scale {self.scale or 0:.6g}": self.scale is not None,
            f"softcap {self.softcap or 0:g}": self.softcap is not None,
            "a sink per head": self.sinks,
            "tokens of an image attend to one another": self.images,
        }
        words_of = [text for text, is_so in said.items() if is_so]
        if self.indexer_of is not None:
            words_of.append("the keys that the last indexer before it has chosen")
        elif (one := self.indexer) is not None:
            best = f"the {one.top_k} best keys{f' in blocks of {one.block}' * (one.block > 1)} of an indexer"
            words_of.append(f"{best} (heads: {one.num_heads}; {words(one.rotation)})")
        return ", ".join(words_of)


@dataclass(frozen=True, eq=False, repr=False)
class ModelPositions:
    """The positional encoding of a model; printing it describes it in words.

    - ``model_type``: that of transformers, of the part that was read;
    - ``schedule``: the scheme and window of each layer;
    - ``layers``: other properties, one `Layer` for each layer;
    - ``input``: the scheme that is added to the embeddings before the first layer, or None;
    - ``causal``: whether attention is causal;
    - ``length``: the number of positions in the configuration, or None;
    - ``remarks``: where transformers' own code differs, in words.

    Learned schemes have newly initialized parameters, since a configuration has no weights.
    """

    model_type: str
    schedule: Schedule
    layers: tuple[Layer, ...]
    input: Scheme | None = None
    causal: bool = True
    length: int | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.schedule):
            raise ValueError(f"layers must be {len(self.schedule)} like those of the schedule, got {len(self.layers)}")

    def __repr__(self) -> str:
        kind = "decoder" if self.causal else "encoder"
        length = "" if self.length is None else f", {self.length} positions"
        lines = [f"{self.model_type}: {kind}, {len(self.layers)} layers{length}"]
        if self.input is not None:
            lines.append(f"  input: {words(self.input)}")
        said: dict[str, list[int]] = {}
        for layer, ((scheme, window), other) in enumerate(zip(self.schedule, self.layers, strict=True)):
            seen = "" if other.patches is not None and window is None else window_words(window)
            does = ", ".join(filter(None, (words(scheme), seen, str(other))))
            said.setdefault(does, []).append(layer)
        lines += [f"  layer{'s' * (len(which) > 1)} {ranges(which)}: {does}" for does, which in said.items()]
        return "\n".join(lines + [f"  {remark}" for remark in self.remarks])


def words(scheme: Scheme) -> str:
    """A scheme in words, with its arguments."""
    if len(scheme.parts) > 1:
        return " + ".join(words(part) for part in scheme.parts)
    if isinstance(scheme, NoPE):
        return "NoPE"
    if type(scheme) is not RoPE:
        return f"{type(scheme).__name__}({scheme.extra_repr()})"
    channels = f"channels {scheme.channels.start}..{scheme.channels.stop - 1} of {scheme.head_dim}"
    said = {
        f"RoPE, base {scheme.base:.12g}": True,
        f"all {scheme.head_dim} channels": scheme.rotary_dim == scheme.head_dim,
        channels: scheme.rotary_dim != scheme.head_dim,
        f"{scheme.layout} layout": True,
        f"pairs by axis {runs(scheme.allocation or (), scheme.axes)}": scheme.allocation is not None,
        f"{scheme.axes} axes": scheme.allocation is None and scheme.axes > 1,
        repr(scheme.scaling): scheme.scaling is not None,
    }
    return ", ".join(text for text, holds in said.items() if holds)


AXES = ("time", "row", "column")
"""The coordinates of a text with images, or the last two, of an image."""


def runs(allocation: tuple[int, ...], axes: int) -> str:
    """The axes of pairs, such as "16 time, 24 row, 24 column"; more than six runs as a list of digits."""
    found = [(axis, len([*same])) for axis, same in groupby(allocation)]
    if len(found) > 6 or axes > len(AXES):
        return "".join(map(str, allocation))
    return ", ".join(f"{count} {AXES[-axes:][axis]}" for axis, count in found)


def is_said(said: ModelPositions, name: str, value: Any) -> bool:
    """Whether the value of a key is one that was seen, for what its name says."""
    layers = [(repr(scheme), window) for scheme, window in said.schedule]
    if isinstance(value, list) and len(value) == len(layers):  # other layers where it says others
        pairs = set(zip(map(repr, value), layers, strict=True))
        return len(pairs) == len(set(map(repr, value))) == len(set(layers)) > 1
    seen: list[tuple[str, Any]] = [("max|length|positions", said.length)]
    for (scheme, window), layer in zip(said.schedule, said.layers, strict=True):
        seen += [("(window|chunk)(?!_layers)", getattr(window, "size", window)), ("cap", layer.softcap)]
        if layer.scale is not None:
            seen += [("scal|multipl", layer.scale), ("pre_attn_scalar", layer.scale**-2)]
        seen += [("scal", part.strength) for part in scheme.parts if isinstance(part, QueryScale)]
        for part in (part for part in scheme.parts if isinstance(part, RoPE)):
            seen += [("theta|base", part.base), ("ro[pt]", part.rotary_dim), ("nope", part.first_channel)]
            seen += [("rot", part.rotary_dim / part.head_dim), ("rotary$|rope$|scale_attn_weights", True)]
            if isinstance(value, str) and value.startswith(("rop", "rot")):
                return True
            if part.allocation is not None:
                seen.append(("section", [part.allocation.count(axis) for axis in range(3)]))
    return any(type(value) in (type(each), int) and value == each and re.search(of, name) for of, each in seen)


def summarize_model(
    keys: Keys,
    schemes: Scheme | Sequence[Scheme],
    windows: Window | list[Window] = None,
    layers: Layer | list[Layer] = Layer(),
    **more: Any,
) -> ModelPositions:
    """The description of a model. Each argument is a list with an entry per layer, or one value for all layers."""
    more.setdefault("length", keys.get("max_position_embeddings"))
    if more["length"] is not None:
        whole(f"the number of positions of {keys.model_type}", more["length"])
    count = len(schemes) if isinstance(schemes, list) else keys.whole("num_hidden_layers")
    each: list[list[Any]] = [x if isinstance(x, list) else [x] * count for x in (schemes, windows, layers)]
    schedule = Schedule(list(zip(each[0], each[1], strict=True)))
    for scheme in (schedule, more.get("input")):
        if scheme is not None:
            scheme.eval()  # as from_pretrained returns models
    return ModelPositions(keys.model_type, schedule, tuple(each[2]), **more)


def scaled(factor: float, head_dim: int) -> float | None:
    """A factor of q . k, or None if it is 1/sqrt(head_dim)."""
    return None if math.isclose(factor, head_dim**-0.5, rel_tol=1e-6) else factor
