"""Derivations, checked with numbers: what a well-known page of notes on positional encoding derives on paper.

RoPE (its inner product knows the distance alone; the matrix form is the Hadamard form), the linear map between two
sinusoidal vectors, ALiBi's slopes, Transformer-XL's four terms, and what DA-Transformer asks of its function f.

And one correction: rotations do not keep far tokens from influencing each other.

Run: python examples/derivations.py
"""

import torch
from torch import Tensor

import posenc
from posenc import Positions
from posenc.lowering.forms import Block

DIM = 64


def rotated(x: Tensor, position: int, layout: str = "half") -> Tensor:
    """RoPE's turn of the vectors x (..., dim) for one position."""
    rope = posenc.RoPE(x.size(-1), layout=layout)
    turn = rope.rotation(Positions.arange(1, start=position), torch.float64).query
    return turn(x.reshape(-1, 1, 1, x.size(-1))).reshape(x.shape)


def inner_products(distance: int, starts: tuple[int, ...]) -> Tensor:
    """<R_m q, R_n k> for n = m + distance: one query and one key, wherever they start."""
    q, k = torch.randn(2, DIM, dtype=torch.float64)
    return torch.stack([rotated(q, m) @ rotated(k, m + distance) for m in starts])


def complex_form(m: int, n: int, theta: float = 1.0) -> tuple[Tensor, Tensor]:
    """In two dimensions: <R_m q, R_n k>, and Re[q k* e^{i (m - n) theta}] with q and k read as complex numbers."""
    q, k = torch.randn(2, 2, dtype=torch.float64)
    turn = torch.polar(torch.tensor(1.0, dtype=torch.float64), torch.tensor((m - n) * theta, dtype=torch.float64))
    return rotated(q, m) @ rotated(k, n), (torch.view_as_complex(q) * torch.view_as_complex(k).conj() * turn).real


def rotation_matrix(position: int, dim: int) -> Tensor:
    """R_m in full: dim/2 blocks [[cos, -sin], [sin, cos]] along the diagonal, zeros elsewhere."""
    angle = position * 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.block_diag(*(torch.stack((a.cos(), -a.sin(), a.sin(), a.cos())).view(2, 2) for a in angle))


def hadamard_form(x: Tensor, position: int) -> Tensor:
    """R_m x without the matrix: x * cos + (-x_2, x_1, -x_4, x_3, ...) * sin."""
    angle = position * 10_000.0 ** (-torch.arange(0, x.size(-1), 2, dtype=torch.float64) / x.size(-1))
    angle = angle.repeat_interleave(2)
    swapped = torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    return x * angle.cos() + swapped * angle.sin()


def linear_map_error(offset: int) -> float:
    """max over p of |P[p + offset] - M P[p]|, one matrix M for all p."""
    scheme = posenc.Sinusoidal(DIM)
    P = scheme.table(Positions.arange(1000 + offset), torch.float64)[0]
    return (P[offset:] - P[:1000] @ scheme.linear_map([float(offset)]).mT).abs().max().item()


def transformer_xl() -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(logits, their four terms) for 5 queries that follow a memory of 3 keys."""
    scheme = posenc.TransformerXL(num_heads=2, head_dim=8).double()
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    query, key = torch.randn(1, 2, 5, 8).double(), torch.randn(1, 2, 8, 8).double()
    at, of = Positions.arange(5, start=3), Positions.arange(8)
    with torch.no_grad():
        logits = posenc.logits(query, key, scheme, query_positions=at, key_positions=of)
        return logits, scheme.terms(Block(query, key, at, of, scale=8**-0.5))


def distance_aware(w: float, v: float, distance: float) -> float:
    """f(w |r|; v) of a DA-Transformer head."""
    scheme = posenc.DistanceAware(1).double()
    with torch.no_grad():
        scheme.w.fill_(w)
        scheme.v.fill_(v)
        return scheme.factor(torch.tensor([distance], dtype=torch.float64)).item()


def faded() -> tuple[Tensor, Tensor]:
    """(scores, attention weights) of two keys alike, one near and one far, in a head that lets the far fade (w < 0)."""
    scheme = posenc.DistanceAware(1)
    torch.nn.init.constant_(scheme.w, -1.0)
    query, keys = torch.full((1, 1, 1, 1), 3.0), torch.ones(1, 1, 2, 1)
    at, of = Positions.arange(1), Positions(torch.tensor([[0, 1000]]))
    with torch.no_grad():
        scores = posenc.logits(query, keys, scheme, query_positions=at, key_positions=of).flatten()
    return scores, scores.softmax(0)


def scores_by_distance(query: Tensor, key: Tensor, distances: int, dim: int) -> Tensor:
    """<R_r q, k> / sqrt(d) for r = 0 .. distances - 1: the query stands r positions after the key."""
    rope = posenc.RoPE(dim)
    copies = query.expand(1, 1, distances, dim)
    at, of = Positions.arange(distances), Positions.arange(1)
    return posenc.logits(copies, key.reshape(1, 1, 1, dim), rope, query_positions=at, key_positions=of).flatten()


def key_that_peaks_at(distance: int, query: Tensor) -> Tensor:
    """The key whose score with this query is highest at that distance: the query itself, turned that far."""
    return rotated(query, distance)


def bound(distance: int, dim: int) -> float:
    """What does fall: (2/d) sum_j |S_j|, S_j = sum_{k<j} e^{i r theta_k}. A score stays below a multiple of it."""
    angle = distance * 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.polar(torch.ones_like(angle), angle).cumsum(0).abs().mean().item()


def main() -> None:
    torch.manual_seed(0)

    print("RoPE: the inner product depends on the distance only")
    starts = (0, 1, 10, 1000, 100_000)
    for distance in (0, 1, 7):
        products = inner_products(distance, starts)
        spread = (products - products[0]).abs().max()
        print(
            f"  n - m = {distance}: {products[0]:+.6f} from m = 0, and within {spread:.0e} of it up to m = {starts[-1]}"
        )
    turned, product = complex_form(5, 2)
    print(f"  two dimensions, m = 5, n = 2: {turned:+.6f} by the rotations, {product:+.6f} by Re[q k* e^i(m-n)θ]")

    print("\nRoPE: the Hadamard form equals the matrix form")
    x, m = torch.randn(100, DIM, dtype=torch.float64), 17
    matrix = rotation_matrix(m, DIM)
    print(f"  matrix: {int((matrix != 0).sum())} of {matrix.numel()} entries are not 0")
    print(f"  |R x - Hadamard form| <= {(x @ matrix.mT - hadamard_form(x, m)).abs().max():.0e}")
    ours = rotated(x, m, layout="interleaved")
    print(f"  |R x - posenc.RoPE(layout='interleaved')| <= {(x @ matrix.mT - ours).abs().max():.0e}")

    print("\nSinusoid: P[p + k] = M_k P[p], the same M_k for every p")
    for offset in (1, 10, 100):
        print(f"  k = {offset:3}: off by at most {linear_map_error(offset):.0e} over 1000 positions")

    print("\nALiBi: the slopes are 2^-h for 8 heads, and for no other number of heads")
    for heads in (4, 6, 8, 12, 16):
        exponents = -torch.tensor(posenc.ALiBi(heads).slopes, dtype=torch.float64).log2()
        print(f"  {heads:2} heads: 2^-h for h = " + ", ".join(f"{e:g}" for e in exponents.tolist()))

    print("\nTransformer-XL: four terms make the logit (query 3 after a memory, key 1, head 0)")
    logits, terms = transformer_xl()
    names = ("content", "content-dependent position bias", "global content bias", "global position bias")
    for name, term in zip(names, terms, strict=True):
        print(f"  {term[0, 0, 0, 1]:+9.4f}  {name}")
    print(f"  {logits[0, 0, 0, 1]:+9.4f}  logit; the sum is off by at most {(logits - sum(terms)).abs().max():.0e}")

    print("\nDA-Transformer: what f(w r; v) must do")
    print(f"  f(0) = {distance_aware(1.0, 2.0, 0):g}: no distance, no influence")
    print(f"  f -> {distance_aware(-1.0, 2.0, 1e6):g} far away, for w < 0")
    top = 1 + torch.tensor(2.0).exp().item()
    print(f"  f -> {distance_aware(1.0, 2.0, 1e6):.4f} far away, for w > 0: the bound 1 + e^v = {top:.4f}")
    rising = [distance_aware(0.5, 2.0, r) for r in range(50)]
    falling = [distance_aware(-0.5, 2.0, r) for r in range(50)]
    monotone = rising == sorted(rising) and falling == sorted(falling, reverse=True)
    print(f"  monotone in the distance: {monotone}")
    steep = ", ".join(f"{distance_aware(1.0, v, 2):.3f} at v = {v:g}" for v in (-2.0, 0.0, 2.0))
    print(f"  tunable: f(2) is {steep}")
    scores, weights = faded()
    print(f"  suppressed is not hidden: two keys alike, near and far, score {scores[0]:g} and {scores[1]:g},")
    print(f"  and the far one keeps {weights[1]:.1%} of the attention")

    print("\nCorrection: rotations do not stop far tokens from influencing each other (d = 128)")
    query = torch.randn(128, dtype=torch.float64)
    for distance in (10, 100, 1000):
        scores = scores_by_distance(query, key_that_peaks_at(distance, query), 4096, 128)
        print(
            f"  a key made for r = {distance:4}: its score is highest at r = {int(scores.argmax()):4}, "
            f"{scores[distance]:.2f} there and {scores[0]:.2f} at r = 0"
        )
    q, k = torch.randn(2, 20_000, 128, dtype=torch.float64)
    for distance in (0, 10, 100, 1000):
        scores = (rotated(q, distance) * k).sum(-1) / 128**0.5
        error = scores.std() / len(scores) ** 0.5
        mean, spread = scores.mean(), scores.std()
        print(f"  random q, k at r = {distance:4}: mean score {mean:+.3f} ± {error:.3f}, spread {spread:.3f}")
    falls = ", ".join(f"{bound(r, 128):.2f} at r = {r}" for r in (0, 10, 50, 100, 255))
    print(f"  what falls is a bound: {falls}")


if __name__ == "__main__":
    main()
