"""Which key or choice somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from megatron_rl.config.schema import SchemaKey

FAMILIAR_NAMES = {
    "tp": "parallel.tensor",
    "pp": "parallel.pipeline",
    "vpp": "parallel.virtual_pipeline",
    "dp": "parallel.data",
    "cp": "parallel.context",
    "ep": "parallel.expert",
    "etp": "parallel.expert_tensor",
    "tensor_model_parallel_size": "parallel.tensor",
    "pipeline_model_parallel_size": "parallel.pipeline",
    "virtual_pipeline_model_parallel_size": "parallel.virtual_pipeline",
    "context_parallel_size": "parallel.context",
    "expert_model_parallel_size": "parallel.expert",
    "expert_tensor_parallel_size": "parallel.expert_tensor",
    "default_local_dir": "trainer.output_dir",
    "max_actor_ckpt_to_keep": "trainer.max_checkpoints_to_keep",
    "critic_warmup": "critic.warmup_steps",
    "learning_rate": "optim.lr",
    "nodes": "trainer.nnodes",
    "gpus_per_node": "trainer.n_gpus_per_node",
    "epochs": "trainer.total_epochs",
    "batch_size": "data.train_batch_size",
    "rollout.batch_size": "data.train_batch_size",
}
"""Names used elsewhere in the field whose spelling does not lead to ours."""


def _similarity(a: str, b: str) -> float:
    return SequenceMatcher(None, a.lower(), b.lower(), autojunk=False).ratio()


def nearest_key(wrong: str, keys: dict[str, SchemaKey]) -> str | None:
    """The dotted key closest to ``wrong`` in last name first and path second; None where nothing is close."""
    if FAMILIAR_NAMES.get(wrong) in keys:
        return FAMILIAR_NAMES[wrong]
    path, _, name = wrong.rpartition(".")
    familiar = FAMILIAR_NAMES.get(name)
    best, best_score = None, 0.0
    for dotted, key in keys.items():
        same_name = max(_similarity(name, key.name), 1.0 if familiar and f".{dotted}".endswith(f".{familiar}") else 0.0)
        score = 0.65 * same_name + 0.35 * _similarity(path, dotted.rpartition(".")[0])
        if score > best_score:
            best, best_score = dotted, score
    return best if best_score >= 0.55 else None


def nearest_choice(wrong: str, choices: Iterable[str]) -> str | None:
    """The choice closest to ``wrong``; None where nothing is close."""
    matches = get_close_matches(wrong, list(choices), n=1, cutoff=0.5)
    return matches[0] if matches else None
