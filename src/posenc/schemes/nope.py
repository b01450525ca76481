"""NoPE: no positional encoding."""

from __future__ import annotations

from posenc.scheme import Scheme


class NoPE(Scheme):
    """No positional encoding: every door stays closed.

    A decoder still learns order from its causal mask, which lets token i see i + 1 tokens. Without the mask attention
    is permutation-equivariant. No parameters, no cost.

    Source: Haviv et al. 2022, "Transformer Language Models without Positional Encodings Still Learn Positional
    Information"; Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization", who name it.
    """
