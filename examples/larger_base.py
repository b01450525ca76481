"""RoPE with a larger base, as a scheme of a comparison.

Run: posenc compare --schemes rope,examples/larger_base.py:LargerBase --train-length 1024 --test-lengths 256,1024
"""

import posenc


class LargerBase(posenc.RoPE):
    """A subclass, since a comparison builds schemes from sizes alone, such as head_dim."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim, base=1_000_000.0)
