"""The repository for the package kernels, as `packages/posenc/hub` writes it: against transformers' own function, and
loaded by that package where it is installed (``make hub`` does so)."""

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.backends.test_triton import INTERPRETED, ON

HUB = Path(__file__).parents[2] / "hub"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written twice: the second time it takes the first one's place."""
    folder = tmp_path_factory.mktemp("hub") / "posenc-rotary"
    for _ in range(2):
        subprocess.run([sys.executable, "-I", str(HUB), str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def rotary(repository: Path) -> Any:
    """The module, imported as the package kernels does."""
    file = repository / "build" / "torch-cpu" / "__init__.py"
    spec = importlib.util.spec_from_file_location("posenc_rotary_tried", file)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def tensors(width: int, dtype: torch.dtype, dim: int, on: str = "cpu") -> list[Tensor]:
    """Queries of six heads and keys of three, views of a projection, and cos and sin of two rows, as transformers makes
    them."""
    q, k = (torch.randn(2, 7, n, 16, device=on).to(dtype) for n in (6, 3))
    q, k = (x if dim == 2 else x.transpose(1, 2) for x in (q, k))
    angle = torch.randn(2, 7, width // 2, device=on).repeat(1, 1, 2)
    return [q.requires_grad_(), k.requires_grad_(), angle.cos().to(dtype), angle.sin().to(dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("where", ["operations", pytest.param("kernel", marks=pytest.mark.triton)])
def test_it_is_what_transformers_computes(
    where: str, dim: int, dtype: torch.dtype, rotary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward, in float32 by three roundings, or the last of bfloat16 of one of three products."""
    theirs = pytest.importorskip("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
    on = "cpu"
    if where == "kernel":
        on = ON[0].values[0]
        monkeypatch.setattr(rotary, "_kernel_takes", lambda *_: True)
    *leaves, cos, sin = tensors(16, dtype, dim, on)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    true = theirs(*wide, cos.double(), sin.double(), dim)
    found = rotary.apply_rotary_transformers(*leaves, cos, sin, dim)
    gradients = [torch.randn_like(x) for x in found]
    of_found = torch.autograd.grad(found, leaves, gradients)
    of_true = torch.autograd.grad(true, wide, [x.double() for x in gradients])
    sizes = (*wide, *(x.double() for x in gradients))
    last = torch.finfo(dtype).eps * (1.0 if INTERPRETED and dtype == torch.bfloat16 else 0.5)
    for got, expected, x in zip((*found, *of_found), (*true, *of_true), sizes, strict=True):
        bound = 3 * 2.0**-24 * 2 * x.abs().amax(-1, keepdim=True) + (dtype != torch.float32) * last * expected.abs()
        assert got.dtype == dtype
        assert ((got.double() - expected).abs() <= bound * (1 + last)).all()
        assert got.shape == expected.shape


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [16, 6])
def test_both_layouts_and_a_part_of_the_channels(width: int, interleaved: bool, rotary: Any) -> None:
    """Angles of all rows; the other channels are copied. It is complex multiplication."""
    q, k, _, _ = tensors(width, torch.float64, 2)
    angle = torch.randn(7, width // 2, dtype=torch.float64)
    twice = angle.repeat_interleave(2, -1) if interleaved else angle.repeat(1, 2)
    found = rotary.apply_rotary_emb(q, k, twice.cos(), twice.sin(), seq_dim=1, interleaved=interleaved)
    for x, got in zip((q, k), found, strict=True):
        part = x[..., :width]
        a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else (part[..., : width // 2], part[..., width // 2 :])
        turned = torch.complex(a, b) * torch.polar(torch.ones_like(angle), angle)[:, None]
        c, d = (got[..., 0:width:2], got[..., 1:width:2]) if interleaved else got[..., :width].chunk(2, -1)
        torch.testing.assert_close(torch.complex(c, d), turned)
        assert torch.equal(got[..., width:], x[..., width:])


def test_a_compiled_graph_is_whole(rotary: Any) -> None:
    given = tensors(16, torch.float32, 1)
    compiled = torch.compile(rotary.apply_rotary_transformers, backend="eager", fullgraph=True)
    for got, expected in zip(compiled(*given), rotary.apply_rotary_transformers(*given), strict=True):
        torch.testing.assert_close(got, expected)


X, ANGLE = torch.zeros(2, 7, 3, 16), torch.zeros(1, 7, 16)
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a dimension": ({"seq_dim": 0}, "seq_dim must be 1 or 2, got 0"),
    "other sin": ({"sin": ANGLE[..., :8]}, r"cos and sin must both be .* got \(1, 7, 16\) and \(1, 7, 8\)"),
    "an odd width": ({"cos": ANGLE[..., :7], "sin": ANGLE[..., :7]}, "of an even width"),
    "other tokens": ({"query": X[:, :6]}, r"query must be of 7 tokens in dimension 1.* got \(2, 6, 3, 16\)"),
    "few channels": ({"key": X[..., :8]}, "key must be of 7 tokens in dimension 1, of 16 or more channels"),
    "other rows": ({"cos": ANGLE.expand(3, -1, -1), "sin": ANGLE.expand(3, -1, -1)}, "of the batch of cos, 3"),
    "learned angles": ({"cos": ANGLE.clone().requires_grad_()}, "cos and sin must not require a gradient"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_an_error(name: str, rotary: Any) -> None:
    changed, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        rotary.apply_rotary_emb(**{"query": X, "key": X, "cos": ANGLE, "sin": ANGLE} | changed)


LOADED = """
import sys
from pathlib import Path
import torch
import transformers.utils
from transformers.utils import import_utils

# transformers 5.24 wants a later release of kernels than some package indexes have; what it calls is the same.
import_utils.is_kernels_available = transformers.utils.is_kernels_available = lambda *_, **__: True

from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, use_kernel_mapping
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
rotary = get_local_kernel(folder)
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
    vocab_size=99,
))
ids = torch.randint(0, 99, (2, 17))

def trained():
    model.zero_grad()
    out = model(ids, labels=ids)
    out.loss.backward()
    return out.logits.detach().clone(), *(x.grad.clone() for x in model.parameters())

before, calls, real = trained(), [], rotary.apply_rotary_transformers
rotary.apply_rotary_transformers = lambda *given: calls.append(given) or real(*given)
repository = LocalLayerRepository(folder, layer_name="apply_rotary_transformers")
with use_kernel_mapping({"rotary_pos_emb": {"cpu": {Mode.FALLBACK: repository}}}, inherit_mapping=False):
    kernelize(model, mode=Mode.TRAINING | Mode.TORCH_COMPILE, device="cpu")
after = trained()
assert len(calls) == 2, calls
for x, y in zip(before, after, strict=True):
    torch.testing.assert_close(x, y)
rotary.apply_rotary_transformers = real
torch.testing.assert_close(torch.compile(model, backend="eager")(ids).logits, before[0])
print("as the model's own")
"""


def test_the_package_kernels_loads_it_into_a_model(repository: Path) -> None:
    """In a process of its own: with that package transformers is another."""
    if importlib.util.find_spec("kernels") is None:
        pytest.skip("the package kernels is not installed: make hub installs it and runs this")
    pytest.importorskip("transformers")
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOADED), str(repository)], capture_output=True, text=True, check=False
    )
    assert told.stdout.endswith("as the model's own\n"), told.stderr[-4000:]
