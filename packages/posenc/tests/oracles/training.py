"""Positions made of tokens, one token at a time.

Abacus (McLeish et al. 2024, arXiv 2405.17399, section 3): the m-th digit of a number stands at m, all else at 0.
Bilevel (He et al. 2024, arXiv 2401.16421, section 3): a token stands at (n, s): s segments ended before it, and n
tokens of its own segment stand before it, but at most longest - 1. A mark belongs to the segment that it ends.
Conventions: texts are read by order, whatever the places of their tokens in a row; padding (document -1) stands at 0.
"""


def texts(order: list[int], document: list[int]) -> list[list[int]]:
    """The indices of each document's tokens, as they are read."""
    return [
        sorted((i for i, d in enumerate(document) if d == which), key=lambda i: order[i])
        for which in sorted(set(document) - {-1})
    ]


def abacus(digits: list[bool], order: list[int], document: list[int]) -> list[int]:
    """The place of each token of a row."""
    out = [0] * len(digits)
    for text in texts(order, document):
        run = 0
        for i in text:
            run = run + 1 if digits[i] else 0
            out[i] = run
    return out


def bilevel(ends: list[bool], order: list[int], document: list[int], longest: int | None) -> list[list[int]]:
    """The two coordinates of each token of a row."""
    out = [[0, 0] for _ in ends]
    for text in texts(order, document):
        inside, segment = 0, 0
        for i in text:
            out[i] = [inside if longest is None else min(inside, longest - 1), segment]
            inside += 1
            if ends[i]:
                inside, segment = 0, segment + 1
    return out
