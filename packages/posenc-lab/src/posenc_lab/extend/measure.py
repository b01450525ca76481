"""The measurements of one model with one scaling: the loss on text, and retrieval puzzles.

Every measurement is one forward pass over one piece of text or one puzzle, so an interrupted run loses at most one.

- ``final``, at a length L: bits per byte of the same last tokens of a piece, given the last L tokens of it. Only the
  amount of context differs between lengths.
- ``by_position``, at the longest length: bits per token at sampled positions of the whole piece, in buckets, from the
  same pass.
- ``passkey``: a number occurs once in a text, at a given depth, and is asked for at the end (Mohtashami & Jaggi 2023).
- ``item``: a numbered list of words as long as the context; the model must continue the line with a given number.

An answer is found if each of its tokens is the most likely one, as in greedy decoding; ``bits`` is the loss of the
whole answer, which tells more about a model that seldom finds it."""

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from posenc_lab.kit.files import rounded

PLACES = 16  # of each bucket of positions
BUCKETS = 16  # of a piece

# Nouns that most vocabularies have as one token each.
WORDS = """
apple river stone bread chair cloud horse window garden bridge candle forest guitar hammer island jacket
kitchen ladder mirror needle orange pencil rabbit saddle table umbrella valley wallet yellow zebra anchor
basket camera dragon engine flower glass house insect jungle kettle lemon market napkin ocean paper queen
rocket school tiger uncle violin winter bottle circle doctor eagle finger ghost honey
""".split()  # noqa: SIM905 (a literal for each would be sixty lines)


class RoomError(ValueError):
    """A length that is too short for a puzzle."""


class Puzzle(NamedTuple):
    """Tokens of a text that ends with an answer, and how many of the last ones are the answer."""

    tokens: Tensor
    answer: int


@torch.no_grad()
def nats(model: Any, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of the tokens after ``places`` of a text (tokens,), and whether each is the most likely one. Logits are
    computed only at those places, since those of a long text take gigabytes."""
    device = next(model.parameters()).device
    ids = tokens[:-1].to(device)[None]
    # Without a cache, since the keys are not used again.
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=places.to(device)).logits[0].float()
    target = tokens.to(device)[places.to(device) + 1]
    return F.cross_entropy(logits, target, reduction="none").double().cpu(), (logits.argmax(-1) == target).cpu()


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
    part = with_begin(tokens, length, begin)
    return nats(model, part, torch.arange(length - scored, length))[0]


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
    each, _ = nats(model, with_begin(tokens, length, begin), places)
    bucket = torch.bucketize(places, torch.tensor(edges[1:]), right=True)
    bits = [float(each[bucket == n].mean()) / math.log(2) for n in range(len(edges) - 1)]
    return each[-scored:], {"edges": edges, "bits": [rounded(x) for x in bits]}


def passkey(tokenizer: Any, filler: Tensor, length: int, depth: int, begin: Tensor, rng: np.random.Generator) -> Puzzle:
    """A text of ``length`` tokens that says a number at ``depth`` percent of it, asks for it at the end and answers."""
    key = str(rng.integers(10_000, 100_000))
    sentence = _ids(tokenizer, f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n")
    asked = _ids(tokenizer, "\nWhat is the pass key? The pass key is")
    answer = _ids(tokenizer, f" {key}")
    room = length + 1 - len(begin) - len(sentence) - len(asked) - len(answer)
    _require_room("passkey", room, length)
    at = room * depth // 100
    return Puzzle(torch.cat((begin, filler[:at], sentence, filler[at:room], asked, answer)), len(answer))


def item(tokenizer: Any, length: int, depth: int, begin: Tensor, rng: np.random.Generator) -> Puzzle:
    """A numbered list of words that is ``length`` tokens long with its question and answer, which is the word at
    ``depth`` percent of it."""
    head, lines, words = _ids(tokenizer, "A list of words:\n"), list[Tensor](), list[str]()
    tail = len(_ids(tokenizer, _again(99999) + " " + max(WORDS, key=len)))
    room = length + 1 - len(begin) - len(head) - tail
    used = 0
    while True:
        word = str(rng.choice(WORDS))
        line = _ids(tokenizer, f"{len(lines) + 1}. {word}\n")
        if used + len(line) > room:
            break
        lines.append(line)
        words.append(word)
        used += len(line)
    if not lines:
        _require_room("item", room - len(line), length)
    at = min(len(lines) * depth // 100, len(lines) - 1)
    asked = _ids(tokenizer, _again(at + 1))
    answer = _ids(tokenizer, f" {words[at]}")
    return Puzzle(torch.cat((begin, head, *lines, asked, answer)), len(answer))


def _again(number: int) -> str:
    return f"\nA word of the list again:\n{number}."


def solved(model: Any, puzzle: Puzzle) -> dict[str, Any]:
    """Whether the model finds the answer, and the loss of it in bits."""
    length = len(puzzle.tokens) - 1
    each, right = nats(model, puzzle.tokens, torch.arange(length - puzzle.answer, length))
    return {"found": int(bool(right.all())), "bits": rounded(float(each.sum()) / math.log(2)), "tokens": length}


def beginning(tokenizer: Any) -> Tensor:
    """The beginning-of-sequence token that the tokenizer puts before a text, if any."""
    ids = tokenizer("a")["input_ids"]
    bos = tokenizer.bos_token_id
    return torch.tensor([bos] if bos is not None and ids[:1] == [bos] else [], dtype=torch.int64)


def _ids(tokenizer: Any, text: str) -> Tensor:
    """The tokens of ``text`` inside a longer text: some tokenizers add a space at the beginning."""

    def of(words: str) -> list[int]:
        return list(tokenizer(words, add_special_tokens=False)["input_ids"])

    for before in ("\n", ":"):
        alone, both = of(before), of(before + text)
        if both[: len(alone)] == alone:
            return torch.tensor(both[len(alone) :])
    return torch.tensor(of(text))


def _require_room(kind: str, room: int, length: int) -> None:
    if room < 0:
        raise RoomError(
            f"lengths must leave room for {kind}, {length - room} tokens of this tokenizer, got {length}: give longer "
            "--lengths, or --tasks text"
        )
