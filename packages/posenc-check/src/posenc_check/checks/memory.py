"""Checks that memory grows with the length as claimed, and that a call leaves nothing behind (check 17)."""

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.autograd.profiler import profile

from posenc_check.calls import arguments_of, attributes_of, gradients_of, parameters_of, with_tokens
from posenc_check.outcome import Outcome
from posenc_check.subjects import Batch, Bias, Subject, applies, require
from posenc_check.trial import Case, Check, Trial, TrialPlan


def changes_of(call: Callable[[], object], device: torch.device | str) -> list[int]:
    """The bytes that a call allocates (above 0) and releases (below), in order; on CUDA, up to its peak and after."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        gc.collect()
        return [peak, torch.cuda.memory_allocated() - before - peak]
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to stderr, in the middle of a progress bar
    with profile(profile_memory=True) as profiler:
        call()
    assert profiler.kineto_results is not None
    events = [(e.start_ns(), e.nbytes()) for e in profiler.kineto_results.events() if e.name() == "[memory]"]
    # A stable sort keeps the profiler's order of events in the same nanosecond.
    return [change for _, change in sorted(events, key=lambda event: event[0])]


def memory_grows_with_the_length(subject: Subject, batch: Batch, tokens: int, trained: bool, growth: float) -> Outcome:
    """The peak memory of one call, and of its backward pass, for some number of tokens and for twice as many."""
    subject = replace(subject, dtype=torch.float32)
    made = subject.make()
    peaks = []
    for length in (tokens, 2 * tokens):
        arguments = arguments_of(subject, made, with_tokens(batch, length))
        changes = changes_of(lambda given=arguments: one_call(subject, made, given, trained), subject.device)  # type: ignore[misc]
        peaks.append(max(accumulate(changes, initial=0)))
    applies(min(peaks) > 0, "a call needs no memory that could be counted")
    ratio = peaks[1] / peaks[0]
    return Outcome(ratio < growth, f"less than {growth} times the memory for twice the tokens", f"{ratio:.2f} times")


def one_call(subject: Subject, made: object, arguments: dict[str, object], trained: bool) -> None:
    """Calls the subject directly: `Subject.run` may add dense attention of its own."""
    with torch.set_grad_enabled(trained):
        leaves = {
            name: x.detach().requires_grad_(trained) if isinstance(x, Tensor) and x.is_floating_point() else x
            for name, x in arguments.items()
        }
        out = subject.call(made, **leaves)
        outs, inputs = (
            [x for x in of if isinstance(x, Tensor) and x.requires_grad]
            for of in (out if isinstance(out, tuple) else (out,), (*leaves.values(), *parameters_of(made).values()))
        )
        if trained and outs and inputs:
            torch.autograd.grad([x.sum() for x in outs], inputs, allow_unused=True)


WARM = 160  # calls after which a cache is full: functools.lru_cache holds 128 entries


def nothing_is_left_behind(subject: Subject, batch: Batch) -> Outcome:
    """Calls with their backward passes leave nothing but a cache that stops growing, and keep no graph alive."""
    made = subject.make()

    def bytes_left_by(calls: int) -> int:
        left = sum(changes_of(lambda: [gradients_of(subject, made, batch) for _ in range(calls)], subject.device))
        # Reference cycles are freed only at some later time.
        return left + sum(changes_of(gc.collect, subject.device)) if left > 0 else left

    left = [bytes_left_by(1) for _ in range(6)][-3:]
    if min(left) > 0:
        bytes_left_by(WARM)
        left = [bytes_left_by(1) for _ in range(3)]
    graphs = [name for name, x in attributes_of(made) if isinstance(x, Tensor) and x.grad_fn is not None]
    if graphs:
        return Outcome(False, "no graph of a call that is over", f"one at {graphs[0]}")
    return Outcome(min(left) <= 0, "as many bytes after each call", f"{min(left)} more after each call")


# -- cases -------------------------------------------------------------------------------------------------------------

LEFT = "Detach what is stored on the module, and free what an earlier call made."
TOKENS = 2048  # longer than the blocks in which attention is computed
GROWTH = 2.5  # twice the length: twice the memory where it is linear, four times where it is square


def _linear(plan: TrialPlan) -> Iterator[Case]:
    subject = plan.subject
    require(subject.linear_memory, "claim `linear_memory=True` to run this")
    require(not isinstance(subject, Bias), "claim no `linear_memory`, for a bias is as large as the number of pairs")
    possible = plan.has(2 * TOKENS - 1)
    require(possible, f"let it have `max_positions` of {2 * TOKENS} or more, which show how memory grows")
    for trained in (False, True):
        yield Case(Batch([[0]]), {"tokens": TOKENS, "trained": trained, "growth": GROWTH})


def _left(plan: TrialPlan) -> Iterator[Case]:
    yield Case(plan.text(1, plan.sizes[-1]))


CHECK = Check(
    number=17,
    name="memory",
    rule="If linear memory is claimed, twice the tokens need less than 2.5 times as much; no call leaks memory.",
    why="A bias matrix of all pairs defeats a fused kernel, and one stored on the module keeps its graph alive.",
    pains=(9, 10),
    remedy="Make no matrix of all pairs: compute a bias within the kernel, block by block.",
    trials=(
        Trial("growth", memory_grows_with_the_length, _linear, claims=("linear_memory",)),
        Trial("what is left", nothing_is_left_behind, _left, remedy=LEFT),
    ),
)
