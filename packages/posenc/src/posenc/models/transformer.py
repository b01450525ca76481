"""A pre-norm decoder and encoder with grouped-query attention, and a small vision Transformer, that take any scheme."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import compat
from posenc.arguments import check_choice, check_flag, check_type, number, one_or, shown, whole
from posenc.encoding.context import Feature
from posenc.encoding.encoding import Context
from posenc.models.cache import KVCache
from posenc.models.forward_pass import ForwardPass
from posenc.positions.positions import Positions
from posenc.schedule import Schedule
from posenc.scheme import Scheme, bare_parts, is_scheme
from posenc.schemes.nope import NoPE


class SelfAttention(nn.Module):
    """Multi-head attention with a linear projection for each feature of its scheme."""

    def __init__(self, dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.head_dim = dim // num_heads
        self.query = nn.Linear(dim, num_heads * self.head_dim, bias=False)
        self.key = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(dim, num_kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(num_heads * self.head_dim, dim, bias=False)
        self.features = nn.ModuleDict()
        self._wanted: Mapping[str, Feature] = {}

    def want(self, features: Mapping[str, Feature]) -> None:
        """Makes the projections for a scheme's features."""
        self._wanted = features
        for name, feature in features.items():
            self.features[name] = nn.Linear(self.query.in_features, feature.size, bias=feature.bias)

    def forward(self, x: Tensor, step: ForwardPass, layer: int) -> Tensor:
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        projected = {name: self._wanted[name].of_heads(project(x)) for name, project in self.features.items()}
        features, key_features = step.features(projected, layer)
        out = step.attention(query, key, value, layer, features=features, key_features=key_features)
        assert isinstance(out, Tensor)
        return self.out(out.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm Transformer block with a GELU MLP of four times the width."""

    def __init__(self, dim: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = SelfAttention(dim, num_heads, num_kv_heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, step: ForwardPass, layer: int, adds: bool) -> Tensor:
        x = step.add(x, layer) if adds else x
        x = x + self.attention(self.attention_norm(x), step, layer)
        return x + self.mlp(self.mlp_norm(x))


def position_parameters(model: nn.Module) -> dict[nn.Parameter, Scheme | None]:
    """The parameters of a model that encode positions, for their own parameter group in the optimizer: a dict of the
    parameters of every scheme in the model to that scheme, and of the parameters of feature projections (such as the
    gates of `FoX`) to None.

    Tables, slopes and other position parameters should have no weight decay, and may need a higher learning rate than
    other weights:

    >>> positional = position_parameters(Decoder(256, 32, 1, 2, position=T5(2)))
    >>> [tuple(parameter.shape) for parameter in positional]
    [(32, 2)]

    Raises ValueError if ``model`` is not a module.
    """
    check_type("model", model, nn.Module)
    found: dict[nn.Parameter, Scheme | None] = {}
    for module in model.modules():
        if isinstance(module, SelfAttention):
            found |= dict.fromkeys(module.features.parameters())
        if isinstance(module, Scheme):  # a part of a composition comes after the composition and overrides it
            found |= dict.fromkeys(module.parameters(), module)
    return found


class Trunk(nn.Module):
    """The blocks and the scheme that decoder, encoder and image classifier share.

    ``inject`` sets where the add door opens: on the ``"input"``, or before ``"every_layer"``. With ``per_layer`` every
    block has a copy of the scheme with its own parameters; otherwise all layers share one scheme. A `Schedule` sets the
    scheme of each layer. The weights of the blocks are initialized before the copies and feature projections, so that
    for a given seed they are the same for every scheme.
    """

    def __init__(
        self,
        dim: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int | None,
        position: Scheme | Schedule | None,
        inject: Literal["input", "every_layer"],
        per_layer: bool,
        is_causal: bool,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        position = NoPE() if position is None else position
        self.inject, self.is_causal, self.per_layer = inject, is_causal, per_layer
        self.context: Context | None = None  # the heads of this process: see posenc.distributed.parallelize
        self.blocks = nn.ModuleList(Block(dim, num_heads, num_kv_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        if per_layer and isinstance(position, Scheme):
            # In the blocks, since FSDP gathers parameters block by block.
            for layer, block in enumerate(self.blocks):
                block.scheme = position if layer == 0 else position.another()
        else:
            self.position = position
        for layer, block in enumerate(self.blocks):
            scheme = position[layer][0] if isinstance(position, Schedule) else position
            block.attention.want(scheme.features)  # type: ignore[union-attr,operator]

    @property
    def schemes(self) -> tuple[nn.Module, ...]:
        """The distinct schemes: one for every layer, those of the schedule, or a single one."""
        if self.per_layer:
            return tuple(block.scheme for block in self.blocks)  # type: ignore[misc]
        return tuple(self.position.schemes) if isinstance(self.position, Schedule) else (self.position,)

    @property
    def schedule(self) -> Scheme | Schedule:
        """The scheme of all layers, or the schedule of each layer's scheme."""
        if not self.per_layer:
            return self.position
        return Schedule([(block.scheme, None) for block in self.blocks])  # type: ignore[misc]

    def forward(self, x: Tensor, positions: Positions, cache: KVCache | None) -> Tensor:
        if positions.order.size(1) != x.size(1):
            way = ": divide the tokens with sharding.shard(tokens)" if positions._is_shard else ""
            raise ValueError(f"positions has {len(positions)} tokens, the batch has {x.size(1)}{way}")
        if not one_or(positions.rows, x.size(0)):
            raise ValueError(f"positions must have 1 or {x.size(0)} rows like the batch, got {positions.rows}")
        if positions.device != x.device:
            raise ValueError(f"positions must be on {x.device} like the tokens, got {positions.device}")
        dtype = torch.promote_types(x.dtype, torch.float32)
        step = ForwardPass(self.schedule, positions, cache, is_causal=self.is_causal, dtype=dtype, context=self.context)
        if cache is None:
            return self._run(x, step)
        with step:
            return self._run(x, step)

    def _run(self, x: Tensor, step: ForwardPass) -> Tensor:
        for layer in range(0 if self.per_layer else len(self.blocks)):
            step.tokens(layer)  # before the blocks, which checkpointing may run again
            step.pairs(layer)
        for layer, block in enumerate(self.blocks):
            # The block itself calls add, so that FSDP has gathered the parameters of its scheme.
            x = block(x, step, layer, adds=layer == 0 or self.inject == "every_layer")
            if self.per_layer:
                step._forget(layer)
        return self.norm(x)


def check_trunk(
    dim: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int | None,
    position: Scheme | Schedule | None,
    inject: str,
    per_layer: bool,
) -> None:
    """ValueError for arguments that do not fit together. Models call it before they initialize their weights.

    A scheme's attributes ``num_heads``, ``head_dim`` and, if it adds to the input, ``dim`` must match the model.
    """
    whole("dim", dim)
    whole("num_layers", num_layers)
    whole("num_heads", num_heads)
    if dim % num_heads:
        raise ValueError(f"dim must be a multiple of num_heads = {num_heads}, got {dim}")
    if num_kv_heads is not None and num_heads % whole("num_kv_heads", num_kv_heads):
        raise ValueError(f"num_heads must be a multiple of num_kv_heads = {num_kv_heads}, got {num_heads}")
    check_choice("inject", inject, ("input", "every_layer"))
    check_flag("per_layer", per_layer)
    if not is_scheme(position):
        check_type("position", position, Scheme, Schedule, None)
    if position is None:
        return
    if isinstance(position, Schedule):
        if per_layer:
            raise ValueError("per_layer must be False with a Schedule, got True")
        if len(position) != num_layers:
            raise ValueError(f"position has {len(position)} layers, the model has {num_layers}")
        first, _ = position[0]
        others = [n for n, (scheme, _) in enumerate(position) if "add" in scheme.doors and scheme is not first]
        if inject == "input" and others:
            raise ValueError(
                f"inject='input' adds only the vectors of layer 0's scheme, but the scheme of layer {others[0]} adds "
                "too: use inject='every_layer'"
            )
        for scheme in position.schemes:
            check_trunk(dim, num_layers, num_heads, num_kv_heads, scheme, inject, per_layer)  # type: ignore[arg-type]
        return
    if per_layer and inject == "input" and "add" in position.doors:
        raise ValueError(
            "per_layer gives every layer its own table, but inject='input' adds only the first one: "
            "use inject='every_layer'"
        )
    of_keys = num_heads if num_kv_heads is None else num_kv_heads
    for part in bare_parts(position):
        sizes = {"num_heads": of_keys if part.heads_of == "key" else num_heads, "head_dim": dim // num_heads}
        for name, size in (sizes | {"dim": dim} if "add" in part.doors else sizes).items():
            made_for = getattr(part, name, None)
            if isinstance(made_for, int) and made_for != size:
                kind = type(part).__name__
                raise ValueError(f"position must be made for {name} {size} like the model, got {kind} for {made_for}")


def embedded(embedding: nn.Embedding, tokens: Tensor) -> Tensor:
    """The embeddings of tokens. Raises ValueError for ids outside the vocabulary; on a GPU, where checking them would
    synchronize, they are a device-side assert."""
    _check_tokens(embedding, tokens)
    try:
        return embedding(tokens)
    except IndexError:
        lowest, highest = (int(v) for v in torch.aminmax(tokens))
        outside = lowest if lowest < 0 else highest
        raise ValueError(f"tokens must be within 0..{embedding.num_embeddings - 1}, got {outside}") from None


def _check_tokens(embedding: nn.Embedding, tokens: Tensor) -> None:
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"tokens must be an int64 tensor (batch, tokens), got {shown(tokens)}")
    if tokens.device != embedding.weight.device:
        raise ValueError(f"tokens must be on {embedding.weight.device} like the model, got {tokens.device}")


class _TokenModel(nn.Module):
    """An embedding, the blocks and, for a causal language model, a linear head."""

    is_causal: ClassVar[bool]

    def __init__(
        self,
        vocab_size: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        position: Scheme | Schedule | None = None,
        inject: Literal["input", "every_layer"] = "input",
        per_layer: bool = False,
        pad_token: int | None = None,
    ) -> None:
        super().__init__()
        whole("vocab_size", vocab_size)
        self.pad_token = None if pad_token is None else whole("pad_token", pad_token, 0, vocab_size - 1)
        check_trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer)
        self.embedding = nn.Embedding(vocab_size, dim)
        if self.is_causal:
            self.head = nn.Linear(dim, vocab_size, bias=False)
        self.trunk = Trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer, self.is_causal)

    def _positions(self, tokens: Tensor) -> Positions:
        """The positions of whole texts: 0 .. N-1 in each row, without its padding."""
        if self.pad_token is not None:
            return Positions.padded(tokens != self.pad_token)
        return Positions.arange(tokens.size(1), device=tokens.device)


class Decoder(_TokenModel):
    """A causal language model.

    ``position`` is any scheme, composition or `Schedule` (None: NoPE); see `Trunk` for ``inject`` and ``per_layer``.
    ``pad_token`` is the id that rows are padded with: such tokens are padding wherever no positions are given, but not
    after a cache. Without it a model cannot tell padding from text, and ``Positions.padded(mask)`` says which is which.
    Raises ValueError for sizes that do not fit together, or a scheme made for other sizes.

    >>> model = Decoder(256, dim=128, num_layers=4, num_heads=4, position=posenc.ALiBi(4))
    >>> model(torch.randint(256, (2, 30))).shape
    torch.Size([2, 30, 256])
    """

    is_causal = True

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], positions: Positions | None = None, *, cache: KVCache | None = None
    ) -> Float[Tensor, "batch tokens vocab"]:
        """The logits of each next token.

        Positions default to 0 .. N-1, with ``pad_token`` skipped, or to those that follow the cache. With a ``cache``
        the tokens also attend to the cached tokens, and their keys and values are appended to it.

        Raises ValueError for tokens outside the vocabulary and for positions that do not match them.
        """
        check_type("positions", positions, Positions, None)
        check_type("cache", cache, KVCache, None)
        x = embedded(self.embedding, tokens)
        if positions is None:
            if cache is not None and cache.positions is not None:
                positions = cache.positions.following(tokens.size(1))
            else:
                positions = self._positions(tokens)
        return self.head(self.trunk(x, positions, cache))

    @torch.no_grad()
    def generate(
        self,
        tokens: Int[Tensor, "batch tokens"],
        max_new_tokens: int,
        positions: Positions | None = None,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Int[Tensor, "batch new_tokens"]:
        """Generates ``max_new_tokens`` tokens per row, with a cache: greedily at temperature 0, else by sampling.

        Pad prompts of different lengths on either side, and pass ``positions=Positions.padded(mask)`` unless the model
        has a ``pad_token``.
        """
        _check_tokens(self.embedding, tokens)
        if tokens.size(1) == 0:
            raise ValueError(f"tokens must be a prompt of at least one token, got {shown(tokens)}")
        whole("max_new_tokens", max_new_tokens, least=0)
        check_type("positions", positions, Positions, None)
        if number("temperature", temperature) < 0:
            raise ValueError(f"temperature must not be negative, got {temperature}")
        check_type("generator", generator, torch.Generator, None)
        if generator is not None and generator.device.type != tokens.device.type:
            raise ValueError(f"generator must be on {tokens.device} like tokens, got {generator.device}")
        cache = KVCache()
        positions = self._positions(tokens) if positions is None else positions
        chosen: list[Tensor] = []
        while len(chosen) < max_new_tokens:
            logits = self(tokens, positions, cache=cache)
            logits = logits[torch.arange(tokens.size(0), device=tokens.device), positions.last.expand(tokens.size(0))]
            if temperature:
                tokens = torch.multinomial(F.softmax(logits.float() / temperature, -1), 1, generator=generator)
            else:
                tokens = logits.argmax(-1, keepdim=True)
            chosen.append(tokens)
            assert cache.positions is not None
            positions = cache.positions.following()
        return torch.cat(chosen, 1) if chosen else tokens[:, :0]


class Encoder(_TokenModel):
    """A bidirectional encoder: `Decoder` without causal mask, head and cache."""

    is_causal = False

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], positions: Positions | None = None
    ) -> Float[Tensor, "batch tokens dim"]:
        """The hidden states of the last layer. Positions default to 0 .. N-1, with ``pad_token`` skipped.

        Raises ValueError for tokens outside the vocabulary and for positions that do not match them.
        """
        check_type("positions", positions, Positions, None)
        x = embedded(self.embedding, tokens)
        return self.trunk(x, self._positions(tokens) if positions is None else positions, None)


# -- images -----------------------------------------------------------------------------------------------------------


class ImageClassifier(nn.Module):
    """A vision Transformer: square patches as tokens, the blocks of `Encoder`, mean pooling and a linear head.

    A patch's coordinates are its row and column or, with ``raster``, its index in raster order, for schemes that take
    one coordinate. Images may have any size that is a multiple of ``patch``; a scheme raises its own error for
    positions that it cannot encode. See `Trunk` for ``inject`` and ``per_layer``.

    >>> model = ImageClassifier(10, patch=2, dim=64, num_layers=2, num_heads=4, position=posenc.Relative2D((4, 4), 16))
    >>> model(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        num_classes: int,
        patch: int,
        dim: int,
        num_layers: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        channels: int = 1,
        raster: bool = False,
        position: Scheme | Schedule | None = None,
        inject: Literal["input", "every_layer"] = "input",
        per_layer: bool = False,
    ) -> None:
        super().__init__()
        for name, size in (("num_classes", num_classes), ("patch", patch), ("channels", channels)):
            whole(name, size)
        check_flag("raster", raster)
        check_trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer)
        self.patch, self.channels, self.raster = patch, channels, raster
        self.embedding = nn.Linear(channels * patch * patch, dim)
        self.head = nn.Linear(dim, num_classes)
        self.trunk = Trunk(dim, num_layers, num_heads, num_kv_heads, position, inject, per_layer, is_causal=False)

    def forward(
        self, images: Float[Tensor, "batch channels height width"], positions: Positions | None = None
    ) -> Float[Tensor, "batch classes"]:
        """The logits of the classes. ``positions`` of the patches, in raster order, default to the class docstring's.

        Raises ValueError for an image size that is not a multiple of the patch, and for images and positions that do
        not match the model.
        """
        weight = self.embedding.weight
        if not isinstance(images, Tensor) or images.dim() != 4 or images.size(1) != self.channels:
            raise ValueError(f"images must be a tensor (batch, {self.channels}, height, width), got {shown(images)}")
        if images.device != weight.device:
            raise ValueError(f"images must be on {weight.device} like the model, got {images.device}")
        if not images.is_floating_point() or (images.dtype != weight.dtype and not compat.is_autocast(images)):
            raise ValueError(f"images must be {weight.dtype} like the model, got {images.dtype}")
        check_type("positions", positions, Positions, None)
        height, width = images.shape[-2:]
        if height % self.patch or width % self.patch or not height or not width:
            raise ValueError(f"images must be a whole number of patches of {self.patch}, got {height} x {width}")
        rows, columns = height // self.patch, width // self.patch
        if positions is None and self.raster:
            positions = Positions.arange(rows * columns, device=images.device)
        elif positions is None:
            positions = Positions.grid(rows, columns, device=images.device)
        patches = F.unfold(images, self.patch, stride=self.patch).mT
        return self.head(self.trunk(self.embedding(patches), positions, None).mean(1))
