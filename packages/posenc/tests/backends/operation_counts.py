"""The operations that something runs, by name."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

READING = frozenset({"_local_scalar_dense", "equal", "nonzero", "is_nonzero", "unique_consecutive", "_unique2"})
"""Operations that wait for a device and read from it."""


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def operations(run: Callable[[], object]) -> list[str]:
    """The names of all operations, of views too."""
    with _Counting() as counting:
        run()
    return counting.names
