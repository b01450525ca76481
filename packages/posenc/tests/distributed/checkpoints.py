"""Checkpoints of models that one number of processes saves and another loads."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from posenc import KERPLE, T5
from posenc.distributed import parallelize
from posenc.models import Decoder
from posenc.schemes.catalog import CATALOG
from tests.distributed.sharded_models import VOCAB, made


def every_scheme(seed: int) -> torch.nn.Module:
    """A model, and every scheme of the catalog that has parameters."""
    torch.manual_seed(seed)
    schemes = {entry.name: made(entry.name)[0].trunk.position for entry in CATALOG}
    torch.manual_seed(seed)
    for scheme in schemes.values():
        for parameter in scheme.parameters():
            torch.nn.init.normal_(parameter)
    whole = torch.nn.Module()  # fully_shard takes no ModuleDict
    whole.schemes = torch.nn.ModuleDict(schemes)
    whole.decoder = Decoder(VOCAB, 48, 2, 4, position=T5(4), per_layer=True).double()
    return whole


def divided(way: str, seed: int) -> torch.nn.Module:
    model = every_scheme(seed)
    world = dist.get_world_size()
    if way == "parameters":
        return fully_shard(model)
    if way == "both" and world == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        return fully_shard(parallelize(model, mesh["tp"]), mesh=mesh["dp"])
    return parallelize(model, init_device_mesh("cpu", (world,)))


WAYS = ("parameters", "heads", "both")


def save(folder: Path) -> None:
    for way in WAYS:
        dcp.save({"model": get_model_state_dict(divided(way, 1))}, checkpoint_id=folder / way)


def load(folder: Path) -> list[str]:
    """What is wrong with models that load, each way what each way has saved."""
    wrong, expected = [], every_scheme(1).state_dict()
    for saved in WAYS:
        for way in WAYS[:2]:
            model = divided(way, 2)
            state = {"model": get_model_state_dict(model)}
            dcp.load(state, checkpoint_id=folder / saved)
            set_model_state_dict(model, state["model"])
            found = {name: getattr(x, "full_tensor", lambda x=x: x)() for name, x in model.state_dict().items()}
            if found.keys() != expected.keys():
                wrong.append(f"{saved}, {way}: {found.keys() ^ expected.keys()}")
            wrong += [f"{saved}, {way}: {name}" for name, x in expected.items() if not torch.equal(found[name], x)]
    return wrong


def of_another(folder: Path) -> str:
    """What is said of a checkpoint of another scheme."""
    t5, kerple = (Decoder(VOCAB, 48, 1, 4, position=scheme) for scheme in (T5(4), KERPLE(4)))
    dcp.save({"model": get_model_state_dict(fully_shard(t5))}, checkpoint_id=folder)
    state: dict[str, Any] = {"model": get_model_state_dict(fully_shard(kerple))}
    try:
        dcp.load(state, checkpoint_id=folder)
    except dcp.api.CheckpointException as error:  # no Exception
        return str(error)
    return "no error"
