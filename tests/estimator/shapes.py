"""Shapes and workloads that the estimator's tests share."""

from __future__ import annotations

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.deployment import Deployment, EngineSetup, RoleSetup, Workload
from megatron_rl.parallel.layout import ParallelLayout


def small_model(**changes: object) -> ModelConfig:
    """Two layers, hidden 8, four heads of 2 over two key/value heads, MLP 16, vocabulary 64, tied."""
    fields: dict[str, object] = {
        "name": "small",
        "architecture": "llama",
        "num_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "tie_word_embeddings": True,
    }
    return ModelConfig.model_validate(fields | changes)


def small_workload(**changes: object) -> Workload:
    """Eight prompts of 16 + 16 tokens, one answer each."""
    fields: dict[str, object] = {
        "prompts_per_step": 8,
        "samples_per_prompt": 1,
        "prompt_tokens": 16,
        "response_tokens": 16,
        "max_prompt_tokens": 16,
        "max_response_tokens": 16,
        "num_prompts": 80,
        "epochs": 2,
        "uses_critic": False,
        "uses_reference": False,
    }
    return Workload(**(fields | changes))  # type: ignore[arg-type]


def actor_on(layout: ParallelLayout, **changes: object) -> RoleSetup:
    """An actor with micro-batches of 32 tokens."""
    fields: dict[str, object] = {"name": "actor", "layout": layout, "micro_batch_tokens": 32}
    return RoleSetup(**(fields | changes))  # type: ignore[arg-type]


def small_deployment(layout: ParallelLayout | None = None, **changes: object) -> Deployment:
    """One actor and one engine over the same ranks."""
    layout = layout or ParallelLayout()
    engine = EngineSetup(
        tensor=1, data=layout.world_size, max_num_seqs=4, max_num_batched_tokens=32, kv_cache_bytes=1000, cuda_graphs=True
    )
    fields: dict[str, object] = {"model": small_model(), "roles": (actor_on(layout),), "engine": engine}
    return Deployment(**(fields | changes))  # type: ignore[arg-type]
