"""Nothing that befalls a module before its use changes what it encodes, and its use changes nothing of the module."""

import copy
import io
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import posenc
from posenc import ALiBi, Encoding, Positions, RoPE, Scheme
from posenc.encoding.features import projected_at_random
from posenc.positions.visibility import table_index
from posenc.schemes.catalog import CATALOG, Shape, entries_of, scheme_from_names
from tests.rows import in_one_test

HEADS, HEAD_DIM, TOKENS = 12, 6, 7
SHAPE = Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, max_positions=50)
NAMES = [*(entry.name for entry in CATALOG), "learned+segment+rope+alibi"]
POSITIONS = (
    Positions.padded(torch.tensor([[True] * TOKENS, [False, True, True, False, True, True, True]]))
    .shift(31)
    .with_segment(torch.arange(TOKENS)[None] % 2)
)
GRID = Positions(torch.stack((POSITIONS.coords, 49 - POSITIONS.coords), -1), document=POSITIONS.document)
VIDEO = Positions(torch.cat((GRID.coords, GRID.coords[..., :1] // 2), -1), document=POSITIONS.document)
BEGIN_ALIKE = {"cope", "query_scale"}  # at numbers that are not drawn
of_every_scheme = in_one_test(NAMES)


def build(names: str, seed: int = 5) -> Scheme:
    torch.default_generator.manual_seed(seed)
    return scheme_from_names(names, SHAPE)


def places(names: str) -> Positions:
    """Where the tokens are: in a line, or on a grid for a scheme that knows nothing else."""
    return (POSITIONS, GRID, VIDEO)[max(entry.least_axes for entry in entries_of(names)) - 1]


def leaves() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, TOKENS, SHAPE.dim, generator=generator)
    query, key = torch.randn(2, 2, HEADS, TOKENS, HEAD_DIM, generator=generator)
    return x, query, key


def encode(scheme: Scheme) -> list[Tensor]:
    """What the scheme does to an input, to queries and keys, and to scores."""
    x, query, key = leaves()
    axes = [entry.least_axes for entry in posenc.catalog() for part in scheme.parts if isinstance(part, entry.scheme)]
    encoding = with_features(scheme((POSITIONS, GRID, VIDEO)[max(axes, default=1) - 1]))
    added = encoding.add(x)
    out = posenc.attention(query, key, key, encoding, is_causal=True)
    assert isinstance(out, Tensor)
    turned = [x for pair in encoding.rotate_bands(query, key) for x in pair]
    # What a scheme hides by itself has no score.
    return [added, *turned, torch.nan_to_num(posenc.logits(query, key, encoding), neginf=-1e4), out]


def with_features(encoding: Encoding) -> Encoding:
    """With what a layer makes for the scheme, if it wants something."""
    wanted = encoding.wanted
    return encoding.with_projected(projected_at_random(wanted, leaves()[0])) if wanted else encoding


def assert_same_encoding(one: Scheme, other: Scheme) -> None:
    for a, b in zip(encode(one), encode(other), strict=True):
        assert a.isfinite().all()
        assert torch.equal(a, b)


# --- what is kept ---------------------------------------------------------------------------------------------------


def check_state(names: str) -> None:
    """There are no buffers, so no derived state can be cast, lost on meta or loaded stale."""
    scheme = build(names)
    assert list(scheme.buffers()) == []
    assert scheme.state_dict().keys() == {name for name, _ in scheme.named_parameters()}
    for module in scheme.modules():
        tensors = [name for name, value in vars(module).items() if isinstance(value, Tensor)]
        assert tensors == ["cameras"] * isinstance(module, posenc.Cameras)  # which are data, as positions are


@of_every_scheme
def test_only_parameters_are_kept(names: str) -> None:
    check_state(names)


@of_every_scheme
def test_parameters_are_declared_where_something_is_learned(names: str) -> None:
    learns = any("parameter_free" not in entry.laws for entry in entries_of(names))
    assert (len(build(names).state_dict()) > 0) == learns


# --- building, copying, loading -------------------------------------------------------------------------------------


def check_meta(names: str) -> None:
    with torch.device("meta"):
        scheme = scheme_from_names(names, SHAPE)
    assert all(parameter.is_meta for parameter in scheme.parameters())
    scheme.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.fill_(torch.nan)
    torch.default_generator.manual_seed(5)
    scheme.reset_parameters()
    assert_same_encoding(scheme, build(names, seed=5))


@of_every_scheme
def test_built_on_meta_and_reset_it_is_as_built_on_the_spot(names: str) -> None:
    check_meta(names)


@of_every_scheme
def test_loaded_over_meta_it_is_the_one_that_was_saved(names: str) -> None:
    with torch.device("meta"):
        scheme = scheme_from_names(names, SHAPE)
    scheme.load_state_dict(build(names).state_dict(), assign=True)
    assert_same_encoding(scheme, build(names))


def saved_and_loaded(names: str) -> Scheme:
    buffer = io.BytesIO()
    torch.save(build(names).state_dict(), buffer)
    buffer.seek(0)
    scheme = build(names, seed=6)
    scheme.load_state_dict(torch.load(buffer, weights_only=True))
    return scheme


COPIES: dict[str, Callable[[str], Scheme]] = {
    "copy": lambda names: copy.copy(build(names)),
    "deepcopy": lambda names: copy.deepcopy(build(names)),
    "pickle": lambda names: pickle.loads(pickle.dumps(build(names))),
    "state_dict": saved_and_loaded,
    "double and back": lambda names: build(names).double().float(),
}


@in_one_test((names, way) for names in NAMES for way in COPIES)
def test_a_copy_encodes_the_same_to_the_bit(names: str, way: str) -> None:
    assert_same_encoding(COPIES[way](names), build(names))


@of_every_scheme
def test_another_seed_gives_other_parameters_and_changes_nothing_else(names: str) -> None:
    """So the comparisons here can fail. What is learned may begin at a fixed number."""
    same = all(torch.equal(a, b) for a, b in zip(encode(build(names)), encode(build(names, seed=6)), strict=True))
    alike = all("deterministic" in entry.laws for entry in entries_of(names))
    assert same == (alike or names in BEGIN_ALIKE)


# --- casting --------------------------------------------------------------------------------------------------------


def check_cast(names: str, dtype: torch.dtype) -> None:
    """Down to half precision and up again: what is learned is rounded once, and nothing else is touched."""
    expected = build(names)
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.copy_(parameter.to(dtype))
    assert_same_encoding(build(names).to(dtype).float(), expected)
    # Left in half precision it encodes the same: vectors leave the table in float32, and are added in it.
    assert_same_encoding(build(names).to(dtype), expected)


@in_one_test((names, dtype) for names in NAMES for dtype in (torch.bfloat16, torch.float16))
def test_a_cast_to_half_precision_and_back_rounds_what_is_learned_and_nothing_else(
    names: str, dtype: torch.dtype
) -> None:
    check_cast(names, dtype)


@in_one_test(CATALOG)
def test_parameter_free_schemes_are_untouched_by_casts(entry: posenc.schemes.catalog.Entry) -> None:
    if "parameter_free" in entry.laws or entry.scheme.zero_initialized:
        assert_same_encoding(build(entry.name).bfloat16().float(), build(entry.name))
    else:
        with pytest.raises(AssertionError):
            assert_same_encoding(learned(entry.name).bfloat16().float(), learned(entry.name))


def learned(name: str) -> Scheme:
    """The scheme with parameters that are no longer what they began with."""
    scheme = build(name)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(4))
    return scheme


# --- using it -------------------------------------------------------------------------------------------------------


def attributes(scheme: nn.Module) -> dict[str, object]:
    """Everything the modules hold, by value."""
    held: dict[str, object] = {}
    for path, module in scheme.named_modules():
        for name, value in vars(module).items():
            held[f"{path}.{name}"] = repr(value)
    for name, parameter in scheme.named_parameters():
        held[name] = (id(parameter), parameter.tolist(), parameter._version)
    return held


def check_purity(names: str) -> None:
    scheme = build(names)
    before = attributes(scheme)
    first = encode(scheme)
    axes = max(entry.least_axes for entry in entries_of(names))
    for longer in (Positions.arange(40), Positions.arange(3)):
        coords = longer.coords if axes == 1 else longer.coords[..., None].expand(-1, -1, axes)
        scheme(Positions(coords, segment=torch.zeros_like(longer.coords)))
    assert attributes(scheme) == before
    for a, b in zip(encode(scheme), first, strict=True):
        assert torch.equal(a, b)


@of_every_scheme
def test_forward_changes_nothing_of_the_module(names: str) -> None:
    check_purity(names)


def check_inference_then_training(names: str) -> None:
    """Nothing made under inference_mode is left behind to meet autograd."""
    scheme = build(names)
    with torch.inference_mode():
        encode(scheme)
    x, query, key = (leaf.requires_grad_() for leaf in leaves())
    encoding = with_features(scheme(places(names)))
    added = encoding.add(x)
    out = posenc.attention(query, key, key, encoding, is_causal=True)
    assert isinstance(out, Tensor)
    (out.square().sum() + added.square().sum()).backward()
    for leaf in (x, query, key, *scheme.parameters()):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert (leaf.grad != 0).any()


@of_every_scheme
def test_a_training_step_after_inference_mode(names: str) -> None:
    check_inference_then_training(names)


@pytest.mark.parametrize("names", ["nope", "rope", "learned", "segment", "learned+segment+rope+alibi"])
def test_gradients_reach_the_rows_that_were_read_and_no_others(names: str) -> None:
    scheme = build(names)
    x, *_ = leaves()
    added = scheme(POSITIONS).add(x)
    weights = dict(scheme.named_parameters())
    if not weights:
        assert not added.requires_grad
        return
    added.square().sum().backward()
    for part in scheme.parts:
        for parameter in part.parameters():
            assert parameter.grad is not None
            touched = (parameter.grad != 0).any(-1).nonzero().flatten().tolist()
            read = POSITIONS.segment if isinstance(part, posenc.Segment) else table_index(POSITIONS, "Learned", 50)
            assert read is not None
            assert touched == sorted(set(read.flatten().tolist()))


# --- compiled -------------------------------------------------------------------------------------------------------

EVERYTHING = RoPE(HEAD_DIM) + ALiBi(HEADS)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    out = posenc.attention(query, key, value, EVERYTHING(Positions.padded(mask)), is_causal=True)
    assert isinstance(out, Tensor)
    return out


def example(tokens: int = TOKENS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    query, key, value = (torch.randn(2, heads, tokens, HEAD_DIM) for heads in (HEADS, 4, 4))
    mask = torch.ones(2, tokens, dtype=torch.bool)
    mask[0, :2] = False
    return query, key, value, mask


@contextmanager
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    try:
        yield
    finally:
        torch.compiler.reset()


no_guards = pytest.mark.skipif(
    os.environ.get("POSENC_SHAPES") == "1", reason="torch.compile cannot see through the checks of shapes"
)


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++")
@no_guards
def test_compiled_and_eager_agree_and_the_graph_is_whole_and_real() -> None:
    """Forward and backward, with padding on the left. Both compute in single precision, in another order. There is one
    graph without a break, and no complex number in it: those neither export nor fuse."""
    from torch._inductor.compile_fx import compile_fx  # seconds, which the other tests need not wait for

    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(copy.deepcopy(graph))  # the compiler changes what it is given
        compiled: Callable[..., object] = compile_fx(graph, inputs)
        return compiled

    with fresh_compiler():
        results = []
        for run in (attend, torch.compile(attend, fullgraph=True, backend=keep)):
            torch.default_generator.manual_seed(0)
            *tensors, mask = example()
            wanted = [x.requires_grad_() for x in tensors]
            out = run(*wanted, mask)
            results.append((out.detach(), *torch.autograd.grad(out.square().sum(), wanted)))
        torch.testing.assert_close(results[1], results[0])
        assert (results[1][0][0, :, :2] == 0).all()
    assert len(graphs) == 1
    values = [node.meta.get("example_value") for node in graphs[0].graph.nodes]
    dtypes = {value.dtype for value in values if isinstance(value, Tensor)}
    assert torch.float32 in dtypes
    assert not any(dtype.is_complex for dtype in dtypes)


@pytest.mark.more
@no_guards
def test_lengths_may_change_without_compiling_anew() -> None:
    """One graph for the first length, one for all others. With a scheme: see tests/backends/test_compile.py."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    with fresh_compiler():
        compiled = torch.compile(lambda x: posenc.attention(x, x, x, is_causal=True), backend=counter, fullgraph=True)
        for tokens in (5, 8, 13, 21, 34, 55, 89, 100):
            x = torch.randn(2, HEADS, tokens, HEAD_DIM)
            torch.testing.assert_close(compiled(x), posenc.attention(x, x, x, is_causal=True))
    assert counter.frame_count <= 2
