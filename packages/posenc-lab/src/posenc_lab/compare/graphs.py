"""Records the passes of a model that is trained on a GPU, so that a small one does not wait for Python."""

import gc
import warnings

import torch
from torch import Tensor, nn

from posenc_lab.kit import processes


def replayed(model: nn.Module) -> nn.Module:
    """The model to call in training: on one GPU one whose passes are recorded, else the model itself."""
    on_gpu = next(model.parameters()).device.type == "cuda"
    return Recorded(model) if on_gpu and processes.world() == 1 else model


class Recorded(nn.Module):
    """A model whose forward and backward passes are recorded as CUDA graphs in the first call, and replayed in all
    calls, whose arguments must have the shapes of the first.

    The model itself stays as it is and can be called beside. What cannot be recorded, such as a scheme that reads
    numbers back to the host, is called as it is, with a warning.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._is_tried = False

    def forward(self, *inputs: Tensor) -> Tensor:
        if not self._is_tried:
            self._is_tried = True
            self._record(inputs)
            replay: Tensor = self(*inputs)
            return replay
        found: Tensor = self.model(*inputs)
        return found

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        """PyTorch's function replaces ``forward`` of this module by the replay."""
        gc.collect()  # the graphs of an earlier model, which are in a reference cycle, hold its memory
        # Gradients are added up on the stream that recorded, and PyTorch waits for it: of this newer versions warn.
        if quiet := getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None):
            quiet(False)
        device = inputs[0].device
        # Graphs are of the current device; and after an error the stream that recorded would stay the current one.
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            try:
                torch.cuda.make_graphed_callables(self, inputs, allow_unused_input=True)
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                warnings.warn(
                    f"the model's passes cannot be recorded as CUDA graphs, so its training is slower: {reason}",
                    stacklevel=2,
                )
