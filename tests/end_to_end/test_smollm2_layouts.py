"""SmolLM2's odd shape, cut down: nine heads and three key/value heads rule out TP2; PP2 and PP3 train as one process does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from megatron_rl.cli.compose import compose_run
from megatron_rl.config.run import RunConfig
from megatron_rl.config.validate import validate
from megatron_rl.config.world import with_world
from megatron_rl.data.byte_tokenizer import write_byte_tokenizer
from tests.end_to_end.fixed_rollouts import NUM_PROMPTS, SAMPLES_PER_PROMPT
from tests.end_to_end.policies import write_policy
from tests.end_to_end.step_sessions import StepAnswer, take_steps
from tests.support.distributed import run_distributed

NUM_STEPS = 2
SMOLLM2 = ["experiment=smollm2_arithmetic", "trainer.device=cpu", "trainer.dtype=float32"]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, StepAnswer]:
    """The last step by number of pipeline stages."""
    folder: Path = tmp_path_factory.mktemp("smollm2")
    policy = write_policy(folder / "policy", "smollm2", num_layers=6, scale=0.06)
    tokenizer = write_byte_tokenizer(folder / "tokenizer")
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} + 1 =", "answer": str(i + 1)}) + "\n" for i in range(NUM_PROMPTS)))

    def run(stages: int) -> StepAnswer:
        overrides = [
            *SMOLLM2,
            f"model.path='{policy}'",
            f"model.tokenizer_path='{tokenizer}'",
            "data.reasoning_gym=null",
            f"data.train_files=['{prompts}']",
            f"data.train_batch_size={NUM_PROMPTS}",
            f"rollout.n={SAMPLES_PER_PROMPT}",
            "data.max_prompt_length=64",
            "trainer.test_freq=-1",
            "actor.ppo_max_token_len_per_gpu=256",
            "actor.optim.eps=0.01",  # with a tiny one Adam makes full-size steps of rounding noise
            f"actor.parallel.pipeline={stages}",
        ]
        return run_distributed(stages, take_steps, {"run": _config(stages, overrides)}, folder / f"pp{stages}", NUM_STEPS)[0][
            "run"
        ]

    return {stages: run(stages) for stages in (1, 2, 3)}


def _config(world_size: int, overrides: list[str]) -> RunConfig:
    config = compose_run(overrides)
    assert not validate(config, task="train", world_size=world_size)
    return with_world(config, world_size, 0)


@pytest.mark.parametrize("stages", [2, 3])
def test_first_steps_invariant_to_pp(stages: int, answers: dict[int, StepAnswer]) -> None:
    expected, actual = answers[1].metrics, answers[stages].metrics
    assert actual.keys() == expected.keys()
    assert expected["actor/grad_norm"] > 0
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("stages", [2, 3])
def test_updated_weights_invariant_to_pp(stages: int, answers: dict[int, StepAnswer]) -> None:
    expected = load_file(answers[1].exported / "model.safetensors")
    actual = load_file(answers[stages].exported / "model.safetensors")
    for name, weight in expected.items():
        np.testing.assert_allclose(actual[name], weight, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("actor.parallel.tensor=2", "num_key_value_heads=3"),
        ("actor.parallel.tensor=2", "legal for training: 1, 3"),
        ("actor.parallel.tensor=2", "actor.parallel.pipeline cuts the layers instead: 2, 3, 5, 6, 10, 15, 30"),
        ("rollout.tensor_parallel_size=2", "legal for the rollout engine: 1, 3"),
    ],
    ids=["reason", "tensor", "pipeline", "rollout"],
)
def test_tensor_degree_of_two_rejects_with_layouts_that_work(override: str, says: str) -> None:
    problems = validate(compose_run([*SMOLLM2, "model.tokenizer_path=x", override]), task="train", world_size=2)
    assert any(says in problem for problem in problems), problems
