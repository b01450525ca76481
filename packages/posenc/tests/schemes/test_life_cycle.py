"""Nothing that befalls a module before its use changes what it encodes, and its use changes nothing of the module."""

import copy
import io
import pickle
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

import posenc
from posenc import Encoding, Positions, Scheme
from posenc.encoding.context import projected_at_random
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


@cache
def as_built(names: str) -> list[Tensor]:
    """What the scheme gives as it is built, which copies of it are compared with."""
    return encode(build(names))


def assert_same_encoding(one: Scheme, other: str | Scheme) -> None:
    """``other`` is a scheme, or the names of one as it is built."""
    for a, b in zip(encode(one), as_built(other) if isinstance(other, str) else encode(other), strict=True):
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
    assert_same_encoding(scheme, names)


@of_every_scheme
def test_built_on_meta_and_reset_it_is_as_built_on_the_spot(names: str) -> None:
    check_meta(names)


@of_every_scheme
def test_loaded_over_meta_it_is_the_one_that_was_saved(names: str) -> None:
    with torch.device("meta"):
        scheme = scheme_from_names(names, SHAPE)
    scheme.load_state_dict(build(names).state_dict(), assign=True)
    assert_same_encoding(scheme, names)


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
    assert_same_encoding(COPIES[way](names), names)


# --- casting --------------------------------------------------------------------------------------------------------


@in_one_test((names, dtype) for names in NAMES for dtype in (torch.bfloat16, torch.float16))
def test_a_cast_to_half_precision_and_back_rounds_what_is_learned_and_nothing_else(
    names: str, dtype: torch.dtype
) -> None:
    """Down to half precision and up again: what is learned is rounded once, and nothing else is touched."""
    expected = build(names)
    with torch.no_grad():
        for parameter in expected.parameters():
            parameter.copy_(parameter.to(dtype))
    assert_same_encoding(build(names).to(dtype).float(), expected)
    # Left in half precision it encodes the same: vectors leave the table in float32, and are added in it.
    assert_same_encoding(build(names).to(dtype), expected)


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


@of_every_scheme
def test_forward_changes_nothing_of_the_module(names: str) -> None:
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
def test_a_training_step_after_inference_mode(names: str) -> None:
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
