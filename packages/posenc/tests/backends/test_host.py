"""What a call of attention costs the host of a GPU: operations outside the kernels, and values read from the device.

There is no GPU here. Tensors of the CPU say that they are on one, and the kernels return empty tensors.
"""

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import posenc
from posenc import KERPLE, T5, ALiBi, Positions, RoPE, Sandwich, Scheme, Shaw, compat
from posenc.backends import cache, flex, races
from posenc.backends.triton import backend as triton
from posenc.backends.triton import operator
from tests.backends.test_triton_launch import NullLauncher

HEADS, TOKENS, HEAD_DIM = 2, 1100, 16  # from 1,024 keys on, blocks that fade are left out
CUDA = torch.device("cuda", 0)

READS = {"_local_scalar_dense", "nonzero", "equal", "_unique2", "unique_dim", "unique_consecutive", "masked_select"}
WITHOUT_A_KERNEL = READS | {
    *("view", "_unsafe_view", "expand", "slice", "select", "unsqueeze", "squeeze", "transpose", "permute", "t"),
    *("alias", "detach", "as_strided", "unbind", "split", "unfold", "diagonal", "empty", "new_empty", "empty_like"),
    *("lift_fresh", "promote_types"),
}


class OnDevice(TorchFunctionMode):
    """Tensors say that they are on a GPU; what is made there is made on the CPU. Lists of numbers that are copied to it
    are counted: a copy waits for the device, and no CUDA graph can have one."""

    copies = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.Tensor.device.__get__:
            return CUDA
        if func == torch.Tensor.is_cuda.__get__:
            return True
        if func is F.scaled_dot_product_attention:
            return emptied(args[0], args[2])[0]

        index = args[1] if func == torch.Tensor.__getitem__ else ()
        if func in (torch.tensor, torch.as_tensor) or any(
            isinstance(x, list) for x in (index if isinstance(index, tuple) else (index,))
        ):
            self.copies += 1

        def here(x: Any) -> Any:
            return torch.device("cpu") if isinstance(x, (str, torch.device)) and "cuda" in str(x) else x

        return func(*map(here, args), **{name: here(x) for name, x in (kwargs or {}).items()})


def emptied(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    return value.new_empty((*query.shape[:3], value.size(-1))), lse


@dataclass
class Device:
    """The stream that is current, whether a graph is captured, and what kernels were called with."""

    stream: int = 1
    is_capturing: bool = False
    masks: list[Any] = field(default_factory=list)
    by_flash: list[bool] = field(default_factory=list)
    mode: OnDevice = field(default_factory=OnDevice)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A GPU, as far as the host can tell."""
    made = Device()

    def attend(how: tuple[Any, ...], reads_pairs: bool, by_flash: bool) -> Any:
        made.masks.append(how[4])
        made.by_flash.append(by_flash)
        return emptied(how[0], how[2])

    monkeypatch.setattr(flex, "attend", attend)
    monkeypatch.setattr(triton, "triton", lambda query, key, value, *_, prepared: emptied(query, value))
    monkeypatch.setattr(triton.Prepared, "counted", lambda *_: None)
    monkeypatch.setattr(triton, "missing", lambda: None)
    monkeypatch.setattr("posenc.compat.is_eager", lambda: True)
    monkeypatch.setattr(cache, "stream_of", lambda device: made.stream if device.type == "cuda" else None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: made.is_capturing)
    monkeypatch.setattr(flex, "_of_layouts", {})
    monkeypatch.setattr(cache, "_READ_BY_GRAPHS", [])
    with made.mode:
        yield made


class Counted(TorchDispatchMode):
    """Counts operations that launch a kernel, and those that read from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: Counter[str] = Counter()
        self.read: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        (self.read if name in READS else self.launched).update([name] if name not in WITHOUT_A_KERNEL - READS else [])
        return func(*args, **(kwargs or {}))


def drawn(queries: int = TOKENS, **how: Any) -> list[Tensor]:
    return [torch.zeros(1, HEADS, n, HEAD_DIM, dtype=torch.bfloat16, **how) for n in (queries, TOKENS, TOKENS)]


def counted(run: Callable[[], Any]) -> Counted:
    with Counted() as found:
        run()
    return found


# --- how many ---------------------------------------------------------------------------------------------------------

LAID: dict[str, Callable[[], Positions]] = {
    "text": lambda: Positions.arange(TOKENS),
    "packed": lambda: Positions.packed([300, TOKENS - 300]),
    "unknown": lambda: Positions.padded(torch.arange(TOKENS)[None] < TOKENS - 9),
}
MAKES: dict[str, Callable[[], Scheme | None]] = {
    "nothing": posenc.NoPE,
    "rope": lambda: RoPE(HEAD_DIM),
    "alibi": lambda: ALiBi(HEADS),
    "alibi, directed": lambda: ALiBi(HEADS, "directed"),
    "sandwich": lambda: Sandwich(HEADS),
    "t5": lambda: T5(HEADS),
    "kerple": lambda: KERPLE(HEADS),
    "shaw": lambda: Shaw(HEAD_DIM, 8),
    "fire": lambda: posenc.FIRE(HEADS),
}
# The backend, and the launches of the first and of each later layer, at most. What is left of flex's are the norms of
# queries and keys, by which blocks are left out, and the list of the others. Padding costs three more, which clear
# queries, keys and values.
COUNTS: list[tuple[str, str, bool, str, int, int]] = [
    ("nothing", "text", False, "sdpa", 0, 0),
    ("nothing", "unknown", False, "flex", 63, 3),
    ("rope", "text", False, "sdpa", 12, 12),
    ("alibi", "text", True, "triton", 26, 0),
    ("alibi", "unknown", True, "flex", 198, 39),
    ("alibi, directed", "text", True, "flex", 130, 0),
    ("sandwich", "text", False, "flex", 170, 36),
    ("t5", "text", True, "triton", 42, 0),
    ("t5", "unknown", True, "flex", 229, 83),
    ("kerple", "text", True, "triton", 20, 0),
    ("shaw", "text", True, "triton", 12, 0),
]


@pytest.mark.parametrize(("name", "place", "is_training", "backend", "first", "later"), COUNTS)
def test_layers_launch_few_operations_and_read_nothing(
    name: str, place: str, is_training: bool, backend: str, first: int, later: int, device: Device
) -> None:
    """A block mask was made in each layer, of 87; all of ALiBi and of T5 was 171 and 263."""
    scheme = MAKES[name]()
    assert scheme is not None
    scheme.requires_grad_(is_training)
    looks_back = {} if name == "alibi, directed" else {"is_causal": True}
    with torch.set_grad_enabled(is_training):
        encoding = scheme(LAID[place](), dtype=torch.float32)
        layer, device.mode.copies = drawn(requires_grad=is_training), 0
        at_first = counted(lambda: posenc.attention(*layer, encoding, **looks_back))
        then = [counted(lambda: posenc.attention(*drawn(), encoding, **looks_back)) for _ in range(2)]
        then += [counted(lambda: posenc.attention(*layer, encoding, **looks_back)) for _ in range(2)]
        explained = posenc.explain(*layer, encoding, **looks_back)
    assert explained.backend == backend
    assert at_first.launched.total() <= first, at_first.launched
    assert not at_first.read
    assert then[-1].launched.total() <= later, then[-1].launched
    assert not any(each.read for each in then)
    assert device.mode.copies == 0


# The launches of the first layer of a step, and of each later one: two append the key and the value, and two are for
# the norms of keys, by which a few queries skip them; the others of RoPE rotate where Triton is missing, which else
# takes two. The first also copies the parameters.
STEPS = {"nothing": (2, 2), "rope": (24, 14), "alibi": (11, 4), "t5": (8, 2), "shaw": (16, 2)}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_decoding_reads_nothing(name: str, device: Device) -> None:
    scheme, cache = MAKES[name](), posenc.models.KVCache()
    assert scheme is not None
    found: list[Counted] = []
    with torch.no_grad():
        for step in range(3):
            positions = cache.positions.following(1) if cache.positions is not None else Positions.arange(TOKENS)
            tokens = [torch.zeros(1, HEADS, len(positions), HEAD_DIM, dtype=torch.bfloat16) for _ in range(3)]
            found.clear()
            device.mode.copies = 0
            with counted_pass(scheme, positions, cache, found) as layers:
                for layer in range(3):
                    found.append(counted(partial(layers.attention, *tokens, layer=layer)))
            assert step == 0 or not any(each.read for each in found)
    begun, first, *later = (each.launched.total() for each in found)
    most_of_first, most = STEPS[name]
    assert begun <= 3
    assert first <= most_of_first
    assert all(each <= most for each in later)
    assert device.mode.copies == 0


@contextmanager
def counted_pass(scheme: Scheme, positions: Positions, cache: Any, found: list[Counted]) -> Iterator[Any]:
    """A forward pass, of which the beginning is counted."""
    with Counted() as beginning:
        made = posenc.models.ForwardPass(scheme, positions, cache)
    found.append(beginning)
    with made:
        yield made


@pytest.mark.parametrize("kv_heads", [1, HEADS])
@pytest.mark.parametrize("name", ["alibi", "t5", "kerple", "shaw", "fire"])
def test_a_step_in_a_graph_is_its_two_kernels(
    name: str, kv_heads: int, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With positions bound before, and a first call on another stream: nothing else is launched, nor allocated by a
    copy."""
    gpu, scheme = NullLauncher(monkeypatch), MAKES[name]()
    monkeypatch.setattr(triton, "triton", operator.triton)
    assert scheme is not None
    query, key, value = drawn(1)
    positions = Positions.arange(TOKENS)
    encoding = scheme(positions[-1:], positions)

    def attend() -> Any:
        return posenc.attention(query, key[:, :kv_heads], value[:, :kv_heads], encoding, backend="triton")

    with torch.no_grad():
        attend()
        device.stream, device.is_capturing = 9, True
        gpu.started.clear()
        found = counted(attend)
    assert [each.name for each in gpu.started] == ["decode", "decode_merge"]
    assert not found.launched
    assert not found.read


# --- what a mask depends on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["packed", "unknown"])
def test_a_graph_reads_what_was_made_before_it(place: str, device: Device) -> None:
    """On whatever stream; it is not freed then. What is made while it is captured has no numbers yet."""
    scheme, at = posenc.NoPE(), LAID[place]()

    def attend(encoding: Any) -> Any:
        posenc.attention(*drawn(), encoding, is_causal=True)
        return device.masks[-1]

    device.is_capturing = True
    encoding = scheme(at)
    inside = attend(encoding)
    assert attend(encoding) is not inside
    device.is_capturing = False
    before = attend(encoding)
    assert before is not inside
    device.is_capturing, device.stream = True, 9
    assert attend(encoding) is before
    held = len(cache._READ_BY_GRAPHS)
    attend(encoding)
    assert len(cache._READ_BY_GRAPHS) == held  # each once
    alive, device.is_capturing, device.masks = weakref.ref(before), False, []
    flex._of_layouts.clear()
    del before, inside, encoding
    gc.collect()
    assert alive() is not None


# --- what "auto" takes ------------------------------------------------------------------------------------------------


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


ATOMIC = (
    "FlexAttention adds up the gradients of a mask and of a score term's tensors in no fixed order, and "
    "torch.use_deterministic_algorithms(True) forbids it"
)


@pytest.mark.parametrize("place", ["text", "unknown"])
@pytest.mark.parametrize("name", ["t5", "kerple"])
def test_a_deterministic_gradient_of_a_table_is_not_of_flex(
    name: str, place: str, device: Device, deterministic: None
) -> None:
    scheme = MAKES[name]()
    assert scheme is not None
    encoding, layer = scheme(LAID[place](), dtype=torch.float32), drawn()
    explained = posenc.explain(*layer, encoding, is_causal=True)
    assert explained.backend != "flex"
    assert explained.refusals["flex"] == ATOMIC
    with pytest.raises(ValueError, match=r"torch.use_deterministic_algorithms\(True\) forbids it"):
        posenc.attention(*layer, encoding, is_causal=True, backend="flex")
    with torch.no_grad():  # where there is no gradient
        assert "flex" not in posenc.explain(*layer, encoding, is_causal=True).refusals
    scheme.requires_grad_(False)
    fixed = scheme(LAID[place](), dtype=torch.float32)
    assert "flex" not in posenc.explain(*layer, fixed, is_causal=True).refusals
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert "flex" not in posenc.explain(*layer, encoding, is_causal=True).refusals


@pytest.mark.parametrize("name", MAKES)
def test_later_layers_save_as_many_tensors_as_the_first(
    name: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one that a checkpoint runs again: where a backend is chosen, nothing is saved."""
    monkeypatch.setenv("POSENC_RACES", "1")
    monkeypatch.setattr(races, "gpu_name", lambda device: "X")
    monkeypatch.setattr(races, "races_on", lambda gpu: {"another kind": ()})
    scheme, counts = MAKES[name](), []
    encoding = None if scheme is None else scheme(Positions.arange(TOKENS), dtype=torch.float32)
    for _ in range(2):
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x) or x, lambda x: x):
            posenc.attention(*drawn(requires_grad=True), encoding, is_causal=True)
        counts.append(len(saved))
    assert counts[0] == counts[1]


WIDE = "support at most 128 channels, a multiple of 8, as in values, got"
NO_FLASH: dict[str, tuple[Callable[[], Scheme], bool, dict[str, Any], str]] = {
    "float32": (lambda: ALiBi(HEADS), False, {"dtype": torch.float32}, "support only bfloat16 and float16"),
    "20 channels": (posenc.NoPE, False, {"width": 20}, WIDE),
    "144 channels": (posenc.NoPE, False, {"width": 144}, WIDE),
    "other values": (posenc.NoPE, False, {"value": 24}, f"{WIDE} 16, and 24 in values"),
    "a learned table": (lambda: T5(HEADS), True, {}, flex.FIXED),
    "vectors": (lambda: Shaw(HEAD_DIM, 8, values=False), False, {}, flex.FIXED),
    "a mask": (posenc.NoPE, False, {"attn_mask": torch.ones(TOKENS, TOKENS).bool()}, "support neither attn_mask nor"),
    "the log-sum-exp": (posenc.NoPE, False, {"return_lse": True}, "support neither attn_mask nor return_lse"),
    "a line": (lambda: ALiBi(HEADS), True, {}, ""),
    "a fixed table": (lambda: T5(HEADS), False, {}, ""),
}


@pytest.mark.parametrize("case", NO_FLASH)
@pytest.mark.parametrize("major", [9, 10])
def test_flashattention_runs_fixed_biases_in_flexattention(
    major: int, case: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blocks as high as what it computes at once; where it is not installed it says so."""
    make, is_training, given, said = NO_FLASH[case]
    how = dict(given)
    q = torch.zeros(1, HEADS, TOKENS, how.pop("width", HEAD_DIM), dtype=how.pop("dtype", torch.bfloat16))
    q.requires_grad_(is_training)
    value = torch.zeros(1, HEADS, TOKENS, how.pop("value", q.size(-1)), dtype=q.dtype)
    call = q, q, value, make().requires_grad_(is_training)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    with torch.set_grad_enabled(is_training):
        missing = f"FlashAttention's kernels {said}" if said else "FlashAttention 4 (flash_attn.cute) is not installed"
        assert posenc.explain(*call, is_causal=True, **how).refusals["flex_flash"].startswith(missing)
        with pytest.raises(ValueError, match="FlashAttention"):
            posenc.attention(*call, is_causal=True, backend="flex_flash", **how)
        monkeypatch.setattr("posenc.compat.missing_flash", lambda device: None)
        if not said:
            posenc.attention(*call, is_causal=True, backend="flex_flash")
            assert device.by_flash == [True]
            assert list(device.masks[-1].BLOCK_SIZE) == [256 if major == 10 else 128, 128]
    posenc.attention(q, q, value, is_causal=True, backend="flex", window=9)
    assert device.by_flash[-1] is False
    assert list(device.masks[-1].BLOCK_SIZE) == [128, 128]


def test_a_package_that_cannot_be_imported_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text("raise RuntimeError('of another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compat, "_is_flash_installed", compat._is_flash_installed.__wrapped__)
    assert compat.missing_flash(CUDA) == "FlashAttention 4 (flash_attn.cute) is not installed"


@pytest.mark.parametrize("reads_pairs", [False, True])
def test_it_is_compiled_for_flashattention(reads_pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one length where numbers of pairs are read, whose tables end at Python numbers."""
    found: list[Any] = []
    monkeypatch.setattr(flex, "_compiled", lambda dynamic: lambda size, *_: found.append((dynamic, size())))
    with OnDevice():
        flex.attend((*drawn(), None), reads_pairs, by_flash=True)
    assert found == [(not reads_pairs, {"BACKEND": "FLASH"})]
