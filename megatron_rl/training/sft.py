"""The ``sft`` task: supervised fine-tuning of the actor's model, ending in a Hugging Face folder."""

from __future__ import annotations

from contextlib import closing

from megatron_rl.data.prompts import tokenizer_of
from megatron_rl.data.sft_pairs import load_sft_examples
from megatron_rl.data.stream import BatchOrder
from megatron_rl.observability.timers import Timers, device_synchronizer
from megatron_rl.training.export import HF_FOLDER, export_actor
from megatron_rl.training.job import Job, open_logger
from megatron_rl.training.model_loading import build_actor
from megatron_rl.training.roles import prefixed
from megatron_rl.training.sft_trainer import SftTrainer
from megatron_rl.types.metrics import Metric


def fine_tune(job: Job) -> int:
    """Train on ``sft.train_files`` and export; returns the exit code. Collectives: all ranks."""
    config = job.config
    examples = load_sft_examples(config.sft, config.data, tokenizer_of(config.model))
    order = BatchOrder(len(examples), config.sft.batch_size, seed=config.trainer.seed, shuffle=True, size_key="sft.batch_size")
    total_steps = config.sft.total_steps or config.sft.total_epochs * order.batches_per_epoch
    role = build_actor(job, total_steps)
    trainer, timers = SftTrainer(role), Timers(device_synchronizer(job.platform.device))
    with closing(open_logger(job, config.sft.log_freq)) as logger, logger.progress(0, total_steps):
        for step in range(1, total_steps + 1):
            batch = [examples[row] for row in order.next_batch()[1]]
            with timers.step():
                metrics = prefixed("sft", trainer.step(batch))
            metrics |= timers.flush()
            tokens = sum(len(example.token_ids) for example in batch)
            metrics["perf/tokens_per_second"] = Metric(tokens / metrics["timing_s/step"].value)
            logger.log(step, metrics)
    export_actor(job, role, job.run_dir / HF_FOLDER)
    return 0
