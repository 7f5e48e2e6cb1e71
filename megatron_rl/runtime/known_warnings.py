"""Messages of libraries that tell a user nothing: what they report is known, checked, or answered elsewhere."""

from __future__ import annotations

import logging
import warnings

_IGNORED = (
    # Absent Transformer Engine and Apex, deprecations inside Megatron-Core: the versions are pinned and tested.
    {"module": r"megatron\.core\..*", "category": UserWarning},
    # Megatron's gradient hooks read .grad of a pipeline's received activations, which is meant.
    {"message": r"The \.grad attribute of a Tensor that is not a leaf", "category": UserWarning},
    # Megatron's distributed checkpoint is built on torch's, which reads its metadata in one process on purpose.
    {"message": r"torch\.distributed is disabled, unavailable or uninitialized", "category": UserWarning},
    {"message": r"Please use DTensor instead", "category": FutureWarning},
)
_LOGGERS_AT_ERROR = (
    # GPTModel's migration notice and DDP's layout hint: models are built in one factory (models/gpt.py).
    "megatron.core",
    # "No CUDA runtime is found": a CPU-only host is a supported platform.
    "torch.utils.cpp_extension",
)


def silence_known_warnings() -> None:
    """Drop them in this process; call before Megatron-Core is imported."""
    for rule in _IGNORED:
        warnings.filterwarnings("ignore", **rule)  # type: ignore[arg-type]
    for name in _LOGGERS_AT_ERROR:
        logging.getLogger(name).setLevel(logging.ERROR)
