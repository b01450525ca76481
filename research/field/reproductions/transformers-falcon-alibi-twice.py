"""Falcon with ALiBi adds its bias twice under eager attention."""

import torch
import transformers

SIZES = {"vocab_size": 48, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


def logits(implementation, **options):
    torch.manual_seed(0)
    config = transformers.FalconConfig(**SIZES, **options, initializer_range=0.3, attn_implementation=implementation)
    with torch.no_grad():
        return transformers.FalconForCausalLM(config).eval()(input_ids=torch.arange(3, 35)[None]).logits


def off(**options):
    return float((logits("eager", **options) - logits("sdpa", **options)).abs().max())


rotary, alibi = off(alibi=False), off(alibi=True)

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print(f"expected: the logits of sdpa under eager, as without ALiBi (off by {rotary:.0e})")
print(f"came:     off by {alibi:.2g}, where the largest is {float(logits('sdpa', alibi=True).abs().max()):.2g}")
raise SystemExit(alibi > 100 * rotary)
