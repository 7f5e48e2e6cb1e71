"""Rules about one role's optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.training import OptimConfig

BFLOAT16_STEP = 2**-8
"""Relative changes below this may leave a bfloat16 number as it is."""


def optim_problems(key: str, optim: OptimConfig, dtype: str) -> Iterator[str]:
    """Every broken rule.

    Args:
        key: dotted name of the section, for messages.
        optim: the section.
        dtype: ``trainer.dtype``.
    """
    if not all(0.0 <= beta < 1.0 for beta in optim.betas):
        yield f"{key}.betas={list(optim.betas)}: each must lie in [0, 1)"
    if optim.min_lr > optim.lr:
        yield f"{key}.min_lr={optim.min_lr} exceeds {key}.lr={optim.lr}"
    decays = optim.lr_decay_steps
    if decays is not None and decays <= optim.lr_warmup_steps:
        yield f"{key}.lr_decay_steps={decays} must exceed {key}.lr_warmup_steps={optim.lr_warmup_steps}"
    yield from _precision_problems(key, optim, dtype)
    yield from _overlap_problems(key, optim)


def _precision_problems(key: str, optim: OptimConfig, dtype: str) -> Iterator[str]:
    aware = optim.use_precision_aware_optimizer
    dtypes = {name: getattr(optim, name) for name in ("main_grads_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")}
    for name, dtype in dtypes.items():
        if dtype != "float32" and not aware:
            yield f"{key}.{name}={dtype} needs {key}.use_precision_aware_optimizer=true; set it, or use float32"
    if aware and not optim.use_distributed_optimizer:
        yield (
            f"{key}.use_precision_aware_optimizer=true needs {key}.use_distributed_optimizer=true, also on one rank; "
            "set it, or leave both out"
        )
    if aware and dtype == "float32":
        yield (
            f"{key}.use_precision_aware_optimizer=true with trainer.dtype=float32: its master weights complete 16-bit weights; "
            "use trainer.dtype=bfloat16, or leave it out"
        )
    if aware and optim.exp_avg_sq_dtype == "bfloat16" and 1 - optim.betas[1] < BFLOAT16_STEP:
        yield (
            f"{key}.exp_avg_sq_dtype=bfloat16 with {key}.betas[1]={optim.betas[1]}: a step shrinks the moment by at "
            f"most {1 - optim.betas[1]:.2g} of itself, which bfloat16 (steps of {BFLOAT16_STEP:.2g}) rounds away, "
            "so it could only grow; use float32, or a betas[1] of 0.99 or less"
        )


def _overlap_problems(key: str, optim: OptimConfig) -> Iterator[str]:
    if optim.overlap_param_gather and not (optim.use_distributed_optimizer and optim.overlap_grad_reduce):
        yield (
            f"{key}.overlap_param_gather=true needs {key}.use_distributed_optimizer=true and {key}.overlap_grad_reduce=true; "
            "set both"
        )
