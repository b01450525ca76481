"""Positions as models are trained on them: drawn at random, moved, stretched, or made of what the tokens are.

Each is a plain function of positions that gives positions: what a scheme sees changes, order, documents and segments
stay, so who sees whom does not. Every document of every row has draws of its own, so that packing and padding change
nothing but which numbers are drawn. One row of positions that serves a batch is one text: ``positions.expand(batch)``
has draws for each row. With ``training=False`` what is drawn is left out.

>>> generator = torch.Generator().manual_seed(0)
>>> positions = randomized(Positions.arange(5).expand(2), generator, length=2048)  # then scheme(positions)
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from posenc.arguments import check_flag, check_type, number, one_or, shown, whole
from posenc.positions.positions import PADDING, Positions
from posenc.positions.validation import token_mask


def randomized(
    positions: Positions, generator: torch.Generator | None, length: int, *, training: bool = True
) -> Positions:
    """Randomised positions: the n places of a text become n of 0 .. length - 1, drawn without return and sorted.

    Formula, for the places p_(0) < p_(1) < ... < p_(n-1) that the tokens of a document have:

        p_(m) <- u_(m),   u_(0) < u_(1) < ... < u_(n-1) drawn from {0, ..., length - 1}, each set as likely as any other

    so that a model trained on short texts has seen every distance up to ``length``. Tokens at one place stay at one.
    Coordinates are int64, and do not rise by one any more. Without ``training`` positions are given back as they are.

    Shapes: positions of one coordinate, any dtype. ``generator`` None is PyTorch's own. Waits for a GPU.
    Errors: ValueError for a length below 1, or below the places of a document.
    Source: Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers" (arXiv
    2305.16843), section 3; read: ``noisy_fixed_positional_encodings`` of google-deepmind's
    randomized_positional_encodings, which draws once for a whole batch.
    """
    _check(positions, generator, training)
    length = whole("length", length)
    coords = positions.scalar("randomized")
    if not training:
        return positions
    drawn = torch.zeros_like(coords, dtype=torch.int64)
    for at in _documents(positions):
        places, which = coords[at].unique(return_inverse=True)
        if len(places) > length:
            raise ValueError(f"length must be at least {len(places)}, the places of a document, got {length}")
        chosen = torch.randperm(length, generator=generator, device=_home(generator))[: len(places)].sort().values
        drawn[at] = chosen.to(drawn.device)[which]
    return positions.with_coords(drawn)


def shape(positions: Positions, generator: torch.Generator | None, most: int, *, training: bool = True) -> Positions:
    """SHAPE: every text begins somewhere else.

    Formula, with K = ``most``: p <- p + k,  k drawn from {0, ..., K} for each text, each as likely as any other.

    A scheme of distances sees no difference; one that adds vectors learns not to rely on where a text begins. Without
    ``training``, and with K = 0, positions are given back as they are.

    Shapes: positions of one coordinate, any dtype, which stays. ``generator`` None is PyTorch's own.
    Errors: ValueError for a ``most`` below 0.
    Source: Kiyono et al. 2021, "SHAPE: Shifted Absolute Position Embedding for Transformers" (arXiv 2109.05644),
    section 3; read: ``onmt/modules/embeddings.py`` of github.com/butsugiri/shape. As in the paper K itself can be
    drawn here. That code never draws K, draws less where its table ends, and without training begins every text at K:
    for weights trained with it, shift positions by K and leave this function out.
    """
    _check(positions, generator, training)
    most = whole("most", most, least=0)
    coords = positions.scalar("shape")
    if not training or most == 0:
        return positions
    number_of, count = _numbered(positions)
    k = torch.randint(most + 1, (count,), generator=generator, device=_home(generator)).to(coords.device)
    moved = coords + k[number_of].to(coords.dtype)
    return positions.with_coords(torch.where(positions.document == PADDING, coords, moved))


def cape(
    positions: Positions,
    generator: torch.Generator | None,
    *,
    shift: float = 0.0,
    jitter: float = 0.0,
    stretch: float = 1.0,
    center: bool = False,
    training: bool = True,
) -> Positions:
    """CAPE, continuous augmented positional embeddings: texts moved, tokens moved a little, texts stretched.

    Formula, of each text, with its mean place m where it is to ``center``, else m = 0:

        p <- (p - m + Delta + epsilon) lambda,   Delta ~ U(-shift, shift),   ln lambda ~ U(-ln stretch, ln stretch)
                                                 epsilon ~ U(-jitter, jitter), for each token

    With several coordinates Delta and epsilon are drawn for each of them, and lambda is one for all. A jitter below
    half the step between tokens leaves their sequence as it is. Without ``training`` p <- p - m.

    Shapes: positions of any axes; coordinates become float64. ``generator`` None is PyTorch's own. Errors: ValueError
    for a shift or a jitter below 0 and a stretch below 1. Source: Likhomanenko et al. 2021, "CAPE: Encoding Relative
    Positions with Continuous Augmented Positional Embeddings" (arXiv 2106.03143), section 3.1. The authors' repository
    could not be read, but a copy of their ``CAPE1d``: there the mean is that of all tokens of a row, and its
    max_local_shift m is a jitter of m/2 steps between tokens here.
    """
    _check(positions, generator, training)
    check_flag("center", center)
    for name, value in (("shift", shift), ("jitter", jitter)):
        if number(name, value) < 0:
            raise ValueError(f"{name} must not be negative, got {shown(value)}")
    if number("stretch", stretch) < 1:
        raise ValueError(f"stretch must be at least 1, got {shown(stretch)}")
    if not center and not training:
        return positions
    flat = positions.coords if positions.coords.dim() == 3 else positions.coords[..., None]
    p, (number_of, count) = flat.double(), _numbered(positions)
    seen = positions.document != PADDING
    if center:
        sums = p.new_zeros(count, p.size(-1) + 1)
        ones = torch.ones_like(p[..., :1])
        sums = sums.index_add(0, number_of[seen], torch.cat((p, ones), -1)[seen])
        p = p - (sums[:, :-1] / sums[:, -1:].clamp(min=1))[number_of]
    if training:

        def drawn(reach: float, *size: int) -> Tensor:
            unit = torch.rand(*size, generator=generator, device=_home(generator), dtype=torch.float64)
            return ((2 * unit - 1) * reach).to(p.device)

        p = p + drawn(shift, count, p.size(-1))[number_of] + drawn(jitter, *p.shape)
        p = p * drawn(math.log(stretch), count, 1).exp()[number_of]
    p = torch.where(seen[..., None], p, flat.double())
    return positions.with_coords(p if positions.coords.dim() == 3 else p[..., 0])


def abacus(
    positions: Positions,
    generator: torch.Generator | None,
    digits: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"],
    *,
    most: int = 0,
    training: bool = True,
) -> Positions:
    """Abacus: a digit stands at its place within its number, so that digits of equal worth have equal coordinates.

    Formula, for the tokens of a text in their order, with K = ``most``:

        p <- k + m   for the m-th digit, m = 1, 2, ..., of a run of digits;   0 for what is no digit
        k drawn from {0, ..., K} for each text, each as likely as any other; 0 without ``training``

    ``digits`` marks the tokens that are digits. The first digit of a number is its lowest where numbers are written
    backwards, as the authors do. K lets a model that is trained on short numbers see the places of long ones. With
    `Learned` of at least K + the longest number + 1 places the vectors are those of the paper.

    Shapes: positions of any axes; coordinates become one int64. ``generator`` None is PyTorch's own.
    Errors: ValueError for digits of other rows or tokens, and for a ``most`` below 0.
    Source: McLeish et al. 2024, "Transformers Can Do Arithmetic with the Right Embeddings" (arXiv 2405.17399), section
    3; read: ``abacus.py`` of github.com/mcleish7/arithmetic, which draws k once for a whole batch.
    """
    _check(positions, generator, training)
    most = whole("most", most, least=0)
    is_digit = _marks("digits", digits, positions)
    wide = positions.expand(is_digit.size(0))
    index, is_digit, document = _as_written(wide, is_digit)
    begins = is_digit & ~(_before(is_digit, False) & (_before(document, PADDING) == document))
    at = torch.arange(index.size(1), device=index.device).expand(index.shape)
    first = torch.where(begins, at, 0).cummax(1).values
    place = torch.where(is_digit, at - first + 1, 0)
    place = torch.zeros_like(place).scatter(1, index, place)
    if training and most:
        number_of, count = _numbered(wide)
        k = torch.randint(most + 1, (count,), generator=generator, device=_home(generator)).to(place.device)
        place = torch.where(place > 0, place + k[number_of], 0)
    return wide.with_coords(place)


def bilevel(
    positions: Positions,
    ends: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"],
    *,
    longest: int | None = None,
) -> Positions:
    """BiPE, bilevel positions: a place within the segment, such as a sentence, and the number of the segment.

    Formula, for the tokens of a text in their order, of which ``ends`` marks the last of each segment:

        p <- (n, s),   s = marked tokens before this one,   n = min(tokens of segment s before this one, longest - 1)

    Axis 0 is the place within the segment, axis 1 the segment: vectors are added by the one, rotations or biases go by
    the other. `RoPE` turns by segments alone with ``axes=2, allocation=[1] * pairs``; for `Learned` take
    ``positions.with_coords(positions.coords[..., 0])``. Nothing is drawn. ``longest`` None is no limit.

    Shapes: positions of any axes; coordinates become two, int64.
    Errors: ValueError for ends of other rows or tokens, and for a ``longest`` below 1.
    Source: He et al. 2024, "Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation"
    (arXiv 2401.16421), section 3; read: ``get_bilevel_ids`` in github.com/zhenyuhe00/BiPE, where full stops and line
    breaks end a segment and longest is the trained length.
    """
    check_type("positions", positions, Positions)
    if longest is not None:
        longest = whole("longest", longest)
    is_end = _marks("ends", ends, positions)
    wide = positions.expand(is_end.size(0))
    index, is_end, document = _as_written(wide, is_end)
    opens = _before(document, PADDING) != document
    begins = opens | _before(is_end, False)
    at = torch.arange(index.size(1), device=index.device).expand(index.shape)
    inside = at - torch.where(begins, at, 0).cummax(1).values
    inside = inside if longest is None else inside.clamp(max=longest - 1)
    segment = begins.long().cumsum(1)
    segment = segment - torch.where(opens, segment, 0).cummax(1).values
    both = torch.stack((inside, segment), -1).masked_fill((document == PADDING)[..., None], 0)
    return wide.with_coords(torch.zeros_like(both).scatter(1, index[..., None].expand(both.shape), both))


# -- texts ------------------------------------------------------------------------------------------------------------


def _check(positions: Positions, generator: torch.Generator | None, training: bool) -> None:
    check_type("positions", positions, Positions)
    check_type("generator", generator, torch.Generator, None)
    check_flag("training", training)


def _home(generator: torch.Generator | None) -> torch.device:
    """Where it draws: a seed gives the same numbers wherever the positions are."""
    return torch.device("cpu") if generator is None else generator.device


def _marks(name: str, marks: Tensor, positions: Positions) -> Tensor:
    """The marks as bool, (rows, tokens), of as many rows as positions or marks have."""
    found = token_mask(name, marks)
    rows = max(positions.rows, found.size(0))
    if found.size(1) != len(positions) or any(not one_or(n, rows) for n in (positions.rows, found.size(0))):
        raise ValueError(
            f"{name} must be of {positions.rows} rows and {len(positions)} tokens, got {tuple(found.shape)}"
        )
    return found.expand(rows, -1).to(positions.device)


def _numbered(positions: Positions) -> tuple[Int[Tensor, "rows tokens"], int]:
    """A number for each document of each row, by rows and then documents, and how many there are. Waits for a GPU."""
    row = torch.arange(positions.rows, device=positions.device)[:, None].expand(positions.order.shape)
    both = torch.stack((row, positions.document), -1).flatten(0, 1)
    if not both.numel():
        return torch.zeros_like(positions.document), 0
    found, which = both.unique(dim=0, return_inverse=True)
    return which.view(positions.order.shape), len(found)


def _documents(positions: Positions) -> list[Bool[Tensor, "rows tokens"]]:
    """Which tokens each document of each row has. Padding is of none."""
    number_of, count = _numbered(positions)
    seen = positions.document != PADDING
    return [mask for n in range(count) if bool((mask := (number_of == n) & seen).any())]


def _as_written(positions: Positions, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where tokens stand in each row when they are sorted by document and then by order, and their marks and documents
    in that sequence. Padding is not marked."""
    index = positions.order.argsort(dim=1, stable=True)
    index = index.gather(1, positions.document.gather(1, index).argsort(dim=1, stable=True))
    document = positions.document.gather(1, index)
    return index, marks.gather(1, index) & (document != PADDING), document


def _before(x: Tensor, first: int | bool) -> Tensor:
    """What stands before each token of a row; ``first`` before its first."""
    return torch.cat((torch.full_like(x[:, :1], first), x[:, :-1]), 1)
