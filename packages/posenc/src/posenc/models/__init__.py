"""Small Transformers that take any scheme, and `ForwardPass`, `KVCache` and a convolution for your own layers."""

from posenc.models.cache import KVCache
from posenc.models.forward_pass import ForwardPass
from posenc.models.positional_convolution import PositionalConvolution
from posenc.models.transformer import Decoder, Encoder, ImageClassifier, position_parameters

__all__ = [
    "Decoder",
    "Encoder",
    "ForwardPass",
    "ImageClassifier",
    "KVCache",
    "PositionalConvolution",
    "position_parameters",
]
