"""Faults that were found, each where it would show again: wrapped and sharded schemes, half precision, devices without
double precision, what is kept from one step to the next, and what a new user tries first."""

import copy
import os
import pydoc
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from posenc import T5, ALiBi, Encoding, Learned, NoPE, Positions, RoPE, Scheme, Shaw, TransformerXL, attention
from posenc.models import Decoder, Encoder, ForwardPass, KVCache
from posenc.schedule import Schedule
from posenc.schemes.catalog import CATALOG
from posenc.schemes.entry import Entry, Shape
from tests.rows import in_one_test, with_more

HEADS, HEAD_DIM, TOKENS = 4, 8, 10
TEXT = Positions.arange(TOKENS)
HALF = (torch.float16, torch.bfloat16)


def qkv(tokens: int = TOKENS, heads: int = HEADS, width: int = HEAD_DIM) -> list[Tensor]:
    return [torch.randn(2, heads, tokens, width) for _ in range(3)]


def built(entry: Entry) -> tuple[Scheme, Positions]:
    """A scheme of the catalog and positions that it takes, both where tensors are made by default."""
    grid = (None, (2, TOKENS // 2), (1, 2, TOKENS // 2))[entry.least_axes - 1]
    scheme = entry.build(Shape(HEADS * HEAD_DIM, HEADS, HEAD_DIM, TOKENS, grid=grid))
    frames = None if grid is None or len(grid) == 2 else grid[0]
    positions = Positions.arange(TOKENS) if grid is None else Positions.grid(*grid[-2:], frames=frames)
    if entry.needs_segments:
        positions = positions.with_segment(torch.zeros(1, TOKENS, dtype=torch.int64))
    return scheme, positions


# --- wrapped and sharded schemes -------------------------------------------------------------------------------------


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, checkpoint_wrapper])
@pytest.mark.parametrize("way", ["replaced", "added", "added to", "whole"])
def test_a_wrapped_part_is_opened_like_any_other(wrap: Callable[[nn.Module], Any], way: str) -> None:
    query, key, value = qkv()
    rope, t5 = RoPE(HEAD_DIM), T5(HEADS)
    want = attention(query, key, value, rope + t5, is_causal=True)
    scheme: Any = rope + t5
    if way == "replaced":
        scheme.schemes[1] = wrap(t5)
    elif way == "added":
        scheme = rope + wrap(t5)
    elif way == "added to":
        scheme = wrap(rope) + t5
    else:
        scheme = wrap(scheme)
    assert scheme.doors == ("rotate", "score")
    torch.testing.assert_close(attention(query, key, value, scheme, is_causal=True), want)
    step = ForwardPass(scheme, TEXT)
    torch.testing.assert_close(step.attention(query, key, value), want)
    layers = Schedule([(scheme, None), (wrap(t5), 3)])
    assert layers[1][1] == 3
    torch.testing.assert_close(ForwardPass(layers, TEXT).attention(query, key, value, layer=0), want)


def test_a_wrapper_is_called_for_every_door() -> None:
    """What gathers parameters before a module's call, and lets go of them after it, must see the call."""
    calls = []

    class Wrapper(nn.Module):
        def __init__(self, inner: Scheme) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            calls.append(kwargs["doors"])
            return self.inner(*args, **kwargs)

    step = ForwardPass(Wrapper(RoPE(HEAD_DIM) + ALiBi(HEADS)), TEXT)  # type: ignore[arg-type]
    step.attention(*qkv())
    assert sorted(calls) == [("add", "rotate"), ("score", "value")]


@pytest.mark.parametrize(
    "scheme", [RoPE(HEAD_DIM), RoPE(HEAD_DIM, scaling=posenc.DynamicNTK(2.0, 3)), posenc.FoX(HEADS)]
)
def test_a_wrapper_needs_no_more_than_doors_and_parts(scheme: Scheme) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.doors, self.parts = scheme, scheme.doors, scheme.parts

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner(*args, **kwargs)

    query, key, value = qkv()
    gates = {"forgotten": torch.zeros(query.shape[:3])} if scheme.features else {}
    outs = []
    for each in (scheme, Wrapper(), NoPE() + Wrapper()):
        step = ForwardPass(each, TEXT)  # type: ignore[arg-type]
        features, of_keys = step.features(gates)
        outs.append(step.attention(query, key, value, features=features, key_features=of_keys))
    torch.testing.assert_close(outs[1], outs[0])
    torch.testing.assert_close(outs[2], outs[0])


def _sharded(rank: int, file: str) -> None:
    """One of two processes: a decoder, its blocks and schemes sharded in every way that there is. What adds to the
    input meets each of them; the others, which open the same doors, meet two, in turn."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    schemes: dict[str, tuple[Callable[[], Scheme], dict[str, Any]]] = {
        "T5": (lambda: T5(4), {}),
        "Shaw": (lambda: Shaw(8, 4), {}),
        "Transformer-XL": (lambda: TransformerXL(4, 8, share_biases=False), {}),
        "RoPE + T5": (lambda: RoPE(8) + T5(4), {}),
        "learned": (lambda: Learned(20, 32), {"inject": "every_layer"}),
    }
    ways = ("per layer", "shared", "by itself, kept", "by itself")
    for number, (name, (make, how)) in enumerate(schemes.items()):
        for way in ways if name == "learned" else ways[number % 2 :: 2]:
            torch.manual_seed(0)
            model = Decoder(10, 32, 2, 4, position=make(), per_layer=way == "per layer", **how)
            whole, tokens = copy.deepcopy(model), torch.randint(10, (2, TOKENS))
            want = whole(tokens)
            want.square().sum().backward()
            if way.startswith("by itself"):
                fully_shard(model.trunk.position, mesh=mesh, reshard_after_forward=way == "by itself")
            for block in model.trunk.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            out = model(tokens)
            torch.testing.assert_close(out, want, msg=lambda m, case=(name, way): f"{case}: {m}")
            out.square().sum().backward()
            for (place, mine), other in zip(model.named_parameters(), whole.parameters(), strict=True):
                assert mine.grad is not None, (name, way, place)
                torch.testing.assert_close(mine.grad.full_tensor(), other.grad)  # type: ignore[attr-defined]
            with torch.no_grad():
                cache = KVCache()
                steps = [model(tokens[:, :6], cache=cache), model(tokens[:, 6:], cache=cache)]
            torch.testing.assert_close(torch.cat(steps, 1), want)
    dist.destroy_process_group()


@pytest.mark.more
@pytest.mark.slow
@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")
def test_sharded_schemes_are_gathered_when_they_are_read(tmp_path: Any) -> None:
    torch.multiprocessing.spawn(_sharded, args=(str(tmp_path / "meeting"),), nprocs=2)


# --- devices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF)
def test_off_the_cpu_no_float32_mask_is_laid_beside_half_precision(dtype: torch.dtype) -> None:
    query = torch.empty(1, HEADS, TOKENS, HEAD_DIM, dtype=dtype, device="meta")
    said = posenc.explain(query, query, query, ALiBi(HEADS), is_causal=True)
    assert said.backend != "sdpa"
    assert f"supports a float32 mask with {dtype} only on the CPU" in said.refusals["sdpa"]
    assert (
        "sdpa" not in posenc.explain(query.float(), query.float(), query.float(), ALiBi(HEADS), is_causal=True).refusals
    )
    mask = torch.zeros(TOKENS, TOKENS, device="meta")
    with pytest.raises(ValueError, match=f"supports a float32 mask with {dtype} only on the CPU"):
        attention(query, query, query, attn_mask=mask, backend="sdpa")


class NoDouble(TorchDispatchMode):
    """The device "meta" as one without double precision; what is taken from there to the CPU is ones."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].is_meta and str(kwargs.get("device")) == "cpu":
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        for x in pytree.tree_leaves(out):
            if isinstance(x, Tensor) and x.is_meta and x.dtype == torch.float64:
                raise TypeError(f"{func} makes float64 on a device that has none")
        return out


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_no_scheme_makes_double_precision_on_a_device_that_has_none(
    entry: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exact(device: torch.device | None) -> torch.device | None:
        return torch.device("cpu") if device is not None and device.type == "meta" else device

    for module in [m for name, m in sys.modules.items() if name.startswith("posenc.") and hasattr(m, "exact")]:
        monkeypatch.setattr(module, "exact", exact)
    with torch.device("meta"):
        scheme, positions = built(entry)
    query = torch.empty(1, HEADS, TOKENS, HEAD_DIM, device="meta")
    with NoDouble():
        encoding = scheme(positions)
        encoding.add(torch.empty(1, TOKENS, HEADS * HEAD_DIM, device="meta"))
        if encoding.wanted:
            encoding = encoding.with_projected(projected(encoding, torch.device("meta")))
        assert attention(query, query, query, encoding, is_causal=True, backend="reference").is_meta


def projected(encoding: Encoding, device: torch.device) -> dict[str, Tensor]:
    """What a layer projects, as shapes."""
    return {
        name: feature.of_heads(torch.empty(1, TOKENS, feature.size, device=device))
        for name, feature in encoding.wanted.items()
    }


def test_the_device_without_double_precision_is_seen() -> None:
    with NoDouble(), pytest.raises(TypeError, match="makes float64 on a device that has none"):
        RoPE(HEAD_DIM)(Positions.arange(3, device="meta"))


class NothingCopied(TorchDispatchMode):
    """Numbers of Python's that become a tensor are a TypeError: on a GPU they would be copied there in every call."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default):
            raise TypeError("numbers of Python's become a tensor")
        return func(*args, **(kwargs or {}))


@in_one_test(CATALOG)
def test_no_scheme_copies_its_constants_to_the_device_in_every_call(entry: Entry) -> None:
    scheme, positions = built(entry)
    query, key, value = (x[:1] for x in qkv())
    with NothingCopied():
        encoding = scheme(positions)
        encoding.add(torch.empty(1, TOKENS, HEADS * HEAD_DIM))
        if encoding.wanted:
            encoding = encoding.with_projected(projected(encoding, torch.device("cpu")))
        attention(query, key, value, encoding, is_causal=True, backend="reference")


def test_a_copied_constant_is_seen() -> None:
    with NothingCopied(), pytest.raises(TypeError, match="become a tensor"):
        torch.tensor([1.0, 2.0])


# --- half precision --------------------------------------------------------------------------------------------------


def wide(scheme: Scheme) -> Scheme:
    for parameter in scheme.parameters():
        nn.init.normal_(parameter, std=0.5)
    return scheme


def test_transformer_xl_in_bfloat16_is_rounded_once() -> None:
    query, key, value = (x.bfloat16() for x in qkv(300))
    scheme = wide(TransformerXL(HEADS, HEAD_DIM))
    out = attention(query, key, value, scheme, is_causal=True, backend="chunked")
    exact = attention(
        query.double(), key.double(), value.double(), scheme.double(), is_causal=True, backend="reference"
    )
    assert isinstance(out, Tensor)
    assert isinstance(exact, Tensor)
    # Half a unit in the last place, and what float32 loses before it is rounded.
    assert ((out.double() - exact).abs() <= 2.0**-8 * exact.abs() + 1e-5).all()


TABLES: dict[str, Callable[[], Scheme]] = {
    "T5": lambda: T5(HEADS),
    "Shaw's keys": lambda: Shaw(HEAD_DIM, 16, values=False),
    "Shaw": lambda: Shaw(HEAD_DIM, 16),
}


@pytest.mark.parametrize("name", TABLES)
def test_the_gradient_of_a_table_is_whole_beside_inputs_in_half_precision(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To 1e-6 of its largest entry, the tables in float32, against float64 on the same rounded inputs, where the kernel
    converts them to float32."""
    query, key, value, direction = (torch.randn(1, HEADS, 300, HEAD_DIM).bfloat16() for _ in range(4))
    scheme = wide(TABLES[name]())

    def gradients(dtype: torch.dtype, backend: str) -> tuple[Tensor, ...]:
        out = attention(*(x.to(dtype) for x in (query, key, value)), scheme, is_causal=True, backend=backend)
        assert isinstance(out, Tensor)
        assert out.dtype == dtype
        return torch.autograd.grad(out, list(scheme.parameters()), direction.to(dtype))

    monkeypatch.setattr("posenc.backends.native.backend.multiplies_bfloat16", lambda: False)
    found = gradients(torch.bfloat16, "native")
    scheme.double()
    for mine, exact in zip(found, gradients(torch.float64, "chunked"), strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), exact, rtol=0, atol=1e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("backend", ["auto", "sdpa", "chunked", "reference"])
def test_relative_2d_in_float16_bears_a_large_gradient(backend: str) -> None:
    grid = Positions.grid(16, 16)
    scheme = posenc.Relative2D((16, 16), 16)
    leaves = [torch.randn(1, HEADS, 256, 16).half().requires_grad_() for _ in range(3)]
    query, key, value = leaves
    out = attention(query, key, value, scheme, query_positions=grid, backend=backend)
    assert isinstance(out, Tensor)
    for gradient in torch.autograd.grad(out, [*leaves, *scheme.parameters()], 1000 * torch.ones_like(out)):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


# --- from one step to the next ---------------------------------------------------------------------------------------


def test_an_encoding_kept_across_a_training_step_is_refused_at_every_door() -> None:
    query, key, value = qkv()
    x = torch.zeros(2, TOKENS, HEAD_DIM)
    scheme = RoPE(HEAD_DIM) + Shaw(HEAD_DIM, 2) + Learned(TOKENS, HEAD_DIM)
    encoding, pairs = scheme(TEXT), scheme.pairs(TEXT)
    kept = {
        "pairs": encoding.pairs,
        "features": scheme.pairs(TEXT).with_features({}),
        "tree": pytree.tree_map(lambda t: t, pairs),
    }
    scheme.schemes[2].weight.grad = torch.ones(TOKENS, HEAD_DIM)
    torch.optim.SGD(scheme.parameters(), lr=0.1).step()
    doors: dict[str, Callable[[], object]] = {
        "add": lambda: encoding.add(x),
        "rotate": lambda: encoding.rotate(query, key),
        "rotate_query": lambda: encoding.rotate_query(query),
        "rotate_key": lambda: encoding.rotate_key(key),
        "rotate_value": lambda: encoding.rotate_value(value),
        "rotate_output": lambda: encoding.rotate_output(value),
        "cos_sin": encoding.cos_sin,
        "logits": lambda: posenc.logits(query, key, pairs),
        "explain": lambda: posenc.explain(query, key, value, pairs),
        **{
            name: lambda which=which: attention(query, key, value, which, is_causal=True)
            for name, which in ({"attention": pairs} | kept).items()
        },
    }
    for use in doors.values():
        with pytest.raises(ValueError, match="was made before the scheme's parameters changed: call the scheme"):
            use()
    attention(query, key, value, scheme.pairs(TEXT), is_causal=True)


def test_a_cache_that_begins_again_at_0_is_refused_or_a_document_of_its_own() -> None:
    model = Decoder(10, 16, 1, 2, position=RoPE(8)).eval()
    tokens = torch.randint(10, (1, 4))
    with torch.no_grad():
        cache = KVCache()
        first = model(tokens, cache=cache)
        with pytest.raises(ValueError, match=r"begin at or before the last token of the cache: continue it with"):
            model(tokens, Positions.arange(4), cache=cache)
        both = Positions.cat([Positions.arange(4)] * 2, documents="new")
        assert both.document.tolist() == [[0] * 4 + [1] * 4]
        again = KVCache()
        model(tokens, both[:4], cache=again)
        torch.testing.assert_close(model(tokens, both[4:], cache=again), first)


TRUNCATED = ("swin", "swin_v2")  # whose parameters PyTorch cannot draw without numbers
PADDED = Positions.padded(torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]))
JUMPED = Positions.from_ids(torch.tensor([[0, 1, 2, 10, 11]]))  # ids as after an image
MULTIMODAL = Positions.multimodal([2, (1, 2, 2)])
PACKED = Positions.packed([2, 3])
CONTINUED: dict[str, tuple[Positions, Positions, str]] = {
    "a text": (Positions.arange(10), Positions.arange(1, start=10), ""),
    "a gap": (Positions.arange(10), Positions.arange(1, start=20), "at order 10, got 20"),
    "earlier tokens": (Positions.arange(4, start=6), Positions.arange(6), ""),
    "a gap after padding": (PADDED, Positions.arange(1, start=6), "at order 4, got 6"),
    "padding": (PADDED, PADDED.following(2), ""),
    "coordinates that jump": (Positions.arange(10), Positions.arange(1, start=10).shift(10), ""),
    "ids that have jumped": (JUMPED, Positions.from_ids(torch.tensor([[12]])), ""),
    "ids that jump again": (JUMPED, Positions.from_ids(torch.tensor([[20]])), "at order 5, got 20"),
    "text after an image": (MULTIMODAL, MULTIMODAL.following(2), ""),
    "another document": (Positions.arange(4), Positions.cat([Positions.arange(4)] * 2, documents="new")[4:], ""),
    "packed": (PACKED, PACKED.following(), ""),
    "the first of the packed": (PACKED, Positions.packed([4, 3])[2:4], ""),
    "the first of the packed, last": (
        PACKED,
        Positions(torch.tensor([[2]]), order=torch.tensor([[5]]), document=torch.tensor([[0]])),
        "",
    ),
    "a gap in a document": (PACKED, Positions.packed([4, 3])[3:4], "at order 2, got 3"),
}


@pytest.mark.parametrize("case", CONTINUED)
def test_a_cache_is_continued_without_a_gap_in_the_order(case: str) -> None:
    before, after, skip = CONTINUED[case]
    cache = KVCache()
    for positions in (before, after):
        drawn = [torch.randn(positions.rows, 2, len(positions), 8) for _ in range(3)]
        gap = skip and positions is after
        says = (
            rf"^positions must go on from the cache {skip}: continue it with cache.positions.following\(n\) or, where"
        )
        refused = pytest.raises(ValueError, match=says) if gap else nullcontext()
        with refused, ForwardPass(posenc.NoPE(), positions, cache) as step:
            step.attention(*drawn, layer=0)
    assert len(cache) == len(before) + len(after) * (not skip)


@pytest.mark.parametrize(
    "entry", [entry for entry in CATALOG if entry.name not in TRUNCATED], ids=lambda entry: entry.name
)
def test_shapes_can_be_had_without_numbers(entry: Entry) -> None:
    with FakeTensorMode():
        grid, positions = {
            1: (None, Positions.arange(6)),
            2: ((2, 3), Positions.grid(2, 3)),
            3: ((1, 2, 3), Positions.grid(2, 3, frames=1)),
        }[entry.least_axes]
        scheme = entry.build(Shape(16, 2, 8, 64, grid=grid))
        encoding = scheme(positions.with_segment(torch.zeros(1, 6, dtype=torch.int64)))
        if encoding.tables:
            assert encoding.add(torch.randn(1, 6, 16)).shape == (1, 6, 16)
        elif not encoding.wanted:
            assert attention(*torch.randn(3, 1, 2, 6, 8), encoding, is_causal=True).shape[:3] == (1, 2, 6)


def test_packed_rows_laid_end_to_end() -> None:
    packed = Positions.packed([2, 3])
    with pytest.raises(ValueError, match="parts have tokens of document 0 at the same order"):
        Positions.cat([packed, packed])
    new = Positions.cat([packed, packed], documents="new")
    assert new.document.tolist() == [[0, 0, 1, 1, 1, 2, 2, 3, 3, 3]]
    assert new.coords.tolist() == [[0, 1, 0, 1, 2] * 2]
    rows = Positions.packed([[2, 3], [1, 2]])
    assert Positions.cat([rows, rows.following()]).document.tolist() == [[0, 0, 1, 1, 1, 1], [0, 1, 1, -1, -1, 1]]


def test_the_biases_that_layers_share_stay_shared_when_they_leave_meta() -> None:
    with torch.device("meta"):
        model = Decoder(10, 16, 3, 4, position=TransformerXL(4, 4), per_layer=True)
    for moved in (copy.deepcopy(model), model.to_empty(device="cpu")):
        first, *others = (block.scheme for block in moved.trunk.blocks)  # type: ignore[union-attr]
        for other in others:
            assert other.content_bias is first.content_bias
            assert other.position_bias is first.position_bias
            assert other.projection is not first.projection


# --- as trees of tensors ---------------------------------------------------------------------------------------------


def test_an_encoding_is_a_tree_of_the_tensors_it_holds() -> None:
    query, key, value = qkv()
    scheme = RoPE(HEAD_DIM) + T5(HEADS) + Learned(TOKENS, 12)
    encoding = scheme(TEXT).with_features({"gate": torch.randn(2, HEADS, TOKENS).bfloat16()})
    leaves = pytree.tree_leaves(encoding)
    assert all(isinstance(leaf, Tensor) for leaf in leaves)
    assert {tuple(leaf.shape) for leaf in leaves} >= {
        (1, TOKENS, 12),
        (1, 1, TOKENS, HEAD_DIM // 2),
        (2, HEADS, TOKENS),
    }
    detached = pytree.tree_map(Tensor.detach, encoding)
    assert encoding.tables[0].requires_grad
    assert not detached.tables[0].requires_grad
    want = attention(query, key, value, scheme.pairs(TEXT), is_causal=True)
    torch.testing.assert_close(attention(query, key, value, detached.pairs, is_causal=True), want)
    moved = pytree.tree_map(lambda x: x.to("meta"), encoding)
    assert {leaf.device.type for leaf in pytree.tree_leaves(moved)} == {"meta"}
    assert moved.key_positions is moved.query_positions
    assert moved.pieces == encoding.pieces  # they refer to the scheme


def test_trees_are_not_cast_to_what_cannot_hold_them() -> None:
    def half(x: Tensor) -> Tensor:
        return x.bfloat16() if x.is_floating_point() else x

    with pytest.raises(ValueError, match=r"the encoding was cast to torch.bfloat16, which is too coarse for phases"):
        pytree.tree_map(half, RoPE(HEAD_DIM)(TEXT))
    with pytest.raises(ValueError, match=r"positions were cast to torch.bfloat16, which cannot tell 256 from 257"):
        pytree.tree_map(half, TEXT.shift(0.5))
    assert pytree.tree_map(half, TEXT).coords.dtype == torch.int64
    segmented = TEXT.with_segment(torch.ones(1, TOKENS, dtype=torch.int64))
    assert pytree.tree_map(lambda x: x + 1, segmented).segment.tolist() == [[2] * TOKENS]


# --- memory ----------------------------------------------------------------------------------------------------------


def test_explain_is_linear_where_the_distances_of_a_table_are_checked() -> None:
    """At 16,384 permuted positions: a table of the pairs would be 268 million numbers."""

    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            sizes = [
                x.untyped_storage().size() // x.element_size() for x in pytree.tree_leaves(out) if type(x) is Tensor
            ]
            self.numbers = max([self.numbers, *sizes])
            return out

    tokens = 2**14
    positions = Positions.arange(tokens)[torch.randperm(tokens)]
    query = torch.randn(1, 1, tokens, 4)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), Largest() as largest:
            posenc.explain(query, query, query, posenc.Relative1D(tokens, 4), query_positions=positions, is_causal=True)
        assert 0 < largest.numbers <= 16 * tokens


# --- in a compiled graph ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(
    os.environ.get("POSENC_SHAPES") == "1", reason="torch.compile cannot see through the checks of shapes"
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling for the CPU needs g++")
@pytest.mark.parametrize("kind", with_more(["order"], ["documents", "coordinates"]))
def test_positions_that_a_graph_counts_by_division(kind: str) -> None:
    """Of arange(120) // 50 inductor writes 100 numbers and leaves 20 as they were, unless it is kept from it."""
    scheme = T5(HEADS, bidirectional=True)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Any:
        count = torch.arange(query.size(2))[None]
        tens = count // 50
        positions = {
            "documents": lambda: Positions(count % 50, order=count, document=tens),
            "order": lambda: Positions(count, order=tens),
            "coordinates": lambda: Positions(tens, order=count),
        }[kind]()
        return attention(
            query, key, value, scheme, query_positions=positions, is_causal=kind == "order", backend="sdpa"
        )

    tensors = [x.requires_grad_() for x in qkv(120)]
    found = []
    for function in (run, torch.compile(run, fullgraph=True)):
        out = function(*tensors)
        found.append((out.detach(), *torch.autograd.grad(out.square().sum(), [*tensors, *scheme.parameters()])))
    torch.testing.assert_close(found[1], found[0])


def test_a_call_without_a_scheme_compiles() -> None:
    query, key, value = qkv()
    run = torch.compile(lambda q, k, v: attention(q, k, v, is_causal=True), fullgraph=True, backend="eager")
    torch.testing.assert_close(run(query, key, value), attention(query, key, value, is_causal=True))


# --- what a new user tries -------------------------------------------------------------------------------------------


def test_positions_of_queries_alone_are_those_of_as_many_keys() -> None:
    query, key, value = qkv()
    there = Positions.packed([4, 6])
    alone = attention(query, key, value, ALiBi(HEADS), query_positions=there, is_causal=True)
    both = attention(query, key, value, ALiBi(HEADS), query_positions=there, key_positions=there, is_causal=True)
    torch.testing.assert_close(alone, both)
    with pytest.raises(ValueError, match=r"key_positions must be given with query_positions where there are 3 queries"):
        attention(query[:, :, :3], key, value, ALiBi(HEADS), query_positions=Positions.arange(3), is_causal=True)


def test_a_token_door_opens_once() -> None:
    query, key, value = qkv()
    encoding = RoPE(HEAD_DIM)(TEXT)
    turned = encoding.rotate(query, key)
    with pytest.raises(ValueError, match=r"rotated query and key already.*pass encoding.pairs"):
        attention(*turned, value, encoding)
    torch.testing.assert_close(attention(*turned, value, encoding.pairs), attention(query, key, value, RoPE(HEAD_DIM)))
    added = Learned(TOKENS, 12)(TEXT)
    with pytest.raises(ValueError, match=r"adds to the input, and was not added: call x = encoding.add\(x\)"):
        attention(query, key, value, added)
    added.add(torch.zeros(2, TOKENS, 12))
    attention(query, key, value, added)


def test_two_rotations_of_the_same_channels_are_an_error() -> None:
    for other in (RoPE(16), checkpoint_wrapper(RoPE(16))):
        with pytest.raises(ValueError, match="rotate the same channels, so every token would be rotated twice"):
            RoPE(16) + other
    query, key, value = qkv(width=16)
    halves = RoPE(16, rotary_dim=8) + RoPE(16, rotary_dim=8, first_channel=8, base=100.0)
    assert torch.is_tensor(attention(query, key, value, halves))


ONE_SIDED = {
    "ALiBi": (lambda: ALiBi(HEADS), "form='bidirectional' or form='directed'"),
    "T5": (lambda: T5(HEADS), "bidirectional=True"),
    "XPos": (lambda: posenc.XPos(HEAD_DIM), "RoPE"),
    "FIRE": (lambda: posenc.FIRE(HEADS), "KERPLE, or T5 with bidirectional=True"),
    "DualChunk": (lambda: posenc.DualChunk(HEAD_DIM, 6, 2), "RoPE"),
}


@pytest.mark.parametrize("name", ONE_SIDED)
def test_what_encodes_only_keys_up_to_the_query_needs_a_causal_mask(name: str) -> None:
    make, other = ONE_SIDED[name]
    query, key, value = qkv()
    for use in (attention, posenc.explain):
        with pytest.raises(ValueError, match=rf"{name} .* pass is_causal=True .*or use {other}$"):
            use(query, key, value, make())  # type: ignore[operator]
    with pytest.raises(ValueError, match=rf"{name} .* pass is_causal=True .*or use {other}$"):
        Encoder(10, HEADS * HEAD_DIM, 1, HEADS, position=make())(torch.zeros(1, 4, dtype=torch.int64))
    attention(query[:, :, -1:], key, value, make())  # nothing is after the last token


def test_the_arguments_of_pytorchs_own_attention() -> None:
    query, key, value = qkv()
    few = key[:, :2], value[:, :2]
    for enable in (True, False):
        torch.testing.assert_close(
            attention(query, *few, is_causal=True, enable_gqa=enable),
            nn.functional.scaled_dot_product_attention(query, *few, is_causal=True, enable_gqa=True),
        )
    with pytest.raises(ValueError, match=r"pass a mask as attn_mask=, got torch.bool \(10, 10\)"):
        attention(query, key, value, torch.ones(TOKENS, TOKENS, dtype=torch.bool))  # type: ignore[arg-type]


def test_positions_are_made_from_what_a_model_has() -> None:
    mask = [[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]
    padded = Positions.padded(torch.tensor(mask))
    assert padded.document.tolist() == Positions.padded(torch.tensor(mask).bool()).document.tolist()
    with pytest.raises(ValueError, match="mask must be bool or contain only 0 and 1, got 2"):
        Positions.padded(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match=r"mask must be a tensor .* of True or 1 = token, got torch.float32"):
        Positions.padded(torch.ones(1, 2))  # type: ignore[arg-type]
    ids = torch.tensor([[0, 1, 2, 0, 1]])
    packed = Positions.from_ids(ids, packed=True)
    want = Positions.packed([3, 2])
    assert (packed.coords.tolist(), packed.document.tolist()) == (want.coords.tolist(), want.document.tolist())
    assert packed.layout == want.layout
    with pytest.raises(ValueError, match=r"ids must increase along each row.*packed=True"):
        Positions.from_ids(ids)
    left = Positions.from_ids(torch.tensor([[1, 1, 0, 1, 2]]), torch.tensor([mask[0]]))
    assert (left.document.tolist(), left.order.tolist()) == ([[-1, -1, 0, 0, 0]], [[0, 0, 0, 1, 2]])


@pytest.mark.parametrize("new", [1, 3])
def test_ids_of_new_tokens_come_after_the_cache(new: int) -> None:
    scheme = RoPE(HEAD_DIM) + ALiBi(HEADS)
    query, key, value = torch.randn(3, 2, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64)
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, :4] = 0  # padded on the left
    ids = (mask.cumsum(1) - 1).clamp(min=0)
    whole = Positions.from_ids(ids, mask)
    assert whole.order.tolist() == Positions.padded(mask).order.tolist()
    step = Positions.from_ids(ids[:, -new:].int())
    assert (step.order.dtype, step.order.tolist()) == (torch.int64, ids[:, -new:].tolist())
    torch.testing.assert_close(
        attention(query[:, :, -new:], key, value, scheme(step, whole, dtype=torch.float64), is_causal=True),
        attention(query, key, value, scheme(whole, dtype=torch.float64), is_causal=True)[:, :, -new:],
    )
    partly = Positions.from_ids(torch.tensor([[1, 11, 12], [1, 1, 1]]), torch.tensor([[0, 1, 1], [0, 0, 0]]))
    assert partly.order.tolist() == [[0, 11, 12], [0, 0, 0]]
    assert Positions.from_ids(torch.zeros(2, 0, dtype=torch.int64)).order.shape == (2, 0)


def test_positions_are_shifted_scaled_and_laid_over_another_grid() -> None:
    for half in (np.float32(0.5), np.float64(0.5), 0.5):
        assert Positions.arange(2).shift(half).coords.tolist() == [[0.5, 1.5]]
        assert Positions.arange(3).scale(half).coords.tolist() == [[0.0, 0.5, 1.0]]
    assert Positions.arange(2).shift(np.int64(2)).coords.dtype == torch.int64
    assert Positions.arange(3).scale(2).layout.bounds == (0, 4)
    over = Positions.grid(2, 2, extent=(4, 4), prefix=1)
    assert over.coords.tolist() == [[[0.0, 0.0], [0.5, 0.5], [0.5, 2.5], [2.5, 0.5], [2.5, 2.5]]]
    mixed = Positions.cat([Positions.arange(2), Positions.arange(1, start=2).shift(0.5)])
    assert (mixed.coords.dtype, mixed.coords.tolist()) == (torch.float64, [[0.0, 1.0, 2.5]])


def test_an_encoding_is_said_in_a_line_and_gives_its_angles() -> None:
    encoding = (RoPE(HEAD_DIM) + T5(HEADS))(TEXT)
    assert repr(encoding).startswith("Encoding(rotate, score; queries Positions(rows=1, tokens=10")
    assert "\n" not in repr(encoding)
    cos, sin = encoding.cos_sin()
    angle = torch.arange(TOKENS)[:, None] * 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    torch.testing.assert_close((cos[0], sin[0]), (angle.cos(), angle.sin()))
    with pytest.raises(ValueError, match="cos_sin needs one rotation of channel pairs"):
        ALiBi(HEADS)(TEXT).cos_sin()


def test_help_shows_no_private_field() -> None:
    shown = pydoc.plain(pydoc.render_doc(Positions))
    assert "coords" in shown
    assert "_layout" not in shown.replace("with_layout", "")
    assert "_is_read" not in shown
    copied = copy.deepcopy(TEXT)
    assert (copied.layout, copied.coords.tolist()) == (TEXT.layout, TEXT.coords.tolist())
    with pytest.raises(AttributeError):
        TEXT.coords = TEXT.order  # type: ignore[misc]


@pytest.mark.more
def test_public_functions_are_functions_whatever_was_imported_first() -> None:
    """In one process that has torch alone, and forks for each."""
    first = ("posenc.tools.check.transformers_calls", "posenc.backends.attention", "posenc.tools.plot")
    code = f"""if True:
        import importlib, os, torch
        for name in {first}:
            if os.fork() == 0:
                importlib.import_module(name)
                import posenc
                functions = (posenc.attention, posenc.logits, posenc.explain, posenc.catalog)
                print(name, all(map(callable, functions)), flush=True)
                os._exit(0)
            os.wait()
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"{name} True" for name in first], done.stderr


@pytest.mark.parametrize("make", [ALiBi, posenc.DistanceAware, lambda h: posenc.Shaw(4, 2, values=False, num_heads=h)])
@pytest.mark.parametrize("backend", ["reference", "sdpa", "native", "chunked", "flex", "auto"])
def test_a_scheme_for_one_head_is_not_spread_over_six(make: Any, backend: str) -> None:
    x = torch.zeros(1, 6, 20, 4)
    with pytest.raises(ValueError, match="was made for 1 heads, got queries of 6"):
        posenc.attention(x, x, x, make(1), is_causal=True, backend=backend)
