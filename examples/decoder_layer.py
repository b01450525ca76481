"""An attention layer of a decoder, from its projections to its output: grouped heads, a cache, and padded prompts.

1. With `posenc.models.ForwardPass`, which owns the cache and opens every door at the right time.
2. The same by hand: ``scheme.tokens`` for the new tokens, ``scheme.pairs`` between them and all keys.
3. Both continue two prompts of different lengths, token by token, and give what one pass over each whole text gives.

Run: python examples/decoder_layer.py
"""

import torch
from torch import Tensor, nn

import posenc
from posenc import Positions
from posenc.models import ForwardPass, KVCache

DIM, HEADS, KV_HEADS, HEAD_DIM = 64, 8, 2, 8


class Attention(nn.Module):
    """The projections of a layer, whose key and value heads serve four query heads each."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(DIM, HEADS * HEAD_DIM, bias=False)
        self.key = nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False)
        self.value = nn.Linear(DIM, KV_HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, DIM, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (batch, tokens, dim) to query, key and value (batch, heads, tokens, head_dim)."""
        query, key, value = (
            linear(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        return query, key, value

    def forward(self, x: Tensor, step: ForwardPass, layer: int = 0) -> Tensor:
        return self.out(step.attention(*self.project(x), layer=layer).transpose(1, 2).flatten(2))


class AttentionByHand(Attention):
    """The same without `ForwardPass`: it keeps rotated keys, values and where they are by itself."""

    def __init__(self, scheme: posenc.Scheme) -> None:
        super().__init__()
        self.scheme = scheme
        self.kept: tuple[Tensor, Tensor, Positions] | None = None

    def forward(self, x: Tensor, positions: Positions) -> Tensor:  # type: ignore[override]
        query, key, value = self.project(x)
        query, key = self.scheme.tokens(positions).rotate(query, key)  # the new tokens alone, once
        known = positions
        if self.kept is not None:
            old_key, old_value, before = self.kept
            key, value = torch.cat((old_key, key), 2), torch.cat((old_value, value), 2)
            known = Positions.cat([before, positions])
        self.kept = key, value, known
        out = posenc.attention(query, key, value, self.scheme.pairs(positions, known), is_causal=True)
        return self.out(out.transpose(1, 2).flatten(2))


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    scheme = posenc.RoPE(HEAD_DIM) + posenc.ALiBi(HEADS)
    layer, by_hand = Attention(), AttentionByHand(scheme)
    by_hand.load_state_dict(layer.state_dict())

    lengths, new = (3, 5), 4
    texts = [torch.randn(1, length + new, DIM) for length in lengths]
    prompt = torch.zeros(2, max(lengths), DIM)  # padded on the left
    mask = torch.zeros(2, max(lengths), dtype=torch.bool)
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        prompt[row, -length:], mask[row, -length:] = text[0, :length], True
    positions = Positions.padded(mask)

    cache = KVCache()
    with ForwardPass(scheme, positions, cache) as step:
        outs = [layer(prompt, step)]
    outs_by_hand = [by_hand(prompt, positions)]
    for n in range(new):
        assert cache.positions is not None
        positions = cache.positions.following()
        token = torch.cat([text[:, length + n, None] for text, length in zip(texts, lengths, strict=True)])
        with ForwardPass(scheme, positions, cache) as step:
            outs.append(layer(token, step))
        outs_by_hand.append(by_hand(token, positions))
    found, found_by_hand = torch.cat(outs, 1), torch.cat(outs_by_hand, 1)
    print(f"by hand and by ForwardPass differ by {float((found - found_by_hand).abs().max()):.1e}")
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        whole = layer(text, ForwardPass(scheme, Positions.arange(length + new)))
        apart = float((found[row, -length - new :] - whole[0]).abs().max())
        print(f"text {row}, of {length} and {new} tokens, differs from one pass over it by {apart:.1e}")


if __name__ == "__main__":
    main()
