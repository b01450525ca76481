"""What processes send, counted at the calls of torch.distributed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor.debug import CommDebugMode

from posenc import ALiBi, Positions
from posenc.distributed import Sharding, explain, sharded
from posenc.models import ForwardPass


@contextmanager
def counted() -> Iterator[list[int]]:
    """A list whose number grows by the bytes that this process sends to others: messages to one process, which
    `CommDebugMode` does not see, and what all gather."""
    found, send, gather = [0], dist.batch_isend_irecv, dist.all_gather

    def sending(operations: list[Any]) -> Any:
        found[0] += sum(x.tensor.numel() * x.tensor.element_size() for x in operations if x.op is dist.isend)
        return send(operations)

    def gathering(into: list[Any], x: Any, **how: Any) -> Any:
        if x.dim():  # not the number by which processes agree that a call is the same
            found[0] += (len(into) - 1) * x.numel() * x.element_size()
        return gather(into, x, **how)

    dist.batch_isend_irecv, dist.all_gather = sending, gathering
    try:
        yield found
    finally:
        dist.batch_isend_irecv, dist.all_gather = send, gather


# Two processes, eight tokens in zigzag: the first has 0, 1, 6, 7. Four heads of queries, two of keys, four channels,
# two bytes a number. A token's keys and values are 2 x 8 numbers. For each process the bytes of the forward pass and of
# the backward pass, where gradients of keys and values are four bytes a number unless heads are exchanged.
EXPECTED = {
    "gather": ([4 * 16 * 2] * 2, [4 * 16 * 4] * 2),
    # Tokens 2 to 5 see the first process's 0 and 1; its 6 and 7 see all of the second's.
    "ring": ([2 * 16 * 2, 4 * 16 * 2], [2 * 16 * 2 + 4 * 16 * 4, 4 * 16 * 2 + 2 * 16 * 4]),
    # Queries, keys and values of half of the heads leave, and outputs; then their gradients.
    "ulysses": ([4 * (8 + 8 + 8) * 2] * 2, [4 * (8 + 8 + 8) * 2] * 2),
}
GATHERED = {"gather": 2, "ring": 0, "ulysses": 0}  # collectives: keys and values


def counts(_: None) -> list[str]:
    """What is wrong with the bytes and the collectives of each method, and with what `explain` says of them."""
    wrong = []
    sharding = Sharding(Positions.arange(8))
    for method, (sent, sent_backward) in EXPECTED.items():
        tensors = [torch.randn(1, heads, 4, 4, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2)]
        with sharded(sharding, method):
            step = ForwardPass(ALiBi(4), sharding.positions, is_causal=True)
        step.attention(*tensors)  # binds the scheme, a module whose output CommDebugMode could not follow
        with CommDebugMode() as collectives, counted() as found:
            out = step.attention(*tensors)
            assert isinstance(out, Tensor)
            forward = found[0]
            out.sum().backward()
        expected = sent[sharding.rank], sent_backward[sharding.rank]
        if (forward, found[0] - forward) != expected:
            wrong.append(f"{method}: {forward} and {found[0] - forward} bytes, not {expected}")
        calls = {str(name): n for name, n in collectives.get_comm_counts().items() if n}
        if sum(calls.values()) != GATHERED[method] or not all("allgather" in name for name in calls):
            wrong.append(f"{method}: collectives {calls}")
        said = explain(*tensors, ALiBi(4), sharding, is_causal=True).works[method]
        if (said.sent[sharding.rank], said.sent_back[sharding.rank]) != expected:
            wrong.append(f"{method}: {said}, not {expected}")
    return wrong
