"""The measurements of one model with one scaling: the loss on text.

Every measurement is one forward pass over one piece of text, so an interrupted run loses at most one.

- ``final``, at a length L: bits per byte of the same last tokens of a piece, given the last L tokens of it. Only the
  amount of context differs between lengths.
- ``by_position``, at the longest length: bits per token at sampled positions of the whole piece, in buckets, from the
  same pass.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from posenc_lab.kit.files import rounded

PLACES = 16  # of each bucket of positions
BUCKETS = 16  # of a piece


@torch.no_grad()
def nats(model: Any, tokens: Tensor, places: Tensor) -> Tensor:
    """The loss of the tokens after ``places`` of a text (tokens,). Logits are computed only at those places, since
    those of a long text take gigabytes."""
    device = next(model.parameters()).device
    ids = tokens[:-1].to(device)[None]
    # Without a cache, since the keys are not used again.
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=places.to(device)).logits[0].float()
    return F.cross_entropy(logits, tokens.to(device)[places.to(device) + 1], reduction="none").double().cpu()


@torch.no_grad()
def begin_anew(model: Any) -> None:
    """Resets the model to its initial state: dynamic scalings of transformers keep the frequencies of the longest text
    until they see a short one."""
    model(input_ids=torch.zeros((1, 1), dtype=torch.int64, device=next(model.parameters()).device), use_cache=False)


def with_begin(tokens: Tensor, length: int, begin: Tensor) -> Tensor:
    """The last ``length`` input tokens and the target after them; ``begin`` replaces the first of them."""
    part = tokens[-(length + 1) :]
    return torch.cat((begin, part[len(begin) :]))


def final(model: Any, tokens: Tensor, length: int, scored: int, begin: Tensor) -> Tensor:
    """Nats of the last ``scored`` tokens, given the last ``length`` tokens."""
    assert scored <= length
    return nats(model, with_begin(tokens, length, begin), torch.arange(length - scored, length))


def spread(length: int, scored: int) -> tuple[Tensor, list[int]]:
    """Sampled positions to score over a whole piece, including the last ``scored``, and the edges of their buckets.

    Bucket widths double from 16 tokens up to a sixteenth of the length, and are constant after that."""
    edges, width = [0], 16
    while edges[-1] < length:
        edges.append(min(edges[-1] + width, length))
        width = min(max(edges[-1], 16), max(length // BUCKETS, 16))
    rng = np.random.default_rng(0)  # the same places for every scaling
    some = [np.sort(rng.choice(np.arange(a, b), min(PLACES, b - a), replace=False)) for a, b in pairwise(edges)]
    both = np.union1d(np.concatenate(some), np.arange(length - scored, length))
    return torch.from_numpy(both), edges


def by_position(model: Any, tokens: Tensor, length: int, scored: int, begin: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Nats of the last ``scored`` tokens, and bits per token of each bucket of positions, from one pass."""
    places, edges = spread(length, scored)
    each = nats(model, with_begin(tokens, length, begin), places)
    bucket = torch.bucketize(places, torch.tensor(edges[1:]), right=True)
    bits = [float(each[bucket == n].mean()) / math.log(2) for n in range(len(edges) - 1)]
    return each[-scored:], {"edges": edges, "bits": [rounded(x) for x in bits]}


def beginning(tokenizer: Any) -> Tensor:
    """The beginning-of-sequence token that the tokenizer puts before a text, if any."""
    ids = tokenizer("a")["input_ids"]
    bos = tokenizer.bos_token_id
    return torch.tensor([bos] if bos is not None and ids[:1] == [bos] else [], dtype=torch.int64)
