"""Reads a scaling from transformers' dictionary (``rope_parameters``, formerly ``rope_scaling``) or name."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from posenc.arguments import meant, number, shown, whole
from posenc.rotation.scalings import DynamicNTK, Llama3, LongRoPE, PositionInterpolation, Proportional, Scaling, YaRN

ScalingLike: TypeAlias = Scaling | Mapping[str, Any] | str
"""What ``scaling=`` accepts."""

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
IGNORED_KEYS = frozenset({"finetuned"})  # of Yarn-Llama-2
"""Entries of published dictionaries that no code reads."""
KEYS = (
    *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "short_factor"),
    *("long_factor", "low_freq_factor", "high_freq_factor", *IGNORED_KEYS),
)
"""Entries that some scaling reads."""
NO_ALIASES: Mapping[str, str] = {}


class ScalingParameters:
    """A dictionary with a rope_type that records which keys were read. ``end()`` raises ValueError for others.

    ``where`` is what errors call it; ``ignored`` are the keys that mean nothing, if the caller can name some.
    """

    def __init__(self, where: str, params: Any, ignored: tuple[str, ...] | None = None) -> None:
        if not isinstance(params, Mapping):
            raise ValueError(f"{where} must be a dictionary, got {shown(params)}")
        self.where, self.params, self.ignored = where, params, ignored
        self.was_read: set[str] = set(IGNORED_KEYS.union(ignored or ()))

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or ``default`` where there is none, or None."""
        self.was_read.add(name)
        value = self.params.get(name)
        return default if value is None else value

    def number(self, name: str, default: float | None = None) -> float:
        """A value that must be a number above 0."""
        return number(self.named(name), self.get(name, default), above=0)

    def optional(self, name: str, default: float | None = None) -> float | None:
        """A value that must be a number above 0 if there is one."""
        return None if self.get(name, default) is None else self.number(name, default)

    def whole(self, name: str, default: int | None = None) -> int:
        """A value that must be a whole number of at least 1."""
        return whole(self.named(name), self.get(name, default))

    def named(self, name: str) -> str:
        """An entry as errors name it."""
        return f"{self.where}[{name!r}]"

    def wrong(self, name: str, why: str) -> ValueError:
        """The error for an invalid value of a key."""
        return ValueError(f"{self.named(name)} {why}, got {shown(self.params.get(name))}")

    def kind(self, aliases: Mapping[str, str] = NO_ALIASES) -> str:
        """rope_type, which an older ``type`` must not contradict."""
        new, old = self.get("rope_type"), self.get("type")
        for name, value in (("rope_type", new), ("type", old)):
            if not (value is None or isinstance(value, str)):
                raise self.wrong(name, "must be a string")
        found = new or old or "default"
        found = aliases.get(found, found)
        if old is not None and old != found and aliases.get(old) != found:
            raise self.wrong("type", f"contradicts rope_type {found!r}")
        return found

    def scaling(self, kind: str, share: float = 1.0, longest: int | None = None) -> Scaling | None:
        """The scaling of this rope_type; None for "default".

        ``share`` is that of the channels that "proportional" rotates. ``longest`` is max_position_embeddings, from
        which transformers takes lengths and factors that are not in the dictionary.
        """
        if kind == "axial":
            raise ValueError(
                f"{self.named('rope_type')} must be of a text, got 'axial', by which models of images rotate by row "
                "and column: use AxialRoPE, RoPE3D or RoPE with axes=2"
            )
        if kind not in ROPE_TYPES:
            raise ValueError(f"{self.named('rope_type')} must be one of {', '.join(ROPE_TYPES)}, got {kind!r}")
        if kind == "default":
            return None
        if kind == "linear":
            return PositionInterpolation(self.number("factor"))
        if kind == "proportional":
            return Proportional(share, self.number("factor", 1.0))
        if kind == "dynamic" and longest is not None:  # the only length that transformers' model reads
            return DynamicNTK(self.number("factor"), longest)
        original = self.whole("original_max_position_embeddings", longest)
        if kind == "dynamic":
            return DynamicNTK(self.number("factor"), original)
        if kind == "llama3":
            low, high = self.number("low_freq_factor"), self.number("high_freq_factor")
            return Llama3(self.number("factor"), original, low, high)
        factor = self.optional("factor", None if longest is None else longest / original)
        attention_factor = self.optional("attention_factor")
        if kind == "longrope":
            short, long = self.get("short_factor"), self.get("long_factor")
            if factor is not None and factor < 1 and attention_factor is None:
                attention_factor = 1.0  # a model for shorter texts than in training: cos and sin are not scaled
            return LongRoPE(short, long, original, None if (factor or 0) < 1 else factor, attention_factor)
        self.was_read.add("truncate")
        truncate = self.params.get("truncate", True)
        if not (truncate is None or isinstance(truncate, bool)):
            raise self.wrong("truncate", "must be true or false")
        mscales = {}
        if attention_factor is None:  # else they are not read
            mscales = {name: value for name in ("mscale", "mscale_all_dim") if (value := self.get(name)) is not None}
            if mscales and (len(mscales) == 1 or 0 in mscales.values()):
                raise self.wrong(next(iter(mscales)), "is only read if both mscale and mscale_all_dim are above 0")
        fast, slow = self.number("beta_fast", 32.0), self.number("beta_slow", 1.0)
        return YaRN(
            self.number("factor", factor),
            original,
            fast,
            slow,
            truncate=bool(truncate),  # transformers takes null for false
            attention_factor=attention_factor,
            **mscales,
        )

    def end(self, kind: str) -> None:
        """ValueError for the first key that was not read."""
        for name, value in self.params.items():
            if name not in self.was_read and value is not None:
                raise self.unread(name, kind)

    def unread(self, name: str, kind: str) -> ValueError:
        """The error for a key that means nothing."""
        hint = "" if self.ignored is None else f": if it means nothing, pass ignore=({name!r},)"
        return ValueError(
            f"{self.where} has the key {name!r} = {shown(self.params[name])}, which rope_type {kind!r} does not "
            f"read{meant(name, KEYS)}{hint}"
        )


def read_scaling(
    parameters: Mapping[str, Any] | str, base: float, head_dim: int, rotary_dim: int, axes: int = 1
) -> Scaling | None:
    """The scaling of a dictionary with a ``rope_type``, or of a name; None for "default", and for "axial" with several
    axes.

    >>> read_scaling({"rope_type": "linear", "factor": 4.0}, 10_000.0, 64, 64)
    PositionInterpolation(factor=4.0)

    Keys and their meaning are transformers'. ``rope_theta`` and ``partial_rotary_factor`` must agree with the base and
    the rotated channels. Only "default" and "llama3", with the numbers of Llama 3.1, need no dictionary.
    Raises ValueError for an unknown type, and for a key that is unknown, missing, or contradicts another.
    """
    if isinstance(parameters, str):
        if parameters not in ("default", "llama3"):
            raise ValueError(
                f"scaling must be 'default', 'llama3', a dictionary such as {{'rope_type': 'yarn', 'factor': 4.0, "
                f"'original_max_position_embeddings': 4096}}, or a scaling such as YaRN(4.0, 4096), got {parameters!r}"
            )
        return Llama3() if parameters == "llama3" else None
    read = ScalingParameters("scaling", parameters)
    if read.get("rope_type", read.get("type")) is None:
        for name, value in parameters.items():
            if isinstance(value, Mapping):
                names = ", ".join(map(str, parameters))
                raise ValueError(f"scaling must be of one type of layers, got {names}: pass scaling[{name!r}]")
        raise read.wrong("rope_type", f"must be one of {', '.join(ROPE_TYPES)}")
    kind, share = read.kind({"axial": "default"} if axes > 1 else NO_ALIASES), read.optional("partial_rotary_factor")
    if read.get("rope_theta", base) != base:
        raise ValueError(
            f"scaling['rope_theta'] must be the base, {base:g}, got {parameters['rope_theta']}: pass it as base="
        )
    if kind != "proportional" and share is not None and int(head_dim * share) != rotary_dim:
        raise ValueError(
            f"scaling['partial_rotary_factor'] must be the share of rotated channels, {rotary_dim} of {head_dim}, got "
            f"{share}: pass rotary_dim={int(head_dim * share)}"
        )
    for name in (each for each in parameters if kind != "default" and each not in KEYS):
        raise read.unread(name, kind)  # before another is missing
    scaling = read.scaling(kind, 1.0 if share is None else share)
    read.end(kind)
    return scaling
