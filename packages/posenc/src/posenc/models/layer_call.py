"""`LayerCall`: what a layer asks of attention."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from posenc.backends.attention import attention
from posenc.backends.plan import planned
from posenc.backends.request import Request
from posenc.encoding.encoding import Encoding
from posenc.encoding.features import Features
from posenc.positions.tiles import Window


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One layer's tensors in a forward pass, and the options of `posenc.attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    layer: int = 0
    features: Features = field(default_factory=dict)
    key_features: Features = field(default_factory=dict)
    is_causal: bool = False
    window: Window = None
    attn_mask: Tensor | None = None
    sinks: Tensor | None = None
    dropout_p: float = 0.0
    scale: float | None = None
    backend: str = "auto"
    skip_below: float | None = None
    return_lse: bool = False

    def check(self, encoding: Encoding) -> None:
        """Raises the errors of `attend`, and computes nothing. What it finds is kept for `attend`."""
        encoding = self._with_features(encoding)
        asked = Request(
            self.query,
            self.key,
            self.value,
            encoding,
            None,
            None,
            self.attn_mask,
            self.is_causal,
            self.window,
            self.sinks,
            self.dropout_p,
            self.scale,
            return_lse=self.return_lse,
            skip_below=self.skip_below,
        )
        planned(asked, self.backend)

    def attend(self, encoding: Encoding, key_norms: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Attention by an encoding of these queries and keys, with their features."""
        encoding = self._with_features(encoding)
        return attention(
            self.query,
            self.key,
            self.value,
            encoding,
            is_causal=self.is_causal,
            window=self.window,
            attn_mask=self.attn_mask,
            sinks=self.sinks,
            dropout_p=self.dropout_p,
            scale=self.scale,
            backend=self.backend,
            skip_below=self.skip_below,
            return_lse=self.return_lse,
            key_norms=key_norms,
        )

    def _with_features(self, encoding: Encoding) -> Encoding:
        if self.features or self.key_features:
            return encoding.with_features(self.features, self.key_features)
        return encoding
