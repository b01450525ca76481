"""Captures the scores that a layer passes to its softmax. Plain PyTorch: scripts hold a copy."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc_check.subjects import Batch, Subject

NO_SCORES = "pass scores of all pairs of tokens to PyTorch's softmax or attention, for no scores were observed"
EXCHANGED = "give `match` to assign the parameters, for those of one shape fit in another order"
SOFTMAX = (torch.softmax, torch.Tensor.softmax, nn.functional.softmax, torch.special.softmax)
SDPA = nn.functional.scaled_dot_product_attention
MULTIHEAD = nn.functional.multi_head_attention_forward  # its internal calls are not captured
OPERATORS = (torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__)
ADDITIONS = (torch.add, torch.Tensor.add, torch.Tensor.add_, *OPERATORS)


class CapturedScores(TorchFunctionMode):
    """Captures the input of every softmax and of PyTorch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []
        self.inputs: list[list[Tensor]] = [[]]  # of linear layers, before the first scores and between any two

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        captured = len(self.scores)
        if func in SOFTMAX:
            scores = kwargs.get("input", args[0] if args else None)
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            if isinstance(scores, Tensor) and dim in (-1, scores.dim() - 1):
                self.scores.append(scores.detach().double())
        elif func is SDPA:
            with torch.no_grad():
                self.scores.append(_sdpa_scores(*args, **kwargs))
        elif func is MULTIHEAD:
            self.inputs[-1].append(args[0].detach())
            with torch.no_grad():
                self.scores.append(_multihead_scores(*args, **kwargs))
        elif func is nn.functional.linear and args:
            self.inputs[-1].append(args[0].detach())
        if len(self.scores) > captured:
            self.inputs.append([])
        return func(*args, **kwargs)


class CapturedSums(TorchFunctionMode):
    """Captures the vectors that positions add to tokens, minus the first, (tokens, dim), from two rows of a token."""

    def __init__(self, tokens: int, front: int) -> None:
        super().__init__()
        self.tokens, self.front, self.ended = tokens, front, False
        self.sums: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.ended and isinstance(out, Tensor) and out.dim() == 3 and out.is_floating_point():
            x = out.detach().transpose(0, 1) if out.shape[:2] == (self.tokens, 2) else out.detach()
            if x.shape[:2] == (2, self.tokens):
                self.observe(x[:, self.front :].double(), func in ADDITIONS)
        return out

    def observe(self, x: Tensor, added: bool) -> None:
        by_token, by_position = x - x[:1], x - x[:, :1]
        rounding = 64 * torch.finfo(torch.float32).eps * float(x.abs().max())
        if min(float(by_token.abs().max()), float(by_position.abs().max())) <= rounding:
            return  # not both of them
        apart = float((by_token - by_token[:, :1]).abs().max()) > rounding
        self.ended = apart or not (added or self.sums)
        if added and not apart:
            self.sums.append(by_position[0])


def _sdpa_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """The scores that PyTorch's attention passes to its softmax."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
    scores = query.double() @ key.double().mT * (query.size(-1) ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], device=scores.device).bool().tril(), -torch.inf)
    return scores


def _multihead_scores(*args: Any, **kwargs: Any) -> Tensor:
    """The scores of `nn.MultiheadAttention` up to a constant per query: the logarithm of its weights."""
    bound = inspect.signature(MULTIHEAD).bind(*args, **kwargs)
    bound.arguments.update(need_weights=True, average_attn_weights=False)
    _, weights = MULTIHEAD(*bound.args, **bound.kwargs)
    assert weights is not None
    return weights.double().nan_to_num(0.0).log()  # NaN where a query sees nothing


def scores_of(subject: Subject, made: Any, batch: Batch) -> list[Tensor]:
    """The scores of each attention in a run, (rows, heads, tokens, tokens), up to a constant per row."""
    return [scores for scores, _ in of_all_tokens(captured_in(subject, made, batch), batch)]


def captured_in(subject: Subject, made: Any, batch: Batch) -> CapturedScores:
    """What one run passes to softmax."""
    fast = torch.backends.mha.get_fastpath_enabled()  # fuses PyTorch's own layers into one call
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with CapturedScores() as captured, torch.no_grad():
            subject.run(made, batch)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return captured


def sums_in(subject: Subject, made: Any, batch: Batch) -> list[Tensor]:
    """What positions add to tokens in one run, minus the first; the batch has two rows of one token each."""
    with CapturedSums(batch.tokens, subject.registers) as captured, torch.no_grad():
        subject.run(made, batch)
    return captured.sums


def of_all_tokens(captured: CapturedScores, batch: Batch) -> list[tuple[Tensor, list[Tensor]]]:
    """The scores, as `scores_of` returns them, each with the inputs of the linear layers since the last ones."""
    found = []
    for scores, inputs in zip(captured.scores, captured.inputs, strict=False):
        if scores.dim() == 3 and scores.size(0) % len(batch.ids) == 0:  # (rows x heads, queries, keys)
            scores = scores.unflatten(0, (len(batch.ids), -1))
        if scores.dim() == 5:  # (rows, heads of keys, queries of each, queries, keys)
            scores = scores.flatten(1, 2)
        scores = scores.masked_fill(scores < HIDDEN, -torch.inf)
        if bool((scores[..., batch.tokens :] == -torch.inf).all()):  # slots of a cache that hold nothing yet
            scores = scores[..., : batch.tokens]
        if scores.dim() == 4 and scores.shape[-2:] == (batch.tokens,) * 2 and scores.size(0) == len(batch.ids):
            found.append((scores, inputs))
    return found


HIDDEN = -1e4  # no score that counts in a softmax is this low; masks of finfo.min, -1e9 and -1e5 are


def of_one_token(batch: Batch) -> Batch:
    """The same batch with one token everywhere, so that its scores depend only on positions."""
    return replace(batch, ids=[[1] * batch.tokens] * len(batch.ids))


def onlookers(subject: Subject, batch: Batch) -> list[int]:
    """The tokens that see most: the last, and, if attention is not causal, one in the middle."""
    return [batch.tokens - 1] if subject.causal else [batch.tokens // 2, batch.tokens - 1]
