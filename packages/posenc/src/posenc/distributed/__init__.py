"""Texts divided among processes: `Sharding` of positions and tensors, and attention over all of them, exactly.

On torch.distributed: gloo or NCCL, started by torchrun. Imports the library; nothing of the library imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posenc.distributed.attention import attention, explain, sharded
from posenc.distributed.cache import ShardedCache
from posenc.distributed.counts import Work
from posenc.distributed.sharding import Sharding

if TYPE_CHECKING:
    from posenc.distributed.tensor_parallel import parallelize

__all__ = ["ShardedCache", "Sharding", "Work", "attention", "explain", "parallelize", "sharded"]


def __getattr__(name: str) -> Any:
    if name == "parallelize":  # DTensor takes a second to import
        from posenc.distributed.tensor_parallel import parallelize

        return parallelize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
