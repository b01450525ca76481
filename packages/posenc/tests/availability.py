"""What tests need that may be absent: why it is not there, or an empty text."""

import importlib.util
import os

NO_TRITON = ""  # why kernels for GPUs can be neither interpreted nor compiled here
if importlib.util.find_spec("triton") is None:
    NO_TRITON = "needs Triton, which is not installed"
elif os.environ.get("POSENC_SHAPES") == "1":
    NO_TRITON = "POSENC_SHAPES=1 guards functions, and Triton would read the guards"
