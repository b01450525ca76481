"""DroPE: a small Llama of transformers learns with RoPE, and a little more, on texts of the same length, without it.

A text has six facts among fillers, and ends with a question about each. Source: Gelberg et al. 2025, "Extending the
Context of Pretrained LLMs by Dropping Their Positional Embeddings" (arXiv 2512.12167). Limits, of it and of this file:
the model must be a decoder, whose causal mask distinguishes orders; answers depend on contents here, and told to copy
from a fixed distance this model did not learn it again; a pretrained model needs its own data, or forgets; attention
flattens over more keys, and nothing sharpens it (`QueryScale` does); two layers say little of large models.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import posenc
from posenc.huggingface import patch

FACTS, VALUES, QUESTION, FILLER, TRAINED = 6, 6, 36, 42, 32  # tokens: 36 facts, a question about each of six, a filler
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ROPE = {"rope_type": "default", "rope_theta": 20.0}  # even the slowest pair turns visibly within a text


def texts(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Texts, and the answers to the questions at their end."""
    values = torch.randint(VALUES, (rows, FACTS))
    places = torch.rand(rows, length - FACTS).argsort(1)[:, :FACTS]
    told = torch.full((rows, length - FACTS), FILLER).scatter(1, places, torch.arange(FACTS) * VALUES + values)
    asked = torch.rand(rows, FACTS).argsort(1)
    return torch.cat((told, QUESTION + asked), 1), values.gather(1, asked)


def train(model: LlamaForCausalLM, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(steps):
        ids, right = texts(32, TRAINED)
        logits = model(ids, use_cache=False).logits[:, -FACTS:, :VALUES]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), right.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def report(model: LlamaForCausalLM, when: str) -> None:
    for length in (TRAINED, 4 * TRAINED, 16 * TRAINED):
        ids, right = texts(100, length)
        chosen = model(ids, use_cache=False).logits[:, -FACTS:, :VALUES].argmax(-1)
        print(f"{when}, {length} tokens: {(chosen == right).double().mean():.0%} right")


def main() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=FILLER + 1, rope_parameters=ROPE, **SIZES))
    train(model, 100)
    report(model, "with RoPE")
    patch(model, posenc.NoPE())
    report(model, "dropped")
    train(model, 50)
    report(model, "trained again")


if __name__ == "__main__":
    main()
