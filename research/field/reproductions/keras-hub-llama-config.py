"""LlamaRotaryEmbedding of keras-hub cannot be made again from its own get_config."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import keras_hub
import torch
from keras_hub.src.models.llama.llama_rotary_embedding import LlamaRotaryEmbedding
from keras_hub.src.models.roformer_v2.roformer_v2_attention import RoformrPositionalEmbedding

came = []
for layer in (LlamaRotaryEmbedding(), RoformrPositionalEmbedding(16)):
    try:
        type(layer).from_config(layer.get_config())
    except (TypeError, AttributeError) as error:
        came.append(f"{type(layer).__name__}: {type(error).__name__}")

print(f"keras-hub {keras_hub.__version__}, keras {keras.__version__}, torch {torch.__version__}")
print("expected: from_config(get_config()) gives the layer again")
print("came:     " + ("; ".join(came) or "the layers"))
raise SystemExit(bool(came))
