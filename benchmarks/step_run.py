"""Running one variant of the step benchmark: compose, start the product's ranks, read what they leave."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from benchmarks.bare_rollout import BareJob, BareRollout, measure_apart
from benchmarks.harness import last_line
from benchmarks.step_figures import Ceilings, Document, read_documents
from benchmarks.step_workload import Workload, engine_overrides, write_workload
from launchers.environment import num_visible_gpus
from launchers.job import WORKER_MODULE
from launchers.submit import launch_task
from megatron_rl.cli.compose import compose_run
from megatron_rl.config.run import RunConfig
from megatron_rl.config.run_files import LATEST, METRICS_FILE, SAMPLES_FILE, experiment_dir, read_run_config
from megatron_rl.config.world import ranks_per_node, with_world
from megatron_rl.data.tokenizer import load_tokenizer
from megatron_rl.observability.environment import ENVIRONMENT_JSON
from megatron_rl.observability.memory_summary import MemorySummary, read_memory_summary
from megatron_rl.observability.sinks import Record, read_metrics
from megatron_rl.rollout.prompt_distribution import distribute_prompts
from megatron_rl.weights.hf_config import hf_config

Bare = Literal["none", "inside", "apart"]
"""Where vLLM alone is measured: on the run's engine when training is over, or in a process of its own."""
BARE_FILE = "vllm_alone.json"
ALGORITHM_OVERRIDES = {
    # With a KL term there is a reference, whose scoring is a forward pass and nothing else.
    "grpo": ("actor.use_kl_loss=true",),
    "ppo": (),
}

SHAPE_OVERRIDES = {
    # What lets actor, optimizer and reference of 7.6 billion parameters share one card of 140 GB with the engine.
    "qwen2_7b": (
        "actor.optim.use_precision_aware_optimizer=true",
        "actor.optim.exp_avg_dtype=bfloat16",
        "actor.optim.exp_avg_sq_dtype=bfloat16",
        "actor.optim.betas=[0.9,0.99]",
        "actor.optim.main_grads_dtype=bfloat16",
        "actor.ppo_max_token_len_per_gpu=6144",
    ),
}
"""Settings of large shapes; the command line wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One thing to measure."""

    model: str
    algorithm: str
    workload_per_gpu: Workload
    steps: int
    warmup_steps: int
    bare: Bare = "none"
    profile: bool = False
    compared: tuple[str, ...] = ()
    """Overrides that tell this variant from others."""
    overrides: tuple[str, ...] = ()
    """Overrides of all variants."""

    @property
    def name(self) -> str:
        """Readable and unique in one call of the benchmark."""
        return " ".join([self.model, self.algorithm, *self.compared])

    @property
    def settings(self) -> tuple[str, ...]:
        """Overrides that make it differ from the product's defaults, its work left out."""
        algorithm, shape = ALGORITHM_OVERRIDES.get(self.algorithm, ()), SHAPE_OVERRIDES.get(self.model, ())
        return (*algorithm, *shape, *self.compared, *self.overrides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a variant left."""

    variant: Variant
    workload: Workload
    config: RunConfig
    run_dir: Path
    num_ranks: int
    device: str
    records: Sequence[Record]
    """Measured steps."""
    documents: Mapping[int, Sequence[Document]]
    memory: MemorySummary


def run_variant(variant: Variant, folder: Path) -> Measured:
    """Train.

    Raises ConfigError where the configuration breaks a rule, RuntimeError where a rank failed.
    """
    config, workload = compose_variant(variant, folder)
    code = launch_task("train", config, "benchmarks.step_worker" if variant.bare == "inside" else WORKER_MODULE)
    run_dir = (experiment_dir(config) / LATEST).resolve()
    if code != 0:
        raise RuntimeError(f"exit code {code}; logs in {run_dir / 'logs'}")
    return _read(variant, workload, run_dir)


def compose_variant(variant: Variant, folder: Path) -> tuple[RunConfig, Workload]:
    """The configuration, whose prompts and tokenizer are written below ``folder``, and the work of one step of the job."""
    draft, ranks = _draft(variant, folder)
    workload = replace(variant.workload_per_gpu, prompts=variant.workload_per_gpu.prompts * ranks)
    last = variant.warmup_steps + variant.steps
    overrides = [
        *_fixed_overrides(variant, folder),
        *write_workload(folder / "workload" / variant.model, draft.model, workload, last + variant.profile),
        *engine_overrides(draft, workload, draft.rollout.data_parallel_size or 1, _element_bytes(draft)),
        f"trainer.total_training_steps={last + variant.profile}",
        f"trainer.log_samples={workload.prompts * workload.samples}",
        *(_profiled(last + 1) if variant.profile else ()),
        *(("trainer.callbacks=[benchmarks.step_bare:SameRequests]",) if variant.bare == "inside" else ()),
        *variant.settings,
    ]
    return compose_run(overrides), workload


def _profiled(step: int) -> tuple[str, ...]:
    return "profiler=torch", f"profiler.steps=[{step}]", "profiler.phases=[old_log_prob,ref,update_actor]"


def measure_ceilings_apart(folder: Path) -> Ceilings:
    """Rates of one device, measured in a process of its own so that nothing of it stays on the device; once per folder."""
    file = folder / "ceilings.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(last_line([sys.executable, "-m", "benchmarks.ceilings"]))
    found = json.loads(file.read_text())
    return Ceilings(matmul_flops_per_s=found["matmul"], copy_bytes_per_s=found["copy"])


def bare_job(measured: Measured, folder: Path) -> BareJob:
    """The work of the first engine, request by request, and its settings."""
    config, rollout = measured.config, measured.config.rollout
    model_folder = folder / "bare_model"
    model_folder.mkdir(parents=True, exist_ok=True)
    (model_folder / "config.json").write_text(json.dumps(hf_config(config.model, dtype=config.trainer.dtype)))
    assert config.model.tokenizer_path is not None and rollout.kv_cache_gib is not None, "set by the benchmark"
    tokenizer = load_tokenizer(config.model.tokenizer_path)
    prompts = _prompts(measured.run_dir)
    batches = []
    for step in sorted(measured.documents):
        share = distribute_prompts([d.prompt for d in measured.documents[step][:: rollout.n]], rollout.data_parallel_size or 1)[
            0
        ]
        rows = [prompt * rollout.n + sample for prompt in share for sample in range(rollout.n)]
        batches.append([(tokenizer.encode(prompts[step][row]), measured.documents[step][row].response) for row in rows])
    assert rollout.max_model_len is not None, "filled in with the world"
    return BareJob(
        model_folder=str(model_folder),
        dtype=config.trainer.dtype,
        tensor_parallel_size=rollout.tensor_parallel_size,
        max_model_len=rollout.max_model_len,
        max_num_seqs=rollout.max_num_seqs,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        enable_prefix_caching=rollout.enable_prefix_caching,
        enforce_eager=rollout.enforce_eager or config.trainer.device == "cpu",
        kv_cache_memory_bytes=int(rollout.kv_cache_gib * 2**30),
        temperature=rollout.temperature,
        num_stop_ids=len(tokenizer.eos_token_ids) if not rollout.ignore_eos else 0,
        batches=batches,
    )


def _draft(variant: Variant, folder: Path) -> tuple[RunConfig, int]:
    """The configuration without its work, its world filled in, and the number of ranks: the work scales with them."""
    composed = compose_run([*_fixed_overrides(variant, folder), *variant.settings])
    num_gpus = 0 if composed.trainer.device == "cpu" else num_visible_gpus(os.environ)
    ranks = ranks_per_node(composed, num_gpus) * composed.trainer.nnodes
    return with_world(composed, ranks, num_gpus), ranks


def run_bare(measured: Measured, folder: Path) -> BareRollout | None:
    """What vLLM alone took for what the first engine has generated. Raises RuntimeError where it fails."""
    if measured.variant.bare == "none":
        return None
    if measured.variant.bare == "inside":
        return BareRollout.read((measured.run_dir / BARE_FILE).read_text())
    return measure_apart(bare_job(measured, folder), folder)


def _fixed_overrides(variant: Variant, folder: Path) -> list[str]:
    return [
        f"model={variant.model}",
        f"algorithm={variant.algorithm}",
        f"trainer.output_dir={folder.absolute()}",
        f"trainer.experiment_name={variant.model}",
        "trainer.resume_mode=disable",
        "trainer.logger=[]",
    ]


def _read(variant: Variant, workload: Workload, run_dir: Path) -> Measured:
    environment = json.loads((run_dir / ENVIRONMENT_JSON).read_text())["hardware"]
    last = variant.warmup_steps + variant.steps
    records = [record for record in read_metrics(run_dir / METRICS_FILE) if (record["step"] or 0) <= last]
    documents = read_documents(run_dir / SAMPLES_FILE)
    measured = records[variant.warmup_steps :]
    first = int(measured[0]["step"] or 0)
    return Measured(
        variant=variant,
        workload=workload,
        config=read_run_config(run_dir),
        run_dir=run_dir,
        num_ranks=int(environment["world_size"]),
        device=str(environment["device"]),
        records=measured,
        # One step before the first measured one, so that vLLM alone has something to warm up with.
        documents={step: found for step, found in documents.items() if first - 1 <= step <= last},
        memory=read_memory_summary(run_dir),
    )


def _prompts(run_dir: Path) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for line in (run_dir / SAMPLES_FILE).read_text(encoding="utf-8").splitlines():
        sample = json.loads(line)
        found.setdefault(sample["step"], []).append(sample["prompt"])
    return found


def _element_bytes(config: RunConfig) -> int:
    return 4 if config.trainer.dtype == "float32" else 2
