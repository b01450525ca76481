"""SmolLM3 of keras-hub does not run with a partial_rotary_factor below 1."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch


def runs(factor):
    try:
        model = keras_hub.models.SmolLM3Backbone(
            vocabulary_size=32,
            hidden_dim=32,
            intermediate_dim=32,
            num_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            attention_bias=False,
            attention_dropout=0.0,
            rope_layer_enabled_list=[True],
            layer_types=["attention"],
            mlp_bias=False,
            layer_norm_epsilon=1e-5,
            max_position_embeddings=64,
            rope_theta=1e4,
            partial_rotary_factor=factor,
        )
        model({"token_ids": torch.arange(4)[None], "padding_mask": torch.ones(1, 4).long()})
    except RuntimeError as error:
        return str(error).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()[2]
    return ""


assert not runs(1.0)
came = runs(0.5)

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print("expected: partial_rotary_factor=0.5 rotates half of the channels")
print(f"came:     {came or 'an answer'}")
raise SystemExit(bool(came))
