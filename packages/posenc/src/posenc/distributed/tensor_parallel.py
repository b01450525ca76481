"""Tensor parallelism: the heads and the hidden units of posenc's models are divided among processes."""

from collections.abc import Iterator
from typing import Any, TypeVar

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from posenc.arguments import check_type, shown
from posenc.encoding.encoding import Context
from posenc.models.transformer import Decoder, SelfAttention, Trunk
from posenc.scheme import Scheme, bare_parts, is_scheme

M = TypeVar("M", bound=nn.Module)


def parallelize(model: M, mesh: DeviceMesh) -> M:
    """Divides the heads and the hidden units of a model of `posenc.models` among the processes of a mesh of one axis,
    with `torch.distributed.tensor.parallel`. Changes the model, and returns it.

    Process r of n has the r-th n-th of the heads, and of a scheme's slopes, tables and features those of its heads.
    Every process is given the same tokens and gets the same output: that of the whole model. All parameters become
    DTensors: those of the projections of attention, the MLPs and a decoder's head are sharded, others, also those of
    schemes, are replicated, with the values of process 0. Gradients are those of the whole model. Apply `fully_shard`
    afterwards, over another axis of the mesh.

    A scheme is also taken by itself, for a model whose heads were divided by other means: its parameters are
    replicated, and their gradients are summed over processes, each of which binds it to its own heads:

    >>> parallelize(scheme, mesh)
    >>> encoding = scheme(positions, context=posenc.Context(heads=range(first, last)))

    Raises ValueError, before anything changes, for heads of queries or keys that cannot be divided evenly, a mesh of
    several axes or without this process, a scheme that acts both on the input and in attention, and a model that is
    not of `posenc.models` or is divided already. All processes must call it.
    """
    check_type("model", model, nn.Module)
    if not isinstance(mesh, DeviceMesh) or mesh.ndim != 1:
        several = f"one of {mesh.ndim}: pass mesh['name of an axis']" if isinstance(mesh, DeviceMesh) else shown(mesh)
        raise ValueError(f"mesh must be a DeviceMesh of one axis, got {several}")
    if mesh.get_coordinate() is None:
        raise ValueError(f"mesh must have this process, {dist.get_rank()}, got {mesh}")
    trunks = [module for module in model.modules() if isinstance(module, Trunk)]
    if not trunks and not is_scheme(model):
        raise ValueError(
            f"model must be one of posenc.models, or a scheme, got {type(model).__name__}: divide its heads yourself, "
            "pass its schemes to parallelize, and bind them with context=Context(heads=range(first, last))"
        )
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        raise ValueError("model must not be divided already: call parallelize once, and fully_shard afterwards")
    contexts = [_context(trunk, mesh) for trunk in trunks]
    schemes = [part for scheme in model.modules() if isinstance(scheme, Scheme) for part in bare_parts(scheme)]
    learns_here = {module for scheme in schemes for module in _of_heads(scheme)}
    for trunk, context in zip(trunks, contexts, strict=True):
        trunk.context = context
        for block in trunk.blocks:
            parallelize_module(block, mesh, _plan(block.attention))  # type: ignore[arg-type]
    for module in model.modules():
        if isinstance(module, Decoder):
            parallelize_module(module.head, mesh, ColwiseParallel(output_layouts=Replicate()))
    for module in model.modules():
        _replicate(module, mesh, Partial() if module in learns_here else Replicate())
    return model


def _context(trunk: Trunk, mesh: DeviceMesh) -> Context:
    """The heads that this process has. ValueError where they cannot be divided."""
    rank, world = mesh.get_local_rank(), mesh.size()
    attention = trunk.blocks[0].attention
    mine = []
    for what, projection in (("num_heads", attention.query), ("num_kv_heads", attention.key)):  # type: ignore[union-attr]
        heads = projection.out_features // attention.head_dim  # type: ignore[union-attr,operator]
        if heads % world:
            raise ValueError(
                f"{what} must be a multiple of the {world} processes of the mesh, got {heads}: use fewer processes, or "
                "a model with more heads"
            )
        mine.append(range(rank * heads // world, (rank + 1) * heads // world))
    return Context(heads=mine[0], kv_heads=mine[1])


def _plan(attention: SelfAttention) -> dict[str, ParallelStyle]:
    """How a block's layers are divided: projections by heads and hidden units, so that one sum over processes ends
    attention, and one the MLP."""
    whole = (Replicate(), None, None)
    projections = ("query", "key", "value", *(f"features.{name}" for name in attention.features))
    return {
        # One tensor for all projections, so that its gradients are summed over processes once.
        "attention": PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole),
        **{f"attention.{name}": ColwiseParallel() for name in projections},
        "attention.out": RowwiseParallel(),
        "mlp.0": ColwiseParallel(),
        "mlp.2": RowwiseParallel(),
    }


def _of_heads(scheme: Scheme) -> Iterator[nn.Module]:
    """The modules of a scheme whose parameters act in attention, so that each process has the gradients of its own
    heads. What is added to the input has the same gradient on every process."""
    acts_in_attention = bool({"rotate", "score", "value"} & set(scheme.doors))
    if acts_in_attention and "add" in scheme.doors and any(True for _ in scheme.parameters()):
        raise ValueError(
            f"model has a {type(scheme).__name__}, whose parameters act both on the input and in attention: compose it "
            "of two schemes"
        )
    if acts_in_attention:
        yield from scheme.modules()


def _replicate(module: nn.Module, mesh: DeviceMesh, of_gradients: Placement) -> None:
    """Makes a module's own parameters replicated DTensors that its code reads as tensors of this process.

    They stay parameters by the same names, so that checkpoints are those of the whole model. The module gets a class of
    its own, as from `fully_shard`, with properties that read them: hooks of its call would be too early, since schemes
    read parameters in attention.
    """
    own = [name for name, x in module._parameters.items() if x is not None and not isinstance(x, DTensor)]
    for name in own:
        parameter = module._parameters[name]
        assert parameter is not None
        made = nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Replicate()]), parameter.requires_grad)
        module._parameters[name] = made

    def read(name: str) -> property:
        def local(self: nn.Module) -> Any:
            parameter: Any = self._parameters[name]
            if not isinstance(parameter, DTensor) or parameter.device_mesh != mesh:  # FSDP has sharded it
                return parameter
            whole = parameter.redistribute(placements=[Replicate()])  # its derivative sums gradients
            return whole.to_local(grad_placements=[of_gradients])

        return property(local)

    if own:
        kind = type(module)
        module.__class__ = type(kind.__name__, (kind,), {name: read(name) for name in own})
