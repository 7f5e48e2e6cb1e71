"""One role, every layout: outputs, gradients, gradient norm and updated weights equal those of a single process."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from megatron_rl.config.training import OptimConfig, RecomputeConfig, TrainedRoleConfig
from megatron_rl.parallel.layout import ParallelLayout
from tests.support.distributed import run_distributed
from tests.support.tiny_models import ragged_batch, tiny_model
from tests.training.role_runs import Answer, RatioLoss, RoleRun, assert_same_run, run_role

_OPTIM = OptimConfig(lr=0.01, eps=0.1)
_TWO = {
    "tp2": dict(tensor=2),
    "tp2_sp": dict(tensor=2, sequence_parallel=True),
    "pp2": dict(pipeline=2),
    "pp2_vpp2": dict(pipeline=2, virtual_pipeline=2),
    "dp2": dict(data=2),
}
_FOUR = {
    "tp2_pp2": dict(tensor=2, pipeline=2),
    "tp2_pp2_vpp2_sp": dict(tensor=2, pipeline=2, virtual_pipeline=2, sequence_parallel=True),
    "tp2_dp2_sp": dict(tensor=2, data=2, sequence_parallel=True),
    "pp2_dp2": dict(pipeline=2, data=2),
    "tp2_dp2_data_fastest": dict(tensor=2, data=2, sequence_parallel=True, order=(("data", 2), ("tensor", 2))),
    "tp2_pp2_stages_fastest": dict(tensor=2, pipeline=2, order=(("pipeline", 2), ("tensor", 2))),
    "pp2_dp2_stages_fastest": dict(pipeline=2, data=2, order=(("pipeline", 2), ("data", 2))),
}
_MODELS = {
    "tied": tiny_model(),
    "untied_qk_norm": tiny_model(tied=False, qk_norm=True),
}


@functools.cache
def _single(model: str, head: str) -> Answer:
    return run_distributed(1, run_role, RoleRun(model=_MODELS[model], head=head))[0]


def _runs(run: list[RoleRun]) -> list[Answer]:
    return [run_role(one) for one in run]


def _check(world: int, layouts: dict[str, dict[str, object]], model: str, head: str) -> None:
    base = RoleRun(model=_MODELS[model], head=head)
    runs = [base.on(**degrees) for degrees in layouts.values()]
    runs += [replace(runs[0], is_separable=False)] if head == "lm" else []
    answers = run_distributed(world, _runs, runs)
    for index, run in enumerate(runs):
        assert_same_run([answer[index] for answer in answers], run, _single(model, head))


@pytest.mark.parametrize("model", _MODELS)
@pytest.mark.parametrize("head", ["lm", "value"], ids=["actor", "critic"])
def test_update_invariant_to_tp_pp_dp_on_two_ranks(model: str, head: str) -> None:
    _check(2, _TWO, model, head)


@pytest.mark.parametrize("head", ["lm", "value"], ids=["actor", "critic"])
def test_update_invariant_to_tp_pp_dp_on_four_ranks(head: str) -> None:
    _check(4, _FOUR, "tied" if head == "lm" else "untied_qk_norm", head)


def test_update_invariant_to_microbatching() -> None:
    base = RoleRun()
    fixed = [
        replace(base, config=TrainedRoleConfig(optim=_OPTIM, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=size))
        for size in (8, 4, 2, 1)
    ]
    dynamic = [
        replace(base, config=TrainedRoleConfig(optim=_OPTIM, ppo_max_token_len_per_gpu=tokens)) for tokens in (24, 40, 1000)
    ]
    recomputing = [
        replace(base, config=TrainedRoleConfig(optim=_OPTIM, recompute=RecomputeConfig(granularity=granularity)))
        for granularity in ("selective", "full")
    ]
    runs = [*fixed, *dynamic, *recomputing, replace(base, is_separable=False)]
    (answers,) = run_distributed(1, _runs, runs)
    for run, answer in zip(runs, answers, strict=True):
        assert_same_run([answer], run, _single("tied", "lm"))


def test_update_invariant_to_distributed_optimizer() -> None:
    run = RoleRun(config=TrainedRoleConfig(optim=_OPTIM.model_copy(update={"use_distributed_optimizer": False})))
    answers = run_distributed(2, run_role, run.on(data=2))
    assert_same_run(answers, run.on(data=2), _single("tied", "lm"))


def _runs_with_small_buckets(runs: list[RoleRun]) -> list[Answer]:
    """Buckets of a few tensors each, as a large model has them."""
    from megatron_rl.training import optimizer

    optimizer.DistributedDataParallelConfig = functools.partial(  # type: ignore[misc]
        optimizer.DistributedDataParallelConfig, bucket_size=4000
    )
    return _runs(runs)


def _check_overlap(world: int, model: str, layouts: list[dict[str, object]]) -> None:
    overlap = _OPTIM.model_copy(update={"overlap_grad_reduce": True, "overlap_param_gather": True})
    plain = RoleRun(model=_MODELS[model], steps=3)
    # Several micro-batches a rank, so that all but the last must hold their gradients back.
    overlapping = replace(plain, config=TrainedRoleConfig(optim=overlap, ppo_max_token_len_per_gpu=24))
    runs = [overlapping.on(**degrees) for degrees in layouts]
    (expected,) = run_distributed(1, run_role, plain)
    answers = run_distributed(world, _runs_with_small_buckets, runs)
    for index, run in enumerate(runs):
        assert_same_run([answer[index] for answer in answers], run, expected)


def test_update_invariant_to_overlap_on_two_ranks() -> None:
    # Untied: the head's weight has a bucket of its own, and no module call waits for it.
    _check_overlap(2, "untied_qk_norm", [dict(data=2)])


def test_update_invariant_to_overlap_on_four_ranks() -> None:
    _check_overlap(4, "tied", [dict(pipeline=2, data=2), dict(pipeline=2, virtual_pipeline=2, data=2)])


def test_update_with_fewer_samples_than_ranks_invariant_to_dp() -> None:
    # Three samples, of which one counts, on four ranks: the idle ones send a padding document through the pipeline.
    base = RoleRun(num_samples=3)
    (single,) = run_distributed(1, run_role, base)
    runs = [base.on(data=4), base.on(data=2, pipeline=2), base.on(data=2, pipeline=2, virtual_pipeline=2)]
    answers = run_distributed(4, _runs, runs)
    for index, run in enumerate(runs):
        assert_same_run([answer[index] for answer in answers], run, single)


def test_tied_copies_stay_bit_equal_over_five_steps() -> None:
    # check_replicas inside compares the two copies bit for bit.
    run = replace(RoleRun(steps=5), config=TrainedRoleConfig()).on(pipeline=2)
    first, last = run_distributed(2, run_role, run)
    copies = first["weights"]["embedding.word_embeddings.weight"], last["weights"]["output_layer.weight"]  # type: ignore[index]
    assert (copies[0] == copies[1]).all()


def _score_then_update(layouts: list[dict[str, object]]) -> list[float]:
    """Largest |ratio - 1| of a first update whose old log-probs came from packs of another size."""
    from megatron_rl.parallel.groups import GroupRegistry
    from megatron_rl.runtime.platform import Platform
    from megatron_rl.training.megatron_role import MegatronRole

    deviations = []
    for degrees in layouts:
        layout, registry = ParallelLayout(**degrees), GroupRegistry()  # type: ignore[arg-type]
        config = TrainedRoleConfig(optim=_OPTIM, use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=8)
        role = MegatronRole.build(tiny_model(), config, layout, registry, Platform.detect(), temperature=0.7)
        old_logprobs = role.score(ragged_batch())[0]
        role.config = config.model_copy(update={"ppo_micro_batch_size_per_gpu": 2})
        metrics = role.update(replace(ragged_batch(), old_logprobs_BS=old_logprobs), RatioLoss())
        deviations.append(metrics["ratio_deviation"].value)
    return deviations


def _reuse(layouts: list[dict[str, object]]) -> list[tuple[float, float, float]]:
    """How far an update that scores by itself is from scoring first: log-probs, entropies, weights after the step."""
    from megatron_rl.config.training import ActorConfig
    from megatron_rl.parallel.groups import GroupRegistry
    from megatron_rl.runtime.platform import Platform
    from megatron_rl.training.loss_closures import PolicyLoss
    from megatron_rl.training.megatron_role import MegatronRole

    answers = []
    for degrees in layouts:
        config = ActorConfig(optim=_OPTIM, ppo_max_token_len_per_gpu=40)
        layout, loss = ParallelLayout(**degrees), PolicyLoss(config)  # type: ignore[arg-type]
        first, second = (
            MegatronRole.build(tiny_model(), config, layout, GroupRegistry(), Platform.detect(), temperature=0.7)
            for _ in range(2)
        )
        batch = ragged_batch()
        logprobs, entropies = (x.where(batch.response_mask_BS, 0.0) for x in first.score(batch, with_entropy=True))
        first.update(replace(batch, old_logprobs_BS=logprobs), loss)
        _, own_logprobs, own_entropies = second.update_and_score(replace(batch, old_logprobs_BS=None), loss)
        weights = zip(first.parameters.values(), second.parameters.values(), strict=True)
        answers.append(
            (
                float((own_logprobs - logprobs).abs().max()),
                float((own_entropies - entropies).abs().max()),
                max(float((a - b).detach().abs().max()) for a, b in weights),
            )
        )
    return answers


def test_update_and_score_matches_scoring_before_the_update() -> None:
    for answers in run_distributed(2, _reuse, [dict(data=2), dict(tensor=2), dict(pipeline=2)]):
        assert max(max(answer) for answer in answers) < 1e-6


def test_first_update_has_ratio_one() -> None:
    for deviations in run_distributed(2, _score_then_update, [dict(data=2), dict(tensor=2), dict(pipeline=2)]):
        assert max(deviations) < 2e-6
