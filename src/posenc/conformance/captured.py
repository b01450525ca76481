"""The scores that a layer hands to its softmax, seen from outside. Plain PyTorch: scripts hold a copy."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.conformance.subjects import Batch, Subject

SOFTMAX = (torch.softmax, torch.Tensor.softmax, nn.functional.softmax, torch.special.softmax)
SDPA = nn.functional.scaled_dot_product_attention


class _Heard(TorchFunctionMode):
    """Keeps what every softmax over the last dimension is given, and the scores of PyTorch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: list[Tensor] = []
        self.inputs: list[list[Tensor]] = [[]]  # of linear layers, before the first scores and between any two
        self.called: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        heard = len(self.scores)
        self.called.add(getattr(func, "__name__", ""))
        if func in SOFTMAX:
            scores = kwargs.get("input", args[0] if args else None)
            dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
            if isinstance(scores, Tensor) and dim in (-1, scores.dim() - 1):
                self.scores.append(scores.detach().double())
        elif func is SDPA:
            with torch.no_grad():
                self.scores.append(_sdpa_scores(*args, **kwargs))
        elif func is nn.functional.linear and args:
            self.inputs[-1].append(args[0].detach())
        if len(self.scores) > heard:
            self.inputs.append([])
        return func(*args, **kwargs)


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
    """What PyTorch's attention gives to its softmax."""
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


def scores_of(subject: Subject, made: Any, batch: Batch) -> list[Tensor]:
    """The scores of every attention in one run, in the order in which they are computed: those of shape (rows, heads,
    tokens, tokens), in float64, as they enter the softmax. A row may have any constant added.

    What is hidden by a number far below all others is -inf. Scores that no softmax of PyTorch's sees are not there.
    """
    return [scores for scores, _ in heard_in(subject, made, batch)[0]]


def heard_in(subject: Subject, made: Any, batch: Batch) -> tuple[list[tuple[Tensor, list[Tensor]]], set[str]]:
    """As `scores_of`, each with what linear layers were given since those before; and the names of all calls."""
    with _Heard() as heard, torch.no_grad():
        subject.run(made, batch)
    found = []
    for scores, inputs in zip(heard.scores, heard.inputs, strict=False):
        if scores.dim() == 3 and scores.size(0) % len(batch.ids) == 0:  # (rows x heads, queries, keys)
            scores = scores.unflatten(0, (len(batch.ids), -1))
        if scores.dim() == 5:  # (rows, heads of keys, queries of each, queries, keys)
            scores = scores.flatten(1, 2)
        if scores.dim() == 4 and scores.shape[-2:] == (batch.tokens,) * 2 and scores.size(0) == len(batch.ids):
            found.append((scores.masked_fill(scores < HIDDEN, -torch.inf), inputs))
    return found, heard.called


HIDDEN = -1e4  # no score that counts in a softmax is this low; masks of finfo.min, -1e9 and -1e5 are


def of_one_token(batch: Batch) -> Batch:
    """The same batch with one and the same token everywhere: what is left in its scores is that of positions."""
    return replace(batch, ids=[[1] * batch.tokens] * len(batch.ids))
