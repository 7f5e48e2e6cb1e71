"""Where Triton kernels run in tests: on the GPU, else on CPU tensors in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture
def device(nan_empty: None) -> torch.device:
    """Device of the kernels under test; outputs they leave unwritten are NaN.

    Without a GPU the test runs only where Triton was told to interpret before its import: in the process that
    test_interpreter.py starts.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return torch.device("cpu")
    pytest.skip("runs on a GPU or inside test_interpreter.py")
