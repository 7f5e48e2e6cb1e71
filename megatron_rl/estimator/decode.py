"""Seconds of a rollout. Decoding reads memory: the weights once an iteration, each running sequence's cache once a token.

``prefill + (iterations * W + sequences * R (P + R / 2) * k) / bandwidth + messages`` is what the hardware needs; each
iteration and each token add a measured overhead (scheduling, sampling, log-probs).
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.coefficients import Coefficients
from megatron_rl.estimator.communication import all_reduce_s, link
from megatron_rl.estimator.deployment import EngineSetup, Workload
from megatron_rl.estimator.engine_memory import kv_bytes_per_token
from megatron_rl.estimator.flops import decode_flops, forward_flops
from megatron_rl.estimator.parameters import engine_parameters

_ELEMENT_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """Work of one engine in one rollout. Lengths are means, in tokens."""

    tensor: int
    sequences: float
    prefilled_prompts: float
    """Prompts that are not found in the prefix cache."""
    prompt_tokens: float
    response_tokens: float
    iterations: float
    """Until the last answer ends."""


def engine_load(workload: Workload, engine: EngineSetup, running: int) -> EngineLoad:
    """Work of the busiest engine, which runs at most ``running`` sequences at once.

    With fewer seats than samples, seats are refilled as answers end; the longest answer sets the least number of rounds.
    """
    prompts = -(-workload.prompts_per_step // engine.data)
    samples = min(prompts * workload.samples_per_prompt, workload.samples_per_step)
    return EngineLoad(
        tensor=engine.tensor,
        sequences=samples,
        prefilled_prompts=prompts if engine.prefix_caching else samples,
        prompt_tokens=workload.prompt_tokens,
        response_tokens=workload.response_tokens,
        iterations=max(workload.max_response_tokens, samples * workload.response_tokens / running),
    )


def hardware_s(model: ModelConfig, gpu: Gpu, load: EngineLoad, coefficients: Coefficients) -> float:
    """Seconds that bytes, FLOPs and messages take, without the engine's own overhead."""
    peak = gpu.peak_flops_per_s * load.tensor * coefficients.prefill_frac.value
    prefill = load.prefilled_prompts * forward_flops(model, [round(load.prompt_tokens)], "value") / peak
    decoded = load.sequences * load.response_tokens
    compute = decoded * decode_flops(model, load.prompt_tokens + load.response_tokens / 2) / peak
    reading = read_bytes(model, load) / (gpu.memory_bytes_per_s * coefficients.memory_frac.value)
    batch_bytes = decoded / load.iterations * model.hidden_size * _ELEMENT_BYTES
    message = all_reduce_s(batch_bytes, load.tensor, link(gpu, load.tensor), coefficients.collective_frac.value)
    return prefill + max(compute, reading) + load.iterations * 2 * model.num_layers * message


def read_bytes(model: ModelConfig, load: EngineLoad) -> float:
    """Bytes one rank reads while decoding.

    Weights without the embedding, of which only single rows are read (tied, it is the head as well and counts). Of a MoE
    all experts count: a batch of usual size touches each of them.
    """
    weights = engine_parameters(model, load.tensor)
    if not model.tie_word_embeddings:
        weights -= model.vocab_size * model.hidden_size // load.tensor
    cached = load.sequences * load.response_tokens * (load.prompt_tokens + load.response_tokens / 2)
    return load.iterations * weights * _ELEMENT_BYTES + cached * kv_bytes_per_token(model, load.tensor, _ELEMENT_BYTES)


def rollout_s(model: ModelConfig, gpu: Gpu, load: EngineLoad, coefficients: Coefficients) -> float:
    """Seconds from the first prompt to the last answer of one engine."""
    overhead = load.iterations * coefficients.decode_iteration_s.value
    overhead += load.sequences * load.response_tokens * coefficients.decode_token_s.value
    return hardware_s(model, gpu, load, coefficients) + overhead
