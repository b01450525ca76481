"""equinox: RotaryPositionalEmbedding of JAX, called through NumPy: x (tokens, size), mapped over rows and heads.

Its arithmetic is float32, so float32 is what it is asked for.
"""

import equinox
import jax
import numpy
import torch

from posenc_check import Rotary


def build(embedding_size, theta):
    return equinox.nn.RotaryPositionalEmbedding(embedding_size, theta)


@equinox.filter_jit
def apply(module, x):
    return jax.vmap(jax.vmap(module))(x)


class Bridge(torch.autograd.Function):
    """A call of the module in JAX, from torch and back, with its derivative."""

    @staticmethod
    def forward(context, x, module):
        out, context.pull = jax.vjp(lambda x: apply(module, x), jax.numpy.asarray(x.detach().numpy()))
        return torch.from_numpy(numpy.array(out))

    @staticmethod
    def backward(context, grad):
        return torch.from_numpy(numpy.array(context.pull(jax.numpy.asarray(grad.numpy()))[0])), None


def rotate(module, x):
    return Bridge.apply(x.float(), module).to(x.dtype)


rotary = Rotary(
    build=build,
    call=rotate,
    options={"embedding_size": 16, "theta": 10_000.0},
    relative=True,
    causal=True,
    base=10000.0,
    layout="half",
    dtype=torch.float32,
    varied={"theta": 500.0},
    refused=({"embedding_size": 15},),
)

SUBJECTS = (("RotaryPositionalEmbedding", rotary),)
