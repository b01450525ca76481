"""The tiled backend: terms that depend on the distance, in linear memory, in PyTorch alone.

`backend` takes a call apart; `operator` runs it tile by tile; `far` divides a tile into what the fused kernel runs
(`fused`) and blocks near the diagonal, which `pairwise` and `near` run.
"""
