"""Llama 4 scales queries by their place in the cache, and not by their position.

A row that is padded on the left, with position_ids that count its tokens alone, is compared with the row by itself.
"""

import torch
import transformers

PADDING, TOKENS = 4, 9


def logits(tuned):
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(
        vocab_size=48,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        intermediate_size_mlp=64,
        moe_layers=[],
        no_rope_layers=[1, 0],  # the second layer has no positions, and scales its queries
        attn_temperature_tuning=tuned,
        floor_scale=4,  # by 1 + attn_scale ln(1 + floor((p + 1)/4)): small, so that few tokens show it
        attn_scale=0.5,
        initializer_range=0.3,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = transformers.Llama4ForCausalLM(config).eval()
    ids = torch.randint(3, 48, (1, TOKENS))
    mask = (torch.arange(PADDING + TOKENS) >= PADDING).long()[None]
    with torch.no_grad():
        alone = model(input_ids=ids).logits
        padded = model(
            input_ids=torch.nn.functional.pad(ids, (PADDING, 0)),
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        ).logits
    return alone, padded[:, PADDING:]


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
alone, padded = logits(tuned=True)
off = float((padded - alone).abs().max())
rounding = float(torch.sub(*logits(tuned=False)).abs().max())
print(f"expected: the logits of the row alone, as without attn_temperature_tuning (off by {rounding:.0e})")
print(f"came:     off by {off:.2g}, where the largest is {float(alone.abs().max()):.2g}")
raise SystemExit(off > 100 * rounding)
