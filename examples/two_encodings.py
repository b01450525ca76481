"""Two encodings, sinusoidal and learned, after a blog post that thinks out loud about positional encodings.

1. The post's table of 4 positions by 8 channels, printed digit for digit, and the norm of its rows.
2. Its module, with either encoding: only the learned one has parameters, and a last position.
3. Its two sentences, "only who can prevent forest fires" and "who can prevent forest fires only", which attention takes
   for one and the same until positions are added. A causal mask alone tells them apart too.
4. Its doubt, whether a vector as long as sqrt(d/2) disturbs the vocabulary: measured on the words of all-MiniLM-L6-v2,
   if posenc-lab[minilm] is installed, else on drawn words as long as those.

Run: python examples/two_encodings.py
"""

import torch
from torch import Tensor, nn

import posenc

CONTEXT_LENGTH, EMBEDDING_DIM = 4, 8
SENTENCES = ("only who can prevent forest fires", "who can prevent forest fires only")


def single_precision_table(context_length: int, dim: int) -> tuple[Tensor, Tensor]:
    """(radians, encodings) as the post has them: angles rounded to single precision *before* the sine is taken."""
    channel = torch.arange(dim)
    radians = torch.arange(context_length).float()[:, None] * 10_000.0 ** -((channel - channel % 2) / dim)
    return radians, torch.where(channel % 2 == 0, radians.sin(), radians.cos())


def table(context_length: int, dim: int) -> Tensor:
    """The same from posenc: angles in double precision, rounded once."""
    return posenc.Sinusoidal(dim).table(posenc.Positions.arange(context_length))[0]


class Net(nn.Module):
    """Word vectors plus positions, whichever scheme gives those."""

    def __init__(self, scheme: posenc.Scheme, vocab_size: int = 128, dim: int = 64) -> None:
        super().__init__()
        self.emb = nn.Embedding(vocab_size, dim)
        self.scheme = scheme

    def forward(self, tokens: Tensor) -> Tensor:
        return self.scheme(posenc.Positions.arange(tokens.size(1))).add(self.emb(tokens))


def pooled(sentence: str, scheme: posenc.Scheme, is_causal: bool = False, dim: int = 64) -> Tensor:
    """One attention layer with random weights, averaged over the words: what a network could know of the sentence."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = sorted(set(" ".join(SENTENCES).split()))
    words = torch.randn(len(vocabulary), dim, generator=generator, dtype=torch.float64)
    weights = torch.randn(3, dim, dim, generator=generator, dtype=torch.float64) / dim**0.5
    x = words[[vocabulary.index(word) for word in sentence.split()]][None]
    encoding = scheme(posenc.Positions.arange(x.size(1)), dtype=torch.float64)
    query, key, value = (encoding.add(x)[:, None] @ weight for weight in weights)
    return posenc.attention(query, key, value, encoding, is_causal=is_causal).mean(2).flatten()


def difference(scheme: posenc.Scheme, is_causal: bool = False) -> float:
    """How far apart the two sentences are, as a share of the first one's length."""
    one, other = (pooled(sentence, scheme, is_causal) for sentence in SENTENCES)
    return ((one - other).norm() / one.norm()).item()


def share_found(words: Tensor, vectors: Tensor, samples: int = 2000) -> float:
    """Of words that each had one of these position vectors added, the share that is still nearest to itself."""
    generator = torch.Generator().manual_seed(0)
    word, position = (torch.randint(len(x), (samples,), generator=generator) for x in (words, vectors))
    distances = torch.cdist(words[word] + vectors[position], words)
    return (distances.argmin(1) == word).double().mean().item()


def without_main_directions(words: Tensor, vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Both without the directions in which the position vectors differ most, which a linear map can take away."""
    centred = vectors - vectors.mean(0)
    main = torch.linalg.svd(centred, full_matrices=False).Vh[:count]
    return words - words @ main.mT @ main, centred - centred @ main.mT @ main


def drawn_words(count: int = 20_000, dim: int = 384, norm: float = 1.11) -> Tensor:
    """Words in random directions, as long as the median word of all-MiniLM-L6-v2."""
    words = torch.randn(count, dim, generator=torch.Generator().manual_seed(0))
    return norm * words / words.norm(dim=1, keepdim=True)


def vocabulary() -> tuple[str, Tensor, Tensor | None]:
    """Which words they are, their vectors, and the position vectors that the model learned with them."""
    try:
        from safetensors.torch import load_file

        from posenc_lab.plot.vectors import weights_file

        tensors = load_file(weights_file())
    except ModuleNotFoundError:
        return "drawn words", drawn_words(), None
    words, learned = (tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position"))
    return "all-MiniLM-L6-v2", words, learned


def main() -> None:
    torch.manual_seed(0)

    print("1. The table\n")
    radians, encodings = single_precision_table(CONTEXT_LENGTH, EMBEDDING_DIM)
    print(f"{radians=}")
    print(f"{encodings=}")
    print(f"{encodings.norm(dim=1)=}")
    ours = table(CONTEXT_LENGTH, EMBEDDING_DIM)
    print(f"\nposenc.Sinusoidal({EMBEDDING_DIM}) differs from it by at most {(ours - encodings).abs().max():.1e}.")
    print("One printed digit is not that of the true value, for 0.03 is rounded before its sine is taken:")
    exact = torch.tensor(0.03, dtype=torch.float64).sin()
    print(f"  sin(0.03): printed {encodings[3, 4]:.4e}, posenc {ours[3, 4]:.4e}, true {exact:.4e} ({exact:.8e})")

    print("\n2. The module\n")
    tokens = torch.randint(128, (2, 8))
    for net in (Net(posenc.Sinusoidal(64)), Net(posenc.Learned(8, 64))):
        count = sum(parameter.numel() for parameter in net.scheme.parameters())
        print(f"  {type(net.scheme).__name__:10} output {tuple(net(tokens).shape)}, {count} parameters for positions")
    try:
        net(torch.randint(128, (2, 9)))
    except posenc.PositionError as error:
        print(f"  a ninth token: {error}")

    print("\n3. Two sentences, one attention layer, averaged over the words: how far apart?\n")
    print("  " + "\n  ".join(f'"{sentence}"' for sentence in SENTENCES) + "\n")
    nope, sinusoidal, learned = posenc.NoPE(), posenc.Sinusoidal(64), posenc.Learned(6, 64)
    print(f"  no positions                  {difference(nope):8.1e}   indistinguishable")
    print(f"  sinusoidal                    {difference(sinusoidal):8.1e}")
    print(f"  learned (as first drawn)      {difference(learned):8.1e}")
    print(f"  RoPE                          {difference(posenc.RoPE(64)):8.1e}")
    print(f"  no positions, a causal mask   {difference(nope, is_causal=True):8.1e}   how much each word sees tells")

    name, words, learned_vectors = vocabulary()
    sinusoids = posenc.Sinusoidal(words.size(1)).table(posenc.Positions.arange(512))[0]
    print(f"\n4. The words of {name}: {len(words)}, their median length {words.norm(dim=1).median():.2f}\n")
    print(f"  sinusoids are {sinusoids[0].norm():.1f} long. Words still nearest to themselves, of 2,000:\n")
    print(f"  with a sinusoid                               {share_found(words, sinusoids):6.1%}")
    longer = words * words.size(1) ** 0.5
    print(f"  with a sinusoid, words times sqrt(d) first    {share_found(longer, sinusoids):6.1%}")
    without = without_main_directions(words, sinusoids, 96)
    print(f"  with a sinusoid, without 96 of {words.size(1)} directions {share_found(*without):6.1%}")
    if learned_vectors is not None:
        length = learned_vectors.norm(dim=1).median()
        print(f"  with its own positions, {length:.2f} long            {share_found(words, learned_vectors):6.1%}")


if __name__ == "__main__":
    main()
