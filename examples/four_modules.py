"""Four modules of AI Summer's "How Positional Embeddings work in Self-Attention", as posenc's schemes.

1. AbsPosEmb1D        is posenc.AbsoluteInAttention: a vector per key, met by the query.
2. RelPosEmb1D        is posenc.Relative1D: a vector per distance, shared by the heads or one set per head.
3. relative_to_absolute   is an index: out[i, j] = q[i, j - i + N - 1].
4. RelPosEmb2D        is posenc.Relative2D, once it is set right: as published it swaps heights and widths, lays its
   second term at transposed tokens, and fails on every grid that is not square.

The modules return the term of positions alone, unscaled: the caller adds it to q k^T and divides by sqrt(d).

Run: python examples/four_modules.py
"""

import torch
from torch import Tensor
from torch.nn import functional as F

import posenc
from posenc import Positions

HEADS, DIM = 3, 8


def relative_to_absolute(met: Tensor) -> Tensor:
    """(..., N, 2N - 1), a column per distance, to (..., N, N), a column per key.

    Row i wants the N columns from N - 1 - i on. With one column of padding, laid out in a line, these are N numbers in
    every 2N - 1, from number N - 1 on.
    """
    n, distances = met.shape[-2:]
    if distances != 2 * n - 1:
        raise ValueError(f"{n} tokens have {2 * n - 1} distances, got {distances}")
    line = F.pad(met, (0, 1)).flatten(-2)
    return line[..., n - 1 :].unfold(-1, n, 2 * n - 1)[..., :n, :]


def absolute_1d(q: Tensor, table: Tensor) -> Tensor:
    """q_i . R_j, R (tokens, dim)."""
    return q @ table.mT


def relative_1d(q: Tensor, table: Tensor) -> Tensor:
    """q_i . R[j - i + N - 1], R (2N - 1, dim), or (heads, 2N - 1, dim)."""
    return relative_to_absolute(q @ table.mT)


def table_shape_as_published(tokens: int, dim: int, heads: int | None = None) -> tuple[int, ...]:
    """The shape of RelPosEmb1D's table. The flag "shared" is None or the number of heads, and a number is true: asked
    for one set per head, the module still makes one for all."""
    shared = heads if heads is not None else True
    return (2 * tokens - 1, dim) if shared else (heads, 2 * tokens - 1, dim)


def relative_2d_by_loops(q: Tensor, row_table: Tensor, column_table: Tensor, height: int, width: int) -> Tensor:
    """q_i . (R_h[row distance] + R_w[column distance]), pair by pair. q (batch, heads, height * width, dim)."""
    out = q.new_empty(*q.shape[:3], q.size(2))
    for i in range(height * width):
        for j in range(height * width):
            down, right = j // width - i // width, j % width - i % width
            vector = row_table[down + height - 1] + column_table[right + width - 1]
            out[:, :, i, j] = q[:, :, i] @ vector
    return out


def relative_2d_as_published(q: Tensor, emb_w: Tensor, emb_h: Tensor, height: int, width: int) -> Tensor:
    """What RelPosEmb2D computes: emb_w, made for ``height`` tokens, meets the columns; emb_h, made for ``width``, the
    rows, and its term is laid down as if tokens were numbered column by column."""
    grid = q.unflatten(2, (height, width))
    along_rows = relative_1d(grid, emb_w)  # (..., row, column, column'): fails unless width == height
    along_columns = relative_1d(grid.transpose(2, 3), emb_h)  # (..., column, row, row')
    first = along_rows[:, :, :, None].expand(-1, -1, -1, height, -1, -1).transpose(3, 4)
    second = along_columns[:, :, :, None].expand(-1, -1, -1, width, -1, -1).transpose(3, 4)
    # The first is (row, column, row', column'), as it should be, the second (column, row, column', row').
    return first.flatten(4, 5).flatten(2, 3) + second.flatten(4, 5).flatten(2, 3)


def transposed(term: Tensor, size: int) -> Tensor:
    """A term on a square grid, with the tokens of both axes renumbered column by column."""
    order = torch.arange(size * size).view(size, size).mT.flatten()
    return term[..., order, :][..., order]


def position_term(q: Tensor, scheme: posenc.Scheme, positions: Positions) -> Tensor:
    """posenc's logits for keys of 0, times sqrt(d): the term of positions alone."""
    with torch.no_grad():
        logits = posenc.logits(q, torch.zeros_like(q), scheme, query_positions=positions, key_positions=positions)
    return logits * q.size(-1) ** 0.5


def logits(q: Tensor, k: Tensor, term: Tensor) -> Tensor:
    """(q k^T + term) / sqrt(d), as the article adds it."""
    return (q @ k.mT + term) / q.size(-1) ** 0.5


def main() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 2, HEADS, 4, DIM, dtype=torch.float64)

    print("1. AbsPosEmb1D, 4 tokens")
    scheme = posenc.AbsoluteInAttention(4, DIM).double()
    with torch.no_grad():
        off = (posenc.logits(q, k, scheme) - logits(q, k, absolute_1d(q, scheme.weight))).abs().max()
    print(f"   logits differ from posenc.AbsoluteInAttention's by {off:.0e}")

    print("\n2. RelPosEmb1D, 4 tokens: 7 distances, 7 vectors")
    print("   index   distance   it stands for")
    for index in range(7):
        step = index - 3
        pair = "d(i, i)" if step == 0 else f"d(i, i {'+' if step > 0 else '-'} {abs(step)})"
        print(f"   {index:5}   {step if step == 0 else f'{step:+}':>8}   {pair}")
    for heads in (None, HEADS):
        scheme = posenc.Relative1D(4, DIM, num_heads=heads).double()
        with torch.no_grad():
            off = (posenc.logits(q, k, scheme) - logits(q, k, relative_1d(q, scheme.weight))).abs().max()
        kind = "shared by the heads" if heads is None else "one set per head"
        print(f"   {kind:20} {tuple(scheme.weight.shape)!s:11} logits differ from posenc.Relative1D's by {off:.0e}")

    print(
        f"   as published, with heads={HEADS}, the table is {table_shape_as_published(4, DIM, HEADS)}: shared after all"
    )

    print("\n3. relative_to_absolute: which of the 7 columns each pair takes")
    print(f"   every row {list(range(7))} becomes")
    for row in relative_to_absolute(torch.arange(7).expand(4, 7)).tolist():
        print(f"             {row}")

    print("\n4. RelPosEmb2D: posenc.Relative2D against a loop over all pairs")
    for height, width in ((3, 3), (2, 3)):
        scheme = posenc.Relative2D((height, width), DIM).double()
        q = torch.randn(2, HEADS, height * width, DIM, dtype=torch.float64)
        grid = Positions.grid(height, width)
        ours = position_term(q, scheme, grid)
        with torch.no_grad():
            truth = relative_2d_by_loops(q, scheme.row_table, scheme.column_table, height, width)
        print(f"   {height} x {width}: posenc is off by {(ours - truth).abs().max():.0e}")
        # As published: the table that meets the columns is made for the height, and the other way round.
        own_w, own_h = (torch.randn(2 * n - 1, DIM, dtype=torch.float64) for n in (height, width))
        try:
            published = relative_2d_as_published(q, own_w, own_h, height, width)
        except ValueError as error:
            print(f"   {height} x {width}: the published module fails: {error}")
            continue
        truth = relative_2d_by_loops(q, own_h, own_w, height, width)
        print(f"   {height} x {width}: the published module is off by {(published - truth).abs().max():.2f}")
        second = relative_2d_by_loops(q, own_h, 0 * own_w, height, width)
        mended = published - transposed(second, height) + second
        print(f"          with its second term turned back, by {(mended - truth).abs().max():.0e}")


if __name__ == "__main__":
    main()
