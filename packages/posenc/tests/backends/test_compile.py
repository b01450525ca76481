"""Compiled: one whole graph for every scheme, without complex numbers, that gives what eager gives and serves every
length."""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc import T5, Positions, RoPE, Scheme, attention
from posenc.schemes.catalog import CATALOG
from tests.backends.parity_cases import Case, Model, case
from tests.rounding import of_sums
from tests.rows import with_more

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("POSENC_SHAPES") == "1", reason="torch.compile cannot see through the checks of shapes"
    ),
]
LENGTHS = (5, 34, 50)
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
# With those that are compiled for any length below, every door, and every kind of term.
SCHEMES = with_more(["squeezing"], ["segment", "alibi directed", "disentangled", "interpolated", "cope"])


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Graphs:
    """A compiler that runs the graphs of forward and backward as they are, and keeps them."""

    def __init__(self) -> None:
        from torch._dynamo.backends.common import aot_autograd  # a second, which other tests need not wait for

        self.kept: list[torch.fx.GraphModule] = []
        self.backend = aot_autograd(fw_compiler=self._keep, bw_compiler=self._keep)

    def _keep(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        from torch._functorch.aot_autograd import make_boxed_func

        self.kept.append(graph)
        return make_boxed_func(graph.forward)

    @property
    def dtypes(self) -> set[torch.dtype]:
        """Of every tensor that is computed anywhere in them."""
        values: list[Any] = [node.meta.get("val") for graph in self.kept for node in graph.graph.nodes]
        flat = [x for value in values for x in (value if isinstance(value, (tuple, list)) else [value])]
        return {x.dtype for x in flat if isinstance(x, Tensor)}

    def check(self) -> None:
        """Nothing in them is a complex number."""
        assert torch.float64 in self.dtypes
        assert not any(dtype.is_complex for dtype in self.dtypes)


def check_same(found: Iterable[Tensor], expected: Iterable[Tensor], tokens: int) -> None:
    """Up to rounding: gradients of parameters sum over all pairs, and no score exceeds 128, as in test_parity.py."""
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=of_sums(torch.float64, tokens**2, other, score=128))


def check_compiled(model: Callable[..., Tensor], it: Case, *more: Tensor, compiler: Any) -> None:
    """Output and gradients are eager's. Both run the same arithmetic in double precision, decomposed and not."""
    leaves, found = list(it.leaves.values()), []
    for run in (model, torch.compile(model, fullgraph=True, backend=compiler)):
        out = run(it.query, it.key, it.value, *more)
        gradients = torch.autograd.grad(out.square().sum(), leaves, materialize_grads=True)
        found.append((out.detach(), *gradients))
    check_same(found[1], found[0], it.query.size(2))


@pytest.mark.more
@pytest.mark.parametrize("name", SCHEMES)
def test_a_graph_is_whole_and_real_and_gives_what_eager_gives(name: str) -> None:
    it, graphs = case(name, "text", 33), Graphs()
    check_compiled(Model(it), it, compiler=graphs.backend)
    assert len(graphs.kept) == 2  # forward and backward
    graphs.check()


# Of those that a symbol in the place of a size once stopped, and of each kind, in minutes.
SOME = ["rope", "lie_re", "learned", "fox"]


@pytest.mark.more
@pytest.mark.parametrize(
    "name",
    with_more(
        with_more(SOME[:1], SOME[1:]), (entry.name for entry in CATALOG if entry.name not in SOME), pytest.mark.survey
    ),
)
def test_every_scheme_compiles_for_any_sizes(name: str) -> None:
    """``dynamic=True`` makes a symbol of every size, of heads and channels too."""
    it = case(name, "text", 21, heads=4)
    model = Model(it)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    for tokens in (21, 13):
        inputs = [
            x[:, :, :tokens].detach().contiguous().requires_grad_()
            for x in (it.query, it.key, it.value, *it.features.values())
        ]
        leaves = [*inputs, *it.scheme.parameters()]
        out, expected = compiled(*inputs), model(*inputs)
        found, truth = (torch.autograd.grad(x.square().sum(), leaves, materialize_grads=True) for x in (out, expected))
        check_same((out, *found), (expected, *truth), 50)


# --- what reads values says the same in a graph -----------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # the compiler asks
@pytest.mark.parametrize("scheme", with_more([T5(2)], [RoPE(8) + T5(2)]), ids=["t5", "both"])
def test_an_encoding_that_was_made_outside_of_the_graph(scheme: Scheme) -> None:
    """Of any length, and after a step of an optimizer, of which nothing is compiled anew."""
    graphs, (parameter, *_) = Graphs(), scheme.double().parameters()
    compiled = torch.compile(attention, fullgraph=True, dynamic=True, backend=graphs.backend)
    for tokens in LENGTHS:
        inputs = [torch.randn(2, 2, tokens, 8, dtype=torch.float64) for _ in range(3)]
        outs = [
            run(*inputs, scheme(Positions.arange(tokens), dtype=torch.float64), is_causal=True)
            for run in (compiled, attention)
        ]
        found, expected = (torch.autograd.grad(out.square().sum(), parameter) for out in outs)
        check_same((outs[0], *found), (outs[1], *expected), tokens)
        with torch.no_grad():
            parameter += 0.25
    # Up to PyTorch 2.9 at least, a graph holds only for the method objects of the encoding it was made with.
    assert len(graphs.kept) <= 2 * (1 if TORCH >= (2, 13) else len(LENGTHS))
