"""The whole answer: identities, errors, and one golden estimate."""

from __future__ import annotations

import json
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from megatron_rl.config.errors import ConfigError
from megatron_rl.config.loading import compose
from megatron_rl.estimator import CostEstimate, estimate_cost
from megatron_rl.estimator.explain import resampling_lines
from megatron_rl.estimator.presets import preset_of_size

GOLDEN = Path(__file__).parent / "golden" / "7b_on_4_a100_40gb.json"


@pytest.fixture(scope="module")
def small_run() -> CostEstimate:
    return estimate_cost("1.5B", "H200", 2, 64, 2, algorithm="grpo", dataset_size=640, price_per_hour=5.0)


def test_estimate_cost_matches_golden(update_golden: bool) -> None:
    """Renew with ``--update-golden``: a change of this file is a change of the model, and the commit explains it."""
    found = estimate_cost(model_size="7B", gpu_type="A100-40GB", num_gpus=4, batch_size=32, epochs=3).to_dict()
    plain = json.loads(json.dumps(found))
    if update_golden:
        GOLDEN.write_text(json.dumps(plain, indent=1) + "\n")
    assert_close(plain, json.loads(GOLDEN.read_text()), "")


def assert_close(found: object, expected: object, path: str) -> None:
    if isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys(), path
        for key in expected:
            assert_close(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list) and len(found) == len(expected), path
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_close(one, other, f"{path}[{number}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9), path
    else:
        assert found == expected, path


def test_estimate_is_frozen(small_run: CostEstimate) -> None:
    with pytest.raises(FrozenInstanceError):
        small_run.cost = 0.0  # type: ignore[misc]


def test_estimate_arithmetic_matches_hand_computed(small_run: CostEstimate) -> None:
    step_s = sum(small_run.step_seconds.values())
    assert (small_run.steps_per_epoch, small_run.total_steps) == (10, 20)
    assert small_run.time_per_epoch == pytest.approx(10 * step_s / 3600)
    assert small_run.total_gpu_hours == pytest.approx(2 * 2 * small_run.time_per_epoch)
    assert small_run.cost == pytest.approx(5.0 * small_run.total_gpu_hours)
    assert not small_run.price_is_assumed


def test_estimate_peak_is_the_largest_phase(small_run: CostEstimate) -> None:
    (pool,) = small_run.memory_gib
    assert small_run.peak_mem_per_gpu == pytest.approx(max(sum(parts.values()) for parts in pool.phases.values()))
    assert small_run.fits and small_run.peak_mem_per_gpu <= pool.usable_gib


def test_estimate_ranks_what_this_version_trains_first(small_run: CostEstimate) -> None:
    rows = (small_run.recommended_strategy, *small_run.alternatives)
    trained = [row.trainable for row in rows]
    assert trained == sorted(trained, reverse=True)
    costs = [row.cost for row in rows if row.trainable]
    assert costs == sorted(costs)
    assert any(row.label.startswith("FSDP") and not row.trainable for row in rows)


def test_estimate_recommends_overrides_that_pass_the_check(small_run: CostEstimate) -> None:
    from megatron_rl.config.loading import compose
    from megatron_rl.config.validate import validate

    overrides = ["model=qwen2_5_1_5b", "algorithm=grpo", "data.train_batch_size=64", *small_run.recommended_strategy.overrides]
    problems = validate(compose([*overrides, "data=chain_sum"]), world_size=2)
    assert [problem for problem in problems if "parallel" in problem or "ppo" in problem] == []


def test_estimate_says_when_only_more_cards_would_do() -> None:
    found = estimate_cost("7B", "A100-40GB", 2, 32)
    assert not found.fits and found.recommended_strategy.overrides == ()
    enough = re.search(r"(\d+) x A100-40GB would fit", found.verdict)
    assert enough is not None and estimate_cost("7B", "A100-40GB", int(enough[1]), 32).fits


def test_estimate_offloads_where_that_makes_it_fit() -> None:
    found = estimate_cost("1.5B", "L40S", 1, 32)
    assert found.fits and "actor.optimizer_offload=true" in found.recommended_strategy.overrides
    assert ("other", "all roles", "host link") in {part[:3] for part in found.time_parts}


def test_estimate_of_unlike_cards_prices_both() -> None:
    found = estimate_cost(
        "7B", "H100", 8, 32, device_map={"actor": "H100", "critic": "A100"}, price_per_hour={"H100": 4.0, "A100": 2.0}
    )
    assert [(pool.gpu, pool.num_gpus) for pool in found.memory_gib] == [("H100-80GB", 4), ("A100-80GB", 4)]
    assert found.cost == pytest.approx(found.total_gpu_hours / 8 * (4 * 4.0 + 4 * 2.0))
    assert not found.fits and "not part of this version" in found.verdict


def test_estimate_takes_a_short_name_for_the_card_beside_it() -> None:
    """``gpu=A100-40GB device_map={actor: H100, critic: A100}``: one A100 is meant, and one price."""
    found = estimate_cost(
        "7B", "A100-40GB", 4, 32, device_map={"actor": "H100", "critic": "A100"}, price_per_hour={"H100": 4.0, "A100": 2.0}
    )
    assert found.gpus == "2 x H100-80GB + 2 x A100-40GB"
    assert found.price_per_hour == {"H100-80GB": 4.0, "A100-40GB": 2.0} and not found.price_is_assumed


def test_estimate_says_when_no_role_is_on_the_card() -> None:
    found = estimate_cost("7B", "H200", 4, 32, device_map={"actor": "H100", "critic": "H100-80GB"})
    assert found.gpus == "4 x H100-80GB"
    assert "no role is on gpu=H200: device_map names H100-80GB" in found.assumptions


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("7b", "qwen2_7b"),
        ("7 B", "qwen2_7b"),
        ("qwen2_7b", "qwen2_7b"),
        ("Qwen/Qwen2-7B", "qwen2_7b"),
        ("Llama3-8B", "llama3_8b"),
    ],
)
def test_preset_of_size_reads_sizes_and_names(name: str, preset: str) -> None:
    assert preset_of_size(name) == preset


def test_estimate_takes_a_batch_beyond_the_assumed_data_set() -> None:
    assert estimate_cost("1.5B", "H200", 8, 20_000).steps_per_epoch == 1


def test_estimate_counts_cards_by_role() -> None:
    found = estimate_cost("7B", "H200", 1, 32, device_map={"actor": "4xH200", "critic": "2 x H100"})
    assert [(pool.gpu, pool.num_gpus) for pool in found.memory_gib] == [("H200-141GB", 4), ("H100-80GB", 2)]


def test_estimate_says_how_certain_its_seconds_are() -> None:
    for gpu in ("H200", "H100"):
        answer = estimate_cost("1.5B", gpu, 1, 32, algorithm="grpo")
        assert 0 < answer.step_spread_s < 0.6 * sum(answer.step_seconds.values())


def test_estimate_marks_placeholder_prices() -> None:
    found = estimate_cost("1.5B", "H200", 1, 32)
    assert found.price_is_assumed and any("placeholder prices" in line for line in found.assumptions)


def test_estimate_says_what_it_rests_on(small_run: CostEstimate) -> None:
    assert "model output" in small_run.calibration[-1]
    elsewhere = estimate_cost("1.5B", "L40S", 4, 32)
    assert "not measured on L40S-48GB" in elsewhere.calibration[0]


@pytest.mark.parametrize(
    "changes",
    [{"batch_size": 128}, {"response_tokens": 1024}, {"samples_per_prompt": 16}, {"model_size": "7B"}],
    ids=lambda changes: next(iter(changes)),
)
def test_estimate_of_more_work_takes_longer(changes: dict[str, object], small_run: CostEstimate) -> None:
    fields: dict[str, object] = {
        "model_size": "1.5B",
        "gpu_type": "H200",
        "num_gpus": 2,
        "batch_size": 64,
        "algorithm": "grpo",
    }
    more = estimate_cost(**(fields | changes))  # type: ignore[arg-type]
    assert more.recommended_strategy.step_s > small_run.recommended_strategy.step_s


REJECTED = {
    "gpu": ({"gpu_type": "H10O"}, r"gpu=H10O: no such GPU \(did you mean H100-80GB\?\)"),
    "size": ({"model_size": "7C"}, r"model_size=7C: no such size \(did you mean 7B\?\)"),
    "role": ({"device_map": {"critc": "H100"}}, r"device_map.critc: no such role \(did you mean critic\?\)"),
    "unused_role": ({"device_map": {"reference": "H100"}}, r"device_map.reference: this algorithm uses actor, critic only"),
    "uneven": ({"num_gpus": 3, "device_map": {"critic": "H100"}}, r"num_gpus=3 does not split over the 2 kinds"),
    "price": ({"price_per_hour": 0.0}, r"price_per_hour=0.0: must be a number above 0"),
    "nan_price": ({"price_per_hour": float("nan")}, r"price_per_hour=nan: must be a number above 0"),
    "no_cards": ({"num_gpus": 0}, r"num_gpus=0: must be a whole number above 0"),
    "no_prompts": ({"dataset_size": 0}, r"dataset_size=0: must be a whole number above 0"),
    "no_cards_of_a_kind": ({"device_map": {"critic": "0xH100"}}, r"device_map.critic=0xH100: no such GPU"),
    "role_without_cards": ({"device_map": {"reward": "H100"}}, r"device_map.reward: rewards are functions on the host"),
    "half_a_card": ({"num_gpus": 2.5}, r"num_gpus=2.5: must be a whole number above 0"),
    "text_for_a_count": ({"num_gpus": "4"}, r"num_gpus='4': must be a whole number above 0"),
    "text_for_a_price": ({"price_per_hour": "8.5"}, r"price_per_hour='8.5': must be a number above 0"),
    "number_for_a_size": ({"model_size": 7}, r"model_size=7: no such size \(did you mean 7B\?\)"),
    "size_between": ({"model_size": "13B"}, r"model_size=13B: no such size \(did you mean 8B\?\)"),
    "one_override": ({"overrides": "rollout.n=4"}, r"overrides='rollout.n=4': give a list"),
    "priced_card": ({"price_per_hour": {"H10": 1.0}}, r"price_per_hour=H10: no such GPU"),
    "degree": ({"overrides": ["actor.parallel.tensor=3"]}, r"TP3 does not divide 4 GPUs"),
    "mean": ({"overrides": ["data.max_prompt_lenght=3"]}, r"did you mean data.max_prompt_length\?"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_estimate_cost_rejects(case: str) -> None:
    changes, message = REJECTED[case]
    fields: dict[str, object] = {"model_size": "7B", "gpu_type": "H200", "num_gpus": 4, "batch_size": 32}
    with pytest.raises(ConfigError, match=message):
        estimate_cost(**(fields | changes))  # type: ignore[arg-type]


def test_resampling_lines_say_what_is_left_out_where_steps_sample_again() -> None:
    assert resampling_lines(compose(["algorithm=grpo"])) == ()
    (line,) = resampling_lines(compose(["algorithm=dapo"]))
    assert "adds as much again to rollout and rewards" in line
