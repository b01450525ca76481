"""Configurations: frozen dataclasses whose fields have a help text and constraints.

The fields of a `Configuration` are also the options of a command line (`posenc_lab.kit.command.add_options`).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import Any, ClassVar, TypeVar, get_args, get_origin

from posenc.arguments import check_choice, check_flag, check_name, meant, number, shown, whole
from posenc_lab.kit.files import digest_of

T = TypeVar("T")
C = TypeVar("C", bound="Configuration")

MAX_WHOLE_NUMBER = 2**31 - 1  # of whole numbers, so that products of a few of them fit into 64 bits


def option(
    default: T,
    what: str = "",
    *,
    least: int = 1,
    above: float | None = None,
    choices: tuple[str, ...] = (),
    commas: bool = True,
) -> T:
    """A field with its help text and the constraint on its value, or on each value of a list: an integer of at
    ``least`` this, a number ``above`` this, or one of the ``choices``. ``commas``: a list on the command line is split
    at commas. Without a help text the field is not a command-line option."""
    metadata = {"help": what, "least": least, "above": above, "choices": choices, "commas": commas}
    return field(default=default, metadata=metadata)


class ConfigError(ValueError):
    """A wrong value or an unknown name; ``field`` is the name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Configuration:
    """A configuration, checked when it is made: a wrong value is a `ConfigError` with the field, the expected and the
    actual value.

    Lists become tuples, integers become floats where a float is declared, and paths become strings. Subclasses check
    constraints between fields in ``check``.
    """

    EXTENSIBLE: ClassVar[tuple[str, ...]] = ()
    """The fields in which results of one folder may differ, since they change no single measurement."""

    def __post_init__(self) -> None:
        for item in fields(self):
            try:
                value = _checked(item.name, getattr(self, item.name), item.type, item.metadata)
            except ValueError as error:
                raise ConfigError(item.name, str(error)) from None
            object.__setattr__(self, item.name, value)
        self.check()

    def check(self) -> None:
        """ConfigError for values that do not fit together."""

    def require(self, name: str, fine: bool, expected: str) -> None:
        """ConfigError unless ``fine``."""
        if not fine:
            raise ConfigError(name, f"{name} must be {expected}, got {shown(self.to_dict()[name])}")

    @classmethod
    def from_mapping(cls: type[C], values: Mapping[str, Any]) -> C:
        """A configuration from names and values. `ConfigError` for an unknown name, with the closest one."""
        for name in values:
            try:
                check_name("key", name, [item.name for item in fields(cls)])
            except ValueError as error:
                raise ConfigError(name, str(error)) from None
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Names and values, as JSON has them."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    def identity(self, **made_with: Any) -> dict[str, Any]:
        """What all results of one folder share: these fields, and what they were made with."""
        return {name: v for name, v in self.to_dict().items() if name not in self.EXTENSIBLE} | made_with


def fingerprint(identity: Mapping[str, Any]) -> str:
    """A hash of ``identity``."""
    return digest_of(json.dumps(identity, sort_keys=True).encode())


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """How two identities differ, in words; empty if they are equal."""
    parts = []
    for name, value in here.items():
        other = there.get(name)
        if isinstance(value, Mapping):
            parts.append(differences(other if isinstance(other, Mapping) else {}, value))
        elif other != value:
            parts.append(f"{name} {other!r} there and {value!r} here")
    return ", ".join(filter(None, parts))


def _checked(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    """The converted value. ValueError for a wrong type or a violated constraint."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} must be a list, got {shown(value)}")
        return tuple(_checked(name, item, get_args(kind)[0], limits) for item in value)
    if NoneType in get_args(kind):
        return value if value is None else _checked(name, value, get_args(kind)[0], limits)
    if kind is int:
        found = whole(name, value, limits["least"])
        return found if found <= MAX_WHOLE_NUMBER else whole(name, value, limits["least"], MAX_WHOLE_NUMBER)
    if kind is float:
        return number(name, value) if limits["above"] is None else number(name, value, limits["above"])
    if kind is bool:
        check_flag(name, value)
        return value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if limits["choices"]:
        check_choice(name, value, limits["choices"], meant(value, limits["choices"]))
    elif not isinstance(value, str):
        raise ValueError(f"{name} must be text, got {shown(value)}")
    return value
