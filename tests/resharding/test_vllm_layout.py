"""The torch-free rules against vLLM's own loaders, and the tracer's safety nets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.resharding import vllm_layout
from megatron_rl.resharding.spec import LogicalTensor
from megatron_rl.resharding.vllm_layout import trace_vllm_layout
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.weights.hf_config import hf_config
from megatron_rl.weights.names import logical_tensors
from tests.resharding.shapes import tiny_model


@pytest.mark.parametrize("vocab", [251, 65], ids=["odd_vocab", "shard_of_padding"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_vllm_rules_layout_matches_reference(family: str, tied: bool, vocab: int, tmp_path: Path) -> None:
    """Box for box, for every rank of TP 1, 2 and 4 with 2 key/value heads."""
    model = tiny_model(family, layers=2, tied=tied, vocab=vocab)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(model, dtype="float32")))
    for size in (1, 2, 4):
        rules = vllm_rules_layout(model, RolloutLayout(tensor=size))
        for rank in range(size):
            traced = trace_vllm_layout(tmp_path, size, rank)
            assert len(set(traced)) == len(traced)
            assert set(traced) == set(rules(rank))


QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "vocab_size": 251,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "mlp_only_layers": [0],
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize("spread", [False, True], ids=["experts_cut", "experts_spread"])
def test_vllm_rules_layout_of_experts_matches_reference(spread: bool, tmp_path: Path) -> None:
    """6 experts over 1, 2 and 4 ranks, the first layer dense."""
    model = tiny_model("qwen3_moe", layers=2, tied=False)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE))
    for size in (1, 2, 4):
        rules = vllm_rules_layout(model, RolloutLayout(tensor=size, expert=size if spread else 1))
        for rank in range(size):
            traced = trace_vllm_layout(tmp_path, size, rank, tensors=logical_tensors(model), expert_parallel=spread)
            assert set(traced) == set(rules(rank))


class _Loading(nn.Module):
    """A module of one [4, 2] parameter whose loader is given."""

    def __init__(self, load) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, 2, device="meta"))
        self.load = load

    def load_weights(self, weights) -> None:
        for _, tensor in weights:
            self.load(self.weight.data, tensor)


LOADERS = {
    "computed_tensor": (lambda p, t: p.copy_(t * 2), "from a tensor it computed"),
    "transposed_view": (lambda p, t: p[:2].copy_(t[:2].T), "no slice"),
    "half_written": (lambda p, t: p[:2].copy_(t[:2]), "writes 4 elements of 'weight', which has 8"),
    "written_twice": (lambda p, t: (p[:2].copy_(t[:2]), p[1:3].copy_(t[:2])), "parts of 'weight' twice"),
    "unread": (lambda p, t: p.fill_(0.0), "never reads w"),
}


@pytest.mark.parametrize("case", LOADERS)
def test_record_loading_rejects(case: str) -> None:
    load, message = LOADERS[case]
    with pytest.raises(ValueError, match=message):
        vllm_layout._record_loading(_Loading(load), [LogicalTensor("w", (4, 2))])


def test_record_loading_matches_hand_computed() -> None:
    def load(parameter: torch.Tensor, tensor: torch.Tensor) -> None:
        parameter[:3].copy_(tensor.narrow(0, 5, 3))
        parameter[3:].fill_(0.0)

    (fragment,) = vllm_layout._record_loading(_Loading(load), [LogicalTensor("w", (9, 2))])
    assert (fragment.start, fragment.stop, fragment.offset, fragment.strides) == ((5, 0), (8, 2), 0, (2, 1))
