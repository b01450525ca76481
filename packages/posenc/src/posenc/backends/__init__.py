"""Attention with positions: `attention()`, `logits()` and `explain()`, and the backends that run them.

Read `api.py` first. A call goes down: `plan.py` finds or makes what calls like it have in common, for which
`request.py` checks the arguments and `choose.py` selects a backend. `call.py` has the interface of all backends, and
`reference.py` is the one that the others are tested against. The folder is not called attention, since importing a
module of that name would replace the function `posenc.attention`.
"""
