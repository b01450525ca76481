"""Llama 4 scales queries by their place in the cache, and not by position_ids: padding on the left counts."""

import torch
import transformers

PADDING, TOKENS = 4, 9
SIZES = {"vocab_size": 48, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 12}
REST = {"num_key_value_heads": 2, "intermediate_size_mlp": 64, "moe_layers": [], "initializer_range": 0.3}
SCALE = {"floor_scale": 4, "attn_scale": 0.5, "no_rope_layers": [1, 0]}  # small, so that few tokens of layer 2 show it


def logits(tuned):
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(**SIZES, **REST, **SCALE, attn_temperature_tuning=tuned, pad_token_id=0)
    model = transformers.Llama4ForCausalLM(config).eval()
    ids = torch.randint(3, 48, (1, TOKENS))
    filled = torch.nn.functional.pad(ids, (PADDING, 0))
    mask = (filled > 0).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        padded = model(input_ids=filled, attention_mask=mask, position_ids=positions).logits[:, PADDING:]
        return model(input_ids=ids).logits, padded


off, rounding = (float(torch.sub(*logits(tuned)).abs().max()) for tuned in (True, False))
largest = float(logits(tuned=True)[0].abs().max())
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print(f"expected: the logits of the row alone, as without attn_temperature_tuning (off by {rounding:.0e})")
print(f"came:     off by {off:.2g}, where the largest is {largest:.2g}")
raise SystemExit(off > 100 * rounding)
