"""AdamW, its learning-rate schedule, and one guarded optimizer step, over Megatron's distributed optimizer."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import MegatronOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megatron_rl.config.training import OptimConfig, OptimizerDtype
from megatron_rl.models.gpt import TransformerStage
from megatron_rl.parallel.groups import RoleGroups
from megatron_rl.runtime.platform import Platform
from megatron_rl.training.master_weights import forget_remainders

_log = logging.getLogger(__name__)

_DTYPES: dict[OptimizerDtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def adam_implementation() -> str:
    """Which Adam Megatron-Core picks here: ``transformer_engine``, ``apex`` or ``torch``.

    Warns where the unrelated PyPI project called ``apex`` is installed instead of NVIDIA Apex.
    """
    if importlib.util.find_spec("transformer_engine") is not None:
        return "transformer_engine"
    if importlib.util.find_spec("apex") is not None:
        if importlib.util.find_spec("amp_C") is not None:
            return "apex"
        _log.warning(
            "the installed package 'apex' is not NVIDIA Apex (it lacks the amp_C extension); "
            "uninstall it with: pip uninstall apex. Continuing with torch's optimizers."
        )
    return "torch"


def has_fused_adam() -> bool:
    """Whether the Adam that Megatron-Core picks here is one kernel, not torch's with temporary copies."""
    return adam_implementation() != "torch"


def require_optimizer(optim: OptimConfig, platform: Platform) -> None:
    """Raise ValueError where the settings need an Adam that is not installed, before a model is built."""
    if not optim.use_precision_aware_optimizer:
        return
    if platform.device.type != "cuda" or adam_implementation() != "transformer_engine":
        raise ValueError(
            f"optim.use_precision_aware_optimizer=true needs Transformer Engine's Adam on a GPU; here are "
            f"{platform.device.type} and {adam_implementation()}'s Adam. Install transformer-engine, or leave it out and set "
            "main_grads_dtype, exp_avg_dtype and exp_avg_sq_dtype to float32"
        )
    if platform.dtype != torch.bfloat16:
        raise ValueError(f"optim.use_precision_aware_optimizer=true needs trainer.dtype=bfloat16, not {platform.dtype}")


def wrap_data_parallel(
    chunks: Sequence[TransformerStage], groups: RoleGroups, optim: OptimConfig
) -> list[DistributedDataParallel]:
    """Put each chunk into Megatron's data-parallel wrapper: gradients are *added*, never averaged.

    With the distributed optimizer this moves all parameters into one buffer per dtype; their storage stays put after.
    """
    config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=optim.main_grads_dtype == "float32",
        use_distributed_optimizer=optim.use_distributed_optimizer,
        overlap_grad_reduce=optim.overlap_grad_reduce,
        overlap_param_gather=optim.overlap_param_gather,
        average_in_collective=False,
    )
    return [
        DistributedDataParallel(
            config=chunk.config, ddp_config=config, module=chunk, disable_bucketing=index > 0, pg_collection=groups.collection
        )
        for index, chunk in enumerate(chunks)
    ]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one optimizer step did."""

    grad_norm: float
    """L2 norm of the whole gradient before clipping."""
    lr: float
    skipped: bool
    """The gradient was not finite, so weights and moments were left alone."""


class RoleOptimizer:
    """Optimizer and schedule of one role."""

    def __init__(
        self,
        chunks: Sequence[DistributedDataParallel],
        groups: RoleGroups,
        optim: OptimConfig,
        platform: Platform,
        total_steps: int,
    ) -> None:
        """Make the optimizer.

        Args:
            chunks: wrapped stages of this rank.
            groups: of the role.
            optim: settings.
            platform: dtype of the parameters.
            total_steps: optimizer steps of the run, the schedule's length where ``lr_decay_steps`` is null.
        """
        if optim.min_lr > optim.lr:
            raise ValueError(f"optim.min_lr={optim.min_lr} is above optim.lr={optim.lr}; lower it")
        adam_implementation()
        self.chunks = list(chunks)
        self._gathers_late = optim.overlap_param_gather
        self._has_stale_weights = optim.overlap_param_gather
        """Whether other ranks' parts of the weights may be older than the last step."""
        self.megatron: MegatronOptimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=optim.lr,
                min_lr=optim.min_lr,
                weight_decay=optim.weight_decay,
                adam_beta1=optim.betas[0],
                adam_beta2=optim.betas[1],
                adam_eps=optim.eps,
                # The norm is wanted also where nothing is clipped.
                clip_grad=optim.clip_grad or math.inf,
                bf16=platform.dtype == torch.bfloat16,
                params_dtype=platform.dtype,
                use_distributed_optimizer=optim.use_distributed_optimizer,
                overlap_param_gather=optim.overlap_param_gather,
                use_precision_aware_optimizer=optim.use_precision_aware_optimizer,
                main_grads_dtype=_DTYPES[optim.main_grads_dtype],
                exp_avg_dtype=_DTYPES[optim.exp_avg_dtype],
                exp_avg_sq_dtype=_DTYPES[optim.exp_avg_sq_dtype],
            ),
            self.chunks,
            use_gloo_process_groups=False,
            pg_collection=groups.collection,
        )
        decay_steps = max(optim.lr_decay_steps or total_steps, optim.lr_warmup_steps + 1)
        self.scheduler = OptimizerParamScheduler(
            self.megatron,
            init_lr=0.0,
            max_lr=optim.lr,
            min_lr=optim.min_lr,
            lr_warmup_steps=optim.lr_warmup_steps,
            lr_decay_steps=decay_steps,
            lr_decay_style=optim.lr_decay_style,
            start_wd=optim.weight_decay,
            end_wd=optim.weight_decay,
            wd_incr_steps=decay_steps,
            wd_incr_style="constant",
            # The run's configuration decides, the checkpoint only says which step it is.
            use_checkpoint_opt_param_scheduler=False,
            override_opt_param_scheduler=True,
        )

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.megatron.zero_grad()

    def step(self) -> StepOutcome:
        """Clip and apply the gradients, unless they are not finite.

        The schedule moves first: the first of ``n`` warm-up steps runs at ``lr / n``, not at 0. With
        ``optim.overlap_param_gather`` the weights are whole only after :meth:`complete_weights`; a forward pass gathers
        those of each layer before it runs.

        Collectives: the role's ranks (norm), the data-parallel group (parameters).
        """
        self.scheduler.step(1)
        lr = float(self.megatron.param_groups[0]["lr"])
        self.megatron.prepare_grads()
        grad_norm = float(self.megatron.get_grad_norm())
        if not math.isfinite(grad_norm):
            _log.warning("gradient norm is %s: this optimizer step is skipped", grad_norm)
            return StepOutcome(grad_norm, lr, skipped=True)
        self.megatron.step()
        self._has_stale_weights = self._gathers_late
        return StepOutcome(grad_norm, lr, skipped=False)

    def complete_weights(self) -> None:
        """Gather what is not yet whole after the last step. Collectives: the data-parallel group."""
        if self._has_stale_weights:
            for chunk in self.chunks:
                chunk.start_param_sync(force_sync=True)
            self._has_stale_weights = False

    def wait_for(self, weight: torch.Tensor) -> None:
        """Complete one weight that is read without calling its module. Collectives: the data-parallel group."""
        if self._gathers_late:
            for chunk in self.chunks:
                if weight in chunk.param_to_bucket_group:
                    chunk.param_to_bucket_group[weight].finish_param_sync()

    def weights_changed(self) -> None:
        """Take over weights that were written from outside."""
        self.megatron.reload_model_params()
        forget_remainders(self.megatron)

    def state_dict(self) -> dict[str, Any]:
        """Of the schedule; the optimizer's own state is sharded, see ``checkpoint``."""
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the schedule to a saved step."""
        self.scheduler.num_steps = 0
        self.scheduler.load_state_dict(state)
