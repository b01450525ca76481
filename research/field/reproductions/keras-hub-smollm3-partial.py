"""SmolLM3 of keras-hub does not run with a partial_rotary_factor below 1."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch

sizes = {"vocabulary_size": 32, "hidden_dim": 32, "intermediate_dim": 32, "num_layers": 1, "num_attention_heads": 2}
heads = {"num_key_value_heads": 1, "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False}
rest = {"rope_layer_enabled_list": [True], "layer_types": ["attention"], "layer_norm_epsilon": 1e-5}
places = {"max_position_embeddings": 64, "rope_theta": 1e4}
batch = {"token_ids": torch.arange(4)[None], "padding_mask": torch.ones(1, 4).long()}
came = {}
for factor in (1.0, 0.5):
    try:
        keras_hub.models.SmolLM3Backbone(**sizes, **heads, **rest, **places, partial_rotary_factor=factor)(batch)
        came[factor] = "an answer"
    except RuntimeError as error:
        came[factor] = str(error).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()[2]

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print(f"expected: with partial_rotary_factor=0.5, as with 1, {came[1.0]}")
print(f"came:     {came[0.5]}")
raise SystemExit(came[0.5] != "an answer")
