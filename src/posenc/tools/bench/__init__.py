"""The benchmark: what position costs, measured in turns with plain attention. `posenc bench` runs it."""
