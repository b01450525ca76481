"""A custom operator with its derivative, called directly where nothing needs to see the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posenc import compat

ONCE = (
    "attention's fused kernels have only a first derivative: pass backend='reference' for a second one "
    "(create_graph=True)"
)


def refuse(ctx: Any, *_: Any) -> Any:
    """The derivative of a derivative: ValueError."""
    raise ValueError(ONCE)


class _Once(torch.autograd.Function):
    """A gradient that has no derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    backward = staticmethod(refuse)


def derived_once(out: Tensor) -> Tensor:
    """The output of PyTorch's attention. A second derivative through its fused kernel raises ValueError."""
    node = out.grad_fn if compat.is_undisturbed() else None
    if node is not None and "ScaledDotProduct" in node.name():
        node.register_hook(
            lambda grads, _: tuple(_Once.apply(x) if x is not None and x.requires_grad else x for x in grads)  # type: ignore[no-untyped-call]
        )
    return out


@dataclass
class Rows:
    """The output and log-sum-exp of whole rows of scores, in place of those of a part of their keys."""

    out: Tensor
    lse: Tensor
    is_taken: bool = False

    def take(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both, once, the output in a dtype; copies, since autograd takes them for results of the operator."""
        assert not self.is_taken, "of_whole_rows must hold one call of an operator"
        self.is_taken = True
        return self.out.to(like.dtype, copy=True), self.lse.clone()


_ROWS: ContextVar[Rows | None] = ContextVar("rows", default=None)


@contextmanager
def of_whole_rows(out: Tensor, lse: Tensor) -> Iterator[Rows]:
    """A context for one call of attention to a part of the keys, whose gradients are wanted: those of the part that
    follow from gradients of whole rows, whose output and log-sum-exp are given. If the operators here compute the call,
    `Rows.is_taken` is set, its forward pass is left out, and it returns what was given."""
    rows = Rows(out.contiguous(), lse.contiguous())
    token = _ROWS.set(rows)
    try:
        yield rows
    finally:
        _ROWS.reset(token)


def custom_operator(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., Any]:
    """Registers two functions as the custom operators ``name`` and ``name_backward``, the second as the derivative of
    the first, and returns a function that does the same as the first operator.

    ``forward`` takes query, key, value, `Given.arguments` and the scale, and returns output and log-sum-exp.
    ``backward`` takes the gradients of both, query, key, value, output, log-sum-exp and the rest, and returns the
    gradients of query, key and value, and of learned tensors.

    The returned function calls ``forward`` directly unless something compiles, traces, transforms or profiles the
    operator, or a tensor is not plain memory (`compat.is_direct`): PyTorch's dispatch of a custom operator takes as
    long as attention over 64 tokens (docs/decisions/006-plan-per-pass.md).
    """
    op = torch.library.custom_op(name, forward, mutates_args=())
    op_backward = torch.library.custom_op(f"{name}_backward", backward, mutates_args=())

    @op.register_fake
    def fake(query, key, value, *_):  # type: ignore[no-untyped-def]
        lse = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
        return value.new_empty((*query.shape[:3], value.size(-1))), lse

    @op_backward.register_fake
    def fake_backward(dout, dlse, query, key, value, out, lse, given, names, learned, *_):  # type: ignore[no-untyped-def]
        of = dict(zip(names.split(), given, strict=True))
        tensors = (query, key, value, *(of[name] for name in learned.split()))
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    def save(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, Tensor]) -> None:
        query, key, value, given, *ctx.rest = inputs
        ctx.save_for_backward(query, key, value, *output, *given)
        ctx.set_materialize_grads(False)

    def grads(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> list[Tensor | None]:
        """The gradients of query, key, value and of each given tensor."""
        saved = ctx.saved_tensors  # once, since checkpointing computes them only once
        query, key, value, out, lse, *given = saved
        if dout is None and dlse is None:
            return [None] * (3 + len(given))
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        tensors = [x for x in (dout, dlse, *saved) if x is not None]
        run = backward if not torch.is_grad_enabled() and compat.is_direct(tensors) else op_backward
        found = run(dout, dlse, query, key, value, out, lse, given, *ctx.rest)
        names, learned = ctx.rest[0].split(), ctx.rest[1].split()
        of = dict(zip(learned, found[3:], strict=True))
        return [*found[:3], *map(of.get, names)]

    def op_grads(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        found = grads(ctx, dout, dlse)
        return *found[:3], found[3:], *(None,) * len(ctx.rest)

    op.register_autograd(op_grads, setup_context=save)
    op_backward.register_autograd(refuse)

    def direct_forward(
        ctx: Any, rest: Sequence[Any], query: Tensor, key: Tensor, value: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        rows = _ROWS.get()
        output = forward(query, key, value, given, *rest) if rows is None else rows.take(value)
        save(ctx, (query, key, value, given, *rest), output)
        return output

    def direct_backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        return None, *grads(ctx, dout, dlse)

    # Named after the operator, as errors and anomaly mode name the node.
    methods = {"forward": staticmethod(direct_forward), "backward": staticmethod(direct_backward)}
    direct: Any = type(name.replace("::", "_"), (torch.autograd.Function,), methods)

    def run(query: Tensor, key: Tensor, value: Tensor, given: Sequence[Tensor], *rest: Any) -> Any:
        tensors = (query, key, value, *given)
        if not compat.is_direct(tensors):
            return op(query, key, value, given, *rest)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return direct.apply(rest, query, key, value, *given)
        return forward(query, key, value, given, *rest)

    return run
