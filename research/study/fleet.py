"""Several decoders of one size side by side, each with its own scheme, as one model."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posenc import NoPE, Positions
from posenc.models import Decoder, ForwardPass, position_parameters
from posenc.schemes.catalog import catalog


class Stacked(nn.Module):
    """Linear maps, norms or embeddings of several models, each for its rows of (models * batch, tokens, ...)."""

    def __init__(self, modules: Sequence[Any]) -> None:
        super().__init__()
        self.kind = type(modules[0])
        self.weight = nn.Parameter(torch.stack([each.weight.detach() for each in modules]))
        biases = [each.bias.detach() for each in modules if getattr(each, "bias", None) is not None]
        self.bias = nn.Parameter(torch.stack(biases)[:, None]) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        models, tokens = len(self.weight), x.size(1)
        x = x.unflatten(0, (models, -1)).flatten(1, 2)  # (models, batch * tokens, ...)
        if self.kind is nn.Embedding:
            first = torch.arange(models, device=x.device)[:, None] * self.weight.size(1)
            out = F.embedding(x + first, self.weight.flatten(0, 1))
        elif self.kind is nn.LayerNorm:
            out = torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:]), self.weight[:, None])  # type: ignore[arg-type]
            if torch.is_autocast_enabled(x.device.type):  # once, and not for each map that reads it
                out = out.to(torch.get_autocast_dtype(x.device.type))
        else:
            out = torch.bmm(x, self.weight.mT) if self.bias is None else torch.baddbmm(self.bias, x, self.weight.mT)
        return out.unflatten(1, (-1, tokens)).flatten(0, 1)


class Passes:
    """The passes of several models, in the place of one `ForwardPass`: each model attends in its own rows."""

    def __init__(self, schemes: Sequence[Any], positions: Positions, dtype: torch.dtype) -> None:
        self._passes = [ForwardPass(scheme, positions, dtype=dtype) for scheme in schemes]

    def features(self, projected: dict[str, Tensor], layer: int) -> Any:
        parts = {name: x.chunk(len(self._passes)) for name, x in projected.items()}
        each = [
            step.features({name: parts[name][n] for name in step.of_layer(layer)[0].features}, layer)
            for n, step in enumerate(self._passes)
        ]
        return tuple(zip(*each, strict=True))  # of queries, and of keys

    def attention(self, query: Tensor, key: Tensor, value: Tensor, layer: int, **features: Any) -> Tensor:
        parts = zip(*(x.chunk(len(self._passes)) for x in (query, key, value)), *features.values(), strict=True)
        outs = [
            step.attention(q, k, v, layer, **dict(zip(features, own, strict=True)))
            for step, (q, k, v, *own) in zip(self._passes, parts, strict=True)
        ]
        return torch.cat(outs)  # type: ignore[arg-type]


class Fleet(nn.Module):
    """Several decoders of one size as one model: their weights have one more dimension, and every linear map is a
    batched product. Each attends by itself, by `posenc.attention`, with its own scheme. Gradients are those of separate
    models, and a loss that is not a number stays within its model.

    ``curve`` has the mean loss of each model in every part of its training, in bits, and ``running`` the sum since.
    """

    running: Tensor
    curve: Tensor

    def __init__(self, models: Sequence[Decoder], points: int = 1) -> None:
        super().__init__()
        self.models = tuple(models)  # no modules of this one
        self.positions = nn.ModuleList(each.trunk.position for each in models)
        self.decoder = copy.deepcopy(models[0])
        self.decoder.trunk.position = NoPE()
        schemes: list[Any] = [scheme for each in models for scheme in each.trunk.schemes]
        wanted = {name: feature for scheme in schemes for name, feature in scheme.features.items()}
        for block in self.decoder.trunk.blocks:
            block.attention.want(wanted)  # type: ignore[union-attr,operator]
        for name, module in list(self.decoder.named_modules()):
            if isinstance(module, nn.Linear | nn.LayerNorm | nn.Embedding):
                parent, _, own = name.rpartition(".")
                every = [dict(each.named_modules()).get(name, module) for each in models]
                self.decoder.get_submodule(parent)._modules[own] = Stacked(every)
        self.register_buffer("running", torch.zeros(len(models)))
        self.register_buffer("curve", torch.zeros(points, len(models)))

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits (models, rows, tokens, vocab) of the same rows (rows, tokens) for each model."""
        x = self.decoder.embedding(tokens.repeat(len(self.models), 1))
        positions = Positions.arange(tokens.size(1), device=tokens.device)
        step = Passes([*self.positions], positions, torch.promote_types(x.dtype, torch.float32))
        for layer, block in enumerate(self.decoder.trunk.blocks):
            x = block(x, step, layer, adds=False)
        logits: Tensor = self.decoder.head(self.decoder.trunk.norm(x))
        return logits.unflatten(0, (len(self.models), -1))

    def losses(self, rows: Tensor) -> Tensor:
        """The mean loss of each model, in nats."""
        logits = self(rows[:, :-1])
        target = rows[:, 1:].expand(len(self.models), -1, -1).flatten()
        each = F.cross_entropy(logits.flatten(0, 2).float(), target, reduction="none")
        return each.view(len(self.models), -1).mean(1)

    @torch.no_grad()
    def clip(self, norm: float) -> None:
        """Bounds the norm of each model's gradient."""
        grads = [p.grad for p in self.decoder.parameters() if p.grad is not None]
        own = [[p.grad for p in each.parameters() if p.grad is not None] for each in self.positions]
        squares = torch.stack([grad.flatten(1).square().sum(1) for grad in grads]).sum(0)
        for n, each in enumerate(own):
            for grad in each:
                squares[n] += grad.square().sum()
        scale = (norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for grad in grads:
            grad *= scale.view(-1, *[1] * (grad.ndim - 1))
        for n, each in enumerate(own):
            for grad in each:
                grad *= scale[n]

    @torch.no_grad()
    def member(self, n: int) -> Decoder:
        """One of the models, with the weights that it has now."""
        model = self.models[n].to(self.curve.device)
        for name, parameter in model.named_parameters():
            if not name.startswith("trunk.position."):  # which is the fleet's own
                parameter.copy_(self.decoder.get_parameter(name)[n].view_as(parameter))
        return model


def optimizer_for(fleet: Fleet, rate: float) -> torch.optim.AdamW:
    """AdamW as `posenc compare` has it: weight decay on matrices alone, and the multiplier of a scheme's entry for the
    rate of what it learns."""
    multipliers: dict[Any, float] = {entry.scheme: entry.rate for entry in catalog()}
    owners, groups = position_parameters(fleet), dict[tuple[float, float], list[nn.Parameter]]()
    vectors = {module.bias for module in fleet.modules() if isinstance(module, Stacked)}
    for p in fleet.parameters():
        decay = 0.0 if p in owners or p in vectors or p.ndim < 3 else 0.1
        groups.setdefault((multipliers.get(type(owners.get(p)), 1.0), decay), []).append(p)
    made = [{"params": ps, "highest": rate * times, "weight_decay": decay} for (times, decay), ps in groups.items()]
    return torch.optim.AdamW(made, lr=rate, betas=(0.9, 0.95), fused=fleet.curve.is_cuda)
