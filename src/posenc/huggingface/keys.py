"""Reads the keys of a configuration, with an error for every key about positions that is not read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.arguments import number, shown, whole
from posenc.rotation.given import Params

POSITIONAL = re.compile(
    "rope|rota|posit|pos_?emb|theta|window|slid|alibi|yarn|mscale|chunk|soft_?cap|softmax|logit_cap|temperature|sink"
    "|relative|bucket|layer_types|attn_scale|floor_scale|scale_attn|pre_attn|bidirect|prefix_lm|sequence_id|max_seq"
    "|nope|ntk|logn|xpos|interpolat|dilat|max_distance|attn_temp|(local|global)_att|att(entio)?n_(pattern|span|context)"
    "|(attention|attn|query|key|qk|score)s?_(in_|out_)?(multiplier|re_?scal|scal)"
)
"""Names of keys that are about positions, or about factors of scores."""

NOT_POSITIONAL = frozenset(
    {
        "chunk_size_feed_forward",
        "attention_softmax_in_fp32",
        "final_logit_softcapping",  # of the vocabulary
        "ignore_keys_at_rope_validation",  # for transformers' own validation
        "interpolate_factor",  # of Phi-4-mini, which no code reads
        "mamba_chunk_size",
        "masked_softmax_fusion",
        "max_sequence_length",  # of Vicuna 16k, beside max_position_embeddings
        "mlp_layer_types",
        "mtp_layer_types",
        "use_sliding_window",  # read by the families that use it
    }
)


CEILINGS: Mapping[str, int] = {
    "layers?$|depths?$|blocks$|parts$": 2**12,
    "heads?$|buckets$|axes$": 2**12,
    "dim$|hidden_size$|d_model$|n_embd$|width$": 2**20,
    "labels$": 2**20,  # transformers makes a dictionary of them
    "positions?$|embeddings$": 2**30,
}
"""The largest whole number of keys whose names end so, and most entries: what is made of them costs time or memory."""

NUMBERS = 2**31  # of a table of positions
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


def check_table(kind: str, numbers: int) -> None:
    """ValueError for a learned table of more than `NUMBERS` numbers."""
    if numbers > NUMBERS:
        raise ValueError(f"the positions of {kind} must have at most {NUMBERS} learned numbers, got {shown(numbers)}")


def positional(config: Any) -> Iterator[tuple[str, Any]]:
    """The keys of a configuration that are about positions, with a value other than None and False."""
    for name, value in vars(config).items():
        silent = name.startswith("_") or name in NOT_POSITIONAL or value is None or value is False
        if not silent and POSITIONAL.search(name.lower()):
            yield name, value


class Keys:
    """A configuration of transformers that records which keys were read.

    ``keys(name)`` reads a required key, ``keys.get(name, default)`` one that may be missing or None. ``end()`` raises
    ValueError for a key about positions that was not read and is not in ``ignored``.
    """

    def __init__(self, config: Any, inside: str | None = None, ignored: tuple[str, ...] = ()) -> None:
        self.config, self.inside, self.ignored = config, inside, ignored
        self.model_type: str = config.model_type
        self.was_read: set[str] = set()

    def __call__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise ValueError(f"{self.model_type} needs the key {name!r}, got none")
        return value

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or ``default`` where there is none, or None."""
        self.was_read.add(self._own(name))
        value = getattr(self.config, name, None)
        return default if value is None else value

    def whole(self, name: str, least: int = 1) -> int:
        """A required key that is a whole number of at least ``least``."""
        return whole(f"{self.model_type}'s {name}", self(name), least)

    def number(self, name: str) -> float:
        """A required key that is a number above 0."""
        return number(f"{self.model_type}'s {name}", self(name), above=0)

    def optional(self, name: str) -> float | None:
        """A key that is a number above 0 if there is one."""
        return None if self.get(name) is None else self.number(name)

    def list(self, name: str) -> list[Any]:
        """A required key that is a list."""
        value = self(name)
        if not isinstance(value, list | tuple):
            raise self.wrong(name, "must be a list")
        return list(value)

    def flag(self, name: str) -> bool:
        """A key that is True or False, or missing."""
        value = self.get(name, False)
        if value not in (True, False):
            raise self.wrong(name, "must be true or false")
        return bool(value)

    def parameters(self) -> Params:
        """rope_parameters, whose entries the caller reads."""
        return Params(f"{self.model_type}'s rope_parameters", self("rope_parameters"), self.ignored)

    def wrong(self, name: str, why: str) -> ValueError:
        """The error for an invalid value of a key."""
        return ValueError(f"{self.model_type}'s {name} {why}, got {shown(getattr(self.config, name, None))}")

    def refuse(self, name: str, *but: Any, why: str) -> None:
        """ValueError for a key with a value other than None and ``but``."""
        value = self.get(name)
        if value is not None and value not in but:
            raise self.wrong(name, why)

    def default(self, name: str) -> Any:
        """The default of transformers for a key."""
        return getattr(type(self.config), name, None)

    def end(self) -> None:
        """ValueError for the first key about positions that was not read, and is not None or False."""
        for name, value in positional(self.config):
            if name not in self.was_read and name not in self.ignored:
                raise ValueError(
                    f"{self.model_type} has the key {name!r} = {shown(value)}, which is about positions, and "
                    f"{self.model_type} does not read it: if it means nothing, pass ignore=({name!r},)"
                )

    def _own(self, name: str) -> str:
        return str(getattr(self.config, "attribute_map", {}).get(name, name))
