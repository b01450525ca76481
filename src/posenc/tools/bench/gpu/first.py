"""The first step: which versions and device there are, the bandwidth of a copy, and the speed of a matrix product."""

import os
import platform

import torch

import posenc
from posenc.tools.bench.gpu.clocks import timed
from posenc.tools.bench.gpu.place import Place
from posenc.tools.bench.gpu.step import Result, Step, called
from posenc.tools.kit.machine import machine, version_of


def _versions(place: Place) -> Result:
    about = {
        "posenc": posenc.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "triton": version_of("triton"),
        "CUDA": torch.version.cuda or "none",
        "cuDNN": str(torch.backends.cudnn.version()),
        **machine(place.device),
        "kernels": "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else "compiled",
    }
    if not place.is_dry:
        told = torch.cuda.get_device_properties(place.device)
        about |= {"capability": f"{told.major}.{told.minor}", "multiprocessors": told.multi_processor_count}
        about |= {"GPU memory": f"{told.total_memory / 2**30:.0f} GiB"}
    return {"about": {name: str(value) for name, value in about.items()}}


def _copy(place: Place) -> Result:
    source = place.drawn(place.sizes.copied // 2)
    target = torch.empty_like(source)
    found = timed(place, lambda: (target.copy_(source),))
    return found | {"bytes": 2 * source.nbytes}  # read and written


def _product(place: Place) -> Result:
    size = place.sizes.multiplied
    a, b = place.drawn(size, size), place.drawn(size, size, seed=1)
    out = torch.empty_like(a)
    return timed(place, lambda: (torch.mm(a, b, out=out),)) | {"operations": 2 * size**3}


ITEMS = {"versions": _versions, "copy": _copy, "matrix product": _product}

FIRST = Step("first", "Versions, a copy and a matrix product", 60, 45, lambda place: tuple(ITEMS),
             called(lambda place, name: ITEMS[name](place)))  # fmt: skip
