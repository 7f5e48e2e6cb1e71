"""Rules about parallel degrees: each role against the model's shape, and all roles against the world."""

from __future__ import annotations

from collections.abc import Iterator

from megatron_rl.config.model import ModelConfig
from megatron_rl.config.parallel import ParallelConfig
from megatron_rl.config.run import RunConfig
from megatron_rl.config.tensor_degrees import divisors, rollout_tensor_degrees, training_tensor_degrees
from megatron_rl.config.world import TASKS_WITH_ENGINE, Task, block_size, role_layouts, smallest_world


def layout_problems(config: RunConfig, task: Task, world_size: int) -> Iterator[str]:
    """Every broken rule of the layouts, one message each."""
    if config.model.hidden_size % config.model.num_attention_heads != 0 and config.model.head_dim is None:
        yield (
            f"model.num_attention_heads={config.model.num_attention_heads} does not divide "
            f"model.hidden_size={config.model.hidden_size}; set model.head_dim"
        )
    if config.model.num_attention_heads % config.model.num_key_value_heads != 0:
        yield (
            f"model.num_key_value_heads={config.model.num_key_value_heads} does not divide "
            f"model.num_attention_heads={config.model.num_attention_heads}"
        )
    for role, layout in role_layouts(config, task).items():
        key = f"{role}.parallel"
        if role == "ref" and config.ref.parallel is None:
            continue  # the actor's layout, checked above
        yield from _tensor_problems(key, layout, config.model)
        yield from _pipeline_problems(key, layout, config.model)
        yield from _world_problems(key, layout, config, task, world_size)
    if task in TASKS_WITH_ENGINE:
        yield from _rollout_problems(config, task, world_size)


def _tensor_problems(key: str, layout: ParallelConfig, model: ModelConfig) -> Iterator[str]:
    legal = training_tensor_degrees(model)
    if layout.tensor not in legal:
        yield (
            f"{key}.tensor={layout.tensor} does not divide the heads of model {model.name} "
            f"(num_attention_heads={model.num_attention_heads}, num_key_value_heads={model.num_key_value_heads}, "
            f"intermediate_size={model.intermediate_size}); legal for training: {_listed(legal)}; "
            f"{key}.pipeline cuts the layers instead: {_listed(divisors(model.num_layers)[1:])}"
        )
    if layout.sequence_parallel and layout.tensor == 1:
        yield f"{key}.sequence_parallel=true needs {key}.tensor > 1: it cuts activations over the tensor-parallel ranks"


def _pipeline_problems(key: str, layout: ParallelConfig, model: ModelConfig) -> Iterator[str]:
    chunks = layout.virtual_pipeline or 1
    if chunks > 1 and layout.pipeline == 1:
        yield f"{key}.virtual_pipeline={chunks} needs {key}.pipeline > 1: chunks are interleaved between stages"
    elif model.num_layers % (layout.pipeline * chunks) != 0:
        per_stage = f" * {key}.virtual_pipeline={chunks}" if chunks > 1 else ""
        legal = [n // chunks for n in divisors(model.num_layers) if n % chunks == 0 and (chunks == 1 or n > chunks)]
        advice = f"legal pipeline degrees: {_listed(legal)}" if legal else f"no pipeline degree allows {chunks} chunks a stage"
        yield f"{key}.pipeline={layout.pipeline}{per_stage} does not divide model.num_layers={model.num_layers}; {advice}"


def _world_problems(key: str, layout: ParallelConfig, config: RunConfig, task: Task, world_size: int) -> Iterator[str]:
    block = block_size(layout)
    terms = f"{key}.tensor={layout.tensor} * pipeline={layout.pipeline} * context={layout.context}"
    if layout.data is not None and block * layout.data != world_size:
        yield (
            f"{key}.data={layout.data}: {terms} * data = {block * layout.data}, but the world has {world_size} ranks; "
            f"leave data out, or use {world_size // block if world_size % block == 0 else 'layouts that divide the world'}"
        )
    elif world_size % block != 0:
        yield (
            f"{terms} = {block} does not divide the world of {world_size} ranks (trainer.nnodes * n_gpus_per_node); "
            f"the smallest world for all roles is {smallest_world(config, task)}"
        )
    if config.model.moe is None and layout.expert_tensor is not None:
        yield f"{key}.expert_tensor={layout.expert_tensor}: model {config.model.name} has no experts; leave it null"
    experts = layout.expert * (layout.expert_tensor or layout.tensor)
    dense = world_size // layout.pipeline
    if layout.expert > 1 and dense % experts != 0:
        yield f"{key}.expert={layout.expert} * expert_tensor = {experts} does not divide tensor * context * data = {dense}"


def _rollout_problems(config: RunConfig, task: Task, world_size: int) -> Iterator[str]:
    rollout, model = config.rollout, config.model
    tensor, data = rollout.tensor_parallel_size, rollout.data_parallel_size
    legal = rollout_tensor_degrees(model)
    if tensor not in legal:
        yield (
            f"rollout.tensor_parallel_size={tensor} does not divide the heads of model {model.name} "
            f"(num_attention_heads={model.num_attention_heads}, num_key_value_heads={model.num_key_value_heads}); "
            f"legal for the rollout engine: {_listed(legal)}"
        )
    if data is not None and tensor * data != world_size:
        yield (
            f"rollout.data_parallel_size={data}: tensor_parallel_size={tensor} * data = {tensor * data}, but the world has "
            f"{world_size} ranks; leave data_parallel_size out"
        )
    elif world_size % tensor != 0:
        yield (
            f"rollout.tensor_parallel_size={tensor} does not divide the world of {world_size} ranks; "
            f"the smallest world for all roles is {smallest_world(config, task)}"
        )


def unbuilt_problems(config: RunConfig, task: Task) -> Iterator[str]:
    """Features that can be planned and estimated but not trained yet."""
    for role, layout in role_layouts(config, task).items():
        if role == "ref" and config.ref.parallel is None:
            continue
        for axis, degree in (("context", layout.context), ("expert", layout.expert)):
            if degree > 1:
                yield f"{role}.parallel.{axis}={degree}: {axis} parallelism is not trained yet; use 1 (plan accepts it)"
    if config.model.moe is not None:
        yield f"model.moe: mixture-of-experts models ({config.model.name}) are planned and estimated, not trained yet"
    if config.model.mla is not None:
        yield f"model.mla: latent attention ({config.model.name}) is planned and estimated, not trained yet"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
