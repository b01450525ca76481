"""What `make wheel` runs where there is the wheel alone, and no compiler: attention by the kernel, both ways."""

import shutil
from pathlib import Path

import torch

import posenc
from posenc.backends.native import library

COMPILERS = ("c++", "g++", "gcc", "cc", "clang++", "clang")

assert Path(__file__).parents[2] / "src" not in Path(posenc.__file__).parents, f"posenc is {posenc.__file__}"
assert not any(map(shutil.which, COMPILERS)), "there is a compiler"
for dtype in library.REALS:
    q, k, v = (torch.randn(2, 4, 300, 16, dtype=dtype, requires_grad=True) for _ in range(3))
    scheme = posenc.ALiBi(4).to(dtype)
    told = posenc.explain(q, k, v, scheme, is_causal=True)
    assert told.backend == "native", str(told)
    found, truth = (
        (out, *torch.autograd.grad(out.sin().sum(), (q, k, v)))
        for out in (posenc.attention(q, k, v, scheme, is_causal=True, backend=way) for way in ("native", "reference"))
    )
    for one, other in zip(found, truth, strict=True):
        torch.testing.assert_close(one, other)
    print(f"{dtype}: {library.level(dtype)}, forward and backward as the reference's")
