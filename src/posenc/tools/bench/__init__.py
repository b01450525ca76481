"""The benchmark of `posenc bench`: time and memory relative to attention without positions."""
