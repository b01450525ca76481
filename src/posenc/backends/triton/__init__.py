"""A kernel of posenc's own for CUDA, in Triton: attention with vectors by distance, in one pass over the keys."""
