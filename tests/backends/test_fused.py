"""Far pairs by PyTorch's fused kernels for a GPU, where there is none: what they are called with, and how often."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from posenc import T5, ALiBi, Scheme, Shaw, compat
from posenc.backends import choice
from posenc.backends.tiled import backend as tiled
from posenc.backends.tiled import fused, near, near_kernels, pairwise
from posenc.backends.tiled import operator as tile_operator
from tests.backends.fused_stand_ins import stand_ins, windowed
from tests.backends.grounds import case
from tests.backends.test_parity import check_parity
from tests.backends.test_triton import (
    INTERPRETED,
    check_as_exact_as_the_reference,
    check_half_precision,
    interpreted,
)

FILE = Path(__file__)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU taken for a GPU."""
    monkeypatch.setattr(fused, "on_gpu", lambda x: True)
    monkeypatch.setattr(near, "on_gpu", lambda x: True)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


@pytest.fixture
def calls(gpu: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """The calls of stand-ins for the kernels of a GPU, with small sections."""
    monkeypatch.setattr(fused, "ON_GPU", fused.Sizes(2**62, 2**62, 8, 4))
    monkeypatch.setattr(fused, "MASKED_ON_GPU", fused.Sizes(32, 8, 8, 4))
    monkeypatch.setattr(near, "ON_GPU", (16, 25, 2**12))
    monkeypatch.setattr(tiled, "MOSTLY_NEAR", 0)
    with stand_ins() as made:
        yield made.calls


def more(*case: Any) -> Any:
    """One of the cases of `make check`."""
    return pytest.param(*case, marks=pytest.mark.more)


WITHOUT = [  # scheme, place, way, heads of the keys, kernel
    ("shaw values", "packed", "a window", 2, "flash"),
    ("t5 bidirectional", "cache", "both", 1, "flash"),
    ("nope", "a gap", "causal, sinks", 1, "flash"),
    ("shaw", "other keys", "both", 1, "efficient"),
    more("shaw", "text", "causal", 2, "flash"),
    more("shaw", "other keys", "both", 1, "flash"),
    more("t5 bidirectional", "padded left and right", "a window, sinks", 2, "flash"),
    more("shaw per head", "text", "both", 2, "flash"),
    more("shaw values", "packed", "a window", 2, "efficient"),
    more("t5 bidirectional", "cache", "both", 1, "efficient"),
    more("nope", "text", "a window, sinks", 1, "efficient"),
]
WITH = [
    ("alibi", "text", "causal", 2),
    ("clocked", "cache", "causal", 1),
    more("alibi bidirectional", "other keys", "a window", 1),
    more("bent line", "packed", "a window", 2),
    more("clocked", "text", "a window, sinks", 2),
]


@pytest.mark.parametrize(("name", "place", "way", "kv_heads", "kernel"), WITHOUT)
def test_without_numbers_to_add_either_kernel_gives_what_the_reference_gives(
    name: str,
    place: str,
    way: str,
    kv_heads: int,
    kernel: str,
    calls: list[tuple[str, int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "HALF", (torch.float64,) if kernel == "flash" else ())
    check_parity(case(name, place, 70, way, 2, kv_heads), {"tiled": False})
    assert {name for name, *_ in calls} == {kernel, f"{kernel} backward"}


@pytest.mark.parametrize(("name", "place", "way", "kv_heads"), WITH)
def test_with_numbers_to_add_it_is_the_one_that_takes_masks(
    name: str, place: str, way: str, kv_heads: int, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "HALF", (torch.float64,))
    check_parity(case(name, place, 70, way, 2, kv_heads), {"tiled": False})
    assert {name for name, *_ in calls} == {"efficient", "efficient backward"}


def test_in_half_precision_a_large_bias_is_not_rounded(calls: list[tuple[str, int, int]]) -> None:
    """Two far keys outweigh their bias, which decides between them: of 98 bfloat16 rounds 0.2 off."""
    it = case("alibi", "text", 160, "causal", heads=12, kv_heads=12)
    assert isinstance(it.scheme, ALiBi)
    with torch.no_grad():
        raised = torch.zeros(12, 160)
        raised[:, 20:22] = torch.tensor(it.scheme.slopes)[:, None] * torch.tensor([139, 138]) + 5.0
        for x, channel in ((it.query, torch.ones(())), (it.key, raised * it.query.size(-1) ** 0.5)):
            x.zero_()[..., 0] = channel
    check_half_precision(it, torch.bfloat16, torch.device("cpu"), "tiled")
    assert {name for name, *_ in calls} == {"efficient", "efficient backward"}


@pytest.mark.parametrize(
    ("kernel", "backward"), [("flash", "flash"), ("efficient", "efficient"), ("flash", "efficient")]
)
def test_any_width_and_order_in_memory(
    kernel: str, backward: str, calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels on a GPU read 16 bytes at a time: of these heads no row begins there.
    With the gradient of the log-sum-exp, which takes one more channel, and so may be too wide for one of them."""
    monkeypatch.setattr(compat, "WIDEST_FLASH", 256 if backward == "flash" else 24)
    monkeypatch.setattr(compat, "HALF", (torch.float64,) if kernel == "flash" else ())
    q, k, v = (torch.randn(2, 40, h * d + 1, dtype=torch.float64) for h, d in ((4, 24), (2, 24), (2, 13)))
    tensors = [x[..., 1:].unflatten(2, (h, -1)).transpose(1, 2) for x, h in ((q, 4), (k, 2), (v, 2))]
    assert any(n % 2 for x in tensors for n in (*x.stride()[:-1], x.storage_offset()))
    scheme, found = Shaw(24, 3, values=False).double(), []
    for backend in ("reference", "tiled"):
        leaves = [x.detach().requires_grad_() for x in tensors]
        out, lse = posenc.attention(*leaves, scheme, enable_gqa=True, return_lse=True, backend=backend)
        found.append(
            [out, lse, *torch.autograd.grad(out.square().sum() + lse.sin().sum(), [*leaves, *scheme.parameters()])]
        )
    for truth, x in zip(*found, strict=True):
        torch.testing.assert_close(x, truth)
    assert {name for name, *_ in calls} == {kernel, f"{backward} backward"}


@pytest.mark.parametrize(
    ("low", "high"), [(None, None), (None, 5), (None, -20), (-40, None), (-3, None), (-40, -20), (-3, 5)]
)
@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (100, 21), (21, 100)])
def test_bands_are_the_pairs_in_every_reading_of_windows(
    queries: int, keys: int, low: int | None, high: int | None
) -> None:
    """FlashAttention ignores windows that are as wide as the keys, which may be fewer than the queries."""
    seen = torch.zeros(queries, keys, dtype=torch.long)
    found = list(fused.bands(0, queries, 0, keys, low, high))
    for band in found:
        q, k = band.stop - band.start, band.last - band.first
        mask = windowed(q, k, band.window == compat.CAUSAL, *band.window)
        seen[band.queries, band.keys] += mask == 0
        assert bool((mask == 0).any(1).all())  # a row without keys has a log-sum-exp of +inf
    apart = torch.arange(keys) - torch.arange(queries)[:, None]
    wanted = (apart >= (low if low is not None else -queries)) & (apart <= (high if high is not None else keys))
    assert torch.equal(seen, wanted.long())
    assert len(found) <= 3


def test_flash_attention_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    half = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16)
    reasons = [compat.why_not_flash(x) for x in (half.float(), half.expand(1, 1, 1, 64).repeat(1, 1, 1, 5), half)]
    assert reasons == [
        "it supports only bfloat16 and float16",
        "it supports at most 256 channels, got 320",
        "it needs a GPU of compute capability 8.0 or later",
    ]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert compat.why_not_flash(half) is None
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert compat.why_not_flash(half) == "this build of PyTorch does not have it"


@pytest.mark.parametrize(
    ("device", "dtype", "reason"),
    [
        ("cuda", torch.bfloat16, None),
        ("cuda", torch.float32, None),
        ("cuda", torch.float64, "no fused kernel for CUDA supports float64"),
        ("mps", torch.float32, "no fused kernel for mps is known to give its log-sum-exp"),
        ("cpu", torch.float64, None),
    ],
)
def test_devices_without_a_fused_kernel_say_so(device: str, dtype: torch.dtype, reason: str | None) -> None:
    with compat.without_numbers():
        assert compat.why_not_fused(torch.empty(1, 1, 1, 64, device=device, dtype=dtype)) == reason


@pytest.mark.parametrize(
    ("scheme", "dtype", "words"),
    [
        (Shaw(16, 3), torch.bfloat16, "far pairs by FlashAttention, near pairs in blocks"),
        (Shaw(16, 3), torch.float32, "far pairs by memory-efficient attention, near pairs in blocks"),
        (ALiBi(2), torch.bfloat16, "by memory-efficient attention"),
        (Shaw(16, 300), torch.bfloat16, "all pairs in blocks, since most are near"),
    ],
)
def test_explain_says_what_runs_and_where_it_was_timed(
    scheme: Scheme, dtype: torch.dtype, words: str, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posenc.backends.native.backend.missing", lambda dtype: "there is no C++ compiler")
    monkeypatch.setattr(near_kernels.of_launch, "missing", lambda: "Triton is not installed")
    q = torch.zeros(1, 2, 300, 16, dtype=dtype)
    explained = posenc.explain(q, q, q, scheme, is_causal=True)
    assert explained.backend == "tiled"
    assert explained.why.endswith(f": {words}; of GPUs, it was timed on an H100 alone")


def test_auto_does_not_take_on_a_gpu_what_was_measured_on_a_cpu(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posenc.backends.native.backend.missing", lambda dtype: "there is no C++ compiler")
    q = torch.zeros(1, 2, 300, 16, dtype=torch.bfloat16)
    straight = "linear in distance beyond a cutoff"
    assert straight in posenc.explain(q, q, q, ALiBi(2), is_causal=True).why
    monkeypatch.setattr(choice._Asked, "is_cuda", lambda self: True)
    assert straight not in posenc.explain(q, q, q, ALiBi(2), is_causal=True).why


SCHEMAS = {
    "_flash_attention_forward": "query key value cum_seq_q cum_seq_k max_q max_k dropout_p is_causal return_debug_mask "
    "scale window_size_left window_size_right",
    "_flash_attention_backward": "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p "
    "is_causal * * scale window_size_left window_size_right",
    "_scaled_dot_product_efficient_attention": "query key value attn_bias compute_log_sumexp dropout_p is_causal scale",
    "_scaled_dot_product_efficient_attention_backward": "grad_out_ query key value attn_bias out logsumexp philox_seed "
    "philox_offset dropout_p grad_input_mask is_causal scale",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_pytorch_has_these_operators_with_these_arguments(name: str) -> None:
    """In order; the two marked * are named otherwise from one release to another, and read for dropout alone."""
    found = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    wanted = SCHEMAS[name].split()
    assert len(found) >= len(wanted)
    assert all(b in ("*", a) for a, b in zip(found, wanted, strict=False)), found


# --- near pairs by the kernels of triton ------------------------------------------------------------------------------

in_interpreter = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
ON_A_GPU = [
    ("shaw", "other keys", "both", 3, 1),
    ("shaw", "packed", "a window", 12, 3),
    ("t5 bidirectional", "cache", "both", 2, 2),
    ("t5 bidirectional", "text", "a window, sinks", 2, 1),
    ("featured", "text", "both", 2, 1),
    ("shaw+alibi", "padded inside and wholly", "both", 2, 1),
    ("bent line", "a gap", "causal, sinks", 2, 1),
    ("clocked", "text", "causal", 2, 1),
    ("nope", "text", "to the left", 12, 3),
]
NEAR = [  # scheme, place, way, heads, heads of the keys
    ("shaw", "other keys", "both", 3, 1),
    more("shaw per head", "packed", "a window", 2, 2),
    ("t5 bidirectional", "cache", "both", 2, 2),
    ("featured", "text", "both", 2, 1),
    ("shaw+alibi", "padded inside and wholly", "both", 2, 1),
    more("bent line", "a gap", "causal, sinks", 2, 1),
]


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.skipif(INTERPRETED, reason="this is the process that interprets them")
def test_the_kernels_are_interpreted() -> None:
    passed = interpreted(__file__, "-k", "kernels_and", only="not more")
    assert passed == len(NEAR) - 2 + len(HALVES)


@pytest.fixture
def near_calls(calls: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """The same, where blocks are an error, and single precision is taken for half."""
    monkeypatch.setattr(compat, "HALF", (torch.float32, torch.bfloat16, torch.float16))
    monkeypatch.setattr(pairwise, "forward", None)
    monkeypatch.setattr(pairwise, "backward", None)
    return calls


@pytest.mark.triton
@in_interpreter
@pytest.mark.parametrize(("name", "place", "way", "heads", "kv_heads"), NEAR)
def test_the_kernels_and_the_fused_ones_are_as_exact_as_the_reference(
    name: str, place: str, way: str, heads: int, kv_heads: int, near_calls: list[tuple[str, int, int]]
) -> None:
    """As in `check_as_exact_as_the_reference`, of the kernels alone."""
    check_as_exact_as_the_reference(case(name, place, 45, way, heads, kv_heads), torch.device("cpu"), "tiled")
    assert near_calls


HALVES = [("shaw", torch.bfloat16), ("t5 bidirectional", torch.float16)]


@pytest.mark.triton
@in_interpreter
@pytest.mark.parametrize(("name", "dtype"), HALVES)
def test_the_kernels_and_the_fused_ones_in_half_precision(
    name: str, dtype: torch.dtype, near_calls: list[tuple[str, int, int]]
) -> None:
    """Far and near outputs are rounded before they are merged, each by U of itself, and so are their gradients. The
    rest as in `test_triton.test_half_precision`, whose bound has room for these."""
    check_half_precision(case(name, "text", 45, "both", 2, 1), dtype, torch.device("cpu"), "tiled")
    assert {kernel for kernel, *_ in near_calls} == {"flash", "flash backward"}


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """A GPU, and far pairs wherever there are some."""
    monkeypatch.setattr(tiled, "MOSTLY_NEAR", 0)
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "place", "way", "heads", "kv_heads"), ON_A_GPU)
def test_on_a_gpu_it_is_as_exact_as_the_reference(
    name: str, place: str, way: str, heads: int, kv_heads: int, cuda: torch.device
) -> None:
    check_as_exact_as_the_reference(case(name, place, 517, way, heads, kv_heads), cuda, "tiled")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "place", "way", "heads", "kv_heads"), ON_A_GPU)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_in_half_precision(
    name: str, place: str, way: str, heads: int, kv_heads: int, dtype: torch.dtype, cuda: torch.device
) -> None:
    check_half_precision(case(name, place, 517, way, heads, kv_heads), dtype, cuda, "tiled")


# --- on a GPU, without numbers ----------------------------------------------------------------------------------------


FLASH, EFFICIENT = "_flash_attention", "_scaled_dot_product_efficient_attention"


class Asked(TorchDispatchMode):
    """Stops at the operator, and keeps its arguments."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.posenc.tiled.default:
            self.arguments = args
        return func(*args, **kwargs or {})


class Counted(TorchDispatchMode):
    """Counts operators that run a kernel, and those of a name."""

    VIEWS = ("view", "expand", "slice", "transpose", "unsqueeze", "select", "as_strided", "alias", "detach", "permute")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func._schema.name.removeprefix("aten::")
        if name not in self.VIEWS and not name.startswith(("empty", "new_empty", "prim::")):
            self.names.append(name)
        return func(*args, **kwargs or {})


def passes(scheme: Scheme, dtype: torch.dtype, tokens: int, **how: Any) -> tuple[list[str], list[str]]:
    """The operators that the forward and the backward pass would run on a GPU. Tensors without numbers stand for those
    on a GPU: to read one is an error."""
    with compat.without_numbers():
        q, k, v = (torch.empty(2, h, tokens, 64, dtype=dtype) for h in (8, 2, 2))
        with torch.no_grad(), Asked() as asked:
            posenc.attention(q, k, v, scheme, is_causal=True, enable_gqa=True, backend="tiled", **how)

        def moved(x: object) -> object:
            return torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x

        query, key, value, tables, *rest = asked.arguments
        query, key, value = (moved(x) for x in (query, key, value))
        tables = [moved(x) for x in tables]
        with Counted() as forward:
            results = tile_operator._tiled._init_fn(query, key, value, tables, *rest)
        with Counted() as backward:
            dout = torch.empty_like(results[0], memory_format=torch.contiguous_format)
            tile_operator._tiled_backward._init_fn(dout, None, query, key, value, tables, results, *rest)
    return forward.names, backward.names


@pytest.mark.parametrize(
    ("scheme", "dtype", "tokens", "how", "kernel", "most", "each"),
    [
        (Shaw(64, 16), torch.bfloat16, 16_384, {}, FLASH, 1, 8),
        (Shaw(64, 16), torch.float16, 16_384, {"window": 4096}, FLASH, 2, 8),
        (T5(8), torch.float32, 16_384, {}, EFFICIENT, 4, 8),  # one for each query head of a group
        (ALiBi(8), torch.bfloat16, 1500, {}, EFFICIENT, 4 * 3, 16),
        more(ALiBi(8), torch.bfloat16, 16_384, {}, EFFICIENT, 4 * 31, 16),
    ],
)
def test_calls_are_few_and_nothing_is_read_from_a_gpu(
    scheme: Scheme,
    dtype: torch.dtype,
    tokens: int,
    how: dict[str, Any],
    kernel: str,
    most: int,
    each: int,
    gpu: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At most ``most`` calls of the kernel, each with so many small operators, and 30 others."""
    monkeypatch.setattr(near_kernels, "takes", lambda *_: True)
    monkeypatch.setattr(near_kernels, "forward", lambda *_: None)
    monkeypatch.setattr(near_kernels, "backward", lambda *_: None)
    for names in passes(scheme, dtype, tokens, **how):
        count = sum(name.startswith(kernel) for name in names)
        assert 0 < count <= most
        assert len(names) <= each * count + 30
        assert sum("attention" in name for name in names) == count


def test_to_read_a_tensor_without_numbers_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        bool((torch.empty(3, device="meta") > 0).all())


@pytest.mark.more
def test_in_blocks_near_pairs_are_few_calls_too(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """4 blocks of 512 queries, of all heads at once."""
    monkeypatch.setattr(near_kernels, "takes", lambda *_: False)
    forward, backward = passes(Shaw(64, 16), torch.bfloat16, 2048)
    assert len(forward) <= 30 + 4 * 42
    assert len(backward) <= 40 + 4 * 70
