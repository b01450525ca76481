"""What the compiler makes of the kernels for CUDA: registers, spills, instructions and shared memory, without a GPU.

    python -m tests.backends.ceilings [--write] [VARIANT ...]

prints a table of all variants, or of these. Stored numbers are ceilings: ``make check-triton`` compiles some of the
variants again, and no kernel may exceed its own. --write stores what was found. It needs Triton with its compiler.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import posenc
from posenc import T5, ALiBi, DistanceAware, NoPE, Positions, Scheme, Shaw, TransformerXL
from posenc.backends.triton import backend, operator
from posenc.backends.triton.arguments import PRECISIONS
from posenc.rotation import norms
from posenc.rotation.phases import PairRotation
from tests.user_schemes import clocked

STORED = Path(__file__).parents[4] / "research" / "benchmarks" / "results" / "kernels.json"
TOKENS = 4096


class Variant(NamedTuple):
    """A call whose kernels are compiled, with ``width`` channels and 16 query heads."""

    make: Callable[[int], Scheme]
    dtype: torch.dtype = torch.bfloat16
    width: int = 64
    capability: int = 90
    is_causal: bool = True
    is_norm: bool = False  # the kernel that normalises and rotates queries and keys, in place of attention's


HEADS = 16
VARIANTS = {
    "nothing added": Variant(lambda d: NoPE()),
    "line": Variant(lambda d: ALiBi(HEADS)),
    "line, both directions": Variant(lambda d: ALiBi(HEADS, form="bidirectional"), is_causal=False),
    "line, 128": Variant(lambda d: ALiBi(HEADS), width=128),
    "nothing added, 80": Variant(lambda d: NoPE(), width=80),
    "nothing added, 96": Variant(lambda d: NoPE(), width=96),
    "nothing added, 128": Variant(lambda d: NoPE(), width=128),
    "T5, 128": Variant(lambda d: T5(HEADS), width=128),
    "line, sm_100": Variant(lambda d: ALiBi(HEADS), capability=100),
    "line, 128, sm_100": Variant(lambda d: ALiBi(HEADS), width=128, capability=100),
    "T5": Variant(lambda d: T5(HEADS)),
    "Shaw keys": Variant(lambda d: Shaw(d, 16, values=False)),
    "Shaw": Variant(lambda d: Shaw(d, 16)),
    "Shaw, 128": Variant(lambda d: Shaw(d, 16), width=128),
    "Shaw, float32": Variant(lambda d: Shaw(d, 16), torch.float32),
    "Shaw, sm_100": Variant(lambda d: Shaw(d, 16), capability=100),
    "Transformer-XL": Variant(lambda d: TransformerXL(HEADS, d)),
    "clock": Variant(lambda d: clocked(HEADS)),
    "factor": Variant(lambda d: DistanceAware(HEADS)),
    "norm and rotation": Variant(lambda d: NoPE(), width=128, is_norm=True),
}
IN_MAKE_TRITON = ("line", "line, 128", "Shaw", "clock", "norm and rotation")  # others are compiled in CI


@dataclass(frozen=True)
class Figures:
    """What the compiler made of a kernel. ``spills`` counts loads and stores of registers that did not fit; ``tile``
    the instructions of a warp for a block of pairs, far ones if the kernel has these, of which ``tile_spills`` are such
    loads and stores; None if they were not counted."""

    sizes: str
    warps: int
    stages: int
    registers: int
    spills: int
    shared: int
    tile: int | None = None
    tile_spills: int | None = None

    def exceeds(self, ceiling: Figures, same_compiler: bool) -> list[str]:
        """What is more than the ceiling; by another compiler, only what keeps a kernel from running well."""
        names = ["spills", "shared", *(["registers", "tile", "tile_spills"] if same_compiler else [])]
        highest = {name: getattr(ceiling, name) for name in names}
        return [name for name, most in highest.items() if most is not None and getattr(self, name) > most]


class Recorder:
    """In a kernel's place: keeps what it is called with."""

    def __init__(self, calls: dict[str, dict[str, Any]], name: str) -> None:
        self.calls, self.name = calls, name

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def keep(*arguments: Any, **given: Any) -> None:
            given |= dict(zip(kernel_of(self.name).arg_names, arguments, strict=False))
            of = "gradients" if given.get("gradient_q") is not None else ""
            self.calls[f"{self.name} {of}".strip()] = given

        return keep


def calls_of(
    scheme: Scheme, q: Tensor, k: Tensor, patch: pytest.MonkeyPatch, is_causal: bool = True
) -> dict[str, dict[str, Any]]:
    """What the kernels would be called with, forward and backward."""
    calls: dict[str, dict[str, Any]] = {}
    patch.setattr(backend, "is_interpreted", lambda: True)  # so that it takes tensors of the CPU
    patch.setattr(operator, "kernel_of", partial(Recorder, calls))
    encoding = scheme(Positions.arange(q.size(2)))
    wanted = {score_term.feature for score_term in encoding.score_terms if getattr(score_term, "feature", None)}
    features = {"clock": torch.randn(q.shape[:3], requires_grad=True), "gist": torch.randn(*q.shape[:3], 3)}
    given = {name: x for name, x in features.items() if name in wanted}
    encoding = encoding.with_features(given, given) if given else encoding
    out = posenc.attention(q, k, k, encoding, is_causal=is_causal, backend="triton")
    assert isinstance(out, Tensor)
    out.sum().backward()
    return calls


def norm_calls(q: Tensor, k: Tensor, patch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """The same of the kernel for queries and keys after a norm of each head."""
    calls: dict[str, dict[str, Any]] = {}
    patch.setattr(importlib.import_module("posenc.rotation.kernel"), "norm_rotate", Recorder(calls, "norm_rotate"))
    angles = torch.ones(1, 1, q.size(2), q.size(3) // 2)
    weight, turn = torch.ones_like(q[0, 0, 0], requires_grad=True), PairRotation(angles, angles, "half", q.size(3))
    out, _ = norms.norm_rotate((norms.Side(q, weight, turn), norms.Side(k, weight, turn)), 1e-6)
    out.sum().backward()
    return calls


NAMES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.int32: "i32",
    torch.int64: "i64",
}


def compiled(name: str, given: dict[str, Any], capability: int) -> Any:
    """A kernel as Triton compiles it for these arguments: pointers, and integers that are multiples of 16, are known
    to be so."""
    from triton.backends.compiler import GPUTarget  # not before: it is not everywhere
    from triton.compiler import ASTSource, compile

    kernel = kernel_of(name)
    signature, constants, divisible = {}, {}, {}

    def put(x: Any, place: tuple[int, ...], is_specialized: bool) -> Any:
        """The type of an argument, or of each field of a structure."""
        if isinstance(x, tuple):
            return type(x)(*(put(field, (*place, n), True) for n, field in enumerate(x)))  # as Triton does
        if x is None or (isinstance(x, int) and x == 1 and is_specialized):
            constants[place] = x
            return "constexpr"
        if isinstance(x, Tensor) or (isinstance(x, int) and x % 16 == 0 and is_specialized):
            divisible[place] = [["tt.divisibility", 16]]
        return f"*{NAMES[x.dtype]}" if isinstance(x, Tensor) else _kind(x)

    precision = PRECISIONS.index("tf32" if "q" in given and given["q"].x.dtype == torch.float32 else "ieee")
    for at, parameter in enumerate(kernel.params):
        x = given[parameter.name]
        if parameter.is_constexpr:  # "exact" is the interpreter's
            x = x._replace(PRECISION=precision) if parameter.name == "W" and isinstance(x, tuple) else x
            signature[parameter.name], constants[(at,)] = "constexpr", x
        else:
            signature[parameter.name] = put(x, (at,), not parameter.do_not_specialize)
    options = {name: x for name, x in given.items() if name in OPTIONS}
    return compile(
        ASTSource(kernel, signature, constants, divisible), target=GPUTarget("cuda", capability, 32), options=options
    )


OPTIONS = ("num_warps", "num_stages", "maxnreg", "enable_fp_fusion")
_KERNEL = operator.kernel_of
_NORM = importlib.import_module("posenc.rotation.kernel").norm_rotate if importlib.util.find_spec("triton") else None


def kernel_of(name: str) -> Any:
    """A kernel by the first word of its name."""
    return _NORM if name.startswith("norm_rotate") else _KERNEL(name.split()[0])


PRODUCTS = re.compile(r"(?:HGMMA|HMMA|UTC\w*MMA)\b")
SPILLS = re.compile(r"\b(?:STL|LDL)\b")


def tile_of(listing: str) -> list[str]:
    """The instructions of the first loop with matrix products that has no loop with such within; none without."""
    lines: list[str] = []
    places: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for label, line in re.findall(r"^(?:\s*(\.L_x_\d+):|\s*/\*[0-9a-f]{4,}\*/\s+(.*?);)", listing, re.MULTILINE):
        if label:
            places[label] = len(lines)
            continue
        lines.append(line)
        to = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if to and to[1] in places:
            loops.append((places[to[1]], len(lines)))
    loops = [(a, b) for a, b in loops if any(map(PRODUCTS.search, lines[a:b]))]
    inner = [(a, b) for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]
    return lines[slice(*min(inner))] if inner else []


def _kind(x: float) -> str:
    return "fp32" if isinstance(x, float) else "i32" if -(2**31) <= x < 2**31 else "i64"


def figures_of(made: Any, given: dict[str, Any]) -> Figures:
    """The numbers of a compiled kernel, from its disassembly."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder, "kernel.cubin")
        binary.write_bytes(made.asm["cubin"])
        used, listing = (
            subprocess.run([tools / tool[0], *tool[1:], binary], capture_output=True, text=True, check=True).stdout
            for tool in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    registers = re.search(r"REG:(\d+)", used)
    assert registers is not None
    tile = tile_of(listing)
    return Figures(
        "x".join(str(given[size]) for size in ("M", "N", "B") if given.get(size)),
        made.metadata.num_warps,
        made.metadata.num_stages,
        int(registers[1]),
        len(SPILLS.findall(listing)),
        made.metadata.shared,
        len(tile),
        sum(bool(SPILLS.search(line)) for line in tile),
    )


def measured(variant: Variant) -> dict[str, Figures]:
    """The figures of all kernels of a call."""
    q, k = (torch.randn(1, HEADS, TOKENS, variant.width, dtype=variant.dtype, requires_grad=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("TRITON_CACHE_DIR", folder)
        scheme = variant.make(variant.width)
        calls = norm_calls(q, k, patch) if variant.is_norm else calls_of(scheme, q, k, patch, variant.is_causal)
        # The bounds of what can be skipped take no time beside the others.
        given = {name: x for name, x in calls.items() if not name.startswith("bounds")}
        return {name: figures_of(compiled(name, x, variant.capability), x) for name, x in given.items()}


def stored() -> tuple[str, dict[str, dict[str, Figures]]]:
    """Triton's version, and the ceilings of each kernel of each variant."""
    told = json.loads(STORED.read_text())
    of = {name: {kernel: Figures(**x) for kernel, x in kernels.items()} for name, kernels in told["variants"].items()}
    return told["triton"], of


HEAD = "| call | kernel | blocks | warps, stages | registers | spills | shared memory | instructions per tile, spills |"


def main(*asked: str) -> None:
    """Prints the table, and with --write stores it."""
    import triton

    names = [name for name in asked if name != "--write"] or list(VARIANTS)
    kept = stored()[1] if STORED.exists() else {}
    print(HEAD, "|" + " --- |" * HEAD[1:].count("|"), sep="\n")
    for name in names:
        kept[name] = measured(VARIANTS[name])
        for kernel, x in kept[name].items():
            pair = f"{x.tile}, {x.tile_spills}"
            cells = (name, f"`{kernel}`", x.sizes, f"{x.warps}, {x.stages}", x.registers, x.spills, x.shared, pair)
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        if "--write" in asked:
            text = {
                variant: {kernel: asdict(x) for kernel, x in kept[variant].items()}
                for variant in VARIANTS
                if variant in kept
            }
            STORED.parent.mkdir(exist_ok=True)
            STORED.write_text(json.dumps({"triton": triton.__version__, "variants": text}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
