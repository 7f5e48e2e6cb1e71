"""vLLM's layout of every model family as data: tiny shapes, traced once and stored beside this module.

The stored files need neither torch nor vLLM, so the rules that ``plan`` uses are checked against them anywhere. Renew
them, after an upgrade of vLLM, with ``python -m megatron_rl.resharding.record_layouts``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from megatron_rl.config.model import MlaConfig, ModelConfig, MoeConfig
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.resharding.spec import Fragment, RankFragments

FAMILIES = ("llama", "qwen2_tied", "qwen3", "qwen3_moe", "deepseek_v3")
TENSOR_DEGREES = (1, 2, 4)


@dataclass(frozen=True, slots=True, order=True)
class TracedPlace:
    """One rank of one engine layout. Example: ``TracedPlace(4, 1, 1, 3)`` is rank 3 of TP4."""

    tensor: int
    pipeline: int
    expert: int
    rank: int

    @property
    def layout(self) -> RolloutLayout:
        """The engine's layout."""
        return RolloutLayout(tensor=self.tensor, pipeline=self.pipeline, expert=self.expert)


def traced_places(model: ModelConfig) -> Iterator[TracedPlace]:
    """Every rank of TP 1, 2 and 4, of TP2 x PP2, and with experts spread over TP2 and TP4."""
    degrees = [(tensor, 1, 1) for tensor in TENSOR_DEGREES] + [(2, 2, 1)]
    if model.moe is not None:
        degrees += [(2, 1, 2), (4, 1, 4)]
    for tensor, pipeline, expert in degrees:
        for rank in range(tensor * pipeline):
            yield TracedPlace(tensor, pipeline, expert, rank)


def tiny_shape(family: str) -> ModelConfig:
    """The shape that was traced: odd vocabulary, fewer key/value heads than shards, experts that do not divide."""
    moe = MoeConfig(num_experts=6, experts_per_token=2, expert_intermediate_size=8, num_dense_layers=1)
    latent = family == "deepseek_v3"
    return ModelConfig(
        name=f"traced_{family}",
        architecture=family.removesuffix("_tied"),  # type: ignore[arg-type]
        num_layers=3,
        hidden_size=16,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=4 if latent else 2,
        head_dim=None if latent else 4,
        vocab_size=251,
        tie_word_embeddings=family.endswith("_tied"),
        qkv_bias=family.startswith("qwen2"),
        qk_norm=family.startswith("qwen3"),
        moe=moe.model_copy(update={"num_shared_experts": int(latent)}) if latent or family == "qwen3_moe" else None,
        mla=MlaConfig(q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4) if latent else None,
    )


def stored_layouts(family: str) -> dict[TracedPlace, RankFragments]:
    """What the tracer found for one family, as stored."""
    stored: dict[str, Any] = json.loads((files("megatron_rl.resharding") / "data" / f"{family}.json").read_text())
    tensors, buffers = stored["tensors"], stored["buffers"]
    return {
        TracedPlace(*(int(number) for number in place.split())): tuple(
            Fragment(tensors[t], tuple(start), tuple(stop), buffers[b], offset, tuple(strides))
            for t, start, stop, b, offset, strides in rows
        )
        for place, rows in stored["ranks"].items()
    }


def layouts_to_json(layouts: dict[TracedPlace, RankFragments], vllm_version: str) -> str:
    """The stored form: names in two tables, one line per rank (``tensor pipeline expert rank``)."""
    tensors = sorted({f.tensor for fragments in layouts.values() for f in fragments})
    buffers = sorted({f.buffer for fragments in layouts.values() for f in fragments})
    lines = []
    for place, fragments in sorted(layouts.items()):
        rows = sorted(
            [tensors.index(f.tensor), f.start, f.stop, buffers.index(f.buffer), f.offset, f.strides] for f in fragments
        )
        key = f"{place.tensor} {place.pipeline} {place.expert} {place.rank}"
        lines.append(f"  {json.dumps(key)}: {json.dumps(rows, separators=(',', ':'))}")
    head = {
        "_": "written by megatron_rl.resharding.record_layouts",
        "vllm": vllm_version,
        "tensors": tensors,
        "buffers": buffers,
    }
    parts = [f' "{key}": {json.dumps(value)}' for key, value in head.items()]
    return "{\n" + ",\n".join(parts) + ',\n "ranks": {\n' + ",\n".join(lines) + "\n }\n}\n"
