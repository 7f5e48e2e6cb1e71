"""Messages of libraries that tell a user nothing: what they report is known, checked, or answered elsewhere."""

from __future__ import annotations

import logging
import warnings
from functools import partial

_IGNORED = (
    # Absent Transformer Engine and Apex, deprecations inside Megatron-Core: the versions are pinned and tested.
    {"module": r"megatron\.core\..*", "category": UserWarning},
    # Megatron's gradient hooks read .grad of a pipeline's received activations, which is meant.
    {"message": r"The \.grad attribute of a Tensor that is not a leaf", "category": UserWarning},
    # Megatron's distributed checkpoint is built on torch's, which reads its metadata in one process on purpose.
    {"message": r"torch\.distributed is disabled, unavailable or uninitialized", "category": UserWarning},
    {"message": r"Please use DTensor instead", "category": FutureWarning},
    # Transformer Engine looks for its JAX half wherever JAX is installed.
    {"message": r"Detected a Jax installation", "category": RuntimeWarning},
)
_LOGGERS_AT_ERROR = (
    # GPTModel's migration notice and DDP's layout hint: models are built in one factory (models/gpt.py).
    "megatron.core",
    # "No CUDA runtime is found": a CPU-only host is a supported platform.
    "torch.utils.cpp_extension",
)
_DROPPED_LOG_LINES = {
    # The engine runs under a random state of its own (rollout/process_isolation.py).
    "vllm.engine.arg_utils": "The global random seed is set",
    # The trainer's kernels share the process and compile after the engine's warm-up; no request waits for them.
    "vllm.utils.jit_monitor": "Triton kernel JIT compilation",
    # Prompts and answers are token ids; where an answer ends is told to each request.
    "vllm.renderers.base": "Using None for EOS token id",
}
"""Logger -> how its line begins."""


def silence_known_warnings() -> None:
    """Drop them in this process; call before Megatron-Core is imported."""
    for rule in _IGNORED:
        warnings.filterwarnings("ignore", **rule)  # type: ignore[arg-type]
    for name in _LOGGERS_AT_ERROR:
        logging.getLogger(name).setLevel(logging.ERROR)
    for name, beginning in _DROPPED_LOG_LINES.items():
        logging.getLogger(name).addFilter(partial(_is_other, beginning))


def _is_other(beginning: str, record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(beginning)
