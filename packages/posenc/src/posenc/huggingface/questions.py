"""Builds a model without weights and asks it: what its layers give to attention at chosen positions."""

from __future__ import annotations

import ast
import copy
import functools
import importlib
import inspect
import linecache
import math
import re
import textwrap
import threading
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from posenc.huggingface import indexers
from posenc.huggingface.loading import RECORD
from posenc.huggingface.reading import reason

NAME = "posenc_asked"
ROWS = 2**24
"""The most positions of a model's tables."""

SIZES = {
    **dict.fromkeys(
        ("num_hidden_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"), range(1, 513)
    ),
    **dict.fromkeys(("max_position_embeddings", "max_target_positions"), range(2, ROWS + 1)),
    "hidden_size": range(2**15 + 1),
    "image_size": range(2**12 + 1),
    "intermediate_size": range(2**17 + 1),
    "max_source_positions": range(2**14 + 1),
    "num_mel_bins": range(2**12 + 1),
    "patch_length": range(2**16 + 1),
    "vocab_size": range(2**20 + 1),
}
"""The sizes of a model that is asked, since what it computes of its tokens is computed for real."""

PLACES = (0, 1, 2, 5, 37, 300, 2000, 12_000, 70_000)
FRESH = (0, 3, 4, 11, 130, 1000, 5000, 33_000, 100_000)
"""Positions at which a model is asked, and at which the answer is compared, as far as the model has them."""

COUNTED = 1100
"""As far as a model is asked that counts its tokens, and takes no positions."""

SLOTS = 140
"""The same for a bias of each layer, which costs the square."""

ENCODED = 7
"""How many more tokens an encoder is said to have given than the decoder is asked for."""

GRID = 32
"""The side of a grid of patches for which windows are looked at."""

WARM = 8
"""Tokens before those that are looked at, at the first place: short convolutions see what is before the text."""

SILENT = frozenset(
    (
        *("attention_mask", "cache_position", "cu_seq_lens_k", "cu_seq_lens_q", "deterministic", "dropout", "indices"),
        *("is_causal", "layer_idx", "logits_to_keep", "max_length_k", "max_length_q", "output_attentions"),
        *("output_hidden_states", "past_key_values", "position_embeddings", "position_ids", "return_dict", "s_aux"),
        *("scaling", "sinks", "sliding_window", "softcap", "training", "use_cache", "grid_thw"),
    )
)
"""Options of an attention function that are read, or change no score."""

BY_SLOT = re.compile("floor_scale|attn_scale$|temperature_tuning|attn_temp|scaling_beta|log_?scal|logn")
"""Keys of scales of queries, which some models count by slots of a cache and not by positions."""

SUMS = ("add", "__add__", "__radd__", "add_", "__iadd__")
NUMBER = r"\.\d+\."
"""That of a layer, in the name of a weight."""

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
    tokens: tuple[int, int, int]
    """How many texts, queries and keys there are."""
    bias: Tensor | None = None
    """What is added to scores by options, for the queries that are looked at and all keys."""
    rest: list[Tensor] = field(default_factory=list)
    """Queries and keys of tokens that are no patches."""
    made: list[Tensor] = field(default_factory=list)
    """What linear layers gave in this pass."""
    biases: list[Tensor] = field(default_factory=list)
    """Parameters of one axis that its module has beside them."""

    def same(self, other: Call) -> bool:
        """Whether another layer gave the same to its attention function."""
        said = [
            {name: x if isinstance(x, (bool, int, float)) else type(x) for name, x in call.options.items()}
            | {"layer_idx": 0, "bias": call.bias is None}
            for call in (self, other)
        ]
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("query", "key", "value", "bias")]
        return said[0] == said[1] and all(a is b or torch.equal(a, b) for a, b in pairs)


@dataclass
class Answer:
    """The calls of one forward pass, the rows of learned tables that it looked up, and the positions it was given."""

    calls: list[Call]
    tables: dict[str, tuple[Tensor, list[int]]]
    places: Tensor
    across: bool
    """Whether the model attends to an encoder's states too."""
    buckets: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Tables that were looked up for every query and key, and the rows."""
    plain: list[Call] = field(default_factory=list)
    """The calls without the factor of cos and sin, once `Asked.with_plain` has asked for them."""


class SeenError(ValueError):
    """Says what was seen in a model's code that is not read."""


class _Cheap(TorchFunctionMode):
    """Weights that are left empty are on "meta"; what is computed, such as frequencies, is real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand) and kwargs.get("device") is None:
            sizes = kwargs.get("size", args)
            sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
            if func is torch.empty or math.prod(sizes) > 2**24:
                kwargs["device"] = "meta"
        return func(*args, **kwargs)


UNKNOWN = "multiplies queries and keys in a way that posenc does not recognise"
NAMED = re.compile("att(entio)?n", re.I)
PRODUCTS = ("__matmul__", "baddbmm", "bmm", "matmul")
"""Names of functions of which attention with code of its own takes one before and one after a softmax."""
WORK = (*PRODUCTS, "addmm", "conv1d", "conv2d", "einsum", "linear", "scaled_dot_product_attention", "softmax")
"""Names of functions that tell a module that attends from one that returns what it got."""


def asks(module: nn.Module) -> bool:
    """Whether a module is attention that can be asked."""
    return bool(_code_of(type(module)))  # type: ignore[arg-type]  # mypy takes a class for one without a hash


def is_own(module: nn.Module) -> bool:
    """Whether a module computes attention itself, not by transformers' table of attention functions."""
    return _code_of(type(module)) == "own"  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1024)
def _code_of(kind: type) -> str:
    """How a class attends: by transformers' "table", by code of its "own", or not ("")."""
    methods = [
        inspect.unwrap(method)
        for each in kind.__mro__
        if each.__module__.startswith("transformers.models.")
        for method in vars(each).values()
        if inspect.isfunction(method)
    ]
    names = {name for method in methods for name in method.__code__.co_names}
    if "ALL_ATTENTION_FUNCTIONS" in names:
        return "table"
    return "own" if NAMED.search(kind.__name__) and names & {"softmax", "Softmax"} else ""


def _silence(module: nn.Module) -> None:
    """The module gives zeros, as many as its code returns."""
    try:
        code = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
        last = [node.value for node in ast.walk(code) if isinstance(node, ast.Return)][-1]
        outputs = len(last.elts) if isinstance(last, ast.Tuple) else 1
    except (OSError, TypeError, SyntaxError, IndexError):
        outputs = 1

    def forward(*args: Any, **kwargs: Any) -> Any:
        named = [kwargs.get(name) for name in ("hidden_states", "inputs_embeds", "x")]
        tensors = (x for x in (*named, *args, *kwargs.values()) if isinstance(x, Tensor))
        zeros = torch.zeros_like(next(x for x in tensors if x.is_floating_point()))
        return zeros if outputs == 1 else (zeros, *[None] * (outputs - 1))

    module.forward = forward


def alike(x: Tensor) -> bool:
    """Whether all tokens have one vector."""
    rows = x.reshape(-1, x.size(-1))
    return not any(x.stride()[:-1]) or bool((rows == rows[:1]).all())


class Asked(TorchFunctionMode):
    """A model that can be asked: ``asked(positions)`` gives an `Answer`.

    Linear layers give every token the same vector, and so do tables, unless tokens look up different rows."""

    is_tower = even = plain = normalized = multiplied = rotates = looks_up = False
    """Whether it takes pixels, sound or series; whether norms have no weights, since those behind a rotation would
    scale its channels; whether cos and sin are asked for without their factor, were seen, and have one; whether
    sinusoids turn queries and keys, and are not added to tokens; whether tables give their rows, and not zeros."""

    def __init__(self, config: Any, stack: str | None = None, model: nn.Module | None = None) -> None:
        super().__init__()
        self.config, self.stack = config, stack
        self.model = built(config, stack) if model is None else model
        self.tokens = self.inside = 0  # of its text, and of the attention modules that run
        self.attending: nn.Module | None = None
        self.product: list[Any] = []
        self.left = ""
        self.sight: Tensor | None = None
        self.parameters = inspect.signature(self.model.forward).parameters
        is_grid = "grid_thw" in self.parameters  # patches, by row and column, or time too
        self.axes = is_grid and (3 if "include_temporal=True" in inspect.getsource(type(self.model).forward) else 2)
        self.takes_ids = is_grid or "position_ids" in self.parameters
        tables = [getattr(each, "embed_tokens", None) for each in self.model.modules()]
        self.rows = max([1, *(len(each) for each in tables if isinstance(each, nn.ModuleList))])  # of ids, for one text
        self._prepare()
        self.layers = {
            module: int(found[1]) if (found := re.search(r"\.(\d+)(\.|$)", name)) else -1
            for name, module in self.model.named_modules()
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.attending is not None and len(self.product) != 1 and getattr(func, "__name__", "") in WORK:
            self.unseen.setdefault(self.attending, func.__name__)
        if func is nn.functional.embedding:
            names = dict(zip(("input", "weight"), args, strict=False)) | kwargs
            return self.looked_up(names["input"], names["weight"])
        if func is nn.functional.linear:
            return self.projected(*(*args, *kwargs.values())[:2])
        if func is torch.addmm:  # transformers' Conv1D
            return self.projected(args[1], args[2].mT)
        if func is torch.full and kwargs.get("dtype") is None and isinstance(args[-1], float):  # the least of float64
            kwargs["dtype"] = torch.float64
        made = self.attended(func, args, kwargs)
        made = self.instead(func, args, kwargs) if made is None else made
        return func(*args, **kwargs) if made is None else made

    def _prepare(self) -> None:
        if not any(asks(module) for module in self.model.modules()):
            names = [name for m in self.model.modules() if NAMED.search(name := type(m).__name__)]
            does = "neither calls transformers' attention functions nor takes a softmax of its own"
            raise ValueError(f"{names[-1]} {does}" if names else "it has no attention modules")
        self.is_own = any(map(is_own, self.model.modules()))
        for name, each in self.model.named_buffers():
            if each.is_meta and is_own(self.model.get_submodule(name.rpartition(".")[0])):  # a mask of all positions
                raise ValueError(f"its {name} must have at most 2^24 numbers, got {' x '.join(map(str, each.shape))}")
        self.most = SLOTS if self.is_own else COUNTED  # tokens that are counted
        _prune(self.model, self.is_tower)
        indexers.record(self.model)
        self.fixed: dict[str, Tensor] = {}
        self.frozen: set[str] = set()
        for name, module in self.model.named_modules():
            if asks(module):
                module.register_forward_pre_hook(lambda module, args: self._enter(1, module))
                module.register_forward_hook(lambda module, args, out: self._enter(-1, module))
            if _is_rotary(module):
                module.register_forward_hook(self._turned)
            if "Sinusoidal" in type(module).__name__:
                module.register_forward_hook(self._added(name))
            for each, frozen in module._parameters.items():
                if frozen is not None and not frozen.requires_grad and frozen.dim() > 1:
                    self.frozen.add(f"{name}.{each}")
                    self._fix(f"{name}.{each}", module, each)
            if hasattr(module, "create_weight"):  # sinusoids that were left empty
                module.weight = nn.Parameter(torch.empty(module.weight.shape), requires_grad=False)
                self.fixed[f"{name}.weight"] = module.create_weight().double()

    def _fix(self, path: str, module: nn.Module, name: str) -> None:
        """Keeps what transformers writes into weights that do not train, if it is always the same."""
        model: Any = self.model
        parts, found = path.split(".")[:-1], []
        for seed in range(2):
            weight = module._parameters[name] = nn.Parameter(torch.zeros(getattr(module, name).shape), False)
            with _LOCK, torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.default_generator.manual_seed(seed)  # of the CPU alone: fork_rng restores no other
                for n in range(len(parts), -1, -1):
                    model._init_weights(model.get_submodule(".".join(parts[:n])))
            found.append(weight.detach().double())
        if torch.equal(*found) and bool(found[0].any()):
            self.fixed[path] = found[0]

    @property
    def whole(self) -> int:
        """The tokens of attention that is within no windows of patches."""
        return GRID**2 * (self.axes > 0)

    def reset(self, seed: int) -> None:
        """Other weights."""
        self.seed, self.drawn = seed, dict[tuple[str, torch.Size], Tensor]()
        for path, module in self.model.named_modules():
            for name, old in list(module._parameters.items()):
                if old is None or f"{path}.{name}" in self.fixed:
                    continue
                dtype = old.dtype if old.dtype.is_floating_point and not is_own(module) else torch.float64
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
        if self.inside and tokens.size(1) == 2 * self.tokens - 1 and not alike(x):  # of distances
            return x @ weight.mT
        if tokens.size(1) == self.tokens and not bool((tokens == tokens[:, :1]).all()):
            off = float((tokens - tokens[:, :1]).abs().max())
            self.differing += [name] * (not off <= 1e-6 * (1e-3 + float(x.abs().max())))
        made = self._draw(name, weight.shape[:1])
        self.made.setdefault(f"{re.sub(NUMBER, '.N.', name)} {made.numel()}", made)
        made = made.to(x.dtype).expand(*x.shape[:-1], -1)
        return made if self.is_tower and made.numel() > 2**22 else made.contiguous()

    def _draw(self, name: str, shape: torch.Size) -> Tensor:
        """Normal numbers, which layers of one kind share, so that they are fitted once."""
        name = re.sub(NUMBER, ".N.", name)
        if (name, shape) not in self.drawn:
            draw = torch.Generator().manual_seed(self.seed * 1_000_003 + zlib.crc32(name.encode()))
            self.drawn[name, shape] = torch.randn(shape, generator=draw, dtype=torch.float64)
        return self.drawn[name, shape]

    def looked_up(self, ids: Tensor, weight: Tensor) -> Tensor:
        """A random vector, or zeros for a table whose rows differ by position."""
        name, dtype = self.names.get(id(weight), "a table"), weight.dtype
        if ids.squeeze(0).shape == (self.tokens, self.tokens):
            table = self.buckets.setdefault(name, (weight * (len(self.buckets) + 1), ids.squeeze(0)))[0]
            return table[ids]  # each layer's are others, unlike the weights of layers
        rows = ids.reshape(-1).tolist()
        if name in self.fixed:
            return self.fixed[name][ids].to(dtype)
        if len(set(rows)) > 1 and self.looks_up:
            return weight[ids]
        if len(set(rows)) > 1:
            self.tables[name] = (weight, rows)
            return torch.zeros(*ids.shape, weight.size(1), dtype=dtype)
        return self._draw(name, weight.shape[1:]).to(dtype).repeat(*ids.shape, 1)

    def instead(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """What another function than linear layers and tables gives, or None for its own result: for a sum of patches
        and what differs by position, the patches."""
        is_sum = getattr(func, "__name__", "") in SUMS and len(args) == 2 and all(isinstance(x, Tensor) for x in args)
        return self._sum(*args) if is_sum and not self.inside else None

    def _sum(self, x: Tensor, y: Tensor) -> Tensor | None:
        """x of x + y, if tokens of x are alike and y differs by position."""
        dims = sorted((x.dim(), y.dim()))
        if not (x.is_floating_point() and y.is_floating_point() and dims[0] > 1 and dims[1] > 2 - (self.axes > 0)):
            return None
        is_text = not (self.axes or self.is_tower)
        if is_text and (dims[1] != 3 or x.size(-2) != self.tokens):  # streams of a token differ too
            return None
        if x.shape[-2:] != y.shape[-2:] or alike(x) == alike(y):
            return None
        same, other = (x, y) if alike(x) else (y, x)
        self.added.append(other.detach().double().reshape(-1, other.size(-1)))
        return same

    def _enter(self, step: int, module: nn.Module) -> None:
        self.inside += step
        self.left = type(module).__name__ if step < 0 else self.left
        self.attending, self.product = module if step > 0 and is_own(module) else None, []

    def attended(self, func: Any, args: Any, kwargs: Any) -> Tensor | None:
        """What attention with code of its own gets in place of its scores, numbers by which its scale, bias and mask
        are seen before its softmax, of its weights, others that must reach its values, and of what it gives, zeros."""
        name = getattr(func, "__name__", "")
        if name in ("conv1d", "conv2d") and self.inside and self.is_own:
            if args[1].shape[2:].numel() > 1:
                raise SeenError("a convolution over tokens is in its attention")
            made: Tensor = func(*args, **kwargs)
            self.made[f"{name} {len(self.made)}"] = made.flatten(2)[0, :, 0]
            return made
        if self.attending is None or name not in (*PRODUCTS, "softmax"):
            return None
        kind = type(self.attending).__name__
        if name == "softmax":
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if len(self.product) == 1 or dim not in (-1, args[0].dim() - 1):  # another softmax, or not over keys
                raise SeenError(f"{kind} {UNKNOWN}")
            if len(self.product) == 3:
                return self._seen_by_softmax(args[0])
        elif not self.product:
            *summand, x, y = args
            shape = *x.shape[:-1], y.size(-1)
            if math.prod(shape) > 2**23:
                raise SeenError(f"{kind} is asked of at most 2^23 scores, got {shape}")
            scores = 118 * self._uniform(shape[-2:]) - 59
            scores = (scores + scores.sign()).expand(shape)  # away from 0
            self.product = [x, y.mT, scores]
            scores = scores.to(x.dtype) * kwargs.get("alpha", 1)
            return scores + summand[0] * kwargs.get("beta", 1) if summand and kwargs.get("beta", 1) else scores
        elif len(self.product) == 6:
            from transformers import AttentionInterface

            query, key, mask, scale, bias, weights = self.product
            x, y = args[-2:]
            if x.numel() != weights.numel() or float((x.reshape(weights.shape) - weights).abs().max()) > 1e-6:
                raise SeenError(f"{kind} changes its weights after the softmax")
            tensors = [each if each is None or each.dim() == 4 else each[None] for each in (query, key, y, mask, bias)]
            self.unseen.pop(self.attending)
            listen: Any = AttentionInterface._global_mapping[NAME]  # as if it called transformers' functions
            listen(self.attending, *tensors[:4], scaling=scale, position_bias=tensors[4])
            self.product = [None]
            return x.new_zeros(*x.shape[:-1], y.size(-1))
        return None

    def _uniform(self, shape: Iterable[int]) -> Tensor:
        return torch.rand(*shape, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64)

    def _seen_by_softmax(self, x: Tensor) -> Tensor:
        query, key, scores = self.product
        came = x.double().reshape(scores.shape)
        is_seen = came > -5000.0  # some hide keys by -10,000
        if bool((is_seen != is_seen[..., :1, :, :]).any()):
            raise SeenError("its heads see different keys")
        is_seen = self.sight if self.sight is not None and torch.equal(self.sight, is_seen) else is_seen
        self.sight = is_seen
        # Biases by distance are the same along diagonals. Scores may be of float32.
        steps = [x[..., 1:, 1:] - x[..., :-1, :-1] for x in (came, scores)]
        scale = float((steps[0] / steps[1])[is_seen[..., 1:, 1:] & is_seen[..., :-1, :-1]].median())
        scale = next((c for c in (1.0, query.size(-1) ** -0.5) if math.isclose(c, scale, rel_tol=1e-6)), scale)
        bias = (came - scale * scores) * is_seen
        weights = (1 + self._uniform(scores.shape[-2:])) * is_seen[..., :1, :, :]
        weights = (weights / weights.sum(-1, keepdim=True).clamp(min=1)).expand(scores.shape)
        bias = bias if float(bias.abs().max()) > 1e-5 * abs(scale) else None  # scores reach 60, of float32 in some
        self.product = [query, key, is_seen, scale, bias, weights]
        return weights.to(x.dtype).reshape(x.shape)

    def places(self, length: int | None) -> tuple[Tensor, Tensor]:
        """Where it is asked, and where the answer is compared."""
        end = min(length or 4096, 4096 * ROWS if self.takes_ids else self.most)
        return within(PLACES, end), within(FRESH, end)

    def masks(self, end: int) -> Answer:
        """The calls of which masks and tables are looked at, with one for all windows of a grid."""
        near = [n for name, n in vars(self.config).items() if "window" in name and type(n) is int and n <= 512]
        tokens = max([24, *(2 * n + 8 for n in near * self.is_own)])  # beyond a window, whose rule is not seen
        answer = self(torch.arange(self.whole or min(tokens, end)), by_ids=self.axes > 0)
        if self.axes:
            answer.calls = list({call.module: call for call in reversed(answer.calls)}.values())[::-1]
        counts = bool(self.sinusoids or self.added) and not self.axes
        return self(torch.arange(min(end, self.most)), by_ids=False) if counts else answer

    def on_grid(self) -> tuple[Tensor | None, tuple[int, int]]:
        """What is added to the patches of one image, if it is added at once, and their grid."""
        coords = torch.cartesian_prod(*[torch.arange(GRID)] * 2).mT[:, None]
        self.looks_up = True
        try:
            self(torch.cat((torch.zeros_like(coords[: self.axes - 2]), coords)))
        except ValueError:
            return None, (GRID, GRID)
        finally:
            self.looks_up = False
        return self.added[0] if len(self.added) == 1 else None, (GRID, GRID)

    def rows_of(self, added: Tensor, starts: Iterable[int]) -> tuple[str, int, int] | None:
        """The table whose rows were added, the first of them, and how many it has."""
        for name, weight in self.model.named_parameters():
            rows = weight.reshape(-1, weight.size(-1)) if weight.dim() > 1 and name not in self.fixed else added[:0]
            for first in starts:
                if torch.equal(rows[first : first + len(added)].double(), added):
                    return name, first, len(rows)
        return None

    def _added(self, name: str) -> Callable[..., Tensor | None]:
        """A hook that records what a module without learned numbers adds by position, and adds nothing."""

        def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor | None:
            if self.rotates:
                return None
            rows = self.fixed.get(f"{name}.weight", getattr(module, "weights", None))
            self.sinusoids[name] = out.reshape(-1, out.size(-1)).double(), rows
            return torch.zeros_like(out)

        return hook

    def _turned(self, module: nn.Module, args: Any, out: Any) -> Any:
        """Looks whether cos and sin have a factor, or takes it off if ``plain`` was asked for."""
        parts = out if isinstance(out, tuple) else (out,)
        if not all(isinstance(x, Tensor) for x in parts) or len(parts) not in (1, 2):
            return None
        if (len(parts) == 1 and not parts[0].is_complex()) or parts[0].shape != parts[-1].shape:
            return None
        size = parts[0].abs() if len(parts) == 1 else (parts[0] ** 2 + parts[1] ** 2).sqrt().clamp(min=1e-30)
        self.normalized = True
        self.multiplied |= float((size - 1).abs().max()) > 1e-6
        made = tuple(x / size for x in parts)
        return None if not self.plain else made if isinstance(out, tuple) else made[0]

    def with_plain(self, answer: Answer) -> Answer:
        """The answer just given, also with the factor of cos and sin taken off."""
        answer.plain = (self(answer.places, plain=True) if self.multiplied else answer).calls
        return answer

    def __call__(self, places: Tensor, plain: bool = False, by_ids: bool = True) -> Answer:
        by_ids = by_ids and self.takes_ids
        before = WARM if by_ids and places.size(-1) < GRID**2 else 0
        if self.axes:  # the blocks of a grid
            before += -(before + places.size(-1)) % 16
        ids_of = torch.cat((places[..., :1].expand(*places.shape[:-1], before), places), -1)
        self.tokens = ids_of.size(-1) if by_ids else int(places.max()) + 1
        seen = slice(before, None) if by_ids else places
        given = self._inputs(ids_of[None] if by_ids and ids_of.dim() < 3 else ids_of, by_ids)
        calls = self._run(given, plain, lambda x: x if x.size(1) == self.tokens != x.size(2) else x[:, :, seen])
        across = [call for call in calls if call.tokens[2] == self.tokens + ENCODED]
        for call in across:
            if any(float((x - x[:, :, :1]).abs().max()) > 0 for x in (call.query, call.key)) or call.bias is not None:
                raise ValueError("positions turn, scale or bias its attention to an encoder's states")
        calls = [call for call in calls if call not in across]
        for call in calls:
            if call.tokens[1] != self.tokens and not (self.axes and self.tokens == GRID**2):
                raise ValueError(
                    f"{type(call.module).__name__} gets {call.tokens[1]} queries for {self.tokens} tokens: not all of "
                    "its queries are tokens"
                )
        return Answer(calls, dict(self.tables), places, bool(across), dict(self.buckets))

    def _run(self, given: dict[str, Any], plain: bool, keep: Callable[[Tensor], Tensor]) -> list[Call]:
        """What the layers give to their attention function in one pass, of the tokens that are looked at."""
        calls: list[Call] = []
        self.plain, self.normalized, self.multiplied = plain, False, False
        self.differing: list[str] = []
        self.tables: dict[str, tuple[Tensor, list[int]]] = {}
        self.buckets: dict[str, tuple[Tensor, Tensor]] = {}
        self.inside, self.left, self.unseen = 0, "", dict[nn.Module, str]()  # not recorded yet
        self.added: list[Tensor] = []
        self.sinusoids: dict[str, tuple[Tensor, Tensor | None]] = {}
        self.made: dict[str, Tensor] = {}
        try:
            with _listening(calls, keep), torch.no_grad(), self:
                self.model(**given)
        except Exception as error:
            if self.left and not calls:
                raise ValueError(f"{self.left} {UNKNOWN}") from error
            asking = {module for module in self.model.modules() if asks(module)}
            asked = {call.module for call in calls}  # after its last layer, if these are all
            count = getattr(self.config, "num_hidden_layers", None) or len(asking)
            if not (self.axes or self.is_tower) or len(asked) < (count if self.is_tower else len(asking)):
                if isinstance(error, SeenError):
                    raise
                raise ValueError(f"its model could not be run: {_reason(error, self.config)}") from error
        if self.unseen:
            module, name = next(iter(self.unseen.items()))
            raise ValueError(f"{type(module).__name__} {UNKNOWN}" + f", by torch.{name}" * (name != "linear"))
        # A token's states in other layers, to which the same query attends for each token, have no positions.
        calls = [
            c
            for c in calls
            if c.tokens[1] == self.tokens or c.query.size(1) != self.tokens or bool((c.query != c.query[:, :1]).any())
        ]
        if not calls:
            others = [type(m).__name__ for m in self.model.modules() if asks(m) and m not in self.layers]
            never = (
                f"while it ran its model put {others[0]} in place of its attention" if others else "no attention ran"
            )
            raise ValueError(f"{self.left} {UNKNOWN}" if self.left else never)
        if self.sinusoids and not self.rotates and not any(bool(call.query.any()) for call in calls):
            self.rotates = True
            return self._run(given, plain, keep)
        if self.differing:
            raise ValueError(f"tokens already differ where {self.differing[0]} takes them, before queries and keys")
        modules = dict.fromkeys(call.module for call in calls)
        layers = {module: self.layers[module] for module in modules}
        own: dict[nn.Module, Any] = {module: getattr(module, "layer_idx", None) for module in modules}
        if len(set(layers.values())) < len(modules):  # several in a layer, which the model counts, or nobody
            counted = len(modules) == len(set(own.values()) - {None})
            layers = own if counted else {module: n for n, module in enumerate(modules)}
        in_turn = len(modules) < len(calls) == getattr(self.config, "num_hidden_layers", None)
        for n, call in enumerate(calls):  # layers may share their weights
            call.layer = n if in_turn else layers[call.module]
            if not bool(torch.isfinite(call.query.sum() + call.key.sum())):
                raise ValueError("queries and keys are no finite numbers")
            call.made = list(self.made.values())
            call.biases = [each for each in call.module.parameters(recurse=False) if each.dim() == 1]
        return calls

    def _inputs(self, ids_of: Tensor, by_ids: bool) -> dict[str, Any]:
        """The same token everywhere, at the places given, and an encoder's states."""
        config, pad = self.config, getattr(self.config, "pad_token_id", None)
        if self.axes:
            width = getattr(config, "embed_dim", None) or config.hidden_size
            return {
                next(iter(self.parameters)): torch.zeros(self.tokens, width, dtype=torch.float64),
                "grid_thw": torch.tensor([[1, GRID, GRID] if self.tokens == GRID**2 else [1, 4, self.tokens // 4]]),
                "position_ids": ids_of.reshape(-1, self.tokens).mT.expand(-1, self.axes),
            }
        given: dict[str, Any] = {
            "input_ids": torch.full((self.rows, self.tokens), 3 if pad != 3 else 4),
            "use_cache": False,
            "lang_ids": torch.zeros(1, dtype=torch.long),
        }
        if self.stack == "decoder":
            width = getattr(config, "hidden_size", 64)
            given["encoder_hidden_states"] = torch.zeros(1, self.tokens + ENCODED, width, dtype=torch.float64)
        given |= {"position_ids": ids_of} if by_ids else {}
        return {name: value for name, value in given.items() if name in self.parameters}


def within(places: tuple[int, ...], length: int) -> Tensor:
    """The places before a length, and the last."""
    return torch.tensor([*(place for place in places if place < length - 1), length - 1])


def _prune(module: nn.Module, is_tower: bool, in_layer: bool = False) -> None:
    """What has no attention in it gives zeros; in a tower only in layers, since before them tokens are made."""
    for child in module.children():
        listed = isinstance(module, nn.ModuleList)
        if any(asks(each) for each in child.modules()):
            if not asks(child):
                _prune(child, is_tower, in_layer or listed)
        elif listed and not isinstance(child, nn.Linear):
            _prune(child, is_tower, True)  # a layer of another kind
        elif (is_tower and not in_layer) or isinstance(child, (nn.Embedding, nn.Linear)) or _is_rotary(child):
            continue
        elif isinstance(child, nn.ModuleList) or any(p.dim() > 1 for p in child.parameters()):  # it mixes channels
            _silence(child)


def _is_rotary(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return re.search("rotary|rope|embedding|relative|conv1d$|hyper|connection|residual", name) is not None


def model_class(config: Any, stack: str | None = None) -> Any:
    """The class of a configuration's model, if possible with a head, or None."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING, PreTrainedModel

    home, kind = type(config).__module__, None
    if stack != "encoder" and (stack is not None or getattr(config, "is_decoder", None) is not False):
        kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    kind = kind or MODEL_MAPPING.get(type(config), None)
    if kind is not None or not home.startswith("transformers."):
        return kind[0] if isinstance(kind, tuple) else kind
    code = importlib.import_module(home.replace(".configuration_", ".modeling_"))  # of a part of a model
    kinds = [
        each
        for each in vars(code).values()
        if isinstance(each, type) and issubclass(each, PreTrainedModel) and each.config_class is type(config)
    ]
    said = ("CausalLM", *(("Conditional",) if stack else ()), "Text", "Model")
    kinds = [each for each in kinds if "PreTrainedModel" not in each.__name__[-15:]]
    return max(kinds, key=lambda each: [word in each.__name__ for word in said], default=None)


def length_of(config: Any) -> int | None:
    """The number of positions that a configuration names."""
    length = getattr(config, "max_position_embeddings", getattr(config, "max_target_positions", None))
    return length if isinstance(length, int) and length > 0 else None


def built(config: Any, stack: str | None = None, kind: Any = None) -> nn.Module:
    """The model of a configuration, of the class ``kind`` if it is given, or one of its two stacks, in float64, without
    weights. ValueError if transformers has none."""
    from transformers.initialization import no_init_weights

    try:
        kind, own = kind or model_class(config, stack), copy.deepcopy(config)
        if kind is None:
            raise ValueError("transformers has no model of this type alone")
        own._experts_implementation, own.mask_ratio = "eager", 0.0  # no patch is left out
        for name in (RECORD, "attn_implementation"):  # of a patched model, whose own positions are asked for
            vars(own).pop(name, None)
        with _listening([]), _Cheap(), no_init_weights(), torch.random.fork_rng(devices=[]):
            try:
                model: nn.Module = kind._from_config(own, attn_implementation=NAME, dtype=torch.float64)
            except KeyError as error:
                if NAME not in error.args:
                    raise
                model = kind._from_config(own, attn_implementation="eager", dtype=torch.float64)  # a class of its own
        if stack is not None and "CausalLM" not in kind.__name__:
            model = getattr(model, f"get_{stack}")()
        return model.eval()
    except ImportError as error:
        needs = re.search(r"requires the (\w+) library|No module named '([^']+)'", str(error))
        which = "another library" if needs is None else needs[1] or needs[2]
        raise ValueError(f"its model needs {which}, which is not installed") from error
    except Exception as error:  # of any type: transformers computes with the configuration
        raise ValueError(f"its model could not be built: {_reason(error, config)}") from error


def _reason(error: Exception, config: Any) -> str:
    """An error in words, the line of a model's code at which it came up, and what the configuration lacks there."""
    from transformers import PreTrainedConfig

    frames = [each for each in traceback.walk_tb(error.__traceback__) if ".models." in each[0].f_globals["__name__"]]
    if not frames:
        return reason(error)
    frame, line = frames[-1]
    code = frame.f_code
    lacks = [n for n in code.co_names if vars(config).get(n, 0) is None and not hasattr(PreTrainedConfig, n)]
    lacking = f", and the configuration has no {', '.join(lacks)}" * bool(lacks)
    return f"{reason(error)}, in {code.co_qualname}: {linecache.getline(code.co_filename, line).strip()}{lacking}"


@contextmanager
def _listening(calls: list[Call], keep: Callable[[Tensor], Tensor] = torch.Tensor.clone) -> Iterator[None]:
    """Registers an attention function that records what it gets of the tokens to ``keep``, and takes it away again."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    seen: tuple[Any, Any, bool] = (None, None, False)

    def listen(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
    ) -> Any:
        said = {name: option for name, option in options.items() if option is not None}
        nonlocal seen
        biases = [option for name in ("position_bias",) if isinstance(option := said.pop(name, None), Tensor)]
        if isinstance(attention_mask, Tensor) and attention_mask.is_floating_point():
            if seen[0] is not attention_mask:
                is_seen = attention_mask > torch.finfo(attention_mask.dtype).min / 2
                seen = attention_mask, is_seen, bool((is_seen & (attention_mask != 0)).any())
            if seen[2]:
                low, high = (attention_mask.masked_fill(~seen[1], math.copysign(math.inf, n)) for n in (1, -1))
                if bool((high.amax(-1) > low.amin(-1)).any()):  # the same number for all keys changes nothing
                    biases.append(attention_mask.masked_fill(~seen[1], 0))
                attention_mask = seen[1]
        if any(bias.size(0) > 1 and bool((bias != bias[:1]).any()) for bias in biases):
            raise SeenError("each window of patches has another mask or bias, as shifted windows do, which is not read")
        rows = [keep(bias[:1].expand(-1, query.size(1), query.size(2), -1))[0].double() for bias in biases]
        bias = functools.reduce(lambda a, b: a + b, rows) if any(bool(each.any()) for each in rows) else None
        tokens = query.size(0), query.size(2), key.size(2)
        # An encoder's states have no positions, and are all kept.
        q, k, v = (x if x.size(2) != tokens[1] else keep(x) for x in (query, key, value))
        calls.append(Call(-1, module, q.double(), k.double(), v.double(), attention_mask, said, tokens, bias))
        return value.new_zeros(query.size(0), query.size(2), query.size(1), value.size(-1)), None

    def mask(*args: Any, **options: Any) -> Tensor:
        sizes = [*args[1:3], *(options[name] for name in ("q_length", "kv_length") if name in options)]
        if math.prod(sizes) > 2**26:
            raise SeenError(f"its masks must be of at most 2^26 pairs of tokens, got {' x '.join(map(str, sizes))}")
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
