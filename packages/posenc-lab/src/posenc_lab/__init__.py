"""posenc-lab: which positional encoding to use, shown: compare, extend, laws, plot, bench, choose, explore, export.

Each is a subcommand of ``posenc``; `show` displays a scheme in a notebook. Nothing here is imported by the library.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc_lab.explore.show import show as show

__all__ = ["show"]


def __getattr__(name: str) -> Any:
    if name != "show":
        raise AttributeError(f"module 'posenc_lab' has no attribute {name!r}; it has show")
    from posenc_lab.explore.show import show

    return show


def __dir__() -> list[str]:
    return __all__
