"""DeBERTa v2 and v3 cannot train with reentrant activation checkpointing."""

import torch
import transformers

SIZES = {"vocab_size": 48, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
VERSION_3 = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}


def gradient(checkpointed):
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        **SIZES, **VERSION_3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    model = transformers.DebertaV2Model(config).train()
    if checkpointed:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    model(input_ids=torch.arange(3, 16)[None]).last_hidden_state.square().sum().backward()
    return model.encoder.rel_embeddings.weight.grad


plain = gradient(checkpointed=False)
try:
    off = float((gradient(checkpointed=True) - plain).abs().max() / plain.abs().max())
    came = f"gradients off by {off:.2g} of the largest"
except RuntimeError as error:
    off, came = 1.0, f"RuntimeError: {str(error).partition(' (')[0]}"
print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print(f"expected: the gradients that there are without checkpointing\ncame:     {came}")
raise SystemExit(off > 1e-4)
