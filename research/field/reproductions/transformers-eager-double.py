"""Eager attention in double precision gives NaN for every row that is padded on the left."""

import torch
import transformers

PADDING, TOKENS = 4, 9


def logits(implementation):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=48,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        attn_implementation=implementation,
    )
    model = transformers.LlamaForCausalLM(config).double().eval()
    ids = torch.randint(3, 48, (1, PADDING + TOKENS))
    mask = (torch.arange(PADDING + TOKENS) >= PADDING).long()[None]
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits[:, PADDING:]


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
nans = {name: int(logits(name).isnan().sum()) for name in ("sdpa", "eager")}
print(f"expected: no NaN among the {TOKENS * 48} logits of the tokens (under sdpa {nans['sdpa']})")
print(f"came:     {nans['eager']} NaN under eager")
raise SystemExit(nans["eager"] > 0)
