"""Oracles: every scheme once more, as scalar loops in fp64 written from its paper.

They import nothing of posenc and nothing of each other, except the attention loop in `attention.py`. Positions are
always explicit lists, one row per sample. Parameters, queries, keys and values come as float64 tensors or as nested
lists. No speed is wanted here: a reader should be able to hold the formula beside the body.
"""
