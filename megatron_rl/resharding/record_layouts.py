"""Trace vLLM's layout of every model family and store it: ``python -m megatron_rl.resharding.record_layouts``."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from megatron_rl.config.model import ModelConfig
from megatron_rl.resharding.spec import RankFragments
from megatron_rl.resharding.traced import FAMILIES, TracedPlace, layouts_to_json, tiny_shape, traced_places
from megatron_rl.resharding.vllm_layout import trace_vllm_layout
from megatron_rl.weights.hf_config import hf_config
from megatron_rl.weights.names import logical_tensors


def trace_family(family: str) -> dict[TracedPlace, RankFragments]:
    """Run vLLM's loaders for every place of ``traced_places``. Raises ValueError where they cannot be traced."""
    model = tiny_shape(family)
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_config(model)))
        return {
            place: trace_vllm_layout(
                Path(folder),
                place.tensor,
                place.rank % place.tensor,
                tensors=logical_tensors(model),
                expert_parallel=place.expert > 1,
                stage=place.rank // place.tensor,
                stages=place.pipeline,
            )
            for place in traced_places(model)
        }


def _config(model: ModelConfig) -> dict[str, Any]:
    """``config.json``; the families that are planned and not trained yet have keys of their own."""
    if model.moe is None:
        return hf_config(model, dtype="float32")
    moe, mla = model.moe, model.mla
    config = hf_config(
        model.model_copy(update={"architecture": "llama", "moe": None, "mla": None, "qk_norm": False}), dtype="float32"
    )
    config |= {"num_experts_per_tok": moe.experts_per_token, "moe_intermediate_size": moe.expert_intermediate_size}
    if mla is None:
        config |= {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "norm_topk_prob": True}
        return config | {"num_experts": moe.num_experts, "mlp_only_layers": list(range(moe.num_dense_layers))}
    config |= {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **mla.model_dump()}
    config |= {"n_routed_experts": moe.num_experts, "n_shared_experts": moe.num_shared_experts}
    config |= {"first_k_dense_replace": moe.num_dense_layers, "moe_layer_freq": 1, "num_nextn_predict_layers": 0}
    return config | {"n_group": 1, "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"}


def vllm_version() -> str:
    """Of whichever build is installed."""
    from importlib.metadata import packages_distributions

    (package, *_) = packages_distributions()["vllm"]
    return version(package)


def main() -> None:
    """Write one file per family."""
    folder = Path(__file__).parent / "data"
    for family in FAMILIES:
        text = layouts_to_json(trace_family(family), vllm_version())
        (folder / f"{family}.json").write_text(text)
        print(f"{family}: {len(text)} bytes")


if __name__ == "__main__":
    main()
