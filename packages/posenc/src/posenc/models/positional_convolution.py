"""The positional convolution of wav2vec 2.0: what each token reads of its neighbours is added to it."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posenc.arguments import check_flag, check_type, one_or, shown, whole
from posenc.encoding.context import by_document
from posenc.positions.positions import PADDING, Positions


class PositionalConvolution(nn.Module):
    """Adds to each token a convolution over the tokens around it: wav2vec 2.0's relative positions for encoders.

    Formula, for the token at place i of its document, K = ``kernel_size`` and the dim/groups channels of a group:

        x_i <- x_i + gelu(b + sum_t W_t x_(i + t - floor(K/2))),  t = 0 .. K - 1,   W_t = g_t V_t / |V|_t

    with |V|_t = sqrt(sum of the squares of V_t); without ``weight_norm``, as in Omni-ASR, W is learned itself. Tokens
    before and after a document count as zeros, and tokens are taken by their order; coordinates are ignored. Documents
    of a packed row do not see one another, and padding has no effect and is returned unchanged, where a plain
    convolution leaks over K/2 tokens.

    It is a layer and not a `Scheme`: the add door has a vector for each position, which a cache or a shard computes for
    its new tokens alone, and here a token needs K/2 tokens on either side. So whole documents must be in one call, and
    it is for encoders: a causal model would see K/2 tokens ahead. Call it once, on the input, before the layers.

    Parameters: V or W (dim x dim/groups x K), g (K) and b (dim), named as in transformers' module, so that
    ``load_state_dict(theirs.state_dict())`` takes a model's. Shapes: x (batch, tokens, dim), floating. Costs
    K dim^2 / groups products per token. Several documents synchronize a GPU.
    Source: Baevski et al. 2020, "wav2vec 2.0" (arXiv 2006.11477), section 2; transformers 5.24.0,
    Wav2Vec2PositionalConvEmbedding and OmniASRPositionalConvEmbedding, both with K = 128 and 16 groups.
    """

    def __init__(self, dim: int, kernel_size: int = 128, groups: int = 16, *, weight_norm: bool = True) -> None:
        super().__init__()
        self.dim, self.kernel_size, self.groups = whole("dim", dim), whole("kernel_size", kernel_size), groups
        if self.dim % whole("groups", groups):
            raise ValueError(f"dim must be a multiple of groups = {groups}, got {dim}")
        check_flag("weight_norm", weight_norm)
        self.conv = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=groups)
        if weight_norm:
            nn.utils.parametrizations.weight_norm(self.conv, dim=2)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """W from N(0, 4 / (K dim)) and b = 0, as in wav2vec 2.0."""
        drawn = torch.randn_like(self.conv.weight) * 2 / (self.kernel_size * self.dim) ** 0.5
        self.conv.weight = drawn if hasattr(self.conv, "parametrizations") else nn.Parameter(drawn)
        nn.init.zeros_(self.conv.bias)  # type: ignore[arg-type]

    def forward(self, x: Float[Tensor, "batch tokens dim"], positions: Positions) -> Float[Tensor, "batch tokens dim"]:
        """x with the convolution added. Raises ValueError for an x that does not match the positions."""
        check_type("positions", positions, Positions)
        rows, tokens = positions.order.shape
        fits = isinstance(x, Tensor) and x.dim() == 3 and one_or(rows, x.size(0)) and x.is_floating_point()
        if not fits or x.shape[1:] != (tokens, self.dim):
            batch = "batch" if rows == 1 else rows
            raise ValueError(f"x must be floating and ({batch}, {tokens}, {self.dim}), got {shown(x)}")
        if positions.layout.run is not None or tokens == 0:  # one contiguous text in every row
            return x + nn.functional.gelu(self._read(x))
        is_seen = (positions.document != PADDING)[..., None]
        index, is_first = by_document(positions)
        gaps = self.kernel_size // 2 * (is_first.cumsum(-1) - 1)  # zeros between documents, as many as a token sees
        at = (torch.arange(tokens, device=x.device) + gaps)[..., None].expand(x.shape)
        index = index[..., None].expand(x.shape)
        spaced = x.new_zeros(x.size(0), tokens + int(gaps.max()), self.dim)
        spaced = spaced.scatter(1, at, x.masked_fill(~is_seen, 0.0).gather(1, index))
        read = nn.functional.gelu(self._read(spaced).gather(1, at))
        return x + torch.zeros_like(read).scatter(1, index, read).masked_fill(~is_seen, 0.0)

    def _read(self, x: Tensor) -> Tensor:
        """The convolution of one text; with an even K the last of its K/2 zeros is not read."""
        return self.conv(x.mT)[..., : x.size(1)].mT
