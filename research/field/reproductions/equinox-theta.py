"""RotaryPositionalEmbedding of equinox rotates by the theta of the first module of its size."""

import equinox
import jax

x = jax.numpy.ones((64, 16))
module = equinox.nn.RotaryPositionalEmbedding(16, theta=500.0)
alone = module(x)
equinox.nn._embedding.internal_rope_embedding_cache.clear()  # as in a new process
equinox.nn.RotaryPositionalEmbedding(16, theta=10_000.0)(x)
after = module(x)
off = float(abs(after - alone).max())

print(f"equinox {equinox.__version__}, jax {jax.__version__}")
print("expected: theta=500 gives the same after a call of a module with theta=10000")
print(f"came:     off by up to {off:.2g}")
raise SystemExit(off > 1e-5)
