"""``python -m study.sizes``: the schemes at several sizes, on one GPU in portions of ten minutes: see sizes.md.

The models of a training stand side by side in a `Fleet`, since a small model alone leaves a GPU waiting for the host.
What is measured is written at once and what is trained every minute, so a portion that was stopped goes on where it
was. It needs torch with Triton, jaxtyping, numpy and safetensors, and the text packed before: ``--pack``.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from posenc import T5, ALiBi, FoX, KeyOffset, NoPE, PoPE, RoPE, Schedule, StickBreaking
from posenc.models import Decoder
from posenc.rotation.scalings import Proportional
from posenc_lab.compare import checkpoint as checkpoints
from posenc_lab.compare.checkpoint import Reached
from posenc_lab.compare.config import CompareConfig
from posenc_lab.compare.pieces import Matching
from posenc_lab.compare.train import share_of_rate
from posenc_lab.kit.configuration import fingerprint
from posenc_lab.kit.files import digest_of, rounded
from posenc_lab.kit.machine import machine, versions
from posenc_lab.kit.processes import Stop
from posenc_lab.kit.records import Records
from study.fleet import Fleet, optimizer_for
from study.rows import LEAST, PACKED, Evaluation, Rows, installed, pack

PLAN = Path(__file__).with_name("sizes.md")
RUNS = Path(__file__).parents[2] / "runs"
PEAK = 989e12  # operations a second of an H100 in bfloat16
USED = {"1m": 0.08, "3m": 0.12, "10m": 0.2, "30m": 0.25}  # of the peak: assumed before anything was measured
SLOWER = {"stick_breaking": 4.0}  # without a kernel
HOST = 1.5e-3, 0.7e-3  # seconds of a step for each layer, and for each model in it: half of what a core took here
SAVE_SECONDS, MARGIN = 60.0, 30.0  # the margin is for the last save, and for Python's end
POINTS = 40  # of a training curve
CLIP, WARMUP = 1.0, 0.1
KINDS = ("sliding", "far", "near", "shuffled", "retrieval")
ROPE = "rope"
USUAL = (ROPE, "nope", "alibi", "t5", "fox", "windows", "p_rope", "rope_500k", "pope", "key_offset")


@dataclass(frozen=True)
class Training:
    """Schemes that train side by side: their size, tokens for each parameter, and seed."""

    size: str
    ratio: int
    seed: int
    schemes: tuple[str, ...]

    @property
    def folder(self) -> str:
        return f"{self.size}-{self.ratio}"

    def __str__(self) -> str:
        return f"{self.size}, {self.ratio} tokens a parameter, seed {self.seed}: {', '.join(self.schemes)}"


PORTIONS = (
    (
        Training("3m", 20, 0, USUAL),
        *(Training("3m", ratio, 0, (ROPE,)) for ratio in (10, 40, 5)),
        Training("10m", 20, 0, (ROPE, "windows")),
        Training("1m", 20, 0, USUAL),
        Training("1m", 40, 0, (ROPE,)),
    ),
    (
        Training("3m", 20, 1, USUAL),
        Training("10m", 20, 0, ("fox",)),
        Training("3m", 20, 2, USUAL),
        *(Training(size, 20, 0, ("stick_breaking",)) for size in ("1m", "3m")),
    ),
    tuple(Training("30m", 20, 0, (scheme,)) for scheme in (ROPE, "windows")),  # each more than ten minutes
)


@dataclass(frozen=True)
class Scale:
    """What trainings are made with: the heads of each size, which are as many as its layers, and lengths in bytes."""

    heads: dict[str, int] = field(default_factory=lambda: {"1m": 3, "3m": 4, "10m": 6, "30m": 9})
    head_dim: int = 64
    trained: int = 1024
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    windows: int = 64
    span: int = 256  # of RoPE in windows
    share: float = 1.0  # of the tokens

    def model(self, scheme: str, size: str, seed: int) -> Decoder:
        """A decoder with a scheme. Its other weights are the same for every scheme."""
        heads, d = self.heads[size], self.head_dim
        position: dict[str, Callable[[], Any]] = {
            ROPE: lambda: RoPE(d),
            "nope": NoPE,
            "alibi": lambda: ALiBi(heads),
            "t5": lambda: T5(heads),
            "fox": lambda: FoX(heads),
            "windows": lambda: Schedule([*[(RoPE(d), self.span)] * (heads - 1), (NoPE(), None)]),
            "p_rope": lambda: RoPE(d, scaling=Proportional(0.25)),
            "rope_500k": lambda: RoPE(d, base=500_000.0),
            "pope": lambda: PoPE(d, heads),
            "key_offset": lambda: RoPE(d, rotary_dim=d // 2) + KeyOffset(d),
            "stick_breaking": StickBreaking,
        }
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed + 2**31)  # or a table would have the embedding's numbers
            made = position[scheme]()
            torch.default_generator.manual_seed(seed)
            return Decoder(256, heads * d, heads, heads, position=made)

    def settings(self, of: Training) -> dict[str, Any]:
        """Batch and learning rate, which DeepSeek (arXiv 2401.02954, section 3.1) fitted to the operations C = 6 N D:
        0.2920 C^0.3271 tokens and 0.3118 C^-0.1250."""
        with torch.device("meta"):
            parameters = sum(p.numel() for p in self.model(ROPE, of.size, 0).parameters())
        tokens = self.share * of.ratio * parameters
        operations = 6.0 * parameters * tokens
        rows = max(round(0.2920 * operations**0.3271 / self.trained / LEAST), 1) * LEAST
        steps = max(round(tokens / rows / self.trained), POINTS)
        made = {"parameters": parameters, "tokens": steps * rows * self.trained, "rows": rows, "steps": steps}
        return {**made, "learning_rate": 0.3118 * operations**-0.1250}


TOY = Scale({"1m": 1, "3m": 2, "10m": 3, "30m": 3}, 16, 128, (128, 256), 8, 16, 0.01)


def costs(scale: Scale) -> str:
    """What each training takes by arithmetic: operations with attention to half the pairs, over what is assumed that
    the device does in a second, or the time of the host if that is more."""
    lines, sums = [], dict.fromkeys(range(1, len(PORTIONS) + 1), 0.0)
    for n, of in ((n, of) for n, portion in enumerate(PORTIONS, 1) for of in portion):
        its, width = scale.settings(of), scale.heads[of.size] * scale.head_dim
        each = its["tokens"] * 6 * (its["parameters"] + scale.trained * scale.heads[of.size] * width)
        seconds = sum(SLOWER.get(scheme, 1.0) * each for scheme in of.schemes) / PEAK / USED[of.size]
        host = its["steps"] * scale.heads[of.size] * (HOST[0] + HOST[1] * len(of.schemes))
        sums[n] += (seconds := max(seconds, host))
        made = "{parameters:,} parameters, {steps:,} steps of {rows} rows, rate {learning_rate:.2g}".format(**its)
        lines.append(f"{n}  {of}: {made}; {len(of.schemes) * each:.2g} operations, {seconds:.0f} s")
    return "\n".join([*lines, *(f"portion {n}: {seconds:.0f} s of training" for n, seconds in sums.items())])


class Unfinished(Exception):  # noqa: N818 - no error
    """The time is over, or a signal came; everything is saved."""


class Portion:
    """Trains and tests, until ``end`` of `time.monotonic` or a signal; then Unfinished."""

    def __init__(self, out: Path, text: Rows, scale: Scale, end: float, stop: Stop) -> None:
        self.out, self.text, self.scale, self.end, self.stop = out, text, scale, end, stop
        self.device = text.device
        self.shared = {"plan": digest_of(PLAN.read_bytes()), "text": text.about, "scale": vars(scale)}

    @property
    def over(self) -> bool:
        return self.stop.asked or time.monotonic() > self.end

    def run(self, of: Training) -> None:
        """What of a training is not yet recorded. ValueError for records of another plan, text or scale."""
        settings, folder, lengths = self.scale.settings(of), self.out / of.folder, self.scale.lengths
        identity = fingerprint({**self.shared, **settings, "size": of.size})
        about = {"fingerprint": identity, "size": of.size, "ratio": of.ratio, **settings, **self.shared}
        about |= {"versions": versions(), "machine": machine(self.device)}
        checkpoint = self.out / "checkpoints" / f"{of.folder}-{of.seed}-{of.schemes[0]}.safetensors"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        with Records(folder) as records:
            if any(record["fingerprint"] != identity for record in records):
                raise ValueError(f"{folder} must be of this plan, text and scale, got records of another: give --out")

            def measure(tests: Evaluation, scheme: str, kind: str, length: int, as_kind: str) -> None:
                if self.over:
                    raise Unfinished
                told = {"kind": as_kind, "scheme": scheme, "seed": of.seed, "length": length}
                records.append({**told, **tests.measure(kind, length)}, about)

            def left(schemes: Sequence[str]) -> list[tuple[str, int, str]]:
                bad = {
                    r["scheme"] for r in records if r["seed"] == of.seed and ("diverged" in r or r["kind"] == "failed")
                }
                every = ((kind, n, s) for s in schemes if s not in bad for kind in KINDS for n in lengths)
                return [each for each in every if not records.has(each[0], each[2], of.seed, each[1])]

            match = self.tests(Matching())  # the positive control
            for length in lengths:
                if not records.has("match", "match", of.seed, length):
                    measure(match, "match", "far", length, "match")
            if not left(of.schemes):
                return
            schemes = [scheme for scheme in of.schemes if not records.has("failed", scheme, of.seed)]
            if not checkpoint.exists():  # else they have been tried
                for scheme, why in self.failing(schemes, of):
                    records.append({"kind": "failed", "scheme": scheme, "seed": of.seed, "why": why}, about)
                    schemes.remove(scheme)
            if not schemes:
                return
            fleet = Fleet([self.scale.model(scheme, of.size, of.seed) for scheme in schemes], POINTS).to(self.device)
            seconds = self.train(fleet, of, checkpoint, identity)
            steps = [ends(point, settings["steps"]) for point in range(POINTS)]
            for n, scheme in enumerate(schemes):
                if not records.has("training", scheme, of.seed):
                    curve = [*zip(steps, fleet.curve[:, n].tolist(), strict=True)]
                    bad = next(({"diverged": step} for step, bits in curve if not math.isfinite(bits)), {})
                    told = {"kind": "training", "scheme": scheme, "seed": of.seed, "beside": len(schemes), **bad}
                    bits = [(step, rounded(value)) for step, value in curve]
                    records.append({**told, "seconds": seconds, "curve": bits}, about)
                tests = self.tests(fleet.member(n))
                for kind, length, _ in left([scheme]):
                    measure(tests, scheme, kind, length, kind)
            checkpoint.unlink(missing_ok=True)

    def tests(self, model: nn.Module) -> Evaluation:
        its, scale = self.text, self.scale
        made = Evaluation(model, its.windows, its.pieces, None, scale.lengths, scale.trained, self.device)
        made.AT_ONCE *= 16 if self.device.type == "cuda" else 1
        return made

    def failing(self, schemes: Sequence[str], of: Training) -> Iterator[tuple[str, str]]:
        """The schemes of which a step fails on this device, and how, so that the others go on."""
        rows = self.text.draw(2, self.scale.trained + 1, of.seed, 0)
        for scheme in [*schemes]:
            try:
                fleet = Fleet([self.scale.model(scheme, of.size, of.seed)]).to(self.device)
                with torch.autocast(self.device.type, torch.bfloat16):
                    loss = fleet.losses(rows).sum()
                loss.backward()
                loss.item()
            except Exception as error:  # of a compiler or the device
                yield scheme, f"{type(error).__name__}: {str(error)[:500]}"

    def train(self, fleet: Fleet, of: Training, checkpoint: Path, identity: str) -> float:
        """Trains from where a checkpoint has come, and gives the seconds of all parts."""
        settings, size = self.scale.settings(of), self.scale.trained + 1
        steps, optimizer = settings["steps"], optimizer_for(fleet, settings["learning_rate"])
        config = CompareConfig(steps=steps, warmup=WARMUP)
        reached = Reached(0, 0.0, [], torch.zeros((), device=self.device))
        if checkpoint.exists():
            reached = checkpoints.load(checkpoint, fleet, optimizer, fingerprint=identity)
        saved = clock = time.monotonic()
        for step in range(reached.step, steps):
            for group in optimizer.param_groups:
                group["lr"] = group["highest"] * share_of_rate(config, step)
            rows = self.text.draw(settings["rows"], size, of.seed, step)
            with torch.autocast(self.device.type, torch.bfloat16):
                losses = fleet.losses(rows)
            optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()
            fleet.clip(CLIP)
            optimizer.step()
            fleet.running += losses.detach()
            reached.step = done = step + 1
            point = step * POINTS // steps
            if done == ends(point, steps):
                fleet.curve[point] = fleet.running / (done - ends(point - 1, steps)) / math.log(2)
                fleet.running.zero_()
            now = time.monotonic()
            reached.seconds, clock, over = reached.seconds + now - clock, now, self.over
            if over or done == steps or now - saved > SAVE_SECONDS:
                checkpoints.save(checkpoint, fleet, optimizer, reached, fingerprint=identity)
                saved = time.monotonic()
                print(f"{time.strftime('%H:%M:%S')} {of}: {done:,} of {steps:,} steps", flush=True)
            if over:
                raise Unfinished
        return reached.seconds


def ends(point: int, steps: int) -> int:
    """The step with which a point of the curve ends."""
    return -(-steps * (point + 1) // POINTS)


def main(words: Sequence[str] | None = None) -> int:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m study.sizes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--portion", type=int, choices=(1, 2, 3), default=1, help="default: 1")
    parser.add_argument("--minutes", type=float, default=10.0, help="when it stops, all saved (default: 10)")
    parser.add_argument("--out", type=Path, help="default: runs/study/sizes, or runs/toy/sizes")
    parser.add_argument("--pack", action="store_true", help="pack the text of packages installed here, and end")
    parser.add_argument("--list", action="store_true", help="print what each training costs, and end")
    parser.add_argument("--toy", action="store_true", help="tiny models, for the CPU")
    arguments = parser.parse_args(words)
    toy, scale = arguments.toy, TOY if arguments.toy else Scale()
    text, out = (
        PACKED.with_stem("toy") if toy else PACKED,
        arguments.out or RUNS / ("toy" if toy else "study") / "sizes",
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if arguments.list:
        print(costs(scale))
        return 0
    if arguments.pack or (toy and not text.exists()):
        pack(text, *installed(toy), scale.trained, scale.lengths[-1], scale.windows)
    if arguments.pack:
        return 0
    if not text.exists() or (device.type == "cpu" and not toy):
        why = f"torch {torch.__version__} sees no CUDA device; --toy needs none" if text.exists() else "first --pack"
        print(f"error: {why}", file=sys.stderr)
        return 1
    os.environ.setdefault("TRITON_CACHE_DIR", str((out / "triton").resolve()))  # which the next portion uses
    torch.set_float32_matmul_precision("high")
    trainings = [of for portion in PORTIONS[: arguments.portion] for of in portion]
    with Stop() as stop:
        portion = Portion(out, Rows(text, device), scale, begin + 60 * arguments.minutes - MARGIN, stop)
        for n, of in enumerate(trainings):
            try:
                portion.run(of)
            except ValueError as error:  # of records of another plan
                print(f"error: {error}", file=sys.stderr)
                return 1
            except Unfinished:
                print("\n- ".join(["Not finished:", *map(str, trainings[n:])]))
                break
    return 0


if __name__ == "__main__":
    sys.exit(main())
