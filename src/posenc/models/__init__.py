"""A Transformer on one page, that takes any scheme."""

from posenc.models.image import ImageClassifier
from posenc.models.transformer import Decoder, Encoder, KVCache

__all__ = ["Decoder", "Encoder", "ImageClassifier", "KVCache"]
