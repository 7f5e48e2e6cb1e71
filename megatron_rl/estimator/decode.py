"""Work of a rollout. Decoding reads memory: the weights once an iteration, each running sequence's cache once a token.

Its products have one row for each running sequence, so they cost FLOPs as well. Iterations and tokens add what the
engine itself takes: launches, sampling, scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron_rl.config.model import ModelConfig
from megatron_rl.estimator.catalogue import Gpu
from megatron_rl.estimator.communication import all_reduce_s, link
from megatron_rl.estimator.deployment import EngineSetup, Workload
from megatron_rl.estimator.engine_memory import kv_bytes_per_token
from megatron_rl.estimator.flops import decode_flops
from megatron_rl.estimator.parameters import engine_parameters
from megatron_rl.estimator.work import Documents, Work, layers_work

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
        iterations=max(workload.last_response_tokens, samples * workload.response_tokens / running),
    )


def rollout_work(model: ModelConfig, load: EngineLoad) -> Work:
    """Of one card of the engine: prefill as in scoring, without a head; then decoding."""
    tokens = load.prefilled_prompts * load.prompt_tokens
    prompts = Documents(tokens=tokens, squared_tokens=tokens * load.prompt_tokens, predicted_tokens=0, micro_batches=0)
    prefill = layers_work(model, prompts, _ELEMENT_BYTES, training=False).times(1 / load.tensor)
    decoded = load.sequences * load.response_tokens
    return prefill + Work(
        decode_flops=decoded * decode_flops(model, load.prompt_tokens + load.response_tokens / 2) / load.tensor,
        decode_bytes=read_bytes(model, load),
        iterations=load.iterations,
        sampled_tokens=decoded,
    )


def rollout_messages_s(model: ModelConfig, gpu: Gpu, load: EngineLoad, efficiency: float) -> float:
    """Seconds of the all-reduces of decoding, two a layer and iteration."""
    batch = load.sequences * load.response_tokens / load.iterations
    message = all_reduce_s(batch * model.hidden_size * _ELEMENT_BYTES, load.tensor, link(gpu, load.tensor), efficiency)
    return load.iterations * 2 * model.num_layers * message


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
