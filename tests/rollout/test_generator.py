"""Rollouts over several engines: order, agreement, layout independence. No model is involved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from megatron_rl.parallel.layout import RolloutLayout
from megatron_rl.rollout.engine import RolloutEngine
from megatron_rl.rollout.generator import RolloutGenerator, to_rollout_batch
from megatron_rl.rollout.outputs import Completion, PackedCompletions
from megatron_rl.rollout.sampling import SamplingSettings, request_seed
from megatron_rl.types.batches import RolloutBatch
from megatron_rl.types.masks import response_mask
from megatron_rl.types.metrics import to_floats
from megatron_rl.types.prompts import Prompt, PromptBatch
from tests.rollout.counting_engine import CountingEngine
from tests.support.distributed import run_distributed

_SETTINGS = SamplingSettings(n=3, max_new_tokens=4)


def _prompts(*ids: tuple[int, ...]) -> PromptBatch:
    return PromptBatch(prompts=tuple(Prompt(uid=f"row:{i}", token_ids=p, text="", row={}) for i, p in enumerate(ids)), epoch=0)


_PROMPTS = _prompts((9, 11), (5, 6, 7, 8, 12), (3,), (9, 9, 14), (9, 11))


def _synced(engine: CountingEngine, version: int = 1) -> RolloutEngine:
    engine.begin_weight_update()
    engine.finish_weight_update(version)
    return engine


def _generator(engine: RolloutEngine, tensor: int) -> RolloutGenerator:
    layout = RolloutLayout(tensor=tensor, data=dist.get_world_size() // tensor)
    return RolloutGenerator(engine, layout, dist.group.WORLD, seed=7)


def _flat(batch: RolloutBatch) -> dict[str, Any]:
    return {
        "tokens": batch.tokens_BS.tolist(),
        "logprobs": batch.rollout_logprobs_BS.tolist(),
        "lengths": (batch.prompt_lengths_B.tolist(), batch.response_lengths_B.tolist()),
        "groups": batch.group_ids_B.tolist(),
        "reasons": batch.finish_reasons,
        "version": batch.policy_version,
    }


def _generate(tensor: int) -> tuple[dict[str, Any], dict[str, float]]:
    generator = _generator(_synced(CountingEngine()), tensor)
    batch, metrics = generator.generate(_PROMPTS, _SETTINGS, step=2, policy_version=1)
    more, _ = generator.generate(_PROMPTS, _SETTINGS, step=2, policy_version=1, first_index=len(_PROMPTS.prompts))
    return {**_flat(batch), "logprobs of the next gen batch": more.rollout_logprobs_BS.tolist()}, to_floats(metrics)


@pytest.fixture(scope="module")
def on_one_engine() -> tuple[dict[str, Any], dict[str, float]]:
    return run_distributed(1, _generate, 1)[0]


@pytest.mark.parametrize(("world_size", "tensor"), [(2, 1), (2, 2), (4, 2)], ids=["dp2", "tp2", "tp2_dp2"])
def test_generate_invariant_to_dp_and_tp(
    world_size: int, tensor: int, on_one_engine: tuple[dict[str, Any], dict[str, float]]
) -> None:
    answers = run_distributed(world_size, _generate, tensor)
    assert [batch for batch, _ in answers] == [on_one_engine[0]] * world_size
    assert all(metrics == answers[0][1] for _, metrics in answers)


def test_generate_answers_every_prompt_in_its_own_rows(on_one_engine: tuple[dict[str, Any], dict[str, float]]) -> None:
    batch, _ = on_one_engine
    for row, (tokens, logprobs) in enumerate(zip(batch["tokens"], batch["logprobs"], strict=True)):
        index, sample = divmod(row, _SETTINGS.n)
        ids = list(_PROMPTS.prompts[index].token_ids)
        length = 1 + (ids[-1] + sample) % _SETTINGS.max_new_tokens
        assert tokens[: len(ids) + length] == ids + [ids[-1]] * length
        assert batch["groups"][row] == index
        seed = request_seed(7, 2, index) + sample
        assert logprobs[len(ids) : len(ids) + length] == [-float(seed % 1009)] * length


def test_generate_gives_equal_prompts_different_seeds(on_one_engine: tuple[dict[str, Any], dict[str, float]]) -> None:
    batch, _ = on_one_engine
    assert _PROMPTS.prompts[0].token_ids == _PROMPTS.prompts[4].token_ids
    assert batch["logprobs"][0][2] != batch["logprobs"][12][2]


def test_generate_gives_the_next_gen_batch_of_a_step_the_next_seeds(
    on_one_engine: tuple[dict[str, Any], dict[str, float]],
) -> None:
    batch, _ = on_one_engine
    for row, logprobs in enumerate(batch["logprobs of the next gen batch"]):
        index, sample = divmod(row, _SETTINGS.n)
        seed = request_seed(7, 2, len(_PROMPTS.prompts) + index) + sample
        assert logprobs[len(_PROMPTS.prompts[index].token_ids)] == -float(seed % 1009)


def _disagree(fault: str) -> str:
    """Rank 1 of one TP2 engine sees or does something else; returns what this rank raised."""
    faulty = dist.get_rank() == 1
    prompts, settings, step, version, seed = _PROMPTS, _SETTINGS, 2, 1, 7
    engine = CountingEngine()
    if faulty and fault == "permuted prompts":
        prompts = PromptBatch(prompts=prompts.prompts[::-1], epoch=0)
    if faulty and fault == "one prompt fewer":
        prompts = PromptBatch(prompts=prompts.prompts[:-1], epoch=0)
    if faulty and fault == "temperature":
        settings = replace(settings, temperature=0.5)
    if faulty and fault == "step":
        step = 3
    if faulty and fault == "run seed":
        seed = 8
    if faulty and fault == "other tokens":
        engine = CountingEngine(slip=1)
    if faulty and fault == "engine failure":
        engine = CountingEngine(fails=True)
    if faulty and fault == "missed sync":
        generator_engine = _synced(engine, version=0)
    else:
        generator_engine = _synced(engine)
    layout = RolloutLayout(tensor=2, data=1)
    generator = RolloutGenerator(generator_engine, layout, dist.group.WORLD, seed=seed)
    try:
        generator.generate(prompts, settings, step=step, policy_version=version)
    except RuntimeError as error:
        return str(error)
    return "nothing raised"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("permuted prompts", "rank 1 differs from rank 0 in prompts"),
        ("one prompt fewer", "rank 1 differs from rank 0 in prompts"),
        ("temperature", "rank 1 differs from rank 0 in sampling settings"),
        ("step", "rank 1 differs from rank 0 in seed"),
        ("run seed", "rank 1 differs from rank 0 in seed"),
        ("missed sync", "rank 1: asked to sample from weights of version 1, but the engine holds version 0"),
        ("other tokens", "rank 1 differs from rank 0 in sampled tokens"),
        ("engine failure", "rank 1: OSError: out of order"),
    ],
)
def test_generate_rejects_disagreeing_ranks_on_all_of_them(fault: str, message: str) -> None:
    raised = run_distributed(2, _disagree, fault)
    assert raised[0] == raised[1]
    assert message in raised[0]


def _too_long() -> str:
    generator = _generator(_synced(CountingEngine(max_model_len=8)), 1)
    with pytest.raises(RuntimeError) as caught:
        generator.generate(_PROMPTS, _SETTINGS, step=0, policy_version=1)
    return str(caught.value)


def test_generate_rejects_an_overlong_prompt_naming_it() -> None:
    for message in run_distributed(2, _too_long):
        assert "prompt row:1 has 5 tokens" in message and "rollout.max_model_len=8" in message and "1 to 4" in message


_EXACT_FITS = [
    Completion(token_ids=(4, 2, 2), logprobs=(-1.0, -2.0, -3.0), finish_reason="stop"),
    Completion(token_ids=(4, 5, 6, 2), logprobs=(-1.0,) * 4, finish_reason="stop"),
    Completion(token_ids=(4, 5, 6, 7), logprobs=(-1.0,) * 4, finish_reason="length"),
    Completion(token_ids=(), logprobs=(), finish_reason="abort"),
]


def test_to_rollout_batch_matches_hand_computed() -> None:
    batch = to_rollout_batch(_prompts((8, 9), (7,)), PackedCompletions.pack(_EXACT_FITS), 5, pad_token_id=2)
    assert batch.tokens_BS.tolist() == [
        [8, 9, 4, 2, 2, 2],
        [8, 9, 4, 5, 6, 2],
        [7, 4, 5, 6, 7, 2],
        [7, 2, 2, 2, 2, 2],
    ]
    mask_BS = response_mask(batch.prompt_lengths_B, batch.response_lengths_B, 6)
    # pad == EOS == 2: the mask holds the response's own EOS ids and none of the padding.
    assert mask_BS.sum(dim=1).tolist() == batch.response_lengths_B.tolist() == [3, 4, 4, 0]
    assert batch.rollout_logprobs_BS[0].tolist() == [0.0, 0.0, -1.0, -2.0, -3.0, 0.0]
    assert not batch.rollout_logprobs_BS[~mask_BS].any()
    assert batch.group_ids_B.tolist() == [0, 0, 1, 1]
    assert batch.finish_reasons == ("stop", "stop", "length", "abort")
    assert batch.policy_version == 5
    assert batch.tokens_BS.dtype == torch.int64
