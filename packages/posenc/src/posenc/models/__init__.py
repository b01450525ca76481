"""Small Transformers that take any scheme, and `ForwardPass` and `KVCache` for your own layers."""

from posenc.models.cache import KVCache
from posenc.models.forward_pass import ForwardPass
from posenc.models.transformer import Decoder, Encoder, ImageClassifier, position_parameters

__all__ = ["Decoder", "Encoder", "ForwardPass", "ImageClassifier", "KVCache", "position_parameters"]
