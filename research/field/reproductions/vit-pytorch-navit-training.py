"""NaViT of nested tensors cannot be trained with its default token_dropout_prob."""

import sys
from importlib.metadata import version
from unittest.mock import MagicMock

import torch

sys.modules["torchvision"] = MagicMock()  # the package imports it, and this does not need it

from vit_pytorch.na_vit_nested_tensor import NaViT

print(f"vit-pytorch {version('vit-pytorch')}, torch {torch.__version__}")
options = {"patch_size": 16, "num_classes": 4, "dim": 32, "depth": 1, "heads": 2, "mlp_dim": 32}
model = NaViT(image_size=64, **options)
images = [torch.zeros(3, 64, 32), torch.zeros(3, 32, 32)]

print("expected: logits for 2 images in training, as in evaluation")
try:
    print("came:    ", tuple(model.train()(images).shape))
except TypeError as error:
    print("came:     TypeError:", error)
    raise SystemExit(1) from None
