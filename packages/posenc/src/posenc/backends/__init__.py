"""Attention with positions: `attention()` and `logits()`, and the backends that run them.

Read `attention.py` first. `request.py` checks its arguments, `choice.py` selects a backend, `call.py` has the interface
of all backends, and `reference.py` is the one that the others are tested against.
"""
