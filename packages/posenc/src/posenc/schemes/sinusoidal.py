"""Sinusoidal: adds vectors of sines and cosines to the input."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from posenc.arguments import check_choice, number, shown, whole
from posenc.positions.positions import Positions
from posenc.rotation.phases import coords_of, frequencies, phases
from posenc.scheme import Scheme
from posenc.schemes.entry import FORMULA, Entry, Law, lines


class Sinusoidal(Scheme):
    """Sinusoidal position vectors, added to the input.

    Formula, for k = 0 .. dim/2 - 1 and theta_k = base^(-2k/dim):

        interleaved:    P[p, 2k] = sin(p theta_k)    P[p, 2k + 1]     = cos(p theta_k)
        concatenated:   P[p, k]  = sin(p theta_k)    P[p, k + dim/2]  = cos(p theta_k)
        tensor2tensor:  concatenated, with theta_k = base^(-k/(dim/2 - 1)), so that the last frequency is 1/base

    With several ``axes`` (the row and column of a patch; the time, row and column of a video), each axis has dim/axes
    consecutive channels, by the formula above with dim/axes in place of dim.

    Shapes: table (rows, tokens, dim), float32 or float64, accurate to that dtype up to position 2^20 and beyond.
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.5 (interleaved); Dai et al. 2019,
    "Transformer-XL", whose code concatenates; He et al. 2022, "Masked Autoencoders", whose code concatenates on two
    axes and, despite its variable names, puts the column first. tensor2tensor: the first Transformer's code
    (``get_timing_signal_1d`` of github.com/tensorflow/tensor2tensor), which differs from its paper; also fairseq's,
    Whisper's and M2M100's. In fairseq and M2M100 the first position is 2 (``padding_idx`` + 1), and big_vision's vision
    transformers put the column first.

    >>> Sinusoidal(4).table(Positions.arange(2))
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0100, 0.9999]]])
    """

    def __init__(
        self,
        dim: int,
        base: float = 10_000.0,
        layout: Literal["interleaved", "concatenated", "tensor2tensor"] = "interleaved",
        axes: int = 1,
    ) -> None:
        super().__init__()
        dim, axes = whole("dim", dim), whole("axes", axes)
        if dim % (2 * axes):
            each = "" if axes == 1 else f" on each of {axes} axes"
            raise ValueError(f"dim must be positive and even{each} (sines and cosines come in pairs), got {dim}")
        check_choice("layout", layout, ("interleaved", "concatenated", "tensor2tensor"))
        self.dim, self.base, self.layout, self.axes = dim, number("base", base, above=1), layout, axes

    def _frequencies(self, device: torch.device | None = None) -> Float64[Tensor, " pairs"]:
        dim, base = self.dim // self.axes, self.base
        if self.layout == "tensor2tensor":
            base **= dim / max(dim - 2, 1)  # base^(-k/(dim/2 - 1)); a single pair has the frequency 1
        return frequencies(dim, base, device)

    def table(self, positions: Positions, dtype: torch.dtype = torch.float32) -> Float[Tensor, "rows tokens dim"]:
        check_choice("dtype", dtype, (torch.float32, torch.float64))
        coords = coords_of(positions, self.axes, "Sinusoidal")
        theta = self._frequencies(coords.device)
        angle = torch.stack([phases(axis, theta) for axis in coords.unbind(-1)], -2)
        axis = -1 if self.layout == "interleaved" else -2
        return torch.stack((angle.sin(), angle.cos()), axis).flatten(-3).to(dtype=dtype, device=coords.device)

    def linear_map(self, offset: Sequence[int | float]) -> Float64[Tensor, "dim dim"]:
        """M with P[p + offset] = M P[p] for every p: a rotation of each pair by offset theta_k. One offset per axis.

        >>> scheme = Sinusoidal(8)
        >>> M = scheme.linear_map([3])
        """
        if not isinstance(offset, Sequence) or len(offset) != self.axes:
            raise ValueError(f"offset must be a sequence of {self.axes} numbers, one per axis, got {shown(offset)}")
        offset = [number("offset", step) for step in offset]
        pairs = self.dim // (2 * self.axes)
        matrix = torch.zeros(self.dim, self.dim, dtype=torch.float64)
        for axis, step in enumerate(offset):
            for k, theta in enumerate(self._frequencies().tolist()):
                start = 2 * pairs * axis
                interleaved = self.layout == "interleaved"
                sin, cos = (start + 2 * k, start + 2 * k + 1) if interleaved else (start + k, start + k + pairs)
                # sin(a + b) = sin a cos b + cos a sin b, cos(a + b) = cos a cos b - sin a sin b
                matrix[sin, sin] = matrix[cos, cos] = math.cos(step * theta)
                matrix[sin, cos], matrix[cos, sin] = math.sin(step * theta), -math.sin(step * theta)
        return matrix


ENTRY = Entry(
    name="sinusoidal",
    scheme=Sinusoidal,
    paper="Vaswani et al. 2017",
    laws=FORMULA
    | {Law.ABSOLUTE, Law.UNIQUE, Law.LINEAR, Law.ORTHOGONAL, Law.BOUNDED, Law.DIRECTED, Law.EXTENSIBLE, Law.SEPARABLE},
    cost="one addition to the input",
    build=lambda shape: Sinusoidal(shape.dim, axes=shape.axes),
    axes="any",
    does="sines and cosines, in one of three layouts, on several `axes`; `linear_map` has the matrix of a shift",
    limits="any position has a vector, but those beyond the training length are new to the model",
    formula=lines(
        r"x_i \leftarrow x_i + P_{p_i}",
        r"\mbox{interleaved} \mbox{: } P_{p,2k} = \sin p \theta_k, \quad P_{p,2k+1} = \cos p \theta_k, \qquad "
        r"\theta_k = \mathrm{base}^{-2k/\mathrm{dim}}",
        r"\mbox{concatenated} \mbox{: } P_{p,k} = \sin p \theta_k, \quad "
        r"P_{p,k+\mathrm{dim}/2} = \cos p \theta_k, \qquad \mbox{tensor2tensor} \mbox{: the same,} "
        r"\allowbreak \theta_k = \mathrm{base}^{-k/(\mathrm{dim}/2 - 1)}",
    ),
    example=("encoding = posenc.Sinusoidal(768)(posenc.Positions.arange(64))\nx = encoding.add(x)"),
    users="the first Transformer, MAE on two axes, Whisper, M2M100, Marian",
    url="https://arxiv.org/abs/1706.03762",
    avoid="**Texts longer than in training.** `RoPE` has the same frequencies, and scores of distances alone.",
)
