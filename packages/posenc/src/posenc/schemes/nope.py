"""NoPE: no positional encoding."""

from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law


class NoPE(Scheme):
    """No positional encoding.

    A decoder can still learn order from its causal mask, where token i attends to i + 1 tokens. Without the mask,
    attention is permutation-equivariant. No parameters, no cost.

    Source: Haviv et al. 2022, "Transformer Language Models without Positional Encodings Still Learn Positional
    Information"; Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization", for the name.
    """


ENTRY = Entry(
    name="nope",
    scheme=NoPE,
    paper="Haviv et al. 2022; Kazemnejad et al. 2023",
    laws=FORMULA | {Law.RELATIVE, Law.BOUNDED, Law.ORDER_FREE},
    cost="none",
    build=lambda shape: NoPE(),
    does="nothing: a decoder infers order from its causal mask",
    limits="an encoder without a mask cannot distinguish orders",
    formula=r"s_{ij} = \frac{q_i \cdot k_j}{\sqrt{d}}",
    example="posenc.attention(q, k, v, posenc.NoPE(), is_causal=True)",
    users="one layer in four of SmolLM3, Command R7B and Command A",
    url="https://arxiv.org/abs/2305.19466",
    avoid="**Encoders.** Every order of tokens gives the same outputs. For decoders: [our study](../study/index.md).",
)
