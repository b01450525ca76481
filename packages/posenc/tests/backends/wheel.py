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
    how = {"encoding": posenc.ALiBi(4), "is_causal": True}
    out = posenc.attention(q, k, v, **how, backend="native")
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    truth = posenc.attention(*exact, **how, backend="reference")
    gradient = truth.detach().sin()
    found = (out, *torch.autograd.grad(out, (q, k, v), gradient.to(dtype)))
    expected = (truth, *torch.autograd.grad(truth, exact, gradient))
    # That it runs, and is no other function: `posenc kernel --test` has the bounds.
    for one, other in zip(found, expected, strict=True):
        assert (one.double() - other).norm() <= 8 * torch.finfo(dtype).eps * other.norm()
    binary = library.find(library.REALS[dtype])
    assert isinstance(binary, library.LoadedLibrary)
    print(f"{dtype}: {binary.record.level}, forward and backward as the reference's")
