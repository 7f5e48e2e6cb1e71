"""What the engine's GPU tests run: CUDA graphs, sleep mode, bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import Qwen2ForCausalLM

from megatron_rl.config.rollout import RolloutConfig
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine
from tests.rollout import engine_sessions as sessions
from tests.rollout.engine_sessions import LONG_PROMPT, MAX_MODEL_LEN, PROMPTS, SEEDS, load, reference_model, settings


def gpu_engine(folder: str) -> dict[str, Any]:
    """One engine with CUDA graphs and sleep mode on one GPU, bf16. Joins a job of its own."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    path, device = Path(folder), torch.device("cuda", 0)
    torch.cuda.set_device(device)
    model = reference_model(path).to(torch.bfloat16)
    cuda_state = torch.cuda.get_rng_state(device)
    before = sessions._rng_states()
    spec = EngineSpec(
        model_folder=path,
        rollout=RolloutConfig(max_num_seqs=64, kv_cache_gib=4.0),
        layout=RolloutLayout(),
        device=device,
        dtype=torch.bfloat16,
        max_model_len=MAX_MODEL_LEN,
        sleep_mode=True,
    )
    engine = VllmEngine(spec, dist.group.WORLD)
    load(engine, model)
    first = engine.generate(PROMPTS, settings(n=3), SEEDS)
    found: dict[str, Any] = {
        "rng_unchanged": sessions._rng_states() == before and torch.equal(torch.cuda.get_rng_state(device), cuda_state),
        "sampled": sessions._plain(first),
        "again": sessions._plain(engine.generate(PROMPTS, settings(n=3), SEEDS)),
        "other_seed": sessions._plain(engine.generate(PROMPTS, settings(n=3), [seed + 500 for seed in SEEDS])),
        **_gpu_logprobs(engine, model.to(device)),
        **sessions._stops(engine),
        **_gpu_updates(engine, model),
    }
    hot = engine.generate(PROMPTS, settings(n=64, temperature=5.0, max_new_tokens=20, ignore_eos=True), SEEDS)
    found["hot_max"] = max(token for samples in hot for c in samples for token in c.token_ids)
    engine.shutdown()
    dist.destroy_process_group()
    return found


def _gpu_logprobs(engine: VllmEngine, model: Qwen2ForCausalLM) -> dict[str, Any]:
    means = {}
    for temperature in (0.5, 1.0, 1.5):
        differences = []
        for prompt, (c,) in zip(
            PROMPTS,
            engine.generate(PROMPTS, settings(temperature=temperature), SEEDS),
            strict=True,
        ):
            ids = torch.tensor([prompt + list(c.token_ids)], device="cuda")
            with torch.no_grad():
                logits = model(ids).logits[0, len(prompt) - 1 : -1].float()
            chosen = torch.log_softmax(logits / temperature, dim=-1)[range(len(c.token_ids)), list(c.token_ids)].cpu()
            differences += (chosen - torch.tensor(c.logprobs)).abs().tolist()
        means[temperature] = sum(differences) / len(differences)
    return {"logprob_mean_differences": means}


def _gpu_updates(engine: VllmEngine, model: Qwen2ForCausalLM) -> dict[str, Any]:
    def greedy() -> list[int]:
        return list(engine.generate([LONG_PROMPT], settings(temperature=0.0, ignore_eos=True), [0])[0][0].token_ids)

    found: dict[str, Any] = {"greedy": greedy()}
    weight = engine.parameters()["model.layers.0.self_attn.qkv_proj.weight"]
    saved = weight.clone()
    engine.begin_weight_update()
    weight.mul_(-1.5)
    engine.finish_weight_update(1)
    found["edited"] = greedy()
    engine.begin_weight_update()
    weight.copy_(saved)
    engine.finish_weight_update(2)
    found["restored"] = greedy()
    freed = []
    for _ in range(3):  # other processes on the GPU may take memory meanwhile
        held = torch.cuda.mem_get_info()[0]
        engine.sleep(1)
        freed.append(torch.cuda.mem_get_info()[0] - held)
        found["asleep"] = sessions._error(RuntimeError, greedy)
        engine.wake()
    found["bytes_freed_by_sleep"] = max(freed)
    found["after_sleep_1"] = greedy()
    engine.sleep(2)
    engine.wake(["weights"])
    found["weights_dropped"] = sessions._error(RuntimeError, greedy)
    load(engine, model, version=3)
    engine.wake(["kv_cache"])
    found["after_sleep_2"] = greedy()
    return found
