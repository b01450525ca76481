"""The first minutes on a GPU, prepared: ``make gpu``.

python -m posenc.tools.bench.gpu --resume

Every step is a process with a limit, and every result a line of JSON; the page is made of these. It needs torch, Triton
and jaxtyping, and neither a network nor an installed posenc (with PYTHONPATH=src).
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from posenc.tools.kit.command import Parser, failed

WHOLE, QUICK = 560.0, 195.0  # seconds
NEEDED = ("torch", "triton", "jaxtyping")


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes 0: all was measured, and every check passed; 1: something is missing or failed, or is not done yet;
    2: wrong usage."""
    parser = Parser(prog="python -m posenc.tools.bench.gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--resume", action="store_true", help="go on from the results that are there")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder of results (default: runs/gpu)")
    parser.add_argument("--seconds", type=float, help="stop after this time (default: 560; of --quick: 195)")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, kernels interpreted, at small sizes")
    parser.add_argument("--only", nargs="+", default=(), metavar="STEP", help="these steps alone")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--quick", action="store_true", help="the main times and some checks instead: four minutes")
    which.add_argument("--variants", action="store_true", help="sizes and stages of the kernels instead")
    which.add_argument("--flex", action="store_true", help="FlexAttention against double precision instead")
    arguments: argparse.Namespace = parser.parse_args(words)
    seconds = (QUICK if arguments.quick else WHOLE) if arguments.seconds is None else arguments.seconds
    if not seconds > 0:
        return failed(f"--seconds must be more than 0, got {seconds}", code=2)
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        return failed(f"{' and '.join(lacking)} cannot be imported by {sys.executable}")
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    from posenc.backends.triton.launch import missing
    from posenc.tools.bench.gpu import plans
    from posenc.tools.bench.gpu.place import Place
    from posenc.tools.bench.gpu.run import run, steps, unwell

    if not arguments.dry_run and not torch.cuda.is_available():
        return failed(f"torch {torch.__version__} sees no CUDA device; --dry-run needs none")
    if (why := missing()) is not None:
        return failed(why)
    chosen = [name for name in (plans.QUICK, plans.VARIANTS, plans.FLEX) if getattr(arguments, name)]
    plan = chosen[0] if chosen else plans.MINUTES
    try:
        place, only = Place(arguments.dry_run), arguments.only
        records = run(plan, place, arguments.out, seconds, arguments.resume, _say, only)
    except (ValueError, OSError) as error:
        return failed(str(error), code=2)
    except KeyboardInterrupt:
        return failed("interrupted; --resume goes on", code=130)
    broken, left = unwell(records, steps(plan, only))
    _say(f"Results and page: {arguments.out}")
    if broken:
        return failed(f"{len(broken)} failed: {'; '.join(broken[:5])}{'; ...' if len(broken) > 5 else ''}")
    return failed(f"not done yet: {', '.join(left)}; --resume goes on") if left else 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
