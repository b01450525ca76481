"""Records the passes of a model that is trained on a GPU, so that a small one does not wait for Python."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn


class Recorded(nn.Module):
    """A model whose forward and backward passes are recorded as CUDA graphs in the first call, and replayed in all
    calls, whose arguments must have the shapes of the first.

    The model itself stays as it is and can be called beside. What cannot be recorded, such as a scheme that reads
    numbers back to the host, is called as it is, with a warning.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._passes: Any = None
        # Gradients are added up on the stream that recorded the passes, and PyTorch waits for it.
        warnings.filterwarnings("ignore", "The AccumulateGrad node's stream does not match", UserWarning)

    def forward(self, *inputs: Tensor) -> Tensor:
        if self._passes is None:
            self._passes = self._recorded(inputs)
        found: Tensor = self._passes(*inputs)
        return found

    def _recorded(self, inputs: tuple[Tensor, ...]) -> Any:
        try:
            return torch.cuda.make_graphed_callables(_Passes(self.model), inputs, allow_unused_input=True)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"the model's passes cannot be recorded as CUDA graphs, so its training is slower: {reason}",
                stacklevel=2,
            )
            return self.model


class _Passes(nn.Module):
    """The model in a module of its own, since `torch.cuda.make_graphed_callables` replaces ``forward``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = self.model(*inputs)
        return found
