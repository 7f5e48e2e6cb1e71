"""``megatron-rl check``: everything that can be known before a model loads, without torch."""

from __future__ import annotations

import os

from launchers.environment import num_visible_gpus
from megatron_rl.cli.compose import compose_run
from megatron_rl.cli.own_keys import take_task
from megatron_rl.config.batch_arithmetic import batch_arithmetic
from megatron_rl.config.errors import ConfigError
from megatron_rl.config.layout_rules import layout_problems
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import notes, validate
from megatron_rl.config.world import ranks_per_node
from megatron_rl.estimator.catalogue import GIB
from megatron_rl.estimator.memory_part import PhaseMemory
from megatron_rl.estimator.rank_memory import memory_table, rank_memory
from megatron_rl.resharding.placement import placement_summary, run_placements

_DATA_KEYS = ("data.", "model.path", "model.tokenizer", "model.chat_template")


def run(argv: list[str]) -> int:
    """Check a configuration; ``--task=sft`` and the like check for another task than train.

    Raises:
        ConfigError: every problem at once.
    """
    task, overrides = take_task(argv)
    config = compose_run(overrides)
    gpus = num_visible_gpus(os.environ) if config.trainer.device != "cpu" else 0
    on_gpu = config.trainer.device == "cuda" or gpus > 0 or config.launcher.gpu_memory_gib is not None
    world = ranks_per_node(config, gpus, task) * config.trainer.nnodes
    problems = validate(config, task=task, world_size=world, num_gpus=gpus)
    shard = ""
    memory: tuple[PhaseMemory, ...] = ()
    if task == "train":
        shard, shard_problems = _rendered_shard(config, problems)
        problems += shard_problems
        if not list(layout_problems(config, task, world)):  # else there is no rank to speak of
            memory = rank_memory(config, world, on_gpu=on_gpu)
            problems += _memory_problems(config, memory, on_gpu)
    if problems:
        raise ConfigError(problems)
    print(f"ok: {task} {config.model.name} with {config.algorithm.name} on {world} ranks")
    if task == "train":
        print(f"batches\n{batch_arithmetic(config, world).table()}")
        print(f"memory of the fullest rank, estimated\n{memory_table(memory)}")
        print(
            placement_summary(
                run_placements(config, world, world // config.trainer.nnodes), itemsize=_wire_bytes(config, on_gpu)
            )
        )
        print(f"data: {shard}")
    for note in notes(config) if task == "train" else ():
        print(f"note: {note}")
    return 0


def _rendered_shard(config: RunConfig, known: list[str]) -> tuple[str, list[str]]:
    """Summary of the first rows as the trainer would see them, and what is wrong with them."""
    if any(problem.startswith(_DATA_KEYS) for problem in known):
        return "", []  # named already; rendering would only repeat it
    from megatron_rl.data.prompts import render_one_shard

    try:
        return render_one_shard(config).summary, []
    except ValueError as failure:
        return "", [str(failure)]


def _wire_bytes(config: RunConfig, on_gpu: bool) -> int:
    """Bytes of one weight on the way to the engine."""
    return 2 if on_gpu and config.trainer.dtype != "float32" else 4


def _memory_problems(config: RunConfig, memory: tuple[PhaseMemory, ...], on_gpu: bool) -> list[str]:
    card_gib = config.launcher.gpu_memory_gib
    worst = max(memory, key=lambda phase: phase.total_bytes)
    if card_gib is None or not on_gpu or worst.total_bytes <= card_gib * GIB:
        return []
    largest = max(worst.parts, key=lambda part: part.size_bytes)
    return [
        f"launcher.gpu_memory_gib={card_gib:g}: in phase {worst.phase} one rank needs about {worst.total_bytes / GIB:.1f} GiB, "
        f"most of it {largest.role} {largest.kind} ({largest.size_bytes / GIB:.1f} GiB); raise parallel.tensor or pipeline, "
        "lower ppo_max_token_len_per_gpu or rollout.gpu_memory_utilization, set recompute.granularity=full, or let state leave "
        "the card while it is not in use (grad_offload, optimizer_offload, param_offload)"
    ]
