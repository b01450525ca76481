"""Patches a tiny model of every family that is read, and runs it.

    python -m tests.huggingface.patched_families

writes what came of it into patched_families.json, beside this file, and the table of patched families into
docs/huggingface.md. It takes two minutes.
"""

import functools
import inspect
import json
import re
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING

import posenc
from posenc import ALiBi, NoPE, Schedule
from posenc.huggingface import patch
from posenc.huggingface.adapters import ADAPTERS
from posenc.huggingface.questions import model_class
from posenc.huggingface.seams import Seams
from tests.huggingface.families import NAMES, PAGE, tiny
from tests.huggingface.families import RECORD as READ
from tests.huggingface.test_attention import exact_softmax
from tests.huggingface.tiny_models import config_of
from tests.rounding import of_sums

RECORD = Path(__file__).with_name("patched_families.json")
IDS = torch.arange(9)[None] + 5
YES = "yes"
LARGEST = 3e7
"""The most parameters of a model that is run."""


class UnbuiltError(ValueError):
    """transformers makes no tiny model of a family."""


def built(name: str) -> Any:
    """A tiny model with random weights, large enough for its scores to matter."""
    try:
        config = config_of(name) if name in NAMES else tiny(name)
        config = config if getattr(config, "is_encoder_decoder", False) else config.get_text_config()
        config._experts_implementation = "eager"
        kind = model_class(config)
        with torch.device("meta"):
            if sum(each.numel() for each in kind._from_config(config).parameters()) > LARGEST:
                raise UnbuiltError
        torch.manual_seed(0)
        model = kind._from_config(config).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(std=0.5 * parameter.size(1) ** -0.5)
            run(model, IDS)
    except Exception as error:  # of any type, from transformers
        raise UnbuiltError from error
    return model


def run(model: Any, ids: Tensor, start: int | None = None, cache: Any = None) -> tuple[Tensor, Any]:
    """What the model says of the tokens, and its cache."""
    takes = inspect.signature(model.forward).parameters
    at = None if start is None else torch.arange(start, start + ids.size(1))[None]
    given = {"input_ids": ids, "decoder_input_ids": ids, "position_ids": at, "cache": cache, "past_key_values": cache}
    given |= {"use_cache": cache is not None or start == 0}
    given = {key: value for key, value in given.items() if key in takes and value is not None}
    if "cache" in takes:
        given.pop("past_key_values", None)
    with torch.no_grad(), exact_softmax():
        out = model(**given)
    found = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found, getattr(out, "cache", None) if "cache" in takes else getattr(out, "past_key_values", None)


def in_steps(model: Any) -> Tensor:
    """The same in two steps from a cache."""
    first, cache = run(model, IDS[:, :6], 0)
    assert cache is not None
    return torch.cat((first, run(model, IDS[:, 6:], 6, cache)[0]), 1)


def close(ours: Tensor, expected: Tensor) -> None:
    """Equal but for sums in float32, as some models have them in any precision."""
    torch.testing.assert_close(ours, expected, rtol=0, atol=of_sums(torch.float32, 4 * (64 + 9), expected))


def has_cache(model: Any) -> bool:
    """Whether transformers' own model gives the same from a cache."""
    try:
        close(in_steps(model), run(model, IDS)[0])
    except Exception:  # of any type, from transformers
        return False
    return True


@functools.cache
def alibi_of(heads: int, causal: bool) -> ALiBi:
    """One for all layers, which may share their attention."""
    return ALiBi(heads, "causal" if causal else "bidirectional")


def _without(found: re.Match[str]) -> str:
    return "a layer" if found[0].startswith("layer") else ""


def patched(name: str) -> str:
    """ "yes" if a tiny model runs with NoPE and with an ALiBi of its heads: the position of the first token makes no
    difference to NoPE, a cache makes none to either, and `undo` leaves the model as it was. Else why not."""
    model = built(name)
    own, is_cached = run(model, IDS)[0], has_cache(model)
    is_stacked = getattr(model.config, "is_encoder_decoder", False) and model.get_encoder() is not model.get_decoder()
    try:
        if model.config.model_type in ADAPTERS:
            alibi: Any = ALiBi(model.config.num_attention_heads)
        else:
            of = {each.layer: each for each in Seams(model.get_decoder() if is_stacked else model).attentions}
            alibi = Schedule([(alibi_of(of[n].heads, of[n].causal), of[n].window) for n in sorted(of)])
        outs = []
        for what in (NoPE(), alibi):
            with patch(model, {"decoder": what} if is_stacked else what):
                outs.append(out := run(model, IDS)[0])
                if is_cached:
                    close(in_steps(model), out)
                if what is not alibi and "position_ids" in inspect.signature(model.forward).parameters:
                    close(run(model, IDS, 7)[0], run(model, IDS, 100)[0])
    except ValueError as error:
        return re.sub(r"^.*? \([\w.-]+\) (?:could not be found: |has )?|layer \d+", _without, str(error))
    assert torch.equal(run(model, IDS)[0], own), name
    assert float((outs[0] - outs[1]).abs().max()) > 1e-6 * float(outs[0].abs().max()), name
    return YES


def table(record: dict[str, str]) -> str:
    """A row for all families with the same answer."""
    answers: dict[str, list[str]] = {}
    for name, said in sorted(record.items()):
        answers.setdefault(said, []).append(f"`{name}`")
    rows = [
        f"| {', '.join(names)} | {said} |" for said, names in sorted(answers.items(), key=lambda row: row[0] != "yes")
    ]
    return "| types with a tiny model | patched |\n|---|---|\n" + "\n".join(rows)


def main() -> None:
    types = json.loads(READ.read_text(encoding="utf-8"))["types"]
    found: dict[str, str] = {}
    for name in sorted(name for name in types if name in CONFIG_MAPPING and not types[name].startswith("refused")):
        try:
            found[name] = patched(name)
        except UnbuiltError:
            continue
        print(f"{name}: {found[name]}", flush=True)
    kept = {"transformers": transformers.__version__, "posenc": posenc.__version__, "patched": found}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    begin = re.search(r"^\| types with a tiny model.*?(?=\n\n)", text, re.M | re.S)
    assert begin is not None
    PAGE.write_text(text[: begin.start()] + table(found) + text[begin.end() :], encoding="utf-8")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
