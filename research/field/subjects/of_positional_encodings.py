"""positional-encodings: sinusoids to add to what they are given, with Summer, in one and two dimensions."""

from positional_encodings.torch_encodings import PositionalEncoding1D, PositionalEncoding2D, Summer

from posenc_check import Layer


def build(channels):
    return Summer(PositionalEncoding1D(channels))


def build_2d(channels):
    return Summer(PositionalEncoding2D(channels))


def add(module, x):
    return module(x)


def add_2d(module, x, grid=None):
    """Without a grid, as one row."""
    return module(x.unflatten(1, grid or (1, x.size(1)))).flatten(1, 2)


one = Layer(build=build, call=add, options={"channels": 32}, relative=False)
odd = Layer(build=build, call=add, options={"channels": 33}, dim=33, relative=False)
two = Layer(build=build_2d, call=add_2d, options={"channels": 32}, axes=2)

SUBJECTS = (
    ("PositionalEncoding1D", one),
    ("PositionalEncoding1D, 33 channels", odd),
    ("PositionalEncoding2D", two),
)
