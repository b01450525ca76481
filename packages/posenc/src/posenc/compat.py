"""All uses of private APIs of torch, and what its versions from 2.9 to 2.13 do differently."""

import ctypes
import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
PLAIN = (Tensor, torch.nn.Parameter)  # classes without operations of their own
# A guess; with two, one thread was as fast, and safe on a busy machine (docs/decisions/010-kernel-in-cpp.md).
MAX_THREADS_TO_SWITCH = 8


def is_forward_mode() -> bool:
    """Whether forward-mode AD is active, for which `torch.autograd.forward_ad` has no public function."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether a `torch.func` transform is active, whose tensors do not report ``requires_grad``."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None


def is_eager() -> bool:
    """Whether operations run at once and as written: nothing compiles, traces, transforms or replaces them. A default
    device, which PyTorch implements as a mode, replaces nothing that is given a device."""
    return (
        not torch.compiler.is_compiling()
        and forward_ad._current_level < 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and (
            torch._C._len_torch_function_stack() == 0
            or all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
        )
        and torch._C._get_tracing_state() is None
    )


def is_plain_memory(tensors: Iterable[Tensor]) -> bool:
    """Whether code that reads the memory of these tensors may be called without an operator of PyTorch's: nothing needs
    to see one, and no tensor is of another class or has flags that the dispatcher would resolve."""
    if not is_eager():
        return False
    for x in tensors:  # a loop, since this is asked in every call
        if type(x) not in PLAIN or x.is_neg() or x._is_zerotensor() or torch._C._functorch.is_legacy_batchedtensor(x):
            return False
    return True


def can_bypass_dispatch(tensors: Iterable[Tensor]) -> bool:
    """Whether such code may be called without its custom operator, which a profiler is to see."""
    return not torch.autograd.profiler._is_profiler_enabled and is_plain_memory(tensors)


def is_exporting() -> bool:
    """`torch.compiler.is_exporting`, which torch 2.9 takes to be true in every compiled graph."""
    return torch.compiler.is_compiling() and torch.compiler._is_exporting_flag


def is_known(condition: Any) -> bool:
    """Whether a condition holds; in an exported program, which has one graph for all lengths, for all of them."""
    if isinstance(condition, bool) or not is_exporting():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def is_hooked(module: torch.nn.Module) -> bool:
    """Whether calling the module does more than its ``forward``."""
    names = "forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"
    of_all = torch.nn.modules.module
    return any(getattr(module, f"_{name}") or getattr(of_all, f"_global_{name}") for name in names)


def multiplies_in_tf32() -> bool:
    """Whether float32 matrix products on CUDA may round factors to TF32. After ``fp32_precision`` was set, reading the
    older setting raises."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def flash_attention() -> str | None:
    """What `torch.nn.attention.activate_flash_attention_impl` has put in the place of PyTorch's own FlashAttention, as
    "FA3"; None before torch 2.11, which does not know it."""
    return getattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)()


def missing_flash(device: torch.device) -> str | None:
    """Why FlexAttention cannot run FlashAttention's kernels on a GPU; None if it can."""
    flex = importlib.import_module("torch.nn.attention.flex_attention")
    if "FLASH" not in get_args(getattr(flex, "_Backend", None)):
        return "FlexAttention of this torch cannot run FlashAttention's kernels"
    if not _is_flash_installed():
        return "FlashAttention 4 (flash_attn.cute) is not installed"
    if torch.cuda.get_device_capability(device)[0] not in (9, 10):
        return "FlashAttention's kernels for FlexAttention need a Hopper or Blackwell GPU"
    return None


missing_flash._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _is_flash_installed() -> bool:
    """Asked once by a process: it imports the package above, which may raise anything."""
    with suppress(Exception):
        return importlib.util.find_spec("flash_attn.cute") is not None
    return False


def assert_later(condition: Tensor, message: str) -> None:
    """An asynchronous assertion in a compiled graph or on a device: a RuntimeError with this message."""
    torch._assert_async(condition, message)


def uncompiled(function: F) -> F:
    """The function, outside of compiled graphs: `torch.compiler.disable`, which would load the compiler (a second)
    here, where this waits until something else has."""
    disabled = _disable_dynamo(function)

    @functools.wraps(function)
    def outside(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    return outside  # type: ignore[return-value]


def no_grad(function: F) -> F:
    """The function under `torch.no_grad`, but in a graph as it is: an exported one would have an operator for the
    switch, which `torch.export.save` cannot write. What the function returns must need no gradients."""
    eager = torch.no_grad()(function)

    @functools.wraps(function)
    def switched(*args: Any, **kwargs: Any) -> Any:
        return (function if torch.compiler.is_compiling() else eager)(*args, **kwargs)

    return switched  # type: ignore[return-value]


def is_autocast(x: Tensor) -> bool:
    """Whether autocast would cast x: it does not cast float64."""
    return x.dtype != torch.float64 and _is_autocast_on(x.device.type)


def _is_autocast_on(device: str) -> bool:
    """Not every device has autocast, which before torch 2.12 cannot be asked in a compiled graph; of the devices that
    one is compiled for, meta alone has none."""
    is_known = device in ("cpu", "cuda") or (torch.compiler.is_compiling() and device != "meta")
    return (is_known or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device)


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Disables autocast on the device of x, if it is enabled: it would round factors of products to half precision."""
    device = x.device.type
    return torch.autocast(device, enabled=False) if _is_autocast_on(device) else nullcontext()


def without_numbers() -> AbstractContextManager[Any]:
    """A context in which new tensors have shapes but no data."""
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def has_numbers(x: Tensor) -> bool:
    """Whether x has data that can be read: not on the meta device, nor under FakeTensorMode."""
    return not x.is_meta and type(x).__name__ != "FakeTensor"


def is_in_reentrant_checkpoint() -> bool:
    """Whether a layer runs again in the backward pass of reentrant activation checkpointing."""
    if torch._C._current_graph_task_id() == -1 or not torch.is_grad_enabled():
        return False
    return type(torch._C._current_autograd_node()).__name__ == "CheckpointFunctionBackward"


def has_freed_graph(x: Tensor) -> bool:
    """Whether a backward pass has freed what the gradient of x needs."""
    nodes = {x.grad_fn} - {None}
    seen: set[Any] = set()
    while nodes:
        node: Any = nodes.pop()
        seen.add(node)
        for name in dir(node):
            try:
                if name.startswith("_saved_"):
                    getattr(node, name)
            except RuntimeError as error:
                if "already been freed" in str(error):
                    return True
        nodes |= {after for after, _ in node.next_functions} - {None} - seen
    return False


def without_saved_tensors_hooks() -> AbstractContextManager[object]:
    """A context in which autograd saves tensors as they are, whatever hooks there are around it. Where hooks are
    disabled there are none, and in a graph nothing is saved yet."""
    if torch.compiler.is_compiling() or not torch._C._autograd._saved_tensors_hooks_is_enabled():  # type: ignore[attr-defined]
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)


@functools.cache
def c_function(name: str) -> Any:
    """A function of the C libraries that this process has loaded; None if it is not found."""
    return getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None


@contextmanager
def single_threaded() -> Iterator[int]:
    """Runs torch operations in this thread only; yields the number of threads.

    For many small loops: with several threads each would wait for the slowest, which on a busy machine waits for a
    core. Does nothing with many threads, for which the work of one would be too much.
    """
    threads = torch.get_num_threads()
    setting = c_function("omp_set_num_threads")
    if setting is None or threads > MAX_THREADS_TO_SWITCH:
        yield threads
        return
    setting(1)
    try:
        yield threads
    finally:
        setting(threads)


def assign(parameter: Any, values: Tensor) -> None:
    """Writes values into a parameter. One that is divided among processes gets its part of those of the first."""
    if hasattr(parameter, "placements"):  # a DTensor, whose module takes a second to import
        from torch.distributed.tensor import distribute_tensor

        values = distribute_tensor(values, parameter.device_mesh, parameter.placements)
    parameter.copy_(values)


@contextmanager
def outside_compilation() -> Iterator[None]:
    """A context for code that runs during compilation but is not compiled: it resets the flag that
    `torch.compiler.is_compiling` reads, which is global to all threads."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = False
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def sym_min(a: Any, b: Any) -> Any:
    """`torch.sym_min`, which dynamo traces before torch 2.12 only for symbolic numbers."""
    return torch.sym_min(a, b) if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt) else min(a, b)


def sym_max(a: Any, b: Any) -> Any:
    """`torch.sym_max`, like `sym_min`."""
    return torch.sym_max(a, b) if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt) else max(a, b)


def unsplit(x: Tensor, dim: int) -> Tensor:
    """x itself; in a graph for the CPU, x computed in a loop that inductor does not split.

    Inductor splits a loop over n elements divided by d > 8, as in ``arange(n) // d``, into n // d loops of d elements,
    and never writes the rest (seen with 2.13). A remainder in the same loop prevents this.
    """
    if not torch.compiler.is_compiling() or x.device.type != "cpu":
        return x
    parity = (torch.arange(x.size(dim)) % 2).view(-1, *[1] * (x.dim() - 1 - dim))
    return torch.maximum(x, (parity + torch.iinfo(torch.int64).min).to(x.dtype))


def compilations(most: int) -> AbstractContextManager[Any]:
    """A context that sets how many compilations of one function dynamo keeps, for which there is no public setting."""
    patch: AbstractContextManager[Any] = torch._dynamo.config.patch(cache_size_limit=most)
    return patch


def eager_backward() -> AbstractContextManager[Any]:
    """A context in which what is compiled has its backward compiled at once, so that errors are raised here and not in
    ``backward()``; before torch 2.10 there is none."""
    config: Any = torch._functorch.config
    name = "force_non_lazy_backward_lowering"
    return config.patch(**{name: True}) if hasattr(config, name) else nullcontext()


def register_pytree(
    kind: type, flatten: Callable[[Any], tuple[list[Any], Any]], unflatten: Callable[[Any, Any], Any], name: str
) -> None:
    """Registers a class with `torch.utils._pytree`, which torch.compile, export and FSDP use."""
    from torch.utils import _pytree

    _pytree.register_pytree_node(kind, flatten, unflatten, serialized_type_name=name)


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """Applies ``change`` to the leaves of a pytree."""
    from torch.utils import _pytree

    return _pytree.tree_map(change, tree)
