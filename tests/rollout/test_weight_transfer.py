"""vLLM's own update calls reach a planned transfer: one real ``LLM`` on CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from megatron_rl.config.model import ModelConfig
from megatron_rl.parallel.layout import ParallelLayout, RolloutLayout
from megatron_rl.resharding.executor import ReshardExecutor
from megatron_rl.resharding.megatron_layout import megatron_layout
from megatron_rl.resharding.planner import plan_reshard
from megatron_rl.resharding.verify import allocate_buffers, scatter_logical
from megatron_rl.resharding.vllm_rules import vllm_rules_layout
from megatron_rl.rollout.plain_weights import plain_cpu_weights
from megatron_rl.rollout.vllm_environment import set_engine_environment
from megatron_rl.rollout.weight_transfer import BACKEND, register_weight_transfer
from megatron_rl.weights.names import logical_tensors
from tests.rollout import engine_sessions as sessions
from tests.support.distributed import run_distributed

pytestmark = pytest.mark.vllm
PROMPT = {"prompt_token_ids": sessions.LONG_PROMPT}


def _model() -> ModelConfig:
    """The shape of ``engine_sessions.write_model_folder``."""
    return ModelConfig(
        name="tiny",
        architecture="qwen2",
        num_layers=2,
        hidden_size=128,
        intermediate_size=192,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=sessions.VOCAB,
        tie_word_embeddings=False,
        qkv_bias=True,
    )


def _updates(folder: str) -> dict[str, Any]:
    set_engine_environment("cpu")
    from vllm import LLM, SamplingParams
    from vllm.config import WeightTransferConfig

    register_weight_transfer()
    register_weight_transfer()
    config = WeightTransferConfig(backend=BACKEND)
    with plain_cpu_weights(torch.device("cpu")):
        llm = LLM(
            folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="float32",
            max_model_len=sessions.MAX_MODEL_LEN,
            enforce_eager=True,
            kv_cache_memory_bytes=2**26,
            generation_config="vllm",
            weight_transfer_config=config,
        )
    model = _model()
    stored, wanted = megatron_layout(model, ParallelLayout(), 256), vllm_rules_layout(model, RolloutLayout())
    sides = (logical_tensors(model), stored, [0], wanted, [0])
    plan = plan_reshard(*sides, itemsize=4, budget_bytes=1 << 20)
    sources = allocate_buffers(stored(0), torch.float32, 0.0)
    held: dict[str, torch.Tensor] = {}

    def connect(parameters: dict[str, torch.Tensor]) -> Any:
        held.update(parameters)
        return ReshardExecutor(plan, 0, sources, parameters, None, 1 << 20).run

    def push(weights: dict[str, torch.Tensor]) -> list[int]:
        scatter_logical(stored(0), weights, sources)
        llm.start_weight_update()
        llm.update_weights({"update_info": {}})
        llm.finish_weight_update()
        assert llm.reset_prefix_cache()
        sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, detokenize=False)
        return list(llm.generate([PROMPT], sampling, use_tqdm=False)[0].outputs[0].token_ids)

    llm.init_weight_transfer_engine({"init_info": {"connect": connect}})
    reference = sessions.reference_model(Path(folder))
    weights = {name: tensor.clone() for name, tensor in reference.state_dict().items()}
    first = push(weights)
    expected = allocate_buffers(wanted(0), torch.float32, 0.0)
    scatter_logical(wanted(0), weights, expected)
    equal = all(torch.equal(held[name].view(-1)[: value.numel()], value) for name, value in expected.items())
    ids = list(sessions.LONG_PROMPT)
    with torch.no_grad():
        for _ in range(6):
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    changed = {name: -1.5 * tensor if "q_proj.weight" in name else tensor for name, tensor in weights.items()}
    return {"first": first, "reference": ids[-6:], "equal": equal, "changed": push(changed), "again": push(weights)}


def test_llm_update_calls_run_the_plan(tmp_path: Path) -> None:
    sessions.write_model_folder(tmp_path / "model")
    (found,) = run_distributed(1, _updates, str(tmp_path / "model"))
    assert found["equal"]
    assert found["first"] == found["again"] == found["reference"]
    assert found["changed"] != found["first"]
