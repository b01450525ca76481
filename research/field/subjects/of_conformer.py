"""conformer: attention, a block, and the whole, in evaluation mode: (rows, tokens, dim), and a mask where one is taken.

Shaw's positions go by the distance, which is clamped at 512; the convolution sees 15 tokens to each side.
"""

from conformer import Conformer, ConformerBlock
from conformer.conformer import Attention as ConformerAttention

from posenc_check import Layer


def build_attention(**options):
    return ConformerAttention(dim=32, heads=2, dim_head=16, **options)


def build_block(**options):
    return ConformerBlock(dim=32, heads=2, dim_head=16, **options)


def build_conformer(**options):
    return Conformer(dim=32, depth=2, heads=2, dim_head=16, **options)


def attend(module, x, padding=None):
    return module(x, mask=padding)


def encode(module, x):
    return module(x)


attention = Layer(build=build_attention, call=attend, relative=True, directed=True, jitter=0.2)
attention_near = Layer(build=build_attention, call=attend, options={"max_pos_emb": 4}, relative=True, jitter=0.2)
block = Layer(build=build_block, call=attend, options={"conv_kernel_size": 5}, relative=True, jitter=0.2)
conformer = Layer(build=build_conformer, call=encode, options={"conv_kernel_size": 5}, jitter=0.2)

SUBJECTS = (
    ("Attention", attention),
    ("Attention, clamped at 4", attention_near),
    ("ConformerBlock", block),
    ("Conformer", conformer),
)
