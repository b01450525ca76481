"""What pages take as there, by page: names and files that stand for the reader's own, in the current folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from torch import nn

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


def conformance() -> dict[str, Any]:
    Path("my_model.py").write_text(ROTARY_EMBEDDING)
    from posenc_check import Layer as OfLayer

    return {"Layer": OfLayer, "MyLayer": nn.Identity, "MyCache": list}


def huggingface() -> dict[str, Any]:
    config = transformers.LlamaConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, vocab_size=8)
    transformers.LlamaModel(config).save_pretrained("path/to/model")
    return {}


def choose() -> dict[str, Any]:
    config = transformers.LlamaConfig(
        hidden_size=256, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64, vocab_size=64
    )
    transformers.LlamaForCausalLM(config).save_pretrained("path/to/model")
    return {}


PRESUPPOSED: dict[str, Callable[[], dict[str, Any]]] = {
    "choose.md": choose,
    "conformance.md": conformance,
    "huggingface.md": huggingface,
}
