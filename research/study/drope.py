"""``python -m study.drope MODEL``: DroPE of a pretrained model, in portions of ten minutes on a GPU.

DroPE (Gelberg et al. 2025, arXiv 2512.12167) puts NoPE in the place of RoPE and trains a little more at the model's
length. Does it then find a pass key in texts of one, two and four times that length, and does it with YaRN and without
training? MODEL is smollm2, which ``make smollm2`` installs, or a folder with a checkpoint and its tokenizer; nothing is
fetched. The text is that of `study.sizes`. By reviews of the paper its authors train on 0.5 to 2 % of a model's tokens,
of its own data: twenty minutes are a fiftieth of that, so a failure says nothing of DroPE. A portion goes on where the
last one was.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import NoPE, YaRN
from posenc.huggingface import patch
from posenc_lab.compare import checkpoint as checkpoints
from posenc_lab.compare.checkpoint import Reached
from posenc_lab.extend.model import PACKAGED, find, load
from posenc_lab.kit.configuration import fingerprint
from posenc_lab.kit.files import digest_of
from posenc_lab.kit.machine import machine, versions
from posenc_lab.kit.processes import Stop
from posenc_lab.kit.records import Records
from study.rows import PACKED, Rows

OUT = Path(__file__).parents[2] / "runs" / "study" / "drope"
TIMES = (1, 2, 4)  # of the trained length
SAVE_SECONDS, TESTING = 60.0, 0.15  # the share of a portion that is left for tests and the last save
PLAIN = {"add_special_tokens": False, "verbose": False}
ROWS, RATE, WARMUP, CLIP = 8, 2e-4, 0.05, 1.0  # rows of a step, each in a pass of its own


def tokens_of(files: Sequence[Any], tokenizer: Any) -> Any:
    """The tokens of texts in bytes, one after another."""
    words = (each.tobytes().decode(errors="replace") for each in files)
    return np.concatenate([np.array(tokenizer(each, **PLAIN)["input_ids"], np.int32) for each in words])


@torch.no_grad()
def retrieval(model: nn.Module, tokenizer: Any, text: Tensor, length: int, rows: int) -> dict[str, float]:
    """A text of ``length`` tokens says a key of five digits in its first half, at evenly spread depths, and asks for it
    at its end. ``right`` is the share of rows in which every token of the key is the most probable one, and ``digits``
    that of tokens."""
    rng, found = np.random.default_rng(length), []
    device = next(model.parameters()).device

    def ids(words: str) -> Tensor:
        return torch.tensor(tokenizer(words, **PLAIN)["input_ids"], dtype=torch.int32)

    for row in range(rows):
        key = str(rng.integers(10_000, 100_000))
        told, answer = ids(f"\nThe pass key is {key}. Remember it: {key} is the pass key.\n"), ids(f" {key}")
        asked = ids("\nWhat is the pass key? The pass key is")
        left = length + 1 - len(told) - len(asked) - len(answer)
        if not 0 <= left <= len(text):
            raise ValueError(
                f"length must leave room for a key, and be of {len(text):,} tokens at most, got {length:,}"
            )
        begin = int(rng.integers(len(text) - left + 1))
        filler, depth = text[begin : begin + left], row * left // (2 * rows)
        tokens = torch.cat((filler[:depth], told, filler[depth:], asked, answer)).long()[None].to(device)
        logits = model(input_ids=tokens[:, :-1], use_cache=False, logits_to_keep=len(answer)).logits
        found.append((logits.argmax(-1) == tokens[:, -len(answer) :]).double().mean().item())
    return {"right": sum(each == 1 for each in found) / rows, "digits": sum(found) / rows}


def train(
    model: nn.Module, text: Tensor, length: int, total: float, end: float, checkpoint: Path, stop: Stop, identity: str
) -> Reached:
    """Trains on random rows of a text until ``end``, or for ``total`` seconds of all portions together, which the rate
    follows: warm-up, then half a cosine to a tenth."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.0)
    reached = Reached(0, 0.0, [], torch.zeros((), device=device))
    if checkpoint.exists():
        reached = checkpoints.load(checkpoint, model, optimizer, fingerprint=identity)
    model.train()
    saved = clock = time.monotonic()
    while not (stop.asked or clock > end or reached.seconds >= total):
        rng, losses = np.random.default_rng(reached.step), torch.zeros((), device=device)
        share = reached.seconds / total
        rate = RATE * min(share / WARMUP + 0.01, 0.1 + 0.45 * (1 + math.cos(math.pi * share)))
        optimizer.param_groups[0]["lr"] = rate
        for begin in rng.integers(len(text) - length, size=ROWS):
            row = text[begin : begin + length + 1].long()[None].to(device)
            with torch.autocast(device.type, torch.bfloat16):
                logits = model(input_ids=row[:, :-1], use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), row[:, 1:].flatten()) / ROWS
            loss.backward()
            losses += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        reached.step += 1
        reached.curve.append((reached.step, bits := losses.item() / math.log(2)))
        if not math.isfinite(bits):
            raise ValueError(f"the loss is {bits} at step {reached.step}")
        now = time.monotonic()
        reached.seconds, clock = reached.seconds + now - clock, now
        if now - saved > SAVE_SECONDS:
            checkpoints.save(checkpoint, model, optimizer, reached, fingerprint=identity)
            saved = clock = time.monotonic()
    checkpoints.save(checkpoint, model, optimizer, reached, fingerprint=identity)
    model.eval()
    return reached


def main(words: Sequence[str] | None = None) -> int:
    begin = time.monotonic()
    parser = argparse.ArgumentParser(prog="python -m study.drope", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="smollm2, of make smollm2, or a folder with a checkpoint and its tokenizer")
    parser.add_argument("--text", type=Path, default=PACKED, help=f"packed by study.sizes (default: {PACKED})")
    parser.add_argument("--pack", action="store_true", help="write its tokens, and end")
    parser.add_argument("--minutes", type=float, default=10.0, help="of this portion (default: 10)")
    parser.add_argument("--total", type=float, default=20.0, help="minutes of training in all portions (default: 20)")
    parser.add_argument("--rows", type=int, default=24, help="texts of each length with a key (default: 24)")
    parser.add_argument("--out", type=Path, default=OUT, help="default: runs/study/drope")
    of = parser.parse_args(words)
    if of.model not in PACKAGED and not Path(of.model).is_dir():
        parser.error(f"model must be smollm2 or a folder that is here, as nothing is fetched, got {of.model!r}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = find(of.model)
    made = load(source, "float32", "posenc", device)
    model, tokenizer, trained = made.model.requires_grad_(True), made.tokenizer, source.trained
    told = {"model": made.about, "weights": made.digest, "trained": trained, "total": of.total}
    about = {"fingerprint": (identity := fingerprint({**told, "text": digest_of(of.text.read_bytes())})), **told}
    about |= {"versions": versions(), "machine": machine(device), "code": digest_of(Path(__file__).read_bytes())}
    of.out.mkdir(parents=True, exist_ok=True)
    kept = of.out / f"tokens-{identity}.npz"
    if not kept.exists():
        rows = Rows(of.text, device)
        files = np.split(rows.train.data, rows.train.bounds[1:-1])
        np.savez_compressed(kept, tokens_of(files, tokenizer), tokens_of(rows.windows, tokenizer))
    if of.pack:
        return 0
    with np.load(kept) as packed:
        text, held_out = (torch.from_numpy(packed[name]) for name in ("arr_0", "arr_1"))
    with Records(of.out) as records, Stop() as stop:
        if any(record["fingerprint"] != identity for record in records):
            raise ValueError(f"{of.out} must be of this model and text, got records of others: give --out")

        def measure(scheme: str, seconds: float, times: int) -> None:
            if not records.has("retrieval", scheme, None, times * trained, round(seconds)):
                with torch.autocast(device.type, torch.bfloat16):
                    found = retrieval(model, tokenizer, held_out, times * trained, of.rows)
                key = {"kind": "retrieval", "scheme": scheme, "length": times * trained, "trial": round(seconds)}
                records.append({**key, "seconds": seconds, **found}, about)
                print(f"{scheme}, {seconds:.0f} s, {times * trained:,} tokens: {found['right']:.0%} right", flush=True)

        for scheme in ("RoPE", "YaRN"):
            for times in TIMES:
                scales = scheme == "YaRN" and times > 1
                with patch(model, YaRN(float(times), trained)) if scales else nullcontext():
                    measure(scheme, 0.0, times)
        patch(model, NoPE())
        checkpoint = of.out / "drope.safetensors"
        if not checkpoint.exists():
            for times in TIMES:
                measure("DroPE", 0.0, times)
        end = begin + 60 * of.minutes * (1 - TESTING)
        reached = train(model, text, trained, 60 * of.total, end, checkpoint, stop, identity)
        for times in TIMES:
            measure("DroPE", reached.seconds, times)
        print(f"{reached.step:,} steps in {reached.seconds:.0f} s", *reached.curve[-1:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
