"""Attention with positions: `attention()` and `logits()`, and the backends that run them."""
