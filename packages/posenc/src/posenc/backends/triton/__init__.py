"""posenc's Triton kernels for CUDA: attention with vectors by distance, in one pass over the keys."""
