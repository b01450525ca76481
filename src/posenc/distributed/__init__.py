"""Texts divided among processes: `Sharding` of positions and tensors, and attention over all of them, exactly.

On torch.distributed: gloo or NCCL, started by torchrun. Imports the library; nothing of the library imports it.
"""

from posenc.distributed.attention import attention, explain, sharded
from posenc.distributed.cache import ShardedCache
from posenc.distributed.needs import Needs
from posenc.distributed.sharding import Sharding
from posenc.distributed.work import Work, work

__all__ = ["Needs", "ShardedCache", "Sharding", "Work", "attention", "explain", "sharded", "work"]
