"""Runs the tests marked gpu on a CUDA device, and times every scheme over attention without positions.

    PYTHONPATH=packages/posenc/src python research/benchmarks/gpu/run.py --out runs/gpu

It needs torch, Triton and jaxtyping, and for the tests pytest and what they import. Times are those of
`triton.testing.do_bench`, which empties the device's cache before each call. All ways to a scheme and plain attention
are timed in turns of random order, and ratios are taken turn by turn. Calls include binding to positions.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, TypeAlias

ROOT = Path(__file__).parents[3]
NEEDED = ("torch", "triton", "jaxtyping")
BACKENDS = ("triton", "flex", "sdpa")
PHASES = ("forward", "training")
PLAIN = "plain"  # causal scaled_dot_product_attention of PyTorch's choice
QUICK = ("nope", "rope", "alibi", "t5", "shaw", "fire", "transformer_xl")
REAL, DRY = {"heads": 16, "head_dim": 64}, {"heads": 2, "head_dim": 16}
DRY_SCHEMES, DRY_LENGTH = ("rope", "alibi"), 64

CumulativeBias: TypeAlias = Callable[[Callable[[], object]], float]
"""The milliseconds of a call."""


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes 0: every test passed, and every way that takes its call was timed; 1: something is missing or failed;
    2: wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), metavar="DIR", help="default: runs/gpu")
    parser.add_argument("--schemes", nargs="+", metavar="NAME", help="names of the catalog (default: all)")
    parser.add_argument(
        "--lengths", nargs="+", type=int, metavar="N", help="tokens, powers of two (default: 4096 16384)"
    )
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: all three")
    parser.add_argument("--rounds", type=int, help="turns of each scheme (default: 5; with --quick 3)")
    parser.add_argument("--graphs", action="store_true", help="time replayed CUDA graphs, where the host costs nothing")
    parser.add_argument(
        "--quick", action="store_true", help=f"4,096 tokens of {', '.join(QUICK)}, without flex: minutes"
    )
    parser.add_argument(
        "--tests", nargs="*", default=["packages/posenc/tests"], metavar="PATH", help="of pytest; none: no tests"
    )
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: list the tests, interpret the kernels")
    arguments = parser.parse_args(words)
    if missing := lacking():
        return failed(f"{' and '.join(missing)} cannot be imported by {sys.executable}")
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch  # after Triton is told whether to interpret

    if not arguments.dry_run and not torch.cuda.is_available():
        return failed(f"torch {torch.__version__} sees no CUDA device; --dry-run needs none")
    quick, dry = arguments.quick, arguments.dry_run
    schemes = arguments.schemes or (DRY_SCHEMES if dry else QUICK if quick else None)
    lengths = arguments.lengths or ([DRY_LENGTH] if dry else [4096] if quick else [4096, 16384])
    backends = [name for name in arguments.backends if not (name == "flex" and (quick or dry))]
    rounds = arguments.rounds or (1 if dry else 3 if quick else 5)
    clock = clock_of(dry, quick, arguments.graphs)
    try:
        planned = list(plan(schemes, lengths))
    except ValueError as error:
        return failed(str(error), code=2)
    about = environment(dry) | {"clock": "wall time" if dry else f"do_bench{'_cudagraph' * arguments.graphs}"}
    print(table(("what", "with"), about.items()), flush=True)
    found: dict[str, Any] = {"environment": about, "tests": {}, "records": []}
    if arguments.tests:
        found["tests"] = tested(arguments.tests, dry)
    write(found, arguments.out)
    for scheme, length, phase in planned:
        record = timed(scheme, length, phase, backends, rounds, clock, dry)
        found["records"].append(record)
        write(found, arguments.out)  # what is measured is kept if a later kernel breaks the device
        print(f"{scheme}, {length:,} tokens, {phase}: {cells(record)}", flush=True)
    print(f"Results: {arguments.out / 'gpu.md'} and gpu.json")
    broken = [f"{each['scheme']} by {name}" for each in found["records"] for name in each["failed"]]
    if found["tests"].get("code"):
        broken.insert(0, f"the tests ({found['tests']['summary']})")
    return failed(f"{len(broken)} failed: {', '.join(broken)}") if broken else 0


def failed(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def lacking() -> list[str]:
    """The packages that are needed and not there."""
    from importlib.util import find_spec

    return [name for name in NEEDED if find_spec(name) is None]


def environment(dry: bool) -> dict[str, str]:
    """What the times depend on."""
    import torch

    import posenc
    from posenc_lab.kit.machine import machine, version_of

    about = {
        "posenc": posenc.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": version_of("triton"),
        "CUDA": torch.version.cuda or "none",
        "cuDNN": torch.backends.cudnn.version() or "none",
        **machine(torch.device("cpu" if dry else "cuda")),
        "kernels": "interpreted: no time here says anything of a GPU" if dry else "compiled",
    }
    if not dry:
        told = torch.cuda.get_device_properties(0)
        about |= {"capability": f"{told.major}.{told.minor}", "multiprocessors": told.multi_processor_count}
        about |= {"GPU memory": f"{told.total_memory / 2**30:.0f} GiB"}
    return {name: str(value) for name, value in about.items()}


def tested(paths: Sequence[str], dry: bool) -> dict[str, Any]:
    """Runs the tests marked gpu, or lists them; the exit code of pytest and its last line."""
    # A warning of another version of a library is no failure here.
    options = ["-m", "gpu", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    command = [sys.executable, "-m", "pytest", *options, *["--collect-only"] * dry, *paths]
    environ = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    process = subprocess.run(
        command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    print(process.stdout, flush=True)
    lines = process.stdout.strip().splitlines()
    return {
        "command": " ".join(command[1:]),
        "code": process.returncode,
        "summary": lines[-1] if lines else "no output",
    }


def clock_of(dry: bool, quick: bool, graphs: bool) -> CumulativeBias:
    """The median of repeated calls by Triton's clock or, dry, the time of one call."""
    if dry:

        def wall(call: Callable[[], object]) -> float:
            begin = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - begin)

        return wall
    from triton.testing import do_bench, do_bench_cudagraph

    clock = do_bench_cudagraph if graphs else do_bench
    return partial(clock, rep=20 if quick else 100, return_mode="median")


def plan(schemes: Sequence[str] | None, lengths: Sequence[int]) -> Iterator[tuple[str, int, str]]:
    """What is timed, short texts first. ValueError for an unknown scheme or another length."""
    from posenc_lab.bench import cases

    for name in schemes or ():
        cases.entries(name)
    if wrong := [n for n in lengths if n < 64 or n & (n - 1)]:
        raise ValueError(f"--lengths must be powers of two from 64 on, got {wrong[0]}")
    for length, phase, scheme in product(sorted(set(lengths)), PHASES, schemes or cases.all_schemes()):
        yield scheme, length, phase


def timed(
    scheme: str, length: int, phase: str, backends: Sequence[str], rounds: int, clock: CumulativeBias, dry: bool
) -> dict[str, Any]:
    """The milliseconds of plain attention and of each way to the scheme in each turn, and the ratios; why a way refuses
    the call, and how another failed."""
    import torch

    from posenc_lab.bench import cases
    from posenc_lab.bench.measure import Inputs, LeftOutError
    from posenc_lab.bench.settings import Settings
    from posenc_lab.kit.interleaving import orders, ratios

    torch.compiler.reset()
    sizes, device, training = DRY if dry else REAL, "cpu" if dry else "cuda", phase == "training"
    settings = Settings(dtype="bfloat16", device=device, lengths=(length,), **sizes)
    inputs = Inputs.draw(settings, length, length, training)
    record: dict[str, Any] = {"scheme": scheme, "length": length, "phase": phase, "refused": {}, "failed": {}}
    record["auto"] = cases.explained(cases.build_scheme(scheme, settings, length), scheme, inputs).backend
    makes = {name: partial(cases.attention_work, settings, scheme, length, inputs, name) for name in backends}
    works = {PLAIN: inputs.plain()}
    clock(works[PLAIN])
    for name, make in makes.items():
        try:
            work = make()
            clock(work)  # it is compiled
            works[name] = work
        except LeftOutError as error:
            record["refused"][name] = str(error)
        except Exception as error:  # of a compiler or the device: the others go on
            record["failed"][name] = f"{type(error).__name__}: {str(error)[:500]}"
    record["ms"] = {name: [] for name in works}
    for order in islice(orders(tuple(works), seed=f"{scheme}, {length}, {phase}"), rounds):
        for name in order:
            record["ms"][name].append(clock(works[name]))
    record["ratio"] = {name: list(ratios(ms, record["ms"][PLAIN])) for name, ms in record["ms"].items()}
    return record


def cells(record: dict[str, Any]) -> str:
    """A record in one line."""
    parts = [f"{name} {cell(record, name)}" for name in BACKENDS if name in record["ratio"] or name in record["failed"]]
    return "; ".join(parts) or "every way refuses"


def cell(record: dict[str, Any], name: str) -> str:
    if name in record["failed"]:
        return "failed"
    if name not in record["ratio"]:
        return "–"
    median, low, high = record["ratio"][name]
    return f"{median:.2f} ± {(high - low) / 2:.2f}"


def table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def page(found: dict[str, Any]) -> str:
    """The results in Markdown."""
    parts = ["# On a GPU\n", table(("what", "with"), found["environment"].items())]
    if found["tests"]:
        parts.append(f"`{found['tests']['command']}`: {found['tests']['summary']}\n")
    records = found["records"]
    if records:
        parts.append(
            "Time over that of causal scaled_dot_product_attention without positions in the same turns, batch 1, "
            "bfloat16: the median, ± half the interval that holds the true one in 9 of 10 cases. –: the backend does "
            "not take the call. Bold: what auto takes.\n"
        )
    for length, phase in dict.fromkeys((each["length"], each["phase"]) for each in records):
        chosen = [each for each in records if (each["length"], each["phase"]) == (length, phase)]
        plain = [ms for each in chosen for ms in each["ms"][PLAIN]]
        rows = [(PLAIN + ", ms", f"{sorted(plain)[len(plain) // 2]:.3g}", "", "")]
        for each in chosen:
            shown = {name: cell(each, name) for name in BACKENDS}
            shown |= {name: f"**{text}**" for name, text in shown.items() if name == each["auto"]}
            rows.append((each["scheme"], *shown.values()))
        parts += [f"## {phase.capitalize()}, {length:,} tokens\n", table(("scheme", *BACKENDS), rows)]
    faults = [(each["scheme"], each["phase"], *told) for each in records for told in each["failed"].items()]
    if faults:
        parts += ["## Failed\n", table(("scheme", "phase", "backend", "error"), [map(_line, row) for row in faults])]
    return "\n".join(parts)


def _line(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def write(found: dict[str, Any], out: Path) -> None:
    """``gpu.json`` and ``gpu.md``, each whole or not at all."""
    from posenc.command.files import write_whole

    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "gpu.json", (json.dumps(found, indent=1) + "\n").encode())
    write_whole(out / "gpu.md", page(found).encode())


if __name__ == "__main__":
    sys.exit(main())
