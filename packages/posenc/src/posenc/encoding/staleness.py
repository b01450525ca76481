"""What an encoding holds of its scheme, parameters and tensors, and how to tell that they have changed since."""

from __future__ import annotations

import copyreg
import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from posenc import compat
from posenc.positions.positions import Positions


def with_tensors(x: Any, change: Callable[[Tensor], Any]) -> Any:
    """x with ``change`` applied to each tensor in it."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, Positions):
        return compat.tree_map(change, x)
    if isinstance(x, tuple):
        return tuple(with_tensors(each, change) for each in x)
    if isinstance(x, Mapping):
        return {name: with_tensors(each, change) for name, each in x.items()}
    if is_dataclass(x) and not isinstance(x, type):  # a rotation, its maps, a context
        return replace(x, **{f.name: with_tensors(getattr(x, f.name), change) for f in fields(x)})
    return x


def tensors_of(x: Any) -> list[Tensor]:
    """All tensors in x."""
    found: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        found.append(x)
        return x

    with_tensors(x, keep)
    return found


def closed_over(terms: Iterable[Any]) -> list[Tensor]:
    """The tensors that the functions of these terms close over."""
    functions = [getattr(term, f.name) for term in terms for f in fields(term)]
    return [x for function in functions for x in _contents(function) if isinstance(x, Tensor)]


def read_by(terms: Any) -> list[Tensor]:
    """The tensors that terms, their functions and the modules of these read."""
    found: list[Tensor] = []
    inside, seen = [terms], set()
    while inside:
        x = inside.pop()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, nn.Module):
            inside += x.parameters()
        elif isinstance(x, (tuple, list)):
            inside += x
        elif isinstance(x, Mapping):
            inside += x.values()
        elif isinstance(x, partial):
            inside += (x.func, *x.args, *x.keywords.values())
        elif is_dataclass(x) and not isinstance(x, type):
            inside += [getattr(x, f.name) for f in fields(x)]
        elif callable(x):
            inside += [getattr(x, "__self__", None), *_contents(x)]
    return found


def _contents(function: Any) -> list[Any]:
    return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]


def register(kind: type, values: tuple[str, ...], name: str) -> None:
    """Registers the class as a pytree of its positions and the tensors in its fields ``values``. Pair terms are not
    leaves: they refer to the scheme's parameters."""

    def changed(encoding: Any, change: Callable[[Tensor], Any]) -> Any:
        queries = with_tensors(encoding.query_positions, change)
        same = encoding.key_positions is encoding.query_positions
        keys = queries if same else with_tensors(encoding.key_positions, change)
        others = {field: with_tensors(getattr(encoding, field), change) for field in values}
        return replace(encoding, query_positions=queries, key_positions=keys, **others)

    def flatten(encoding: Any) -> tuple[list[Any], Any]:
        others = (getattr(encoding, field) for field in values)
        same = encoding.key_positions is encoding.query_positions
        return tensors_of((encoding.query_positions, () if same else encoding.key_positions, *others)), encoding

    def unflatten(tensors: Any, encoding: Any) -> Any:
        following = iter(tensors)

        def other(before: Tensor) -> Any:
            x = next(following)
            half = (torch.float16, torch.bfloat16)
            if isinstance(x, Tensor) and x.dtype in half and before.dtype not in half:
                raise ValueError(
                    f"the encoding was cast to {x.dtype}, which is too coarse for phases: cast only the other tensors"
                )
            return x

        return changed(encoding, other)

    compat.register_pytree(kind, flatten, unflatten, name)


class Made(NamedTuple):
    """A parameter or buffer when an encoding was made: its version, whether it had a gradient, and its value; None:
    terms read the parameter itself."""

    parameter: Tensor
    version: int
    learns: bool
    value: Tensor | None


MadeWith: TypeAlias = tuple[Made, ...]
M = TypeVar("M", bound=nn.Module)
Binding: TypeAlias = Literal["by value", "live", "apart"]
_BINDING: ContextVar[Binding] = ContextVar("_BINDING", default="by value")
"""How this thread binds schemes: see `live`."""


@contextmanager
def live(is_apart: bool = False) -> Iterator[None]:
    """A context in which the terms of new encodings read the parameters themselves: for encodings of one call, and for
    a caller that binds anew when something else has changed. ``is_apart``: they do not refer to their scheme, but to a
    copy that shares its tensors, so that whoever keeps an encoding keeps no scheme."""
    before = _BINDING.set("apart" if is_apart else "live")
    try:
        yield
    finally:
        _BINDING.reset(before)


def by_value(module: M, device: torch.device, is_read: bool) -> tuple[M, MadeWith]:
    """A copy of the module that has its parameters, buffers and tensors by value, and what was copied of the first two.
    Gradients reach the parameters through the copies. The module itself where nothing reads it later, ``is_read``
    (tables of vectors that are added are large), where it has no tensors, and in a context of `live`.

    So an encoding never changes, whatever writes to a parameter: ``.data`` and NumPy count no version. Only the buffers
    of modules inside it are shared while they train, since batch norm and spectral norm write to theirs. In a compiled
    graph, where nothing does, the module itself and no parameters. ValueError for a parameter on another device than
    the positions.
    """
    if torch.compiler.is_compiling():
        return module, ()
    held = [*module.parameters(), *module.buffers()]
    for p in module.parameters():
        if p.device != device:
            raise ValueError(
                f"{type(module).__name__} must be on {device} like the positions, got parameters on {p.device}: move "
                "the scheme with the model, and make positions with device= or positions.to(device)"
            )
    if is_read and _BINDING.get() == "apart":
        return _copied(module, {x: x for x in _tensors(module)}), made_with(held)
    if not is_read or _BINDING.get() == "live" or not any(True for _ in _tensors(module)):
        return module, made_with(held)
    copies: dict[Tensor, Tensor] = {}
    # A copy made without autograd would train nothing.
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(), torch.enable_grad():
        copy = _copied(module, copies)
    return copy, tuple(Made(x, version_of(x), x.requires_grad, copies[x]) for x in held if x in copies)


def made_with(parameters: Iterable[Tensor]) -> MadeWith:
    """These parameters as they are now, for terms that read them."""
    return tuple(Made(p, version_of(p), p.requires_grad, None) for p in parameters)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """All tensors that a module holds as parameters, buffers or attributes."""
    for each in module.modules():
        for found in (each._parameters, each._buffers, vars(each)):
            yield from (x for x in found.values() if isinstance(x, Tensor))


def _copied(module: M, copies: dict[Tensor, Tensor], shares_buffers: bool = False) -> M:
    """The module and those in it with copies of their tensors, which share everything else."""

    def of(found: dict[str, object]) -> dict[str, object]:
        for x in found.values():
            if isinstance(x, Tensor) and x not in copies:
                copies[x] = x.clone()
        return {name: copies[x] if isinstance(x, Tensor) else x for name, x in found.items()}

    copy: M = object.__new__(type(module))
    for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
        if hasattr(module, name):
            object.__setattr__(copy, name, getattr(module, name))
    vars(copy).update(of(vars(module)))
    for name in ("_parameters",) if shares_buffers else ("_parameters", "_buffers"):
        vars(copy)[name] = of(vars(module)[name])
    vars(copy)["_modules"] = {
        name: None if each is None else _copied(each, copies, each.training) for name, each in module._modules.items()
    }
    return copy


def is_counted(module: nn.Module) -> bool:
    """Whether a change of any number that a module holds is seen in what an encoding was made with: not of buffers, of
    inference tensors or in a compiled graph."""
    if torch.compiler.is_compiling() or any(True for _ in module.buffers()):
        return False
    return all(type(p) is nn.Parameter and not p.is_inference() for p in module.parameters())


def is_inference() -> bool:
    """Whether new tensors are inference tensors."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def check_fresh(made: MadeWith) -> None:
    """ValueError if a parameter is known to have changed."""
    if torch.compiler.is_compiling():
        return
    for p, version, learns, value in made:
        if version_of(p) != version:
            raise ValueError(STALE)
        if value is not None and p.requires_grad and not learns:
            raise ValueError(STALE.replace("changed", "began to require gradients"))


NUMBERS_COMPARED_AS_MEMORY = 2**13  # fewer are compared sooner than their addresses are found
STALE = (
    "the encoding was made before the scheme's parameters changed: call the scheme with the positions again, once in "
    "every forward pass"
)


def check_values(made: MadeWith) -> None:
    """ValueError if a parameter has another value than when the encoding was made. Asked are dense numbers on the CPU
    that are still there and that no other process may write to: a GPU would have to be waited for, and other processes
    train during a pass. Where none are asked, the encoding goes on with the values that it was made with."""
    if made and compat.is_eager() and not are_equal(made):
        raise ValueError(STALE)


def are_equal(made: MadeWith) -> bool:
    """Whether parameters have the values of the encoding, as far as they can be asked."""
    return all(value is None or not is_readable(p) or _is_same(p, value) for p, _, _, value in made)


def with_values(made: MadeWith) -> MadeWith:
    """The same parameters with their values of now."""
    return tuple(each._replace(value=each.parameter.detach().clone()) for each in made)


def is_readable(parameter: Tensor) -> bool:
    """Whether its numbers can be compared in every call: see `check_values`. FSDP frees the storage of a parameter that
    it has gathered for a call."""
    if parameter.device.type != "cpu" or parameter.layout is not torch.strided:
        return False
    storage = parameter.untyped_storage()
    return not storage.is_shared() and (storage.size() > 0 or parameter.numel() == 0)


def _is_same(p: Tensor, value: Tensor) -> bool:
    """Whether two tensors have the same numbers or bits: NaN does not equal itself. Many numbers are compared as
    memory, in a fifth of `torch.equal`'s time."""
    is_memory = p.numel() >= NUMBERS_COMPARED_AS_MEMORY and p.is_floating_point()
    is_memory = is_memory and compat.is_plain_memory((p, value)) and p.is_contiguous() and value.is_contiguous()
    compare = compat.c_function("memcmp") if is_memory else None
    if compare is None or (p.dtype, p.shape) != (value.dtype, value.shape):
        return torch.equal(p, value) or torch.equal(_bits(p), _bits(value))
    places = ctypes.c_void_p(p.data_ptr()), ctypes.c_void_p(value.data_ptr())
    return bool(compare(*places, ctypes.c_size_t(p.nbytes)) == 0)


def _bits(x: Tensor) -> Tensor:
    """The numbers as whole numbers, so that NaN equals itself."""
    x = torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def version_of(parameter: Tensor) -> int:
    """The version counter, which inference tensors do not have."""
    return -1 if parameter.is_inference() else parameter._version
