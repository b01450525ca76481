"""Position augmentation for training: random, shifted or stretched coordinates, or coordinates from token types.

Each function takes positions and returns positions with new coordinates; order, documents and segments stay, so masks
do not change. Random numbers are drawn separately for every document of every row. A single row for a whole batch is
one text: use ``positions.expand(batch)`` for separate numbers per row. With ``training=False`` nothing is drawn.

>>> generator = torch.Generator().manual_seed(0)
>>> positions = randomized(Positions.arange(5).expand(2), generator, length=2048)  # then scheme(positions)
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from posenc.arguments import check_flag, check_type, number, one_or, shown, whole
from posenc.positions.positions import PADDING, Positions
from posenc.positions.validation import token_mask


def randomized(
    positions: Positions, generator: torch.Generator | None, length: int, *, training: bool = True
) -> Positions:
    """Randomized positions: replaces the n coordinates of a text by n sorted samples from 0 .. length - 1.

    Formula, for the distinct coordinates p_(0) < p_(1) < ... < p_(n-1) of a document:

        p_(m) <- u_(m),   u_(0) < u_(1) < ... < u_(n-1) sampled from {0, ..., length - 1} without replacement

    so that a model trained on short texts sees every distance up to ``length``. Tokens with equal coordinates keep
    equal ones. Coordinates become int64 and no longer increase by one. Without ``training`` positions are returned
    unchanged.

    Shapes: positions of one coordinate, any dtype. ``generator`` None is PyTorch's default. Synchronizes a GPU.
    Errors: ValueError for a length below 1, or below the number of distinct coordinates of a document.
    Source: Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of Transformers" (arXiv
    2305.16843), section 3; read: ``noisy_fixed_positional_encodings`` of google-deepmind's
    randomized_positional_encodings, which draws once for a whole batch.
    """
    _check(positions, generator, training)
    length = whole("length", length)
    coords = positions.scalar("randomized")
    if not training:
        return positions

    def chosen(count: int) -> Tensor:
        if count > length:
            raise ValueError(f"length must be at least {count}, the coordinates of a document, got {length}")
        return torch.randperm(length, generator=generator, device=_generator_device(generator))[:count].sort().values

    return positions.with_coords(_in_their_place(positions, coords, chosen, torch.int64))


def random_floats(
    positions: Positions,
    generator: torch.Generator | None,
    trained: int,
    *,
    length: float = 1.0,
    training: bool = True,
) -> Positions:
    """Random float sampling: replaces the n coordinates of a text by n sorted real numbers below ``length``.

    Formula, for the distinct coordinates p_(0) < p_(1) < ... < p_(n-1) of a document, with L = ``length``:

        p_(m) <- L u_(m),   u_(0) < u_(1) < ... < u_(n-1) from U(0, 1)
        p_(m) <- L (2m + 1) / (2 max(n, trained))   without ``training``

    ``trained`` is the number of tokens of a text in training, so that texts of any length have coordinates of one
    range. A scheme sees only fractions of a unit with L = 1: for rotary frequencies or slopes made for whole positions,
    take L = ``trained``. A text that grows beyond ``trained`` moves its earlier tokens: their cached keys are stale.

    Shapes: positions of one coordinate, any dtype; coordinates become float64. ``generator`` None is PyTorch's default.
    Synchronizes a GPU.
    Errors: ValueError for ``trained`` below 1, and a length that is not above 0.
    Source: Shimizu et al. 2026, "Position Encoding with Random Float Sampling Enhances Length Generalization of
    Transformers" (arXiv 2602.14050), section 3 and algorithm 1, both lines as a summary gives them. Neither the paper
    nor code of the authors was read, so L of their RoPE, ALiBi and sinusoids is not known.
    """
    _check(positions, generator, training)
    trained, length = whole("trained", trained), number("length", length, above=0)
    coords = positions.scalar("random_floats")

    def chosen(count: int) -> Tensor:
        if training:
            unit = torch.rand(count, generator=generator, device=_generator_device(generator), dtype=torch.float64)
            return length * unit.sort().values
        return length * (2 * torch.arange(count, dtype=torch.float64) + 1) / (2 * max(count, trained))

    return positions.with_coords(_in_their_place(positions, coords, chosen, torch.float64))


def shape(positions: Positions, generator: torch.Generator | None, most: int, *, training: bool = True) -> Positions:
    """SHAPE: adds a random offset to the positions of every text.

    Formula, with K = ``most``: p <- p + k,  k uniform in {0, ..., K} for each text.

    Relative schemes are unaffected; a scheme that adds vectors learns not to rely on where a text begins. Without
    ``training``, and with K = 0, positions are returned unchanged.

    Shapes: positions of one coordinate, any dtype, which is kept. ``generator`` None is PyTorch's default.
    Errors: ValueError for a ``most`` below 0.
    Source: Kiyono et al. 2021, "SHAPE: Shifted Absolute Position Embedding for Transformers" (arXiv 2109.05644),
    section 3. In ``onmt/modules/embeddings.py`` of github.com/butsugiri/shape, K itself is never drawn, the range is
    smaller near the end of the table, and without training every text starts at K: for weights trained with it, shift
    positions by K and do not use this function.
    """
    _check(positions, generator, training)
    most = whole("most", most, least=0)
    coords = positions.scalar("shape")
    if not training or most == 0:
        return positions
    moved = coords + _offsets(positions, generator, most).to(coords.dtype)
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
    """CAPE, continuous augmented positional embeddings: shifts texts, jitters tokens and stretches texts at random.

    Formula, for each text, with its mean coordinate m if ``center``, else m = 0:

        p <- (p - m + Delta + epsilon) lambda,   Delta ~ U(-shift, shift),   ln lambda ~ U(-ln stretch, ln stretch)
                                                 epsilon ~ U(-jitter, jitter), for each token

    With several axes, Delta and epsilon are drawn for each axis, and lambda is the same for all. A jitter below half
    the distance between tokens keeps their order. Without ``training`` p <- p - m.

    Shapes: positions of any axes; coordinates become float64. ``generator`` None is PyTorch's default.
    Errors: ValueError for a negative shift or jitter, and a stretch below 1.
    Source: Likhomanenko et al. 2021, "CAPE: Encoding Relative Positions with Continuous Augmented Positional
    Embeddings" (arXiv 2106.03143), section 3.1, and a copy of the authors' ``CAPE1d``, where the mean is over all
    tokens of a row and max_local_shift m is a jitter of m/2 token distances.
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
    p, (number_of, count) = flat.double(), _document_indices(positions)
    seen = positions.document != PADDING
    if center:
        sums = p.new_zeros(count, p.size(-1) + 1)
        ones = torch.ones_like(p[..., :1])
        sums = sums.index_add(0, number_of[seen], torch.cat((p, ones), -1)[seen])
        p = p - (sums[:, :-1] / sums[:, -1:].clamp(min=1))[number_of]
    if training:

        def drawn(reach: float, *size: int) -> Tensor:
            unit = torch.rand(*size, generator=generator, device=_generator_device(generator), dtype=torch.float64)
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
    """Abacus: the coordinate of a digit is its index within its number, so equal place values have equal coordinates.

    Formula, for the tokens of a text in order, with K = ``most``:

        p <- k + m   for the m-th digit, m = 1, 2, ..., of a run of digits;   0 for other tokens
        k uniform in {0, ..., K} for each text; 0 without ``training``

    ``digits`` marks the tokens that are digits. Write numbers with the least significant digit first, as the authors
    do. K exposes a model trained on short numbers to the positions of longer ones. With `Learned` of at least K + the
    longest number + 1 positions, the vectors are those of the paper.

    Shapes: positions of any axes; coordinates become one int64. ``generator`` None is PyTorch's default.
    Errors: ValueError for digits with other rows or tokens, and for a negative ``most``.
    Source: McLeish et al. 2024, "Transformers Can Do Arithmetic with the Right Embeddings" (arXiv 2405.17399), section
    3; read: ``abacus.py`` of github.com/mcleish7/arithmetic, which draws k once for a whole batch.
    """
    _check(positions, generator, training)
    most = whole("most", most, least=0)
    is_digit = _marks("digits", digits, positions)
    wide = positions.expand(is_digit.size(0))
    index, is_digit, document = _sort_by_document(wide, is_digit)
    begins = is_digit & ~(_shift_right(is_digit, False) & (_shift_right(document, PADDING) == document))
    place = torch.where(is_digit, _tokens_since(begins) + 1, 0)
    place = torch.zeros_like(place).scatter(1, index, place)
    if training and most:
        place = torch.where(place > 0, place + _offsets(wide, generator, most), 0)
    return wide.with_coords(place)


def bilevel(
    positions: Positions, ends: Bool[Tensor, "rows tokens"] | Int[Tensor, "rows tokens"], *, longest: int | None = None
) -> Positions:
    """BiPE, bilevel positions: the index of a token within its segment, such as a sentence, and that of the segment.

    Formula, for the tokens of a text in order, where ``ends`` marks the last token of each segment:

        p <- (n, s),   s = marked tokens before this one,   n = min(tokens of segment s before this one, longest - 1)

    Axis 0 is the index within the segment, for vectors added to the input; axis 1 is the segment, for rotations or
    biases. `RoPE` uses only segments with ``axes=2, allocation=[1] * pairs``; for `Learned` pass
    ``positions.with_coords(positions.coords[..., 0])``. Nothing is random. ``longest`` None is no limit.

    Shapes: positions of any axes; coordinates become two, int64.
    Errors: ValueError for ends with other rows or tokens, and for a ``longest`` below 1.
    Source: He et al. 2024, "Two Stones Hit One Bird: Bilevel Positional Encoding for Better Length Extrapolation"
    (arXiv 2401.16421), section 3, and ``get_bilevel_ids`` in github.com/zhenyuhe00/BiPE, where full stops and line
    breaks end a segment and longest is the training length.
    """
    check_type("positions", positions, Positions)
    if longest is not None:
        longest = whole("longest", longest)
    is_end = _marks("ends", ends, positions)
    wide = positions.expand(is_end.size(0))
    index, is_end, document = _sort_by_document(wide, is_end)
    opens = _shift_right(document, PADDING) != document
    begins = opens | _shift_right(is_end, False)
    inside = _tokens_since(begins)
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


def _generator_device(generator: torch.Generator | None) -> torch.device:
    """The device of the generator, so that a seed gives the same numbers on every device."""
    return torch.device("cpu") if generator is None else generator.device


def _marks(name: str, marks: Tensor, positions: Positions) -> Tensor:
    """The marks as bool, (rows, tokens), broadcast with the positions."""
    found = token_mask(name, marks)
    rows = max(positions.rows, found.size(0))
    if found.size(1) != len(positions) or any(not one_or(n, rows) for n in (positions.rows, found.size(0))):
        raise ValueError(
            f"{name} must have {positions.rows} rows and {len(positions)} tokens, got {tuple(found.shape)}"
        )
    return found.expand(rows, -1).to(positions.device)


def _document_indices(positions: Positions) -> tuple[Int[Tensor, "rows tokens"], int]:
    """The index of each token's document among the documents of all rows, and their number. Synchronizes a GPU."""
    row = torch.arange(positions.rows, device=positions.device)[:, None].expand(positions.order.shape)
    both = torch.stack((row, positions.document), -1).flatten(0, 1)
    if not both.numel():
        return torch.zeros_like(positions.document), 0
    found, which = both.unique(dim=0, return_inverse=True)
    return which.view(positions.order.shape), len(found)


def _offsets(positions: Positions, generator: torch.Generator | None, most: int) -> Int[Tensor, "rows tokens"]:
    """A random number from 0 to ``most`` for each document of each row, at each of its tokens."""
    number_of, count = _document_indices(positions)
    k = torch.randint(most + 1, (count,), generator=generator, device=_generator_device(generator))
    return k.to(positions.device)[number_of]


def _tokens_since(begins: Bool[Tensor, "rows tokens"]) -> Int[Tensor, "rows tokens"]:
    """How many tokens before each one the last marked token is, or the first of the row."""
    at = torch.arange(begins.size(1), device=begins.device).expand(begins.shape)
    return at - torch.where(begins, at, 0).cummax(1).values


def _in_their_place(
    positions: Positions, coords: Tensor, chosen: Callable[[int], Tensor], dtype: torch.dtype
) -> Tensor:
    """The n distinct coordinates of each document replaced by the n increasing numbers ``chosen(n)``; 0 at padding."""
    out = torch.zeros_like(coords, dtype=dtype)
    number_of, count = _document_indices(positions)
    for n in range(count):
        at = (number_of == n) & (positions.document != PADDING)
        if bool(at.any()):  # not of a row's padding
            places, which = coords[at].unique(return_inverse=True)
            out[at] = chosen(len(places)).to(out.device)[which]
    return out


def _sort_by_document(positions: Positions, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The indices that sort each row by document and then order, and the sorted marks and documents. Padding is not
    marked."""
    index = positions.order.argsort(dim=1, stable=True)
    index = index.gather(1, positions.document.gather(1, index).argsort(dim=1, stable=True))
    document = positions.document.gather(1, index)
    return index, marks.gather(1, index) & (document != PADDING), document


def _shift_right(x: Tensor, first: int | bool) -> Tensor:
    """x shifted right by one token, with ``first`` at the start of each row."""
    return torch.cat((torch.full_like(x[:, :1], first), x[:, :-1]), 1)
