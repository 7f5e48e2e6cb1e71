"""An engine with FP8 weights beside its actor on one GPU, and vLLM's own loading of the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from megatron_rl.config.run import RunConfig
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from megatron_rl.training.job import Job
from megatron_rl.training.model_loading import build_actor
from megatron_rl.training.sync_assembly import build_weight_sync, plan_weight_sync, weights_to_share
from megatron_rl.weights.hf_config import hf_config

PROMPTS = [[(7 * i + 3 * j) % 240 + 3 for j in range(60 + i)] for i in range(4)]


def quantised_engine(config: RunConfig, folder: Path) -> dict[str, Any]:
    """Push, generate, change the actor, push and generate again, sleep; vLLM's own quantisation as the reference."""
    from vllm.utils.deep_gemm import per_block_cast_to_fp8

    job = Job.join(config, folder)
    actor = build_actor(job, 4, config.rollout.temperature)
    plan = plan_weight_sync(job, actor)
    description = hf_config(config.model, dtype="bfloat16")
    (folder / "config.json").write_text(json.dumps(description))
    spec = EngineSpec(
        model_folder=folder,
        rollout=config.rollout,
        layout=job.rollout_layout,
        device=job.platform.device,
        dtype=job.platform.dtype,
        max_model_len=96,
        sleep_mode=True,
        shared=weights_to_share(job, actor, plan),
    )
    engine = VllmEngine(spec, job.host_group)
    sync = build_weight_sync(job, actor, engine, plan)

    def tokens() -> list[tuple[int, ...]]:
        settings = SamplingSettings(max_new_tokens=8, temperature=0.0, ignore_eos=True)
        return [samples[0].token_ids for samples in engine.generate(PROMPTS, settings, range(len(PROMPTS)))]

    def equal_to_vllms() -> list[str]:
        """At TP1 the actor stores each linear weight as the engine does."""
        held, wrong = engine.parameters(), []
        for layer in range(config.model.num_layers):
            for theirs, ours in _NAMES.items():
                weight = actor.parameters[f"decoder.layers.{layer}.{ours}"].detach()
                name = f"model.layers.{layer}.{theirs}"
                values, scales = per_block_cast_to_fp8(weight, block_size=[128, 128], use_ue8m0=False)
                if not torch.equal(values.view(torch.uint8), held[name].view(torch.uint8)):
                    wrong.append(name)
                if not torch.equal(scales, held[f"{name}_scale_inv"]):
                    wrong.append(f"{name}_scale_inv")
        return wrong

    found: dict[str, Any] = {"metrics": {name: metric.value for name, metric in sync.push(0).items()}}
    found["dtypes"] = sorted({str(p.dtype) for p in engine.parameters().values()})
    found["differs"], found["start"] = equal_to_vllms(), tokens()
    with torch.no_grad():
        for name, parameter in actor.parameters.items():
            if "linear_qkv" in name:
                parameter.mul_(-1.5)
    sync.invalidate()
    sync.push(1)
    found["differs_after_an_update"], found["edited"] = equal_to_vllms(), tokens()
    engine.sleep(1)
    engine.wake()
    found["after_sleep_1"] = tokens()
    engine.sleep(2)
    engine.wake()
    sync.push(2)
    found["after_sleep_2"] = tokens()
    engine.shutdown()
    return found


_NAMES = {
    "self_attn.qkv_proj.weight": "self_attention.linear_qkv.weight",
    "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
    "mlp.gate_up_proj.weight": "mlp.linear_fc1.weight",
    "mlp.down_proj.weight": "mlp.linear_fc2.weight",
}
