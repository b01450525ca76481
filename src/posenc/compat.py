"""What posenc takes from torch that torch does not promise, in one place, with the versions it was seen on: 2.6 to
2.13."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

FEW_THREADS = 8  # a guess above two, where alone is as quick beside the kernel and safe on a busy machine (docs/log.md)


def is_forward_mode() -> bool:
    """Whether forward-mode derivatives are on their way (`torch.autograd.forward_ad` has no public question for it)."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether a transformation of `torch.func` is on its way, whose tensors do not say that they have a gradient."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def assert_later(condition: Tensor, message: str) -> None:
    """An assertion in a compiled graph, or on a device, that waits for nothing: a RuntimeError with this message."""
    torch._assert_async(condition, message)


def without_numbers() -> AbstractContextManager[Any]:
    """Inside, tensors that are made have shapes and no numbers."""
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


@functools.cache
def openmp(name: str) -> Any:
    """A function of the OpenMP that PyTorch's own loops use; None where it is not found. torch is loaded, and with it
    its OpenMP, for all to see."""
    return getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None


@contextmanager
def by_itself() -> Iterator[int]:
    """What torch computes in here it computes in this thread alone; gives the number of threads that there are.

    A loop over several threads waits for the slowest, which on a busy machine is one that waits for a core. It is for
    many small loops. With many threads it would be too much for one.
    """
    threads = torch.get_num_threads()
    setting = openmp("omp_set_num_threads")
    if setting is None or threads > FEW_THREADS:
        yield threads
        return
    setting(1)
    try:
        yield threads
    finally:
        setting(threads)


@contextmanager
def outside_compilation() -> Iterator[None]:
    """Inside, what runs while something is compiled, and is not of it, is as it is at any other time: the flag that
    `torch.compiler.is_compiling` reads is of all threads."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def unsplit(x: Tensor, dim: int) -> Tensor:
    """x itself; in a graph for the CPU, x in a loop that inductor leaves whole.

    A loop over n numbers that are divided by d > 8, as in ``arange(n) // d``, inductor makes into n // d loops over d
    numbers, and the rest is never written (seen on 2.13). It does not where a remainder stands in the same loop.
    """
    if not torch.compiler.is_compiling() or x.device.type != "cpu":
        return x
    parity = (torch.arange(x.size(dim)) % 2).view(-1, *[1] * (x.dim() - 1 - dim))
    return torch.maximum(x, (parity + torch.iinfo(torch.int64).min).to(x.dtype))


def compilations(most: int) -> AbstractContextManager[Any]:
    """Inside, dynamo keeps as many compilations of one function; it has no public setting for it."""
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(cache_size_limit=most)
    return patch


def register_pytree(
    kind: type, flatten: Callable[[Any], tuple[list[Any], Any]], unflatten: Callable[[Any, Any], Any], name: str
) -> None:
    """Makes a class transparent to `torch.utils._pytree`, which compilation, export and FSDP take apart."""
    from torch.utils import _pytree

    _pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=name)


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same tree with other leaves."""
    from torch.utils import _pytree

    return _pytree.tree_map(change, tree)


def cpu_attention(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The CPU's fused attention: output and log-sum-exp."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return out, lse


def cpu_attention_backward(
    dout: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Its gradients of query, key and value."""
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dout, query, key, value, out, lse, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return dq, dk, dv
