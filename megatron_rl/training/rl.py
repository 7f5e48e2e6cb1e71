"""The ``train`` task: build every part of an RL run and loop."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from megatron_rl.algorithms.kl import build_kl_controller
from megatron_rl.config.batch_arithmetic import batch_arithmetic
from megatron_rl.config.run_files import HF_FOLDER, METRICS_FILE, SAMPLES_FILE, checkpoints_dir
from megatron_rl.data.prompts import load_prompts, tokenizer_of
from megatron_rl.data.stream import PromptStream, validation_batches
from megatron_rl.data.tokenizer import Tokenizer
from megatron_rl.estimator.rank_memory import with_engine_sleep
from megatron_rl.observability.curves import plot_learning_curve
from megatron_rl.observability.health import RULES, HealthMonitor, mismatch_rule
from megatron_rl.observability.logger import MetricLogger
from megatron_rl.observability.memory import PhaseMemory, card_gib, gauge_of
from megatron_rl.observability.samples import SampleLog
from megatron_rl.parallel.gather import gather_objects
from megatron_rl.report.run import read_run
from megatron_rl.rewards.sandbox import RewardPool
from megatron_rl.runtime.cuda_allocator import settle_allocator
from megatron_rl.training.callbacks import TrainerCallback, load_callbacks
from megatron_rl.training.checkpoint import CheckpointStore
from megatron_rl.training.experience import ExperienceBuilder
from megatron_rl.training.export import export_actor
from megatron_rl.training.interrupt import InterruptFlag
from megatron_rl.training.job import Job, open_logger
from megatron_rl.training.loop import LoopParts, TrainingLoop
from megatron_rl.training.megatron_role import MegatronRole
from megatron_rl.training.memory_phases import MemoryPhases
from megatron_rl.training.memory_plan import planned_memory
from megatron_rl.training.memory_report import MemoryReport
from megatron_rl.training.optimizer import has_fused_adam
from megatron_rl.training.out_of_memory import MemoryAdvisor, memory_advisor
from megatron_rl.training.ppo_trainer import PpoTrainer
from megatron_rl.training.role_assembly import build_roles
from megatron_rl.training.rollout_assembly import RolloutSide, build_rollout_side, place_roles
from megatron_rl.training.run_state import RunState
from megatron_rl.training.scoring import RewardScorer
from megatron_rl.training.send_recv_report import SendRecvReport
from megatron_rl.training.step_phases import build_step_phases
from megatron_rl.training.step_sampler import StepSampler
from megatron_rl.training.sync_assembly import build_weight_sync, plan_weight_sync, weights_to_share
from megatron_rl.training.throughput_metrics import ThroughputMeter
from megatron_rl.training.validation import Validator


def train(job: Job) -> int:
    """Run PPO, GRPO or a relative as configured; returns the exit code. Collectives: all ranks."""
    sleeping = with_engine_sleep(job.config, job.world_size, card_gib(job.platform.device), fused_adam=has_fused_adam())
    job = replace(job, config=sleeping)
    config = job.config
    _announce_memory(job)
    tokenizer = tokenizer_of(config.model)
    stream = _stream(job, tokenizer)
    total_steps = config.trainer.total_training_steps or config.trainer.total_epochs * stream.batches_per_epoch
    with RewardPool(config.reward, _reward_workers(job)) as pool, closing(open_logger(job)) as logger:
        scorer = RewardScorer(pool, tokenizer, job.host_group)
        advisor = memory_advisor(job, planned_memory(config, job.world_size, card_gib(job.platform.device)))
        with advisor.explained("build"):
            parts = _build(job, tokenizer, stream, total_steps, scorer, logger, advisor)
        code = TrainingLoop(parts, config.trainer, total_steps).run()
    if code == 0 and config.trainer.save_hf_at_end:
        export_actor(job, parts.state.roles["actor"], job.run_dir / HF_FOLDER)
    if job.is_main and (job.run_dir / METRICS_FILE).exists():
        plot_learning_curve(
            read_run(config.trainer.experiment_name, job.run_dir).records,
            job.run_dir / "learning_curve.png",
            f"{config.trainer.experiment_name}, {config.algorithm.name}",
        )
    return code


def _announce_memory(job: Job) -> None:
    """Say before models load how the card is shared. Raises ValueError where the allocator's settings forbid it."""
    sleeps = bool(job.config.rollout.free_cache_engine)
    job.say(f"rollout.free_cache_engine: {'the engine sleeps outside of rollouts' if sleeps else 'the engine stays awake'}")
    if job.platform.device.type == "cuda":
        job.say(settle_allocator(engine_sleeps=sleeps))


def _reward_workers(job: Job) -> int:
    """This rank's share of the node's ``reward.num_workers``, at least one."""
    return max(1, job.config.reward.num_workers // (job.config.trainer.n_gpus_per_node or job.world_size))


def _stream(job: Job, tokenizer: Tokenizer) -> PromptStream:
    data = job.config.data
    rendered = load_prompts(data, tokenizer, "train")
    seed = job.config.trainer.seed if data.seed is None else data.seed
    stream = PromptStream(
        rendered.prompts, data.prompts_per_gen_batch, seed=seed, shuffle=data.shuffle, size_key=data.gen_batch_key
    )
    _require_equal_data(stream, job)
    job.say(f"{rendered.summary}\n{stream.summary}\n{batch_arithmetic(job.config, job.world_size).table()}")
    return stream


def _require_equal_data(stream: PromptStream, job: Job) -> None:
    """Raise on every rank where one has read other prompts: the global batches would silently differ."""
    fingerprints = gather_objects(stream.fingerprint, job.host_group)
    strangers = [rank for rank, found in fingerprints.items() if found != fingerprints[0]]
    if strangers:
        raise RuntimeError(
            f"ranks {strangers} read other prompts than rank 0: the data section's files differ between nodes, "
            "or its reasoning-gym task is not deterministic"
        )


def _build(
    job: Job,
    tokenizer: Tokenizer,
    stream: PromptStream,
    total_steps: int,
    scorer: RewardScorer,
    logger: MetricLogger,
    advisor: MemoryAdvisor,
) -> LoopParts:
    config = job.config
    memory = MemoryPhases()
    job, actor_layout = place_roles(job)
    roles = build_roles(job, actor_layout, total_steps, memory)
    plan = plan_weight_sync(job, roles.actor.role)
    rollout = build_rollout_side(job, tokenizer, weights_to_share(job, roles.actor.role, plan))
    if config.rollout.free_cache_engine:
        memory.adopt_engine(rollout.engine)
    peaks = PhaseMemory(gauge_of(job.platform.device))
    phases = build_step_phases(job, advisor, memory, [peaks])
    kl_controller = build_kl_controller(config.algorithm.kl_ctrl)
    interrupt = InterruptFlag(job.host_group)
    trainer = PpoTrainer(
        sampler=StepSampler(
            generator=rollout.generator,
            sampling=rollout.sampling,
            scorer=scorer,
            filter_groups=config.algorithm.filter_groups,
            num_groups=config.data.train_batch_size,
            phases=phases,
            interrupted=interrupt.any_rank,
            say=job.say,
        ),
        weight_sync=build_weight_sync(job, roles.actor.role, rollout.engine, plan),
        builder=ExperienceBuilder(
            algorithm=config.algorithm,
            correction=config.rollout.correction,
            kl_controller=kl_controller,
            actor=roles.actor,
            reference=roles.reference,
            critic=roles.critic,
            phases=phases,
        ),
        actor=roles.actor,
        critic=roles.critic,
        critic_warmup_steps=config.critic.warmup_steps,
        seed=config.trainer.seed,
        phases=phases,
    )
    return LoopParts(
        trainer=trainer,
        stream=stream,
        state=RunState(
            CheckpointStore(checkpoints_dir(config), config.trainer.max_checkpoints_to_keep),
            roles.trained,
            stream,
            kl_controller,
            config.trainer,
            memory,
        ),
        validator=_validator(job, tokenizer, rollout, scorer),
        logger=logger,
        samples=SampleLog(job.run_dir / SAMPLES_FILE if job.is_main else None, config.trainer.log_samples),
        health=_health_monitor(job),
        throughput=ThroughputMeter(config.model, job.world_size, job.platform.peak_flops_per_s),
        callbacks=_callbacks(job, roles.trained, peaks),
        phases=phases,
        interrupt=interrupt,
    )


def _callbacks(job: Job, roles: dict[str, MegatronRole], peaks: PhaseMemory) -> list[TrainerCallback]:
    reports: list[TrainerCallback] = [MemoryReport(job, peaks)]
    if any(role.groups.layout.pipeline > 1 for role in roles.values()):
        reports.append(SendRecvReport(job.host_group))
    return [*reports, *load_callbacks(job.config.trainer.callbacks)]


def _health_monitor(job: Job) -> HealthMonitor:
    """Warnings, on one rank only."""
    if not job.is_main:
        return HealthMonitor(rules=())
    limit = job.config.rollout.mismatch_warn_threshold
    assert limit is not None, "config.world.with_world fills it in"
    return HealthMonitor(rules=(*RULES, mismatch_rule(limit)))


def _validator(job: Job, tokenizer: Tokenizer, rollout: RolloutSide, scorer: RewardScorer) -> Validator | None:
    prompts = load_prompts(job.config.data, tokenizer, "val").prompts
    if not prompts:
        return None
    return Validator(
        batches=validation_batches(prompts, job.config.data.val_batch_size),
        generator=rollout.generator,
        sampling=rollout.validation_sampling,
        scorer=scorer,
    )
