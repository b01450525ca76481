"""The positional convolution is that of a scalar loop and of transformers, and reads nothing of other texts."""

import pytest
import torch
from torch import Tensor

from posenc import Positions
from posenc.models import PositionalConvolution
from tests.oracles import positional_convolution as oracle
from tests.rounding import of_sums

MASK = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0, 0]]).bool()
PLACES = {
    "text": Positions.arange(9, start=7),
    "packed": Positions.packed([4, 1, 2, 2]),
    "padded": Positions.padded(MASK),
    "packed by rows": Positions.packed([[5, 4], [1, 8]]),
    "permuted": Positions.packed([5, 4])[torch.tensor([8, 0, 3, 5, 2, 6, 4, 1, 7])],
    "few tokens": Positions.arange(2),
}


def drawn(dim: int = 6, kernel_size: int = 5, groups: int = 3) -> PositionalConvolution:
    torch.manual_seed(0)
    layer = PositionalConvolution(dim, kernel_size, groups).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


def expected_of(layer: PositionalConvolution, x: Tensor, positions: Positions) -> Tensor:
    normed = layer.conv.parametrizations.weight
    g, v = normed.original0.detach().flatten(), normed.original1.detach()
    at = positions.expand(x.size(0))
    return oracle.add(x, at.order.tolist(), at.document.tolist(), v, g, layer.conv.bias.detach(), layer.groups)


@pytest.mark.parametrize("kernel_size", [1, 4, 5, 20])
@pytest.mark.parametrize("name", PLACES)
def test_it_is_the_oracles(name: str, kernel_size: int) -> None:
    layer, positions = drawn(kernel_size=kernel_size), PLACES[name]
    x = torch.randn(2, len(positions), 6, dtype=torch.float64)
    found, expected = layer(x, positions).detach(), expected_of(layer, x, positions)
    atol = of_sums(torch.float64, 2 * kernel_size + 2, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def test_the_gradient_is_the_oracles() -> None:
    """Central differences of the oracle along one direction; step 1e-6, so errors of 1e-12 and 1e-10 by rounding."""
    layer, positions = drawn(), PLACES["packed"]
    x, direction, weight = torch.randn(3, 1, 9, 6, dtype=torch.float64)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad((layer(x, positions) * weight).sum(), x)
    ends = [(expected_of(layer, x.detach() + s * 1e-6 * direction, positions) * weight).sum() for s in (1, -1)]
    torch.testing.assert_close((gradient * direction).sum(), (ends[0] - ends[1]) / 2e-6, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["packed", "padded"])
def test_a_text_reads_nothing_of_others(name: str) -> None:
    """With NaN in all tokens but the first document's, its output and gradient are those of the text alone."""
    layer, positions = drawn(kernel_size=20), PLACES[name]
    here = (positions.document == 0).expand(2, -1)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    x[~here] = torch.nan
    x.requires_grad_()
    out = layer(x, positions)
    out[here].sum().backward()
    for n in range(2):
        alone = x.detach()[n, here[n]][None].requires_grad_()
        by_itself = layer(alone, Positions.arange(alone.size(1)))
        by_itself.sum().backward()
        atol = of_sums(torch.float64, 42, by_itself.detach())
        torch.testing.assert_close(out[n, here[n]], by_itself[0], rtol=0, atol=atol)
        torch.testing.assert_close(x.grad[n, here[n]], alone.grad[0], rtol=0, atol=atol)
    padding = (positions.document == -1).expand(2, -1)
    assert x.grad[padding].count_nonzero() == 0
    assert out[padding].isnan().all()


@pytest.mark.parametrize("model", ["Wav2Vec2", "OmniASR"])
def test_it_is_that_of_transformers(model: str) -> None:
    """With the state of its module, in double precision; a padded text is compared with itself alone."""
    transformers = pytest.importorskip("transformers")
    name = model.lower()
    code = pytest.importorskip(f"transformers.models.{name}.modeling_{name}")
    sizes = {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}
    torch.manual_seed(0)
    module = getattr(code, f"{model}PositionalConvEmbedding")(transformers.Wav2Vec2Config(hidden_size=16, **sizes))
    module = module.double().requires_grad_(False)
    ours = PositionalConvolution(16, 8, 4, weight_norm=model == "Wav2Vec2").double().requires_grad_(False)
    ours.load_state_dict(module.state_dict())

    def theirs(x: Tensor) -> Tensor:
        return x + module(x) if model == "Wav2Vec2" else module(x)

    x = torch.randn(2, 9, 16, dtype=torch.float64)
    found = ours(x, Positions.padded(MASK))
    atol = of_sums(torch.float64, 2 * 4 * 8 + 2, found)
    for n in range(2):
        torch.testing.assert_close(found[n, MASK[n]], theirs(x[n, MASK[n]][None])[0], rtol=0, atol=atol)
    torch.testing.assert_close(ours(x, Positions.arange(9)), theirs(x), rtol=0, atol=atol)


@pytest.mark.parametrize("weight_norm", [True, False])
def test_it_begins_as_in_wav2vec2(weight_norm: bool) -> None:
    torch.manual_seed(0)
    layer = PositionalConvolution(64, 16, 4, weight_norm=weight_norm)
    weight = layer.conv.weight.detach()
    assert abs(weight.std() / (2 / (16 * 64) ** 0.5) - 1) < 4 / (2 * weight.numel()) ** 0.5  # four standard errors
    assert layer.conv.bias.count_nonzero() == 0
