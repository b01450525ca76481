"""DeBERTa v2 and v3 cannot train with reentrant activation checkpointing."""

import torch
import transformers

IDS = torch.arange(3, 16)[None]


def gradient(checkpointed):
    torch.manual_seed(0)
    config = transformers.DebertaV2Config(
        vocab_size=48,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",  # as in the checkpoints of version 3
    )
    model = transformers.DebertaV2Model(config).train()
    if checkpointed:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": True})
    model(input_ids=IDS).last_hidden_state.square().sum().backward()
    return model.encoder.rel_embeddings.weight.grad


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
print("expected: the gradients that there are without checkpointing")
plain = gradient(checkpointed=False)
try:
    off = float((gradient(checkpointed=True) - plain).abs().max() / plain.abs().max())
except RuntimeError as error:
    print("came:     RuntimeError:", str(error).partition(" (")[0])
    raise SystemExit(1) from None
print(f"came:     gradients off by {off:.2g} of the largest")
raise SystemExit(off > 1e-4)
