"""What the engine tests run on their ranks: one engine start, many observations.

Everything here runs inside a rank process and returns plain values; the tests judge them.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM

from megatron_rl.config.rollout import RolloutConfig
from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.generator import RolloutGenerator
from megatron_rl.rollout.outputs import Completion
from megatron_rl.rollout.sampling import SamplingSettings
from megatron_rl.rollout.vllm_engine import EngineSpec, VllmEngine, probe_engine
from megatron_rl.types.prompts import Prompt, PromptBatch

VOCAB = 251
"""Odd: no tensor-parallel degree and no padding multiple divides it."""
EOS = (7, 9)
MAX_MODEL_LEN = 112
PROMPTS = [[3 + i, 20 + 3 * i, 30, 40 + i][: 2 + i % 3] for i in range(8)]
SEEDS = [1000 * (i + 1) for i in range(8)]
LONG_PROMPT = [5 + i % 200 for i in range(100)]


def write_model_folder(folder: Path, tied: bool = False, **shape: int) -> None:
    """A tiny model's configuration, with generation defaults that training must not pick up."""
    tiny = {
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    config = Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=EOS[0],
        **{**tiny, **shape},
    )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    defaults = {"temperature": 0.3, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.2, "eos_token_id": list(EOS)}
    (folder / "generation_config.json").write_text(json.dumps(defaults))


def reference_model(folder: Path) -> Qwen2ForCausalLM:
    """The oracle: the same shape in transformers, with weights large enough for peaked distributions."""
    generator = torch.Generator().manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config.from_pretrained(folder)).float()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.15, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
    return model.eval()


def settings(**values: Any) -> SamplingSettings:
    return SamplingSettings(**{"max_new_tokens": 6, "stop_token_ids": EOS, **values})


def start(folder: Path, tensor: int) -> VllmEngine:
    layout = RolloutLayout(tensor=tensor, data=dist.get_world_size() // tensor)
    spec = EngineSpec(
        model_folder=folder,
        rollout=RolloutConfig(tensor_parallel_size=tensor, max_num_seqs=128),
        layout=layout,
        device=torch.device("cpu"),
        dtype=torch.float32,
        max_model_len=MAX_MODEL_LEN,
    )
    return VllmEngine(spec, dist.group.WORLD)


def load(engine: VllmEngine, model: Qwen2ForCausalLM, version: int = 0) -> None:
    """Fill the shard through the engine's own loader, which knows the tensor-parallel cuts independently of us."""
    tied = model.config.tie_word_embeddings
    weights = [(name, tensor) for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")]
    engine.begin_weight_update()
    engine._engine.apply_model(lambda vllm_model: vllm_model.load_weights(iter(weights)))
    engine.finish_weight_update(version)


def _plain(completions: list[list[Completion]]) -> list[list[tuple[list[int], list[float], str]]]:
    return [[(list(c.token_ids), list(c.logprobs), c.finish_reason) for c in samples] for samples in completions]


def _rng_states() -> str:
    return repr((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))


def _named_segments() -> list[str]:
    """Shared memory of this process that still has a name, and so would outlive a SIGKILL.

    Semaphores are those of the queue through which the tests get their answers.
    """
    mapped = (line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line)
    return sorted({name for name in mapped if not name.endswith("(deleted)") and "/sem." not in name})


def _error(kind: type[Exception], call: Any) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    return "nothing raised"


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def single_engine(folder: str) -> dict[str, Any]:
    """One engine on one rank."""
    messages = _Messages()
    logging.getLogger("megatron_rl").addHandler(messages)
    path, found = Path(folder), {}
    os.environ["LOCAL_WORLD_SIZE"] = "3"
    before = _rng_states()
    engine = start(path, 1)
    found["rng_unchanged_by_start"] = _rng_states() == before
    found["local_world_size"] = os.environ["LOCAL_WORLD_SIZE"]
    torch.set_num_threads(1)
    found["parameters"] = {name: (tuple(p.shape), float(p.abs().sum())) for name, p in engine.parameters().items()}
    found["unsynced"] = _error(RuntimeError, lambda: engine.generate(PROMPTS, settings(), SEEDS))
    model = reference_model(path)
    load(engine, model)
    before = _rng_states()
    found["sampled"] = _plain(engine.generate(PROMPTS, settings(n=3), SEEDS))
    found["rng_unchanged_by_generate"] = _rng_states() == before
    found["warnings"] = list(messages.texts)
    engine.generate(PROMPTS[:1], settings(), SEEDS[:1])
    found["warnings_after_second_call"] = len(messages.texts)
    found.update(_seeds(engine), **_logprobs(engine, model), **_stops(engine), **_limits(engine), **_updates(engine))
    hot = engine.generate(PROMPTS, settings(n=64, temperature=5.0, max_new_tokens=20, ignore_eos=True), SEEDS)
    hot_ids = [token for samples in hot for c in samples for token in c.token_ids]
    found["hot_count"], found["hot_max"] = len(hot_ids), max(hot_ids)
    found["probe"] = probe_engine()
    engine.shutdown()
    found["job_group_survives_shutdown"] = dist.is_initialized()
    return found


def _seeds(engine: VllmEngine) -> dict[str, Any]:
    alone = [engine.generate([prompt], settings(), [seed])[0] for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]
    children = [engine.generate(PROMPTS, settings(), [seed + i for seed in SEEDS]) for i in range(3)]
    return {
        "alone": _plain(alone),
        "reversed": _plain(engine.generate(PROMPTS[::-1], settings(n=3), SEEDS[::-1])[::-1]),
        "children": _plain([[children[i][p][0] for i in range(3)] for p in range(len(PROMPTS))]),
        "other_seed": _plain(engine.generate(PROMPTS, settings(n=3), [seed + 500 for seed in SEEDS])),
    }


def _reference_logprobs(model: Qwen2ForCausalLM, prompt: list[int], answer: list[int], temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, dim=-1)


def _logprobs(engine: VllmEngine, model: Qwen2ForCausalLM) -> dict[str, Any]:
    differences = {}
    for temperature in (0.5, 1.0, 1.5):
        worst = 0.0
        for prompt, (c,) in zip(PROMPTS, engine.generate(PROMPTS, settings(temperature=temperature), SEEDS), strict=True):
            expected = _reference_logprobs(model, prompt, list(c.token_ids), temperature)
            chosen = expected[range(len(c.token_ids)), list(c.token_ids)]
            worst = max(worst, float((chosen - torch.tensor(c.logprobs)).abs().max()))
        differences[temperature] = worst
    top_k = 0.0
    for prompt, (c,) in zip(PROMPTS, engine.generate(PROMPTS, settings(top_k=5), SEEDS), strict=True):
        kept = _reference_logprobs(model, prompt, list(c.token_ids), 1.0).topk(5, dim=-1)
        kept_logprobs = torch.log_softmax(kept.values, dim=-1)
        for t, (token, logprob) in enumerate(zip(c.token_ids, c.logprobs, strict=True)):
            place = kept.indices[t].tolist().index(token)
            top_k = max(top_k, abs(float(kept_logprobs[t, place]) - logprob))
    greedy = 0.0
    for prompt, (c,) in zip(PROMPTS, engine.generate(PROMPTS, settings(temperature=0.0), SEEDS), strict=True):
        expected = _reference_logprobs(model, prompt, list(c.token_ids), 1.0)
        assert expected.argmax(dim=-1).tolist() == list(c.token_ids)
        greedy = max(greedy, float((expected.amax(dim=-1) - torch.tensor(c.logprobs)).abs().max()))
    return {"logprob_differences": differences, "top_k_difference": top_k, "greedy_difference": greedy}


def _stops(engine: VllmEngine) -> dict[str, Any]:
    """Make an id that a free run first emits at its fourth place the stop id, with budgets around it."""
    prompt = LONG_PROMPT[:10]
    free = next(
        (c.token_ids, seed)
        for seed in range(50)
        for (c,) in engine.generate([prompt], settings(max_new_tokens=4, ignore_eos=True), [seed])
        if c.token_ids[3] not in c.token_ids[:3] and not set(c.token_ids) & set(EOS)
    )
    ids, seed = free

    def ends(budget: int, stop: tuple[int, ...], **values: Any) -> tuple[int, str]:
        ((c,),) = engine.generate([prompt], settings(max_new_tokens=budget, stop_token_ids=stop, **values), [seed])
        assert c.token_ids[:4] == ids[: len(c.token_ids)]
        return len(c.token_ids), c.finish_reason

    stop = tuple(sorted({ids[3], *EOS}))
    return {
        "stop_below_budget": ends(6, stop),
        "stop_exactly_at_budget": ends(4, stop),
        "no_stop_at_budget": ends(4, EOS),
        "stop_beyond_budget": ends(3, stop),
        "ignored_stop": ends(6, stop, ignore_eos=True),
        "unknown_eos": _error(ValueError, lambda: engine.generate([prompt], settings(stop_token_ids=(9,)), [0])),
    }


def _limits(engine: VllmEngine) -> dict[str, Any]:
    fits = [1] * (MAX_MODEL_LEN - 6)
    return {
        "too_long": _error(ValueError, lambda: engine.generate([PROMPTS[0], [*fits, 1]], settings(), SEEDS[:2])),
        "empty_prompt": _error(ValueError, lambda: engine.generate([[]], settings(), [0])),
        "foreign_id": _error(ValueError, lambda: engine.generate([[3, VOCAB]], settings(), [0])),
        "just_fits": len(engine.generate([fits], settings(ignore_eos=True), [0])[0][0].token_ids),
    }


def _updates(engine: VllmEngine) -> dict[str, Any]:
    """Edit a weight in place; the long prompt's prefix is cached from the calls before."""

    def greedy() -> list[int]:
        return list(engine.generate([LONG_PROMPT], settings(temperature=0.0, ignore_eos=True), [0])[0][0].token_ids)

    found: dict[str, Any] = {"greedy_before": [greedy(), greedy()]}
    weight = engine.parameters()["model.layers.0.self_attn.qkv_proj.weight"]
    saved = weight.clone()
    engine.begin_weight_update()
    weight.mul_(-1.5)
    found["mid_update"] = _error(RuntimeError, greedy)
    engine.finish_weight_update(1)
    found["greedy_edited"], found["version_edited"] = greedy(), engine.policy_version
    engine._engine.apply_model(lambda model: model.model.layers[0].self_attn.qkv_proj.weight.copy_(saved))
    found["greedy_stale_cache"] = greedy()
    engine.begin_weight_update()
    engine.finish_weight_update(2)
    found["greedy_restored"] = greedy()
    found["few_cached"] = _dropped_cache(engine, [LONG_PROMPT])
    found["invalidated"] = _dropped_cache(engine, [LONG_PROMPT], invalidate=True)
    found["many_cached"] = _dropped_cache(engine, [[i, *LONG_PROMPT[1:]] for i in range(100)])
    found["greedy_after_drops"] = greedy()
    engine.sleep(2)
    found["asleep"] = _error(RuntimeError, greedy)
    engine.wake()
    found["woken_without_weights"] = _error(RuntimeError, greedy)
    engine.begin_weight_update()
    engine.finish_weight_update(3)
    found["greedy_after_sleep"] = greedy()
    return found


def _dropped_cache(engine: VllmEngine, prompts: list[list[int]], *, invalidate: bool = False) -> tuple[int, int, int]:
    """Cached blocks before and after a push, and whether vLLM's own reset dropped them.

    ``invalidate``: before and after an invalidation alone.
    """
    engine.generate(prompts, settings(max_new_tokens=1), range(len(prompts)))
    pool = engine._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool

    def cached() -> int:
        hashed = sum(block.block_hash is not None for block in pool.blocks)
        assert hashed >= len(pool.cached_block_hash_to_block)
        return hashed

    before = cached()
    with patch.object(pool, "reset_prefix_cache", wraps=pool.reset_prefix_cache) as reset:
        if invalidate:
            engine.invalidate_weights()
            after = cached()
        engine.begin_weight_update()
        engine.finish_weight_update(2)
    return before, after if invalidate else cached(), reset.call_count


def tensor_parallel_engine(folder: str) -> dict[str, Any]:
    """One engine on two ranks."""
    model = reference_model(Path(folder))
    sockets = Path(folder).with_name("sockets")
    sockets.mkdir(exist_ok=True)
    os.environ["VLLM_RPC_BASE_PATH"] = str(sockets)
    before = _rng_states()
    engine = start(Path(folder), dist.get_world_size())
    load(engine, model)
    found: dict[str, Any] = {
        "sampled": _plain(engine.generate(PROMPTS, settings(n=3), SEEDS)),
        "greedy": _plain(engine.generate(PROMPTS, settings(temperature=0.0), SEEDS)),
    }
    found["rng_unchanged"] = _rng_states() == before
    generator = RolloutGenerator(engine, RolloutLayout(tensor=2, data=1), dist.group.WORLD, seed=0)
    order = 1 if dist.get_rank() == 0 else -1
    prompts = [Prompt(uid=str(i), token_ids=tuple(p), text="", row={}) for i, p in enumerate(PROMPTS)]
    split = PromptBatch(prompts=tuple(prompts[::order]), epoch=0)
    found["split"] = _error(RuntimeError, lambda: generator.generate(split, settings(), step=0, policy_version=0))
    whole = PromptBatch(prompts=tuple(prompts), epoch=0)
    batch, _ = generator.generate(whole, settings(n=2), step=0, policy_version=0)
    found["after_split"] = batch.tokens_BS.tolist()
    found["named_segments"] = _named_segments()
    found["sockets"] = [path.name for path in sockets.iterdir()]
    return found


def killed_engine(folder: str) -> None:
    """Start an engine and, once this has been reported, die without any clean-up: no exit handler or destructor runs."""
    start(Path(folder), dist.get_world_size())
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()


def global_rollouts(folder: str) -> dict[str, Any]:
    """One engine per rank, one batch over all of them (tied embeddings)."""
    engine = start(Path(folder), 1)
    parameters = engine.parameters()
    same = parameters["lm_head.weight"].data_ptr() == parameters["model.embed_tokens.weight"].data_ptr()
    load(engine, reference_model(Path(folder)))
    generator = RolloutGenerator(engine, RolloutLayout(data=dist.get_world_size()), dist.group.WORLD, seed=5)
    prompts = tuple(Prompt(uid=str(i), token_ids=tuple(p), text="", row={}) for i, p in enumerate(PROMPTS[:7]))
    batch, _ = generator.generate(PromptBatch(prompts=prompts, epoch=0), settings(n=4), step=3, policy_version=0)
    return {
        "tied_is_one_tensor": same,
        "tokens": batch.tokens_BS.tolist(),
        "logprobs": batch.rollout_logprobs_BS.numpy(),
        "reasons": batch.finish_reasons,
    }
