"""Texts divided among processes: `Sharding` of positions and tensors, and attention over all of them, exactly.

On torch.distributed: gloo or NCCL, started by torchrun. Imports the library; nothing of the library imports it.
"""

from posenc.distributed.attention import attention, choose, sharded
from posenc.distributed.cache import ShardedCache
from posenc.distributed.sharding import Needs, Sharding
from posenc.distributed.tensor_parallel import parallelize

__all__ = ["Needs", "ShardedCache", "Sharding", "attention", "choose", "parallelize", "sharded"]
