"""Documents packed into a row are told apart only without a cache and without an attention_mask."""

import torch
import transformers

torch.manual_seed(0)
sizes = {"vocab_size": 48, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, initializer_range=0.3)).eval()
first, second = torch.randint(3, 48, (1, 8)), torch.randint(3, 48, (1, 5))
positions = torch.cat([torch.arange(8), torch.arange(5)])[None]
packed = {"input_ids": torch.cat([first, second], 1), "position_ids": positions}


def off(**options):
    with torch.no_grad():
        alone, row = model(input_ids=second).logits, model(**packed, **options).logits
    return float((row[:, 8:] - alone).abs().max())


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
apart, plain = off(use_cache=False), off()
masked = off(use_cache=False, attention_mask=torch.ones(1, 13).long())
print(f"expected: the logits of the second document alone, as with use_cache=False (off by {apart:.0e})")
print(f"came:     off by {plain:.2g} in a plain call, by {masked:.2g} with use_cache=False and a mask of ones")
raise SystemExit(max(plain, masked) > 100 * apart)
