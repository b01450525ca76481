"""Reads a model's positions by asking it: every token gets the same vector, so whatever differs between tokens where
queries and keys reach attention is position.

The model is built from its configuration with all its layers and heads, and costs little: a linear layer gives the same
random vector for every token, and what has no attention in it gives zeros. What each layer hands to its attention
function is recorded at chosen positions, fitted to RoPE, NoPE, `QueryScale` and windows, and compared with the model
again at other positions and with other weights. What does not fit is a ValueError that says what was seen."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import math
import re
import textwrap
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.huggingface import indexers
from posenc.huggingface.families import ACROSS
from posenc.huggingface.loading import RECORD
from posenc.huggingface.reading import Keys, Layer, ModelPositions, reason, scaled, summarize_model
from posenc.huggingface.variants import Frequencies, OffsetLearned, OffsetSinusoidal
from posenc.positions.positions import Positions
from posenc.positions.tiles import Chunk, Window, window_words
from posenc.rotation.scaling_parameters import ScalingParameters
from posenc.rotation.scalings import LongRoPE, NTKAware
from posenc.schedule import ranges
from posenc.scheme import Scheme
from posenc.schemes.indexer import Indexer
from posenc.schemes.learned import Learned
from posenc.schemes.nope import NoPE
from posenc.schemes.query_scale import QueryScale
from posenc.schemes.rope import RoPE
from posenc.schemes.sinusoidal import Sinusoidal

NAME = "posenc_asked"
LAYERS, ROWS = 512, 2**24
"""The most layers of a model that is asked, and the most positions of its tables."""

LARGEST = {"hidden_size": 2**15, "intermediate_size": 2**17, "vocab_size": 2**20}
"""The most of each size, since what a model computes of its tokens is computed for real."""

PLACES = (0, 1, 2, 5, 37, 300, 2000, 12_000, 70_000)
FRESH = (0, 3, 4, 11, 130, 1000, 5000, 33_000, 100_000)
"""Positions at which a model is asked, and at which the answer is compared, as far as the model has them."""

COUNTED = 1024
"""As far as a model is asked that counts its tokens, and takes no positions."""

ENCODED = 7
"""How many more tokens an encoder is said to have given than the decoder is asked for."""

GRID = 32
"""The side of a grid of patches for which windows are looked at."""

WARM = 8
"""Tokens before those that are looked at, at the first place: short convolutions see what is before the text."""

SILENT = frozenset(
    {
        "attention_mask",
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "deterministic",
        "dropout",
        "indices",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "s_aux",
        "scaling",
        "sliding_window",
        "softcap",
        "training",
        "use_cache",
    }
)
"""Options of an attention function that are read, or change no score."""

BY_SLOT = re.compile("floor_scale|attn_scale$|temperature_tuning|attn_temp|scaling_beta|log_?scal|logn")
"""Keys of scales of queries, which some models count by slots of a cache and not by positions."""

_LOCK = threading.Lock()
"""transformers' tables of attention functions are those of the process."""


@dataclass
class Call:
    """What a layer gave to its attention function."""

    layer: int
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Any
    options: dict[str, Any]
    made: list[Tensor] = field(default_factory=list)
    """What linear layers gave in this pass."""

    def same(self, other: Call) -> bool:
        """Whether another layer gave the same to its attention function."""
        pairs = ((self.query, other.query), (self.key, other.key), (self.value, other.value))
        options = [
            {name: option if isinstance(option, (bool, int, float)) else type(option) for name, option in said.items()}
            for said in ({**self.options, "layer_idx": 0}, {**other.options, "layer_idx": 0})
        ]
        return all(torch.equal(a, b) for a, b in pairs) and options[0] == options[1]


@dataclass
class Answer:
    """The calls of one forward pass, the rows of learned tables that it looked up, and the positions it was given."""

    calls: list[Call]
    tables: dict[str, tuple[Tensor, list[int]]]
    places: Tensor
    across: bool
    """Whether the model attends to an encoder's states too."""


class _Cheap(TorchFunctionMode):
    """Weights that are left empty are on "meta"; what is computed, such as frequencies, is real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand) and kwargs.get("device") is None:
            sizes = kwargs.get("size", args)
            sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
            if func is torch.empty or math.prod(sizes) > 2**22:
                kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _asks(module: nn.Module) -> bool:
    """Whether a module calls transformers' table of attention functions itself."""
    return _code_asks(type(module))  # type: ignore[arg-type]  # mypy takes a class for one without a hash


@functools.lru_cache(maxsize=1024)
def _code_asks(kind: type) -> bool:
    methods = [
        inspect.unwrap(method)
        for each in kind.__mro__
        if each.__module__.startswith("transformers.models.")
        for method in vars(each).values()
        if inspect.isfunction(method)
    ]
    return any("ALL_ATTENTION_FUNCTIONS" in method.__code__.co_names for method in methods)


def _is_heavy(module: nn.Module) -> bool:
    """Whether a module mixes channels, and is no norm."""
    return any(p.dim() > 1 for p in module.parameters()) or isinstance(module, nn.ModuleList)


def _outputs(module: nn.Module) -> int:
    """How many results a module's code returns."""
    try:
        code = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return 1
    results = [node.value for node in ast.walk(code) if isinstance(node, ast.Return)]
    return len(results[-1].elts) if results and isinstance(results[-1], ast.Tuple) else 1


def _first_tensor(args: Any, kwargs: Any) -> Tensor:
    named = [kwargs[name] for name in ("hidden_states", "inputs_embeds", "x") if isinstance(kwargs.get(name), Tensor)]
    return next(x for x in (*named, *args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point())


def _silence(module: nn.Module) -> None:
    """The module gives zeros."""
    outputs = _outputs(module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        zeros = torch.zeros_like(_first_tensor(args, kwargs))
        return zeros if outputs == 1 else (zeros, *[None] * (outputs - 1))

    module.forward = forward


class _Alike(TorchFunctionMode):
    """Linear layers give every token the same vector, and so do tables, unless tokens look up different rows."""

    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.asked = asked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.embedding:
            names = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            return self.asked.looked_up(names["input"], names["weight"])
        if func is nn.functional.linear:
            x, weight = (*args, *kwargs.values())[:2]
            return self.asked.projected(x, weight)
        if func is torch.addmm:  # transformers' Conv1D
            return self.asked.projected(args[1], args[2].mT)
        return func(*args, **kwargs)


class Asked:
    """A model that can be asked: ``asked(positions)`` gives an `Answer`."""

    def __init__(self, config: Any, stack: str | None = None) -> None:
        self.config, self.stack = config, stack
        try:
            with _listening([]):
                self.model = _build(config, stack)
        except Exception as error:  # of any type: transformers computes with the configuration
            if isinstance(error, KeyError) and NAME in error.args:
                raise ValueError("it has attention classes of its own, and takes no other") from error
            raise ValueError(f"its model could not be built: {reason(error)}") from error
        self.tokens, self.step = 0, 0
        self.differing: list[str] = []
        self.tables: dict[str, tuple[Tensor, list[int]]] = {}
        self.turns: list[tuple[nn.Module, float]] = []
        self._prepare()
        self.parameters = inspect.signature(self.model.forward).parameters
        is_grid = "grid_thw" in self.parameters  # patches, by row and column, or time too
        self.axes = is_grid * (3 if "include_temporal=True" in inspect.getsource(type(self.model).forward) else 2)
        self.takes_ids = is_grid or "position_ids" in self.parameters
        self.layers = {
            module: int(found[1]) if (found := re.search(r"\.(\d+)(\.|$)", name)) else -1
            for name, module in self.model.named_modules()
        }

    def _prepare(self) -> None:
        if not any(_asks(module) for module in self.model.modules()):
            raise ValueError("its attention is code of its own, which calls no function of transformers' table")
        _prune(self.model)
        indexers.record(self.model)
        self.fixed: dict[str, Tensor] = {}
        for name, module in self.model.named_modules():
            if _is_rotary(module):
                module.register_forward_hook(self._turned)
            if "Sinusoidal" in type(module).__name__:
                module.register_forward_hook(self._added(name))
            if hasattr(module, "create_weight"):  # sinusoids that were left empty
                module.weight = nn.Parameter(torch.empty(module.weight.shape), requires_grad=False)
                self.fixed[f"{name}.weight"] = module.create_weight().double()

    even = False
    """Whether norms have no weights: those behind a rotation would scale its channels."""

    def reset(self, seed: int) -> None:
        """Other weights."""
        self.seed, self.drawn = seed, dict[tuple[str, torch.Size], Tensor]()
        for path, module in self.model.named_modules():
            for name, old in list(module._parameters.items()):
                if old is None:
                    continue
                dtype = old.dtype if old.dtype.is_floating_point else torch.float64
                if old.numel() <= 2**16:
                    new = self._draw(f"{path}.{name}", old.shape) * 0.02
                    if self.even and old.dim() == 1:
                        new.zero_()
                    new = (1.0 if old.dim() == 1 and not (self.even and name == "bias") else 0.0) + new
                    new = new.to(dtype)
                else:  # rows that differ, and overlap in memory
                    line = self._draw(f"{path}.{name}", torch.Size([sum(old.shape)])).to(dtype)
                    new = line.as_strided(old.shape, [1] * old.dim())
                module._parameters[name] = nn.Parameter(new, requires_grad=False)
        self.names = {id(weight): name for name, weight in self.model.named_parameters()}

    def projected(self, x: Tensor, weight: Tensor) -> Tensor:
        """The random vector of a linear layer, for every token."""
        name = self.names.get(id(weight), "a linear layer")
        tokens = x if x.dim() > 2 else x[None]
        if tokens.size(1) == self.tokens:
            differ = (tokens - tokens[:, :1]).abs().max()
            if not float(differ) <= 1e-6 * (1e-3 + float(x.abs().max())):
                self.differing.append(name)
        made = self._draw(name, weight.shape[:1])
        self.made.setdefault(re.sub(r"\.\d+\.", ".N.", name), made)
        return made.to(x.dtype).repeat(*x.shape[:-1], 1)

    def _draw(self, name: str, shape: torch.Size) -> Tensor:
        """Normal numbers, which layers of one kind share, so that they are fitted once."""
        name = re.sub(r"\.\d+\.", ".N.", name)
        if (name, shape) not in self.drawn:
            draw = torch.Generator().manual_seed(self.seed * 1_000_003 + zlib.crc32(name.encode()))
            self.drawn[name, shape] = torch.randn(shape, generator=draw, dtype=torch.float64)
        return self.drawn[name, shape]

    def looked_up(self, ids: Tensor, weight: Tensor) -> Tensor:
        """A random vector, or zeros for a table whose rows differ by position."""
        name, rows = self.names.get(id(weight), "a table"), ids.reshape(-1).tolist()
        dtype = weight.dtype
        if name in self.fixed:
            return self.fixed[name][ids].to(dtype)
        if len(set(rows)) > 1:
            self.tables[name] = (weight, rows)
            return torch.zeros(*ids.shape, weight.size(1), dtype=dtype)
        return self._draw(name, weight.shape[1:]).to(dtype).repeat(*ids.shape, 1)

    def _added(self, name: str) -> Callable[..., Tensor]:
        """A hook that records what a module without learned numbers adds by position, and adds nothing."""

        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
            rows = self.fixed.get(f"{name}.weight", getattr(module, "weights", None))
            self.sinusoids[name] = out.reshape(-1, out.size(-1)).double(), rows
            return torch.zeros_like(out)

        return hook

    def _turned(self, module: nn.Module, args: Any, out: Any) -> Any:
        """Looks whether cos and sin have a factor, or takes it off if ``plain`` was asked for."""
        parts = out if isinstance(out, tuple) else (out,)
        if not all(isinstance(x, Tensor) for x in parts):
            return None
        if len(parts) == 1 and parts[0].is_complex():
            size = out.abs()
        elif len(parts) == 2 and parts[0].shape == parts[1].shape:
            size = (parts[0] ** 2 + parts[1] ** 2).sqrt().clamp(min=1e-30)
        else:
            return None
        self.normalized = True
        self.multiplied |= float((size - 1).abs().max()) > 1e-6
        if not self.plain:
            return None
        return out / size if len(parts) == 1 else (parts[0] / size, parts[1] / size)

    plain = normalized = multiplied = False

    def without_factor(self, answer: Answer) -> Answer:
        """The answer just given, with the factor of cos and sin taken off."""
        return self(answer.places, plain=True) if self.multiplied else answer

    def __call__(self, places: Tensor, plain: bool = False, by_ids: bool = True) -> Answer:
        calls: list[Call] = []
        by_ids = by_ids and self.takes_ids
        before = WARM if by_ids and places.size(-1) < GRID**2 else 0
        if self.axes:  # the blocks of a grid
            before += -(before + places.size(-1)) % 16
        ids_of = torch.cat((places[..., :1].expand(*places.shape[:-1], before), places), -1)
        self.tokens = ids_of.size(-1) if by_ids else int(places.max()) + 1
        self.plain, self.normalized, self.multiplied = plain, False, False
        self.differing.clear()
        self.tables = {}
        self.sinusoids: dict[str, tuple[Tensor, Tensor | None]] = {}
        self.made: dict[str, Tensor] = {}
        if "input_ids" not in self.parameters and not self.axes:
            raise ValueError(f"it takes {next(iter(self.parameters))}, and no input_ids")
        try:
            with _listening(calls), torch.no_grad(), _Alike(self):
                self.model(**self._inputs(ids_of[None] if by_ids and ids_of.dim() < 3 else ids_of, by_ids))
        except Exception as error:
            asking = {module for module in self.model.modules() if _asks(module)}
            if not self.axes or asking != {call.module for call in calls}:  # else after its last layer
                raise ValueError(f"its model could not be run: {reason(error)}") from error
        if not calls:
            raise ValueError("none of its layers called its attention function")
        if self.differing:
            raise ValueError(f"tokens already differ where {self.differing[0]} takes them, before queries and keys")
        across = [call for call in calls if call.key.size(2) == self.tokens + ENCODED]
        for call in across:
            if any(float((x - x[:, :, :1]).abs().max()) > 0 for x in (call.query, call.key)):
                raise ValueError("positions turn or scale its attention to an encoder's states")
        calls = [call for call in calls if call not in across]
        seen = slice(before, None) if by_ids else places
        modules = dict.fromkeys(call.module for call in calls)
        layers = {module: self.layers[module] for module in modules}
        own: dict[nn.Module, Any] = {module: getattr(module, "layer_idx", None) for module in modules}
        if len(set(layers.values())) < len(modules):  # several in a layer, which the model counts, or nobody
            counted = len(modules) == len(set(own.values()) - {None})
            layers = own if counted else {module: n for n, module in enumerate(modules)}
        in_turn = len(modules) < len(calls) == getattr(self.config, "num_hidden_layers", None)
        for n, call in enumerate(calls):  # layers may share their weights
            call.layer = n if in_turn else layers[call.module]
            if call.query.size(2) != self.tokens and not (self.axes and self.tokens == GRID**2):
                raise ValueError(f"its attention gets {call.query.size(2)} queries of {self.tokens} tokens")
            if not bool(torch.isfinite(call.query.sum() + call.key.sum())):
                raise ValueError("queries and keys are no finite numbers")
            call.made = list(self.made.values())
            call.query, call.key, call.value = (x[:, :, seen] for x in (call.query, call.key, call.value))
        return Answer(calls, dict(self.tables), places, bool(across))

    def _inputs(self, ids_of: Tensor, by_ids: bool) -> dict[str, Any]:
        """The same token everywhere, at the places given, and an encoder's states."""
        pad = getattr(self.config, "pad_token_id", None)
        given: dict[str, Any] = {
            "input_ids": torch.full((1, self.tokens), 3 if pad != 3 else 4),
            "use_cache": False,
            "lang_ids": torch.zeros(1, dtype=torch.long),
        }
        if self.stack == "decoder":
            width = getattr(self.config, "hidden_size", 64)
            given["encoder_hidden_states"] = torch.zeros(1, self.tokens + ENCODED, width)
        if self.axes:
            width = getattr(self.config, "embed_dim", None) or self.config.hidden_size
            coords = ids_of.reshape(-1, self.tokens).mT.expand(-1, self.axes)
            return {
                next(iter(self.parameters)): torch.zeros(self.tokens, width, dtype=torch.float64),
                "grid_thw": torch.tensor([[1, GRID, GRID] if self.tokens == GRID**2 else [1, 4, self.tokens // 4]]),
                "position_ids": coords,
            }
        if by_ids:
            given["position_ids"] = ids_of
        return {name: value for name, value in given.items() if name in self.parameters}


def _prune(module: nn.Module) -> None:
    for child in module.children():
        if any(_asks(each) for each in child.modules()):
            if not _asks(child):
                _prune(child)
        elif isinstance(module, nn.ModuleList) and not isinstance(child, nn.Linear):
            _prune(child)  # a layer of another kind
        elif _is_heavy(child) and not isinstance(child, (nn.Embedding, nn.Linear)) and not _is_rotary(child):
            _silence(child)


def _is_rotary(module: nn.Module) -> bool:
    return re.search("rotary|rope|embedding|conv1d$|hyper|connection", type(module).__name__.lower()) is not None


def model_class(config: Any, stack: str | None = None) -> Any:
    """The class of a configuration's model, if possible with a head, or None."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING, PreTrainedModel

    home = type(config).__module__
    kind: Any = None if stack == "encoder" else MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    kind = kind or MODEL_MAPPING.get(type(config), None)
    if kind is not None or not home.startswith("transformers."):
        return kind[0] if isinstance(kind, tuple) else kind
    code = importlib.import_module(home.replace(".configuration_", ".modeling_"))  # of a part of a model
    kinds = [each for each in vars(code).values() if isinstance(each, type) and issubclass(each, PreTrainedModel)]
    kinds = [
        each for each in kinds if each.config_class is type(config) and "PreTrainedModel" not in each.__name__[-15:]
    ]
    said = ("CausalLM", "Text", "Model")
    return max(kinds, key=lambda each: [word in each.__name__ for word in said], default=None)


def _build(config: Any, stack: str | None = None) -> nn.Module:
    """The model of a configuration, or one of its two stacks, in float64, without weights."""
    from transformers.initialization import no_init_weights

    kind = model_class(config, stack)
    if kind is None:
        raise ValueError("transformers has no model of this type alone")
    config = copy.deepcopy(config)
    config._experts_implementation = "eager"
    for name in (RECORD, "attn_implementation"):  # of a patched model, whose own positions are asked for
        vars(config).pop(name, None)
    with _Cheap(), no_init_weights(), torch.random.fork_rng(devices=[]):
        model: Any = kind._from_config(config, attn_implementation=NAME, dtype=torch.float64)
    if stack is not None and "CausalLM" not in kind.__name__:
        model = getattr(model, f"get_{stack}")()
    made: nn.Module = model.eval()
    return made


@contextmanager
def _listening(calls: list[Call]) -> Iterator[None]:
    """Registers an attention function that records what it gets, and takes it away again."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    def listen(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
    ) -> Any:
        said = {name: option for name, option in options.items() if option is not None}
        calls.append(Call(-1, module, query.double(), key.double(), value.double(), attention_mask, said))
        return value.new_zeros(query.size(0), query.size(2), query.size(1), value.size(-1)), None

    def mask(*args: Any, **options: Any) -> Tensor:
        made = eager_mask(*args, **options | {"allow_is_bidirectional_skip": False})
        made.rule = options.get("mask_function", args[5] if len(args) > 5 else None)  # type: ignore[attr-defined]
        return made

    with _LOCK:
        AttentionInterface.register(NAME, listen)
        AttentionMaskInterface.register(NAME, mask)
        try:
            yield
        finally:
            AttentionInterface._global_mapping.pop(NAME, None)
            AttentionMaskInterface._global_mapping.pop(NAME, None)


def positions_by_asking(keys: Keys) -> ModelPositions:
    """The positions of a model, as its own code does them. ValueError, saying what was seen, for what is not RoPE on
    one axis or a grid, NoPE, a scale of queries by position, a learned table or sinusoids, and for windows that are
    neither of keys nor chunks nor squares of patches.
    """
    try:
        return _positions(keys, even=False)
    except ValueError as error:
        try:
            said = _positions(keys, even=True)
        except ValueError:
            raise error from None
    return replace(said, remarks=(*said.remarks, "learned weights multiply queries and keys after they turn"))


def _positions(keys: Keys, even: bool) -> ModelPositions:
    config = keys.config
    stack = keys.inside if keys.inside in ("encoder", "decoder") else None
    counts = {
        name: value
        for name in ("num_hidden_layers", "encoder_layers", "decoder_layers")
        if isinstance(value := getattr(config, name, None), int)
    }
    for name, value in counts.items():
        if not 1 <= value <= LAYERS:
            raise ValueError(f"its {name} must be within 1..{LAYERS}, got {value}")
    count = counts.get(f"{stack}_layers", counts.get("num_hidden_layers", 0))
    length = getattr(config, "max_position_embeddings", None)
    length = length if isinstance(length, int) and length > 0 else None
    if length is not None and not 1 < length <= ROWS:
        raise ValueError(f"its max_position_embeddings must be within 2..{ROWS}, got {length}")
    for name, most in LARGEST.items():
        size = getattr(config, name, None)
        if isinstance(size, int) and size > most:
            raise ValueError(f"its {name} must be at most {most} to be asked, got {size}")
    tuned = getattr(config, "floor_scale", None) if getattr(config, "attn_temperature_tuning", False) else None
    if tuned is not None:  # it counts slots, of which there are few
        config = copy.deepcopy(config)
        config.floor_scale = WARM + 4
    asked = Asked(config, stack)
    asked.even = even
    asked.reset(1)
    scalings = _candidates(config, length)
    end = min(4096 if length is None else length, 4096 * ROWS if asked.takes_ids else COUNTED)
    first, fresh = (_within(places, end) for places in (PLACES, FRESH))
    answer = asked(first)
    plain = asked.without_factor(answer)
    is_normalized = asked.normalized
    asked.reset(2)
    again = [asked(fresh)]
    others = [asked.without_factor(again[0])]
    if any(getattr(scaling, "needs_lengths", False) for _, scaling in scalings) and length is not None:
        again.append(asked(torch.tensor([*fresh.tolist(), 2 * end + 1])))
        others.append(asked.without_factor(again[1]))
    axes = _by_axis(asked, first)
    if axes:
        mixed = asked(torch.stack((fresh, fresh // 2, fresh // 3))[: len(axes), None])
    masks = asked(torch.arange(GRID**2 if asked.axes else 24), by_ids=asked.axes > 0)
    if asked.axes:  # one call of those for each window
        masks.calls = list({call.module: call for call in reversed(masks.calls)}.values())[::-1]
    if asked.sinusoids:
        masks = asked(torch.arange(min(end, COUNTED)), by_ids=False)
    table = None if asked.axes else _table(masks, asked.sinusoids, keys)
    layers: dict[int, tuple[Scheme, Window, Layer, bool]] = {}
    kinds: dict[int, tuple[Scheme, Window, Layer, bool]] = {}
    made: dict[str, Scheme] = {}
    chosen_by: dict[int, Indexer] = {}
    answers = {id(each): each for each in (answer, plain, *again, *others, *axes)}.values()
    for n, call in enumerate(answer.calls):
        where = f"in layer {call.layer} "
        alike = [
            m
            for m in kinds
            if "indices" not in call.options  # each layer has an indexer of its own, or takes another's choice
            and masks.calls[n].mask is masks.calls[m].mask
            and masks.calls[n].query.shape == masks.calls[m].query.shape
            and all(each.calls[n].same(each.calls[m]) for each in answers)
        ]
        if alike:
            if layers.setdefault(call.layer, kinds[alike[0]]) != kinds[alike[0]]:
                raise ValueError(where + "attention differs between the times it runs")
            continue
        try:
            try:
                scheme = _fit(call, plain.calls[n], first, scalings, config, is_normalized)
                by = 0
            except ValueError:
                if tuned is None:
                    raise
                scheme, by = _fit(call, plain.calls[n], _slots(first), scalings, config, is_normalized), 1
            for one, other in zip(again, others, strict=True):
                _verify(scheme, one.calls[n], other.calls[n], _slots(one.places) if by else one.places)
            if by and isinstance(scheme, QueryScale):
                scheme = QueryScale(scheme.form, length=tuned, strength=scheme.strength)
            chosen = _indexed(scheme, [(each.calls[n], each.places) for each in (masks, answer, *again)], chosen_by)
            is_causal = bool(call.options.get("is_causal", getattr(call.module, "is_causal", True)))
            window, causal = _window(_ruled(masks.calls[n], masks.calls, config, is_causal), config, is_causal)
            slides = call.options.get("sliding_window")
            reach = window if not isinstance(window, tuple) or window[0] is None else window[0] + 1
            if slides is not None and slides != reach:
                raise ValueError(f"the mask has {window_words(window)}, and attention is told of a window of {slides}")
        except ValueError as error:
            raise ValueError(where + str(error)) from error
        if axes:
            scheme = _allocated(scheme, [each.calls[n] for each in axes], first, scalings)
            _verify(scheme, mixed.calls[n], others[0].calls[n], mixed.places)
        scheme = _by_weights(scheme, plain.calls[n])
        scheme = made.setdefault(repr(scheme), scheme)
        layer = replace(_layer(call, (plain.calls[n], others[0].calls[n])), **chosen)
        if asked.axes and (count_of := masks.calls[n].query.size(2)) < GRID**2:
            layer = replace(layer, patches=_side(count_of, config))
        said = kinds[n] = scheme, window, layer, causal
        if layers.setdefault(call.layer, said) != said:
            raise ValueError(where + "attention differs between the times it runs")
    by_slot = [name for name, value in vars(config).items() if value and BY_SLOT.search(name)]
    if by_slot and not any(isinstance(part, QueryScale) for scheme in made.values() for part in scheme.parts):
        raise ValueError(f"the configuration has {by_slot[0]}, and no query grows with its position")
    if len({causal for *_, causal in layers.values()}) > 1:
        raise ValueError("some layers are causal and others are not")
    remarks = [f"found by asking transformers' code, as queries and keys reach attention: {type(asked.model).__name__}"]
    if len(answer.calls) < count and (bare := sorted(set(range(count)) - set(layers))):
        remarks.append(f"layers {ranges(bare)} of {count} have no attention, and are not counted above")
    if asked.axes:
        remarks.append(f"coordinates are {' and '.join(('time', 'row', 'column')[-asked.axes :])} of patches")
    if not asked.takes_ids:
        remarks.append("transformers counts positions, and takes no position_ids")
    if tuned is not None:
        remarks.append("transformers scales queries by the slot in the cache, not by position_ids")
    if any(isinstance(window, Chunk) for _, window, *_ in layers.values()):
        remarks.append("transformers counts chunks by slots less left padding, not by position_ids")
    if any(isinstance(getattr(part, "scaling", None), LongRoPE) for scheme in made.values() for part in scheme.parts):
        remarks.append("transformers takes the long list for the whole batch as soon as one of its rows is long")
    if asked.axes and masks.tables:
        remarks.append(
            f"a learned table is added to patches, fitted to the grid, which is not read: {next(iter(masks.tables))}"
        )
    if masks.across:
        remarks.append(ACROSS)
    which = [layers[n] for n in sorted(layers)]
    return summarize_model(
        keys,
        [scheme for scheme, *_ in which],
        [window for _, window, *_ in which],
        [layer for _, _, layer, _ in which],
        input=table,
        causal=which[0][3],
        length=length,
        remarks=tuple(remarks),
    )


def _slots(places: Tensor) -> Tensor:
    """Where tokens are in a cache."""
    return torch.arange(WARM, WARM + places.size(-1))


def _within(places: tuple[int, ...], length: int) -> Tensor:
    return torch.tensor([*(place for place in places if place < length - 1), length - 1])


def _side(patches: int, config: Any) -> int:
    """The side of a window of so many patches."""
    side = math.isqrt(patches)
    if side**2 != patches or getattr(config, "window_size", None) != side * config.patch_size:
        raise ValueError(f"attention is within parts of {patches} patches, which are not its window_size")
    return side


def _table(answer: Answer, sinusoids: Mapping[str, tuple[Tensor, Tensor | None]], keys: Keys) -> Scheme | None:
    """The learned table or the sinusoids that are added to the input."""
    tables = list(answer.tables.values())
    if len(tables) + len(sinusoids) > 1:
        raise ValueError(f"it has several tables by position, {', '.join([*answer.tables, *sinusoids])}")
    for name, (added, every) in sinusoids.items():
        return _sinusoids(name, added, every, keys.get("pad_token_id"))
    if not tables:
        return None
    [(weight, rows)] = tables
    offset = rows[0] - int(answer.places[0])
    if rows != [int(place) + offset for place in answer.places] or offset < 0:
        raise ValueError(f"positions {answer.places.tolist()} are rows {rows} of its table")
    size = (weight.size(0), weight.size(1))
    return OffsetLearned(*size, offset) if offset else Learned(*size)


def _sinusoids(name: str, added: Tensor, rows: Tensor | None, padding: Any) -> Scheme:
    """The sinusoids that a module added to its tokens, and all the rows that it has."""
    dim = added.size(1)
    tries: list[Scheme] = [Sinusoidal(dim, layout=each) for each in ("interleaved", "concatenated", "tensor2tensor")]
    tries += [OffsetSinusoidal(dim, each) for each in dict.fromkeys((1, 2, (padding or 0) + 1))]
    for scheme in tries:
        offset = getattr(scheme, "offset", 0)
        all_rows = added if rows is None else rows[offset:]
        count = max(len(added), len(all_rows))
        table = scheme.table(Positions.arange(count), dtype=torch.float64)
        assert table is not None
        ours = table[0]
        bound = (torch.arange(count) * 2**-22 + 2**-20)[:, None]
        if all(bool(((ours[: len(x)] - x).abs() <= bound[: len(x)]).all()) for x in (added, all_rows)):
            return scheme
    raise ValueError(f"what {name} adds to its input are no sinusoids in an order that is known")


def _layer(call: Call, plain: tuple[Call, Call]) -> Layer:
    options, head_dim = call.options, call.query.size(-1)
    unknown = sorted(name for name, option in options.items() if name not in SILENT and option is not False)
    if unknown:
        raise ValueError(f"layer {call.layer} also gives its attention function {', '.join(unknown)}")
    scaling = options.get("scaling")
    by_code = _multiple([(each.query, each.made) for each in plain]) * _multiple([(x.key, x.made) for x in plain])
    scale = None if scaling is None else scaled(float(scaling) * by_code, head_dim)
    cap = options.get("softcap")
    return Layer(scale=scale, softcap=None if cap is None else float(cap), sinks=options.get("s_aux") is not None)


def _indexed(scheme: Scheme, seen: list[tuple[Call, Tensor]], found: dict[int, Indexer]) -> dict[str, Any]:
    """The indexer of a layer, or that of the layer whose choice it takes; ``found`` are those of layers before."""
    call, _ = seen[0]
    if "indices" not in call.options:
        return {}
    whose = indexers.layer_of(call)
    if whose not in found:
        found[whose] = indexers.indexer_of(scheme, *seen[0])
        for each in seen[1:]:
            indexers.verify(found[whose], *each)
    return {"indexer": found[whose], "indexer_of": None if whose == call.layer else whose}


def _multiple(seen: list[tuple[Tensor, list[Tensor]]]) -> float:
    """By what number a model's code multiplies what its linear layer gave, with any weights; 1 if it does more."""
    found = []
    for x, made in seen:
        flat = x[0, :, 0].flatten()
        for each in made:
            c = float(flat @ each / (each @ each)) if each.numel() == flat.numel() else 0.0
            if c and float((flat - c * each).abs().max()) < 1e-9 * abs(c):
                found.append(c)
                break
    same = len(found) == len(seen) and all(math.isclose(c, found[0], rel_tol=1e-9) for c in found)
    return found[0] if same and abs(found[0] - 1) > 1e-9 else 1.0


# -- which keys a query sees ------------------------------------------------------------------------------------------

QUERIES = (0, 1, 5, 23, 100, 1000, 5003, 70_001, 140_009)


BOUNDED = re.compile("window|slid|chunk|local|span|sparse|block_size|top_?k$|index|stride|compress")
"""Keys that may bound what a query sees."""


def _ruled(call: Call, calls: list[Call], config: Any, is_causal: bool) -> Any:
    """The mask of a layer. A copy, as layers have it that share keys, has lost its rule: then that of layers that are
    told of the same window, where they have one."""
    if call.mask is None or getattr(call.mask, "rule", None) is not None:
        return call.mask
    told = call.options.get("sliding_window")
    masks = [each.mask for each in calls if each.options.get("sliding_window") == told]
    masks = [mask for mask in masks if getattr(mask, "rule", None) is not None and torch.equal(mask, call.mask)]
    return masks[0] if len({_window(mask, config, is_causal) for mask in masks}) == 1 else call.mask


def _window(mask: Any, config: Any, is_causal: bool) -> tuple[Window, bool]:
    """The window of a layer, and whether it is causal, from its mask."""
    if mask is None and is_causal:
        raise ValueError("attention gets no mask, and is causal in some implementations")
    if mask is None:
        return None, False
    rule = getattr(mask, "rule", None)
    is_seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    if mask.dtype != torch.bool and bool((is_seen & (mask != 0)).any()):
        raise ValueError("a bias by position is in its mask")
    if rule is None:
        seen = is_seen[0, 0]
        sees = {i: seen[i].nonzero().flatten() for i in QUERIES if i < len(seen)}
        bounds = [name for name, value in vars(config).items() if BOUNDED.search(name) and value]
        if bounds := [name for name in bounds if not re.search("expert|cache|label|layer_types|moe", name)]:
            raise ValueError(
                f"attention gets a mask of its own, seen for {len(seen)} tokens, and the configuration has {bounds[0]}"
            )
    else:
        sees = {}
        numbers = [value for name, value in vars(config).items() if BOUNDED.search(name) and type(value) is int]
        for i in (*QUERIES, *(n + 9 for n in numbers if QUERIES[-1] <= n <= ROWS)):
            there = torch.arange(2 * i + 8 if i else 2**18)
            each = torch.as_tensor(rule(torch.tensor(0), torch.tensor(0), torch.tensor(i), there))
            sees[i] = torch.broadcast_to(each, there.shape).nonzero().flatten()
    ends = {i: (int(keys[0]), int(keys[-1])) for i, keys in sees.items() if len(keys)}
    if len(ends) < len(sees) or any(len(sees[i]) != last - first + 1 for i, (first, last) in ends.items()):
        raise ValueError("a query does not see one run of keys")
    causal = all(last == i for i, (_, last) in ends.items())
    if not causal and any(last <= i for i, (_, last) in ends.items()):
        raise ValueError(f"the last query sees keys {ends[max(ends)]}, and the first {ends[0]}")
    if all(first == 0 for first, _ in ends.values()):
        return None, causal
    furthest = max(ends)
    reach, beyond = furthest - ends[furthest][0], ends[0][1]
    if all(
        first == max(0, i - reach) and min(last, i + 7) == min(i + beyond, i + 7) for i, (first, last) in ends.items()
    ):
        return (reach + 1 if causal else (reach, beyond)), causal
    sizes = {first for first, _ in ends.values() if first}
    size = math.gcd(*sizes, *(ends[i][0] - ends[j][0] for i in ends for j in ends))
    for chunk in (size // k for k in range(1, size + 1) if size % k == 0):
        if causal and all(first == i // chunk * chunk for i, (first, _) in ends.items()):
            return Chunk(chunk), causal
    raise ValueError(f"query {furthest} sees keys {ends[furthest]}, which is neither a window nor a chunk")


# -- what turns -------------------------------------------------------------------------------------------------------


def _candidates(config: Any, length: int | None) -> list[tuple[float, Any]]:
    """Bases and scalings that the configuration names, in any of its dictionaries."""
    found: list[tuple[float, Any]] = []
    bases = [
        float(value)
        for name, value in vars(config).items()
        if re.search("theta|base", name) and isinstance(value, (int, float)) and not isinstance(value, bool)
    ]

    def search(value: Any, depth: int) -> None:
        if not isinstance(value, Mapping) or depth > 4:
            return
        if "rope_theta" in value or "rope_type" in value:
            base = value.get("rope_theta")
            every = bases if base is None else [base]
            try:
                read = ScalingParameters("rope_parameters", value)
                share = read.optional("partial_rotary_factor")
                scaling = read.scaling(read.kind({"su": "longrope", "mrope": "default"}), share or 1.0, length)
                found.extend((float(each), scaling) for each in every)
                if read.get("alpha") is not None:  # of HunYuan
                    found.extend((float(each), NTKAware(read.number("alpha"))) for each in every)
            except (ValueError, TypeError):
                found.extend((float(each), None) for each in every if isinstance(each, (int, float)))
        for each in value.values():
            search(each, depth + 1)

    search(vars(config), 0)
    found += [(base, None) for base, _ in list(found)]
    found += [(base, None) for base in (*bases, 10_000.0)]
    return [(base, scaling) for base, scaling in found if 1 < base < math.inf]


def _fit(
    call: Call, plain: Call, places: Tensor, scalings: list[tuple[float, Any]], config: Any, is_normalized: bool
) -> Scheme:
    """The scheme of a layer."""
    if float((call.value - call.value[:, :, :1]).abs().max()) > 1e-9 * float(call.value.abs().max()):
        raise ValueError("values differ by position")
    head_dim = call.query.size(-1)
    if call.key.size(-1) != head_dim:
        raise ValueError(f"queries have {head_dim} channels and keys {call.key.size(-1)}")
    scale, grows = _scale_of_queries(call, places, config)
    query = call.query / grows[:, None]
    turned = {name: _turning(x[0], places) for name, x in (("queries", query), ("keys", call.key))}
    if turned["queries"] is None and turned["keys"] is None:
        return NoPE() if scale is None else scale
    for name, other in (("queries", "keys"), ("keys", "queries")):
        if turned[name] is None:
            raise ValueError(f"{other} turn and {name} do not")
    q, k = turned["queries"], turned["keys"]
    assert q is not None
    assert k is not None
    if q[:3] != k[:3]:
        raise ValueError(f"queries turn {_said(q)} and keys {_said(k)}")
    layout, first, width, theta = q
    tolerance = 1e-6 + 1e-5 * theta.abs().max()
    if float((theta - k[3]).abs().max()) > tolerance:
        raise ValueError(f"queries turn by {_numbers(theta)} and keys by {_numbers(k[3])} a position")
    if not is_normalized and any(_factor_of(scaling) != 1.0 for _, scaling in scalings):
        raise ValueError("the factor of its cosines cannot be seen")
    rope = _rope(call, plain, places, (layout, first, width, theta), scalings, grows)
    return rope if scale is None else rope + scale


def _by_weights(scheme: Scheme, plain: Call) -> Scheme:
    """The scheme in the layout of the weights, if the model moves channels (2k, 2k + 1) to (k, k + d/2) before."""
    parts = list(scheme.parts)
    for n, part in enumerate(parts):
        if not isinstance(part, RoPE) or part.layout != "half":
            continue
        moved = torch.arange(part.rotary_dim).view(-1, 2).mT.flatten()
        channels = slice(part.first_channel, part.first_channel + part.rotary_dim)
        seen = [_order(x[0, 0, 0, channels], plain.made) for x in (plain.query, plain.key)]
        if moved.tolist() in seen and all(each in (None, moved.tolist()) for each in seen):  # a norm hides the order
            parts[n] = like(part, layout="interleaved")
    return functools.reduce(lambda a, b: a + b, parts)


def _order(x: Tensor, made: list[Tensor]) -> list[int] | None:
    """Where the numbers of x are in what a linear layer gave, from the first of them."""
    for each in made:
        if float((each - x[0]).abs().min()) >= 1e-6:
            continue
        off = (each[None] - x[:, None]).abs() if len(each) * len(x) < 2**24 else (each[:1] - x[:, None]).abs()
        if float(off.amin(1).max()) < 1e-6:
            where = off.argmin(1)
            return (where - where.min()).tolist()
    return None


def _factor_of(scaling: Any) -> float:
    if scaling is None:
        return 1.0
    theta = torch.logspace(0, -4, 16, dtype=torch.float64)
    lengths = (torch.tensor([[1e6]], dtype=torch.float64),) if getattr(scaling, "needs_lengths", False) else ()
    try:
        return float(torch.as_tensor(scaling(theta, *lengths)[1]).flatten()[0])
    except ValueError:  # a list for another number of pairs
        return math.nan


def _rope(
    call: Call, plain: Call, places: Tensor, turned: Any, scalings: list[tuple[float, Any]], grows: Tensor
) -> RoPE:
    """The first of what the configuration names, and of what was measured, that does what the layer does."""
    layout, first, width, theta = turned
    head_dim, pairs = call.query.size(-1), width // 2
    factor = _ratio(call.query / grows[:, None], plain.query / grows[:, None], range(first, first + width))
    widths = [width]
    if first == 0 and layout == "interleaved":
        widths += [head_dim] * (head_dim != width)
    tries: list[Callable[[], RoPE]] = []
    for each in widths:
        options = {"layout": layout, "rotary_dim": each, "first_channel": first}
        tries += [
            functools.partial(RoPE, head_dim, base, scaling=scaling, **options) for base, scaling in dict_of(scalings)
        ]
    options = {"layout": layout, "rotary_dim": width, "first_channel": first}
    if (base := _base(theta)) is not None:
        tries.append(functools.partial(RoPE, head_dim, base, **options))
        exact = tuple((-(base ** (-torch.arange(pairs, dtype=torch.float64) / pairs))).tolist())
        tries.append(functools.partial(RoPE, head_dim, base, scaling=Frequencies(exact, factor), **options))
    free = Frequencies(tuple(theta.tolist()), factor)
    tries.append(functools.partial(RoPE, head_dim, scaling=free, **options))
    for make in tries:
        try:
            rope = make()
            scaled_back = [replace(each, query=each.query / grows[:, None]) for each in (call, plain)]
            _verify(rope, scaled_back[0], scaled_back[1], places)
        except ValueError:
            continue
        return rope
    raise ValueError(f"queries turn {_said(turned)}, by {_numbers(theta)} a position, but not by p theta")


def dict_of(scalings: list[tuple[float, Any]]) -> list[tuple[float, Any]]:
    """Without repetitions."""
    return list({(base, repr(scaling)): (base, scaling) for base, scaling in scalings}.values())


def _ratio(x: Tensor, plain: Tensor, channels: range) -> float:
    """The factor of cos and sin."""
    at = slice(channels.start, channels.stop)
    found = float(x[0, 0, 0, at].norm() / plain[0, 0, 0, at].norm())
    return 1.0 if abs(found - 1) < 1e-6 else found


def _base(theta: Tensor) -> float | None:
    """The base of geometric frequencies of one sign."""
    size = theta.abs()
    if len(theta) < 2 or float(size.min()) == 0 or not bool((theta > 0).all() or (theta < 0).all()):
        return None
    base = float((size[0] / size[-1]) ** (len(theta) / (len(theta) - 1)))
    return float(f"{base:.6g}") if base > 1 else None


Turning = tuple[Any, int, int, Tensor]
"""The layout, the first channel, the number of channels, and the angle a position of each pair."""


def _turning(x: Tensor, places: Tensor) -> Turning | None:
    """What turns of x (heads, tokens, channels), or None."""
    moves = (x - x[:, :1]).abs().amax((0, 1)) > 3e-6 * float(x.abs().max())
    if not bool(moves.any()):
        return None
    channels = moves.nonzero().flatten().tolist()
    low, high = channels[0], channels[-1] + 1
    found: list[Turning] = []
    for layout in ("half", "interleaved"):
        least = high - low + (high - low) % 2
        widths = range(least, x.size(-1) - low + 1, 2)
        for width in widths if layout == "half" else widths[:1]:
            z = _pairs(x[..., low : low + width], layout)
            size = z.abs()
            if float((size - size[:, :1]).abs().max()) < 1e-6 * float(size.max()):
                found.append((layout, low, width, _angles(z, places)))
                break
    if len(found) != 1:
        raise ValueError(f"channels {low}..{high - 1} of {x.size(-1)} change with position, and do not turn in pairs")
    return found[0]


def _pairs(x: Tensor, layout: str) -> Tensor:
    a, b = x.chunk(2, -1) if layout == "half" else (x[..., ::2], x[..., 1::2])
    return torch.complex(a.contiguous(), b.contiguous())


def _angles(z: Tensor, places: Tensor) -> Tensor:
    """The angle a position of each pair, from the first to the last place: each determines the turns of the next."""
    turn = torch.angle(z / z[:, :1])[0]
    theta = turn[1] / float(places[1] - places[0])
    for n, place in enumerate(places.tolist()[2:], 2):
        p = place - int(places[0])
        whole = torch.round((theta * p - turn[n]) / (2 * math.pi))
        theta = (turn[n] + 2 * math.pi * whole) / p
    return theta


def _by_axis(asked: Asked, places: Tensor) -> list[Answer]:
    """The answers with positions on one of the axes time, row and column alone; none for a model of one axis."""
    if not asked.takes_ids:
        return []
    axes = asked.axes or 3
    try:
        found = [asked(places * torch.eye(axes, dtype=torch.long)[axis][:, None, None]) for axis in range(axes)]
    except ValueError:
        return []
    return found if all(call.query.size(0) == 1 for each in found for call in each.calls) else []


def _allocated(scheme: Scheme, calls: list[Call], places: Tensor, scalings: list[tuple[float, Any]]) -> Scheme:
    """The scheme of a layer with the axis of each pair."""
    if not isinstance(scheme, RoPE):
        return scheme
    channels = slice(scheme.first_channel, scheme.first_channel + scheme.rotary_dim)
    theta = scheme.frequencies()[0][0]
    of_axes = torch.stack([_angles(_pairs(call.query[0, :, :, channels], scheme.layout), places) for call in calls])
    off = (of_axes - theta).abs()
    allocation = off.argmin(0)
    if (
        float((off.amin(0) / theta.abs()).max()) > 1e-3
        or float(of_axes.abs().sum(0).sub(theta.abs()).abs().max()) > 1e-3
    ):
        raise ValueError(f"pairs do not turn by one of {len(calls)} axes each")
    axes = len(calls)
    if allocation.tolist() == sorted(allocation.tolist()) and len(theta) % axes == 0:  # each axis has its own pairs
        for base, _ in scalings:
            of_axis = RoPE(scheme.head_dim, base, scheme.layout, scheme.rotary_dim, axes)
            if not scheme.first_channel and torch.allclose(of_axis.frequencies()[0].repeat(1, axes)[0], theta, 1e-5, 0):
                return of_axis
    return like(scheme, allocation=allocation.tolist(), axes=axes)


def like(rope: RoPE, **changes: Any) -> RoPE:
    """A rotation of the same channels and frequencies, but for some arguments."""
    same = {name: getattr(rope, name) for name in ("layout", "rotary_dim", "axes", "allocation", "scaling")}
    return RoPE(rope.head_dim, rope.base, **same | {"first_channel": rope.first_channel} | changes)


def _said(turned: Turning) -> str:
    return f"in {turned[0]} pairs of channels {turned[1]}..{turned[1] + turned[2] - 1}"


def _numbers(theta: Tensor) -> str:
    return ", ".join(f"{float(each):.5g}" for each in theta[:3]) + f" ... {float(theta[-1]):.3g}"


# -- queries scaled by position ---------------------------------------------------------------------------------------


def _scale_of_queries(call: Call, places: Tensor, config: Any) -> tuple[QueryScale | None, Tensor]:
    """The scale of queries by position, and its factors relative to the first place."""
    size = call.query.norm(dim=-1)[0]
    grows = size / size[:, :1]
    if float((grows - 1).abs().max()) < 1e-6:
        return None, torch.ones_like(grows[0])
    if float((grows - grows[:1]).abs().max()) > 1e-6:
        raise ValueError("heads scale their queries by position, each in its way")
    numbers = [n for n in _values(config) if not isinstance(n, bool)]
    lengths = [None, *dict.fromkeys(int(n) for n in numbers if n >= 2 and float(n).is_integer())]
    strengths = [None, *dict.fromkeys(float(n) for n in numbers if 0 < n < 2)]
    forms: Any = ("llama4", "ministral3", "inkling", "beam", "rerope")
    for form in forms:
        for length in lengths:
            for strength in strengths if form != "rerope" else [None]:
                try:
                    scheme = QueryScale(form, length=length, strength=strength)
                    c = scheme._factor((places.double() + 1)[None])[0]
                except ValueError:
                    continue
                if float((c / c[0] - grows[0]).abs().max()) < 1e-6 and abs(float(c[0]) - 1) < 1e-3:
                    return scheme, c
    raise ValueError(f"queries grow with position by {_numbers(grows[0][1:])}")


def _values(config: Any) -> Iterator[Any]:
    stack: list[Any] = [vars(config)]
    for _ in range(10_000):
        if not stack:
            return
        value = stack.pop()
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, (int, float)) and math.isfinite(value):
            yield value


def _of_axes(scheme: Scheme, coords: Tensor) -> Positions:
    """Positions, on as many axes as the scheme has."""
    axes = max(getattr(part, "axes", 1) for part in scheme.parts)
    if coords.dim() == 2 and axes > 1:
        coords = coords[..., None].expand(*coords.shape, axes)
    coords = coords[..., 0] if coords.dim() == 3 and axes == 1 else coords
    order = torch.arange(coords.size(1))[None]
    return Positions(coords.contiguous(), order=order)


# -- the comparison ---------------------------------------------------------------------------------------------------


def _verify(scheme: Scheme, call: Call, plain: Call, places: Tensor) -> None:
    """ValueError unless the scheme makes of the first token what the model makes of the others.

    The model computes phases, cos and sin in float32, which is off by p 2^-22 + 2^-20 of a vector at most."""
    coords = places[None] if places.dim() == 1 else places.permute(1, 2, 0)
    encoding = scheme.tokens(_of_axes(scheme, coords), dtype=torch.float64)
    places = places if places.dim() == 1 else places[0, 0]
    query, key = (x[:, :, :1].repeat(1, 1, x.size(2), 1) for x in (plain.query, plain.key))
    for part in scheme.parts:
        if isinstance(part, QueryScale):
            query /= part._factor(places[:1].double() + 1)[0]
    for name, ours, theirs in zip(
        ("queries", "keys"), encoding.rotate(query, key), (call.query, call.key), strict=True
    ):
        bound = (places.double() * 2**-22 + 2**-20)[:, None] * theirs.norm(dim=-1, keepdim=True)
        off = (ours - theirs).abs() - bound
        if bool((off > 0).any()):
            token = int((off > 0).any(-1).any(1)[0].nonzero()[0])
            raise ValueError(f"{name} at position {int(places[token])} are not those of {scheme}")
