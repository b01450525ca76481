"""Runs the tests marked gpu on a CUDA device, and times attention with positions, decoding and rotations on it.

    PYTHONPATH=packages/posenc/src:packages/posenc-lab/src python research/benchmarks/gpu/run.py --out runs/gpu

It needs torch, Triton and jaxtyping, and for the tests pytest and what they import. Times are those of
`triton.testing.do_bench`, which empties the device's cache before each call, and with replayed CUDA graphs. All ways to
a case are timed in turns of random order, and ratios are taken turn by turn. Encodings are bound before, as a model
does once for its layers. What is measured is written at once; `--minutes` bounds the whole.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

ROOT = Path(__file__).parents[3]
NEEDED = ("torch", "triton", "jaxtyping")
BACKENDS = ("triton", "flex", "flex_flash", "sdpa")
PHASES = ("forward", "training", "decoding")
QUICK = ("nope", "rope", "alibi", "t5", "shaw", "fire", "transformer_xl")
ROTATIONS = ("rotation", "norm and rotation")  # of queries and keys, without attention
MASKED = ("alibi", "t5")  # whose biases are a mask that can be made before
REAL, DRY = {"tokens": 16384, "channels": 1024, "sequences": 8}, {"tokens": 64, "channels": 32, "sequences": 2}
GROUP = 4  # heads of queries to a head of keys, in decoding
DRY_SCHEMES, DRY_LENGTH, DRY_WIDTH = ("rope", "alibi"), 64, 16
BASELINES = {"rotation": "clone", "norm and rotation": "norms, then rotation"}
PLAIN = "PyTorch's choice"  # of scaled_dot_product_attention without positions

Call: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[Call], float]
"""The milliseconds of a call."""


class Case(NamedTuple):
    """What is timed: a scheme of the catalog or one of `ROTATIONS`, with so many channels in a head, and tokens."""

    what: str
    phase: str
    width: int
    length: int

    def __str__(self) -> str:
        return f"{self.what}, {self.phase}, {self.width} channels, {self.length:,} tokens"

    @property
    def baseline(self) -> str:
        return BASELINES.get(self.what, PLAIN)


def main(words: Sequence[str] | None = None) -> int:
    """Exit codes 0: every test passed, and every way that takes its call was timed; 1: something is missing or failed;
    2: wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), metavar="DIR", help="default: runs/gpu")
    parser.add_argument(
        "--schemes", nargs="+", metavar="NAME", help="names of the catalog, or of ROTATIONS (default: all)"
    )
    parser.add_argument(
        "--lengths", nargs="+", type=int, metavar="N", help="tokens, powers of two (default: 4096 16384)"
    )
    parser.add_argument("--widths", nargs="+", type=int, metavar="N", help="channels of a head (default: 64 128)")
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS, help="default: all")
    parser.add_argument("--rounds", type=int, help="turns of each case (default: 5; with --quick 3)")
    parser.add_argument("--minutes", type=float, help="after so many no further case is begun (default: no bound)")
    parser.add_argument(
        "--quick", action="store_true", help=f"4,096 tokens of {', '.join(QUICK)}, without flex: minutes"
    )
    parser.add_argument(
        "--tests", nargs="*", default=["packages/posenc/tests"], metavar="PATH", help="of pytest; none: no tests"
    )
    parser.add_argument("--dry-run", action="store_true", help="without a GPU: list the tests, interpret the kernels")
    arguments = parser.parse_args(words)
    end = time.monotonic() + 60 * (arguments.minutes or 10**6)
    if missing := lacking():
        return failed(f"{' and '.join(missing)} cannot be imported by {sys.executable}")
    if arguments.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch  # after Triton is told whether to interpret

    if not arguments.dry_run and not torch.cuda.is_available():
        return failed(f"torch {torch.__version__} sees no CUDA device; --dry-run needs none")
    quick, dry = arguments.quick, arguments.dry_run
    names = arguments.schemes or ((*DRY_SCHEMES, *ROTATIONS) if dry else (*QUICK, *ROTATIONS) if quick else None)
    lengths = arguments.lengths or ([DRY_LENGTH] if dry else [4096] if quick else [4096, 16384])
    widths = arguments.widths or ([DRY_WIDTH] if dry else [64, 128])
    backends = [name for name in arguments.backends if not (name.startswith("flex") and (quick or dry))]
    rounds = arguments.rounds or (1 if dry else 3 if quick else 5)
    try:
        planned = list(plan(names, widths, lengths))
    except ValueError as error:
        return failed(str(error), code=2)
    about = environment(dry)
    print(table(("what", "with"), about.items()), flush=True)
    found: dict[str, Any] = {"environment": about, "tests": {}, "records": [], "left": []}
    if arguments.tests:
        found["tests"] = tested(arguments.tests, dry)
    write(found, arguments.out)
    clocks = clocks_of(dry, quick)
    for n, case in enumerate(planned):
        if time.monotonic() > end:
            found["left"] = [str(each) for each in planned[n:]]
            write(found, arguments.out)
            break
        record = timed(case, backends, rounds, clocks, dry)
        found["records"].append(record)
        write(found, arguments.out)  # what is measured is kept if a later kernel breaks the device
        print(f"{case}: {cells(record)}", flush=True)
    print(f"Results: {arguments.out / 'gpu.md'} and gpu.json")
    broken = [f"{each['what']} by {name}" for each in found["records"] for name in each["failed"]]
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
        "FlashAttention": ", ".join(implementations()) or "PyTorch's own",
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


def clocks_of(dry: bool, quick: bool) -> dict[str, Clock]:
    """The median of repeated calls by Triton's clocks or, dry, the time of one call."""
    if dry:

        def wall(call: Call) -> float:
            begin = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - begin)

        return {"calls": wall}
    from triton.testing import do_bench, do_bench_cudagraph

    how: dict[str, Any] = {"rep": 20 if quick else 100, "return_mode": "median"}
    return {"calls": partial(do_bench, **how), "graphs": partial(do_bench_cudagraph, **how)}


def plan(names: Sequence[str] | None, widths: Sequence[int], lengths: Sequence[int]) -> Iterator[Case]:
    """What is timed, in the order in which it tells most. ValueError for an unknown scheme or another length."""
    from posenc_lab.bench import cases

    for name in names or ():
        if name not in ROTATIONS:
            cases.entries(name)
    if wrong := [n for n in lengths if n < 64 or n & (n - 1)]:
        raise ValueError(f"--lengths must be powers of two from 64 on, got {wrong[0]}")
    if wrong := [n for n in widths if n < 16 or n % 16]:
        raise ValueError(f"--widths must be multiples of 16, got {wrong[0]}")
    for length, phase, width in product(sorted(set(lengths)), PHASES, widths):
        for what in names or (*cases.all_schemes(), *ROTATIONS):
            if not (what in ROTATIONS and phase == "decoding"):
                yield Case(what, phase, width, length)


def timed(case: Case, backends: Sequence[str], rounds: int, clocks: Mapping[str, Clock], dry: bool) -> dict[str, Any]:
    """The milliseconds of each way in each turn, by each clock, and the ratios to the baseline; why a way refuses the
    call, and how another failed."""
    import torch

    from posenc_lab.bench.measure import LeftOutError
    from posenc_lab.kit.interleaving import orders, ratios

    torch.compiler.reset()
    record: dict[str, Any] = {**case._asdict(), "auto": None, "refused": {}, "failed": {}, "ms": {}, "ratio": {}}
    calls: dict[str, Call] = {}
    try:
        makes = rotations_of(case, dry) if case.what in ROTATIONS else attentions_of(case, backends, dry, record)
    except LeftOutError as error:
        record["refused"]["posenc"] = str(error)
        return record
    for name, make in makes.items():
        try:
            call = make()
            call()  # it is compiled
            calls[name] = call
        except LeftOutError as error:
            record["refused"][name] = str(error)
        except Exception as error:  # of a compiler or the device: the others go on
            record["failed"][name] = f"{type(error).__name__}: {str(error)[:500]}"
    for of, clock in clocks.items():
        ms: dict[str, list[float]] = {name: [] for name in calls}
        for order in islice(orders(tuple(calls), seed=f"{case}, {of}"), rounds):
            for name in order:
                try:
                    if name in ms:
                        ms[name].append(clock(calls[name]))
                except Exception as error:  # a graph cannot hold every call
                    record["failed"][f"{name}, {of}"] = f"{type(error).__name__}: {str(error)[:500]}"
                    del ms[name]
        record["ms"][of] = ms
        if case.baseline in ms:
            record["ratio"][of] = {name: list(ratios(each, ms[case.baseline])) for name, each in ms.items()}
    return record


def implementations() -> list[str]:
    """The implementations of FlashAttention that can take the place of PyTorch's."""
    import torch.nn.attention as of_torch

    found = []
    for name in getattr(of_torch, "list_flash_attention_impls", list)():
        try:
            of_torch.activate_flash_attention_impl(name)
            found.append(name)
        except Exception:  # the package that has it is not there, or does not know the device
            continue
        finally:
            of_torch.restore_flash_attention_impl()
    return found


def attentions_of(
    case: Case, backends: Sequence[str], dry: bool, record: dict[str, Any]
) -> dict[str, Callable[[], Call]]:
    """Ways to attention with a scheme: PyTorch's engines without positions, posenc's backends, a mask made before."""
    import torch
    from torch.nn import functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import posenc
    from posenc_lab.bench import cases
    from posenc_lab.bench.measure import Inputs, LeftOutError
    from posenc_lab.bench.settings import Settings

    sizes, device, training = DRY if dry else REAL, "cpu" if dry else "cuda", case.phase == "training"
    decodes = case.phase == "decoding"
    heads = max(sizes["channels"] // case.width, 1)
    kv_heads = max(heads // GROUP, 1) if decodes else heads
    batch = sizes["sequences"] if decodes else max(sizes["tokens"] // case.length, 1)
    settings = Settings(dtype="bfloat16", device=device, lengths=(case.length,), heads=heads, head_dim=case.width)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(n: int, tokens: int) -> Any:
        shape = batch, n, tokens, case.width
        return torch.randn(shape, generator=generator, dtype=torch.bfloat16, device=device).requires_grad_(training)

    queries = 1 if decodes else case.length
    inputs = Inputs(
        drawn(heads, queries), drawn(kv_heads, case.length), drawn(kv_heads, case.length),
        drawn(heads, queries).detach(), training,
    )  # fmt: skip
    scheme = cases.build_scheme(case.what, settings, case.length)
    if decodes:
        positions = cases.positions_of(case.what, case.length, device)
        encoding = scheme(positions[case.length - 1 :], positions, dtype=torch.float32)
        if encoding.tables or encoding.wanted or encoding.banded or encoding.values:
            raise LeftOutError("a step of it needs more than cached keys and values")
        encoding = encoding.pairs  # keys are cached rotated
        query = inputs.query
    else:
        query, encoding = cases.bound(scheme, case.what, inputs.query, cases.projected_by_a_layer(scheme, inputs.query))
    given = query, inputs.key, inputs.value, encoding
    with torch.set_grad_enabled(training):
        explained = posenc.explain(*given, is_causal=True)
    record["auto"] = explained.backend

    def plain(mask: Any = None) -> Any:
        return F.scaled_dot_product_attention(
            inputs.query, inputs.key, inputs.value, mask, is_causal=mask is None and not decodes,
            enable_gqa=kv_heads != heads,
        )  # fmt: skip

    def engine(backend: SDPBackend) -> Any:
        with sdpa_kernel(backend):
            return plain()

    def implementation(name: str) -> Any:
        import torch.nn.attention as of_torch

        of_torch.activate_flash_attention_impl(name)
        try:
            return engine(SDPBackend.FLASH_ATTENTION)
        finally:
            of_torch.restore_flash_attention_impl()

    def posenc_by(name: str) -> Call:
        if name in explained.refusals:
            raise LeftOutError(explained.refusals[name])
        return inputs.work(lambda: posenc.attention(*given, is_causal=True, backend=name), tuple(scheme.parameters()))

    def masked() -> Call:
        zeros = torch.zeros_like(inputs.query[:1]), torch.zeros_like(inputs.key[:1])
        with torch.no_grad():
            mask = posenc.logits(*zeros, encoding, is_causal=True).to(torch.bfloat16)
        return inputs.work(lambda: plain(mask))

    makes: dict[str, Callable[[], Call]] = {PLAIN: lambda: inputs.work(plain)}
    if case.what == "nope" and not dry:
        for engine_name in ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"):
            makes[engine_name] = partial(lambda of: inputs.work(partial(engine, of)), SDPBackend[engine_name])
        makes |= {
            name: partial(lambda of: inputs.work(partial(implementation, of)), name) for name in implementations()
        }
    makes |= {name: partial(posenc_by, name) for name in backends}
    if case.what in MASKED:
        makes["mask made before"] = masked
    return makes


def rotations_of(case: Case, dry: bool) -> dict[str, Callable[[], Call]]:
    """Ways to the rotation of queries and keys, in which four heads of queries share one of keys, and to their norms
    and rotation."""
    import torch
    from torch.nn import functional as F

    import posenc

    sizes, device = DRY if dry else REAL, "cpu" if dry else "cuda"
    heads, batch = max(2 * sizes["channels"] // case.width, 1), max(sizes["tokens"] // case.length, 1)
    training = case.phase == "training"
    projected = torch.randn(batch, case.length, heads + max(heads // GROUP, 1), case.width, device=device)
    q, k = (x.transpose(1, 2) for x in projected.to(torch.bfloat16).split((heads, max(heads // GROUP, 1)), 2))
    weights = [torch.ones(case.width, dtype=torch.bfloat16, device=device, requires_grad=training) for _ in range(2)]
    encoding = posenc.RoPE(case.width)(posenc.Positions.arange(case.length).to(device))
    leaves = [x.detach().requires_grad_(training) for x in (q, k)]
    gradients = [torch.randn_like(x) for x in leaves]

    def work(way: Callable[..., Any], *more: Any) -> Call:
        def forward() -> Any:
            with torch.no_grad():
                return way(*leaves, *more)

        def trained() -> Any:
            outs = way(*leaves, *more)
            return torch.autograd.grad(outs, [x for x in (*leaves, *more) if x.requires_grad], gradients)

        return trained if training else forward

    def apart(q: Any, k: Any, *of: Any) -> Any:
        return encoding.rotate(*(F.rms_norm(x, x.shape[-1:], w, 1e-6) for x, w in zip((q, k), of, strict=True)))

    def theirs() -> Call:
        rotate = importlib.import_module("transformers.models.llama.modeling_llama").apply_rotary_pos_emb
        cos, sin = (x.repeat(1, 1, 2).to(torch.bfloat16) for x in encoding.cos_sin())
        return work(lambda q, k: rotate(q, k, cos, sin))

    def compiled(way: Callable[..., Any], *more: Any) -> Call:
        return work(torch.compile(way, backend="eager" if dry else "inductor"), *more)

    if case.what == "rotation":
        return {
            "clone": lambda: work(lambda q, k: (q.clone(), k.clone())),
            "posenc": lambda: work(encoding.rotate),
            "posenc, compiled": lambda: compiled(encoding.rotate),
            "transformers": theirs,
        }
    return {
        "norms, then rotation": lambda: work(apart, *weights),
        "norm_rotate": lambda: work(encoding.norm_rotate, *weights),
        "norm_rotate, compiled": lambda: compiled(encoding.norm_rotate, *weights),
    }


def cells(record: dict[str, Any]) -> str:
    """A record in one line."""
    of = next(iter(record["ms"]), None)
    parts = [f"{name} {cell(record, of, name)}" for name in record["ratio"].get(of, ())]
    parts += [f"{name} failed" for name in record["failed"]]
    return "; ".join(parts) or "every way refuses"


def cell(record: dict[str, Any], clock: str | None, name: str) -> str:
    """A ratio and half its interval, and the milliseconds of the baseline."""
    if name not in record["ratio"].get(clock, ()):
        return "–"
    median, low, high = record["ratio"][clock][name]
    ms = sorted(record["ms"][clock][name])
    of_baseline = name in (PLAIN, *BASELINES.values())
    text = f"{ms[len(ms) // 2]:.3g} ms" if of_baseline else f"{median:.2f} ± {(high - low) / 2:.2f}"
    return f"**{text}**" if name == record["auto"] else text


def table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def page(found: dict[str, Any]) -> str:
    """The results in Markdown: a table for each length and phase, with a row for each way of each case."""
    parts = ["# On a GPU\n", table(("what", "with"), found["environment"].items())]
    if found["tests"]:
        parts.append(f"`{found['tests']['command']}`: {found['tests']['summary']}\n")
    records = found["records"]
    if records:
        parts.append(
            "bfloat16. The first way of a case in milliseconds, and the others over it in the same turns: the median, "
            "± half the interval that holds the true one in 9 of 10 cases. Calls of their own include the host's time, "
            "graphs do not. –: was not measured. Bold: what auto takes.\n"
        )
    for length, phase in dict.fromkeys((each["length"], each["phase"]) for each in records):
        chosen = [each for each in records if (each["length"], each["phase"]) == (length, phase)]
        clocks = list(dict.fromkeys(of for each in chosen for of in each["ms"]))
        rows = [
            (each["what"], each["width"], name, *(cell(each, of, name) for of in clocks))
            for each in chosen
            for name in dict.fromkeys(name for of in clocks for name in each["ms"].get(of, ()))
        ]
        parts += [f"## {phase.capitalize()}, {length:,} tokens\n", table(("what", "channels", "way", *clocks), rows)]
    faults = [
        (each["what"], each["phase"], each["width"], *told) for each in records for told in each["failed"].items()
    ]
    if faults:
        rows = [[_line(str(word)) for word in row] for row in faults]
        parts += ["## Failed\n", table(("what", "phase", "channels", "way", "error"), rows)]
    if found["left"]:
        parts += ["## Not begun, for want of time\n", *(f"- {each}" for each in found["left"])]
    return "\n".join(parts) + "\n"


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
