"""What a run takes exactly as configured, on cards that need not be here: nothing is searched."""

from __future__ import annotations

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.layout_rules import layout_problems
from megatron_rl.config.run import RunConfig
from megatron_rl.estimator.catalogue import GIB, Gpu
from megatron_rl.estimator.coefficients import process_memory
from megatron_rl.estimator.configured import deployment_of
from megatron_rl.estimator.fitted import fitted_coefficients
from megatron_rl.estimator.memory import phase_memory
from megatron_rl.estimator.pools import roles_of
from megatron_rl.estimator.rank_memory import with_engine_sleep
from megatron_rl.estimator.step_time import num_micro_batches, step_parts
from megatron_rl.estimator.strategies import Pool, Strategy, usable_bytes
from megatron_rl.estimator.sync_bytes import planned_sync
from megatron_rl.estimator.workload import workload_of


def configured_strategy(
    config: RunConfig,
    gpu: Gpu,
    num_gpus: int,
    *,
    prompt_tokens: int | None = None,
    response_tokens: int | None = None,
) -> Strategy:
    """Memory and seconds of the run's own deployment.

    Args:
        config: of the run.
        gpu: the card.
        num_gpus: cards.
        prompt_tokens: mean; None = the configured maximum.
        response_tokens: mean; None = the configured maximum.

    Raises:
        ConfigError: layouts that do not fit the cards or the model, or a mean above its maximum.
    """
    problems = list(layout_problems(config, "plan", num_gpus))
    if problems:
        raise ConfigError(problems)
    known, card_gib = fitted_coefficients(gpu), gpu.memory_bytes / GIB
    launcher = config.launcher.model_copy(update={"gpu_memory_gib": config.launcher.gpu_memory_gib or card_gib})
    sized = with_engine_sleep(config.model_copy(update={"launcher": launcher}), num_gpus, launcher.gpu_memory_gib, gpu)
    deployment = deployment_of(sized, num_gpus, on_gpu=True)
    workload = workload_of(config, prompt_tokens=prompt_tokens, response_tokens=response_tokens)
    count = num_micro_batches(deployment.roles[0], workload, workload.actor_optimizer_steps, workload.actor_passes)
    return Strategy(
        pool=Pool(gpu=gpu, num_gpus=num_gpus, roles=roles_of(workload)),
        deployment=deployment,
        memory=phase_memory(deployment, process_memory(known), num_micro_batches=count),
        times=step_parts(deployment, workload, gpu, known, planned_sync(deployment, gpu.gpus_per_node, plan=True)),
        usable_bytes=usable_bytes(gpu, known),
    )
