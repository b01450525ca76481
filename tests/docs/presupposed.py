"""What pages take as there, by page: names and files that stand for the reader's own. Files go into the current folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import posenc

MY_ROTARY = """
import torch


class MyRotary(torch.nn.Module):
    def __init__(self, head_dim=64, base=10_000.0):
        super().__init__()
        self.theta = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)

    def forward(self, x, positions):
        angle = (positions.double()[:, None, :, None] * self.theta).repeat(1, 1, 1, 2)
        a, b = x.chunk(2, -1)
        return x * angle.cos().to(x.dtype) + torch.cat((-b, a), -1) * angle.sin().to(x.dtype)
"""
ROTARY_EMBEDDING = """
import torch


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.theta = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def forward(self, x, positions):
        angle = (positions.double()[:, None, :, None] * self.theta).repeat(1, 1, 1, 2)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def apply_rotary(query, key, cos, sin):
    def turned(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return turned(query), turned(key)
"""


class Layer(nn.Module):
    """A layer of 8 heads of 64, as the README calls one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(512, 3 * 512), nn.Linear(512, 512)

    def project(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        return x + self.out(attended.transpose(1, 2).flatten(-2))


def llama(folder: str, **more: int) -> None:
    """A tiny one with random weights, saved."""
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=2, num_hidden_layers=2, vocab_size=64,
        bos_token_id=None, eos_token_id=None, **more,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def readme() -> dict[str, Any]:
    Path("my_model.py").write_text(MY_ROTARY)
    llama("path/to/checkpoint", max_position_embeddings=8192)
    q, k, v = torch.randn(3, 1, 12, 9, 64)
    mask, x = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]), torch.randn(2, 5, 512)
    layers = [Layer() for _ in range(3)]
    return {"q": q, "k": k, "v": v, "mask": mask, "x": x, "layers": layers, "ids": torch.arange(20)[None]}


def conformance() -> dict[str, Any]:
    Path("my_model.py").write_text(ROTARY_EMBEDDING)
    from posenc.conformance import Layer as OfLayer

    return {"Layer": OfLayer, "MyLayer": nn.Identity, "MyCache": list}


def huggingface() -> dict[str, Any]:
    scaling = {"rope_type": "linear", "factor": 8.0}
    transformers.Gemma3TextConfig(num_hidden_layers=6, rope_scaling=scaling).save_pretrained("path/to/model")
    config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, vocab_size=8)
    table, patches = torch.randn(2 + 1024, 8), torch.randn(1 + 14 * 14, 8)
    return {"posenc": posenc, "table": table, "patches": patches, "model": transformers.LlamaModel(config)}


PRESUPPOSED: dict[str, Callable[[], dict[str, Any]]] = {
    "README.md": readme,
    "conformance.md": conformance,
    "huggingface.md": huggingface,
}
