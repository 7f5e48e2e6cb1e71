"""What a variant of the step benchmark composes, and the work it hands to vLLM alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.step import _arguments, variants
from benchmarks.step_figures import Document
from benchmarks.step_run import Measured, Variant, bare_job
from benchmarks.step_workload import Workload, write_workload
from megatron_rl.config.loading import compose
from megatron_rl.config.world import with_world
from megatron_rl.observability.memory_summary import MemorySummary

WORKLOAD = Workload(prompts=2, samples=2, prompt_tokens=4, response_tokens=9, mean_response_tokens=26)


def variant(**changes: object) -> Variant:
    fields = {"model": "tiny", "algorithm": "grpo", "workload_per_gpu": WORKLOAD, "steps": 1, "warmup_steps": 1, **changes}
    return Variant(**fields)  # type: ignore[arg-type]


def test_variants_are_every_model_and_algorithm_in_every_setting() -> None:
    chosen = _arguments(
        [
            "--model",
            "tiny",
            "qwen2_7b",
            "--algorithm",
            "grpo",
            "ppo",
            "--compare",
            "rollout.seed=1",
            "--",
            "actor.clip_ratio=0.1",
        ]
    )
    found = list(variants(chosen))
    assert [one.name for one in found] == [
        "tiny grpo rollout.seed=1",
        "tiny ppo rollout.seed=1",
        "qwen2_7b grpo rollout.seed=1",
        "qwen2_7b ppo rollout.seed=1",
    ]
    assert [one.workload_per_gpu.prompts for one in found] == [32, 32, 8, 8]
    assert found[1].settings == ("rollout.seed=1", "actor.clip_ratio=0.1")


@pytest.mark.parametrize("model", ["qwen2_5_0_5b", "qwen2_7b"])
def test_settings_of_every_shape_compose_and_the_command_line_wins(model: str) -> None:
    settings = variant(model=model, overrides=("actor.ppo_max_token_len_per_gpu=2048",)).settings
    config = compose([f"model={model}", "algorithm=grpo", *settings])
    assert config.uses_reference
    assert config.actor.ppo_max_token_len_per_gpu == 2048


def test_bare_job_holds_the_first_engines_requests(tmp_path: Path) -> None:
    composed = compose(["model=tiny", "algorithm=grpo", "trainer.device=cpu", "rollout.kv_cache_gib=0.5"])
    overrides = write_workload(tmp_path / "work", composed.model, WORKLOAD, steps=2)
    config = compose(["model=tiny", "algorithm=grpo", "trainer.device=cpu", "rollout.kv_cache_gib=0.5", *overrides])
    texts = [json.loads(line)["prompt"] for line in (tmp_path / "work" / "prompts.jsonl").read_text().splitlines()]
    samples = [{"step": 1, "prompt": texts[row // 2]} for row in range(4)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    measured = Measured(
        variant=variant(),
        workload=WORKLOAD,
        config=with_world(config, 2, 0),
        run_dir=tmp_path,
        num_ranks=2,
        device="CPU",
        records=[],
        documents={1: [Document(4, response) for response in (3, 9, 1, 2)]},
        memory=MemorySummary(None, {}),
    )
    job = bare_job(measured, tmp_path)
    # Two engines of one rank each: the first one answers one of the two prompts.
    assert [[(len(ids), length) for ids, length in batch] for batch in job.batches] == [[(4, 3), (4, 9)]]
    assert (job.num_stop_ids, job.kv_cache_memory_bytes, job.max_model_len) == (10, 2**29, 13)
