"""The rules' names and sizes against modules that Megatron-Core itself builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.transformer import MLATransformerConfig

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, padded_vocab_size
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.traced import tiny_shape
from megatron_rl.runtime.cpu import install_cpu_runtime
from tests.support.distributed import run_distributed


def _config(model: ModelConfig, layout: ParallelLayout) -> MLATransformerConfig:
    """DeepSeek-V3 as Megatron-Core configures it, on CPU."""
    moe, mla = model.moe, model.mla
    assert moe is not None and mla is not None
    return MLATransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        normalization="RMSNorm",
        qk_layernorm=True,
        add_bias_linear=False,
        gated_linear_unit=True,
        multi_latent_attention=True,
        rope_type="rope",
        q_lora_rank=mla.q_lora_rank,
        kv_lora_rank=mla.kv_lora_rank,
        qk_head_dim=mla.qk_nope_head_dim,
        qk_pos_emb_head_dim=mla.qk_rope_head_dim,
        v_head_dim=mla.v_head_dim,
        num_moe_experts=moe.num_experts,
        moe_ffn_hidden_size=moe.expert_intermediate_size,
        moe_shared_expert_intermediate_size=moe.num_shared_experts * moe.expert_intermediate_size,
        moe_layer_freq=[int(layer >= moe.num_dense_layers) for layer in range(model.num_layers)],
        moe_router_topk=moe.experts_per_token,
        moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        tensor_model_parallel_size=layout.tensor,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.etp,
    )


class _NoCore(torch.nn.Module):
    """Megatron-Core's own attention kernel without Transformer Engine knows no latent heads; it has no weights either."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def _built_and_planned(layout: ParallelLayout) -> tuple[dict[str, int], dict[str, int]]:
    """Elements of every weight that Megatron-Core builds on this rank, and those that the rules place in it."""
    model = tiny_shape("deepseek_v3")
    install_cpu_runtime()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.etp,
    )
    config = _config(model, layout)
    padded = padded_vocab_size(model.vocab_size, layout.tensor)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    for layer in spec.layer_specs:
        layer.submodules.self_attention.submodules.core_attention = _NoCore
    built = GPTModel(config, spec, padded, 64, position_embedding_type="rope", share_embeddings_and_output_weights=False)
    names = {name for name, _ in built.named_parameters()} | {n for n, _ in built.named_buffers() if n.endswith("expert_bias")}
    tensors = {name: tensor for name, tensor in built.state_dict().items() if name in names}
    planned: dict[str, int] = {}
    for f in megatron_layout(model, layout, padded)(torch.distributed.get_rank()):
        planned[f.buffer] = planned.get(f.buffer, 0) + f.num_elements
    return {name: tensor.numel() for name, tensor in tensors.items()}, planned


LAYOUTS = {
    "tp2": ParallelLayout(tensor=2, expert=1),
    "tp2_ep2": ParallelLayout(tensor=2, expert=2, expert_tensor=1),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_megatron_layout_of_latent_attention_matches_reference(case: str) -> None:
    """Every parameter of the real modules is filled, and nothing else; only the vocabulary has padding."""
    for built, planned in run_distributed(2, _built_and_planned, LAYOUTS[case]):
        assert built.keys() == planned.keys()
        padded = {"embedding.word_embeddings.weight", "output_layer.weight"}
        assert {n: s for n, s in built.items() if n not in padded} == {n: s for n, s in planned.items() if n not in padded}
